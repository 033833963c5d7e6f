"""Requests of a step's rows together, and the arrays that kernels read of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cortiq.backend import Argmax, Digest, Draw, DrawnLogit, Row, Top, Want
from cortiq.backend.answers import drawing_want
from cortiq.errors import BackendError
from cortiq.numerics.masks import Mask, mask_fault
from cortiq_triton.draw_numbers import (
    HISTORY,
    MASK,
    NOTHING,
    POSITION,
    Drawing,
    Features,
    Stored,
    arrays_of,
)
from cortiq_triton.language import pow2
from cortiq_triton.plan import Plan
from cortiq_triton.step_answers import LOGITS, Asked, names_of


def ask(
    rows: Sequence[Row], histories: Mapping[int, Stored], width: int
) -> tuple[Asked, dict[str, np.ndarray]]:
    """Return the requests of rows, and the arrays that kernels read of them.

    Parameters
    ----------
    histories : ids of the rows whose draws look at them, by row. width : ids of a row of logits.
    """
    wants = [want for row in rows for want in row.wants]
    drawing = [drawing_want(row.wants) for row in rows]
    features: Features | None = None
    arrays: dict[str, np.ndarray] = {}
    if any(isinstance(want, Draw) for want in drawing):
        features, arrays = arrays_of(
            [
                Drawing(want or Argmax(), at, at, row.position + getattr(want, "ahead", 1),
                        histories.get(at, NOTHING))
                for at, (row, want) in enumerate(zip(rows, drawing, strict=True))
            ],
            width,
        )  # fmt: skip
    counts = [want.count for want in wants if isinstance(want, Top)]
    calibrations = {want.calibration for want in wants if isinstance(want, DrawnLogit)}
    scaled = bool(calibrations - {1.0})
    if scaled:
        arrays["scales"] = np.array([_scale(row) for row in rows], np.float32).view(np.int32)
    asked = Asked(
        features, any(want is not None for want in drawing),
        any(isinstance(want, Digest) for want in wants),
        min(width, pow2(max(counts))) if counts else 0, bool(calibrations), scaled,
        names_of(wants),
    )  # fmt: skip
    return asked, arrays


class Asking:
    """Requests of a step's rows; in later steps of the same wants only numbers differ.

    Attributes
    ----------
    wants : of each row; held, so that no others can be at their addresses.
    """

    def __init__(
        self,
        wants: Sequence[tuple[Want, ...]],
        positions: Sequence[int],
        histories: Mapping[int, Stored],
        width: int,
    ) -> None:
        self.wants, self._width = wants, width
        pairs = zip(positions, wants, strict=True)
        rows = [Row(None, position, 0, mine) for position, mine in pairs]  # type: ignore[arg-type]
        self.asked, self._arrays = ask(rows, histories, width)
        drawing = map(drawing_want, wants)
        self._ahead = np.array([getattr(want, "ahead", 1) for want in drawing], np.int64)

    def arrays(
        self, positions: Sequence[int], histories: Mapping[int, Stored]
    ) -> dict[str, np.ndarray]:
        """Return the arrays of a step: to be used before the next call."""
        lines = self._arrays.get("lines")
        if lines is not None:
            after = np.array(positions, np.int64) + self._ahead
            lines.view(np.uint32)[:, POSITION] = after & 0xFFFFFFFF
            for at, stored in histories.items():
                lines[at, HISTORY] = stored.length
                self._arrays["histories"][at] = stored.address
        return self._arrays

    def put_masks(self, rows: Sequence[int], masks: Sequence[Mask | None]) -> None:
        """Write masks that came later, of rows that wait for them, into the arrays.

        Raises
        ------
        BackendError : there are more or fewer, or one is none.
        """
        if len(rows) != len(masks):
            raise BackendError(f"{len(masks)} masks for {len(rows)} draws that wait for one")
        if not rows:
            return
        lines, there = self._arrays["lines"], self._arrays["masks"].view(np.uint8)
        for at, mask in zip(rows, masks, strict=True):
            line = there[lines[at, MASK]]
            line[:] = 0xFF if mask is None else 0
            if mask is not None:
                fault = mask_fault(mask, self._width)
                if fault:
                    raise BackendError(f"{fault}, supplied for row {at}")
                line[: len(mask)] = np.frombuffer(mask, np.uint8)[: len(line)]


class Askings:
    """Requests by wants, as rows had them before; the oldest is forgotten first."""

    MOST = 16

    def __init__(self) -> None:
        self._held: dict[tuple[int, ...], Asking] = {}

    def of(
        self,
        plan: Plan,
        wants: Sequence[tuple[Want, ...]],
        positions: Sequence[int],
        histories: Mapping[int, Stored],
    ) -> Asking:
        """Return what rows of a plan ask for, by the identity of their wants."""
        key = id(plan), *map(id, wants)
        asking = self._held.get(key)
        if asking is None:
            if len(self._held) >= self.MOST:
                del self._held[next(iter(self._held))]
            width = plan.graph.values[LOGITS].shape[-1]
            asking = self._held[key] = Asking(wants, positions, histories, width)
        return asking


def _scale(row: Row) -> np.float32:
    found = (want.scale for want in row.wants if isinstance(want, DrawnLogit))
    return next(found, np.float32(1))
