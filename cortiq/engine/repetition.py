"""Detection of texts that repeat themselves."""

from __future__ import annotations

from collections.abc import Sequence

REPEATS = 3
"""A block must be there this often to be a loop."""


def shortest_period(tail: Sequence[int]) -> int:
    """Return the length of the shortest block whose repetition, perhaps cut, is this tail.

    From the prefix function: length less the longest border (Knuth, Morris, Pratt 1977).
    """
    border = [0] * len(tail)
    for i in range(1, len(tail)):
        length = border[i - 1]
        while length and tail[i] != tail[length]:
            length = border[length - 1]
        border[i] = length + (tail[i] == tail[length])
    return len(tail) - border[-1] if tail else 0


def is_looping(generated: Sequence[int], tokens: int) -> bool:
    """Return whether the last `tokens` ids are one block, three times or more."""
    if not 0 < tokens <= len(generated):
        return False
    return shortest_period(generated[-tokens:]) * REPEATS <= tokens
