"""What rows want of a value, as native ops, and what these ops bring back."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from cortiq.backend import Argmax, Digest, Draw, Top, Want
from cortiq_cpu import arguments
from cortiq_cpu.arguments import Kind, address
from cortiq_cpu.native import Op

F32 = np.float32
WORD = (1 << 32) - 1
SHARE = 1 << 24
MOST_KEPT = (1 << 31) - 1
"""top_p and min_p are used in units of 2⁻²⁴."""
WORDS = 4


class Ask(NamedTuple):
    """One kind of answer about one value: the key of an op.

    `number` is how many of `Top`, and which of the draws of its row for a draw.
    """

    kind: str
    value: str
    number: int = 0


@lru_cache(maxsize=128)  # masks have kilobytes, and every row may have its own
def asked_by(wants: tuple[Want, ...]) -> tuple[tuple[Want, tuple[Ask, ...]], ...]:
    """What has to be computed for each want of a row; named values are only looked up.

    The draws of one row are numbered, since an op draws once from each row.
    """
    draws = [want for want in wants if isinstance(want, Draw)]
    return tuple((want, _asks(want, draws)) for want in wants)


def _asks(want: Want, draws: list[Draw]) -> tuple[Ask, ...]:
    if isinstance(want, Digest):
        return (Ask("digest", want.name),)
    if isinstance(want, Draw):
        return (Ask("draw", want.name, draws.index(want)),)
    if isinstance(want, Top):
        return Ask("top", "logits", want.count), Ask("log_sum_exp", "logits")
    return (Ask("argmax", want.name),) if isinstance(want, Argmax) else ()


KINDS = {
    "argmax": Kind.ARGMAX,
    "draw": Kind.DRAW,
    "top": Kind.TOP,
    "log_sum_exp": Kind.LOG_SUM_EXP,
    "digest": Kind.DIGEST,
}


@dataclass
class Asked:
    """An op that answers for some of a set's rows, and its arrays.

    Attributes
    ----------
    rows : int32, the rows looked at. count : int32 [1], how many.
    """

    ask: Ask
    args: arguments.Tail
    rows: np.ndarray
    count: np.ndarray
    faults: np.ndarray
    index: np.ndarray
    values: np.ndarray
    words: np.ndarray
    draws: Any

    @classmethod
    def bound(cls, ask: Ask, place: int, width: int, capacity: int, workspace: int) -> Asked:
        """Bound to a value at this address, of rows of `width` floats."""
        each = max(1, ask.number) if ask.kind == "top" else 1
        rows, count = np.zeros(capacity, np.int32), np.zeros(1, np.int32)
        index, values = np.zeros((capacity, each), np.int32), np.zeros((capacity, each), F32)
        words, draws = np.zeros((capacity, WORDS), np.uint32), (arguments.Draw * capacity)()
        args = arguments.Tail(
            x=place, from_rows=address(rows), draws=ctypes.addressof(draws),
            index=address(index), values=address(values), words=address(words),
            workspace=workspace, x_stride=width, width=width, count=ask.number,
        )  # fmt: skip
        faults = np.zeros(capacity, np.uint8)
        return cls(ask, args, rows, count, faults, index, values, words, draws)

    def op(self) -> Op:
        """The op."""
        kind = int(KINDS[self.ask.kind])
        places = address(self.count), address(self.faults), ctypes.addressof(self.args)
        return Op(kind, 0, *places)

    def start(self, rows: Sequence[int]) -> None:
        """Look at these rows."""
        self.count[0] = len(rows)
        self.rows[: len(rows)] = rows
        self.faults[: len(rows)] = 0

    def answer(self, place: int) -> Any:
        """What the op brought for the row in this place."""
        if self.ask.kind == "top":
            return self.index[place].copy(), self.values[place].copy()
        if self.ask.kind == "log_sum_exp":
            return self.values[place].copy()
        if self.ask.kind == "digest":
            return tuple(int(word) for word in self.words[place])
        return int(self.index[place, 0])


class DrawArrays(NamedTuple):
    """What a draw's struct points at."""

    bias: np.ndarray
    bias_ids: np.ndarray
    seen_ids: np.ndarray
    seen_counts: np.ndarray
    mask: np.ndarray | None


def fill_draw(draw: Any, want: Draw, history: np.ndarray | None, position: int) -> DrawArrays:
    """Write how a row is drawn from; the arrays returned must live until it is.

    Parameters
    ----------
    draw : the `arguments.Draw` to fill.
    history : ids that penalties look at; None when none is on.
    position : that of the drawn token.
    """
    s = want.sampling
    ids = np.array(list(s.logit_bias), np.int32)
    bias = np.array(list(s.logit_bias.values()), np.float64).astype(F32)
    empty = np.zeros(0, np.int32)
    seen, counts = (empty, empty) if history is None else np.unique(history, return_counts=True)
    mask = None if want.mask is None else np.frombuffer(want.mask, np.uint8)
    arrays = DrawArrays(bias, ids, seen.astype(np.int32), counts.astype(np.int32), mask)
    for name, array in zip(DrawArrays._fields, arrays, strict=True):
        setattr(draw, name, address(array))
    draw.bias_count, draw.seen_count = len(ids), len(arrays.seen_ids)
    draw.inverse_temperature = F32(1) / F32(s.temperature) if s.temperature else F32(0)
    draw.repetition = F32(s.repetition_penalty)
    draw.inverse_repetition = F32(1) / F32(s.repetition_penalty)
    draw.presence, draw.frequency = F32(s.presence_penalty), F32(s.frequency_penalty)
    draw.top_k = min(s.top_k, MOST_KEPT)  # as many ids as there are, and more, keep all
    draw.top_p, draw.min_p = round(s.top_p * SHARE), round(s.min_p * SHARE)
    draw.top_p_on = s.top_p < 1
    draw.seed_low, draw.seed_high = s.seed & WORD, s.seed >> 32
    draw.choice, draw.position = want.choice, position
    return arrays


def penalises(want: Draw) -> bool:
    """Whether the draw looks at the history."""
    s = want.sampling
    return s.repetition_penalty != 1 or s.presence_penalty != 0 or s.frequency_penalty != 0
