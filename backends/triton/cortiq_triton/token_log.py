"""Ids of a sequence on the device, where a step's penalties read what the step before drew."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cortiq_triton.draw_numbers import Stored
from cortiq_triton.language import pow2

FEWEST = 256
"""Ids that there is room for at least."""
UNKNOWN = -1
"""A token that was drawn on the device and is not known to the host yet."""


class TokenLog:
    """The first ids of a sequence, as far as some step needed them.

    Attributes
    ----------
    length : ids that are there, or that a step under way writes; whoever forgets rows lowers it.
    """

    def __init__(self) -> None:
        self.length = 0
        self._ids: torch.Tensor | None = None

    def lacks(self, tokens: Sequence[int]) -> bool:
        """Check whether ids are lacking that the host does not know yet."""
        return UNKNOWN in tokens[self.length :]

    def extended(self, tokens: Sequence[int], device: str) -> Stored:
        """Upload the ids that are lacking, and make room for one more, which a step writes.

        Parameters
        ----------
        tokens : every id of the sequence; those that `lacks` looks at are known.
        """
        count = len(tokens)
        if self._ids is None or len(self._ids) <= count:
            ids = torch.zeros(max(FEWEST, pow2(count + 1)), dtype=torch.int32, device=device)
            if self._ids is not None:
                ids[: self.length] = self._ids[: self.length]
            self._ids = ids
        if self.length < count:
            host = torch.tensor(tokens[self.length :], dtype=torch.int32)
            host = host.pin_memory() if device != "cpu" else host
            self._ids[self.length : count].copy_(host, non_blocking=True)
        self.length = count + 1
        return Stored(self._ids.data_ptr(), count + 1)
