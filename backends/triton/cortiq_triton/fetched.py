"""Answers of a batch on their way to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cortiq.backend import Argmax, Digest, Draw, DrawnLogit, Top, Want
from cortiq.backend.columns import Brought, Columns
from cortiq.numerics.quantise import Quantised
from cortiq_triton.call import Shared
from cortiq_triton.rows import Rows


class CopiedAnswers:
    """Tensors on their way to the host."""

    def __init__(self, answers: Any) -> None:
        self.width = answers.width if isinstance(answers, Rows) else 0
        several = answers[:3] if isinstance(answers, Rows) else answers
        parts = several if isinstance(several, tuple) else (several,)
        self.parts = [copied_to_host(part) for part in parts]

    def row(self, want: Want, place: int) -> Any:
        """An answer in the form that `cortiq.backend` gives it."""
        first, *others = (part[place].numpy() for part in self.parts)
        if isinstance(want, Argmax | Draw):
            return int(first)
        if isinstance(want, Digest):
            return tuple(int(word) for word in first.view(np.uint32))
        if isinstance(want, DrawnLogit):
            return first[()], others[0][()]
        if isinstance(want, Top):
            return first, others[0], others[1].reshape(1)
        if self.width:
            q = (first.astype(np.int32) << 8) + others[0]
            return Quantised(q[..., : self.width], others[1][()])
        return first.copy() if first.ndim else first[()]


def copied_to_host(part: torch.Tensor) -> torch.Tensor:
    """Start copying a tensor to pinned memory; return the copy."""
    if part.device.type == "cpu":
        return part.clone()
    host = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
    return host.copy_(part, non_blocking=True)


class FetchedColumns:
    """Values of all rows of a batch, on their way to the host, or held on the device.

    Attributes
    ----------
    parts : by sequence, the values of its rows: tensors on the host, or `DeviceRows`.
    """

    drawing: frozenset[int] = frozenset()

    def __init__(
        self,
        shared: Shared,
        cuts: Sequence[slice],
        flags: CopiedAnswers,
        parts: Sequence[Mapping[Want, Any]],
    ) -> None:
        self.parts, self._shared, self._cuts, self._flags = parts, shared, cuts, flags
        self._event = _event_behind(flags)

    def read(self) -> list[Sequence[Brought] | None]:
        """Wait; return what each sequence brings, None for one with a fault."""
        self._shared.wait(self._event)
        flags = self._flags.parts[0].numpy() != 0
        found = ({want: _values(rows) for want, rows in part.items()} for part in self.parts)
        return [
            None if flags[cut].any() else Columns(arrays)
            for cut, arrays in zip(self._cuts, found, strict=True)
        ]


def _values(rows: Any) -> Any:
    """Return an array of a tensor on the host; what is held is brought as it is."""
    return rows.numpy() if isinstance(rows, torch.Tensor) else rows


def _event_behind(flags: CopiedAnswers) -> torch.cuda.Event | None:
    """Return an event behind the copies to the host, which a batch's flags are the last of."""
    if not flags.parts[0].is_pinned():
        return None
    event = torch.cuda.Event()
    event.record()
    return event


class Fetched:
    """Requested outputs of a batch's rows, on their way to the host.

    Attributes
    ----------
    drawing : places in the batch of the rows that draw an id.
    """

    def __init__(
        self,
        shared: Shared,
        rows: int,
        cuts: Sequence[slice],
        flags: CopiedAnswers,
        there: Sequence[tuple[list[tuple[int, Want]], CopiedAnswers]],
        drawing: frozenset[int],
    ) -> None:
        self.drawing = drawing
        self._shared, self._rows, self._cuts = shared, rows, cuts
        self._flags, self._there = flags, there
        self._event = _event_behind(flags)

    def read(self) -> list[Sequence[Brought] | None]:
        """Wait; return what each sequence brings, None for one with a fault."""
        self._shared.wait(self._event)
        flags = self._flags.parts[0].numpy() != 0
        found: list[dict[Want, Any]] = [{} for _ in range(self._rows)]
        for asking, copied in self._there:
            for place, (at, want) in enumerate(asking):
                found[at][want] = copied.row(want, place)
        return [None if flags[cut].any() else found[cut] for cut in self._cuts]
