"""Native ops that answer the wants of rows, and the reading of their answers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.backend import Draw
from cortiq.backend.requests import Ask, draw_numbers
from cortiq_cpu import arguments
from cortiq_cpu.arguments import OpKind, address
from cortiq_cpu.native import NativeOp

F32 = np.float32
MOST_KEPT = (1 << 31) - 1
WORDS = 4


def parts_of(ask: Ask | None) -> tuple[Ask, ...]:
    """List the ops that answer one ask: the largest logits need the logarithm of their sum."""
    if ask is None:
        return ()
    return (ask, Ask("log_sum_exp", ask.value)) if ask.kind == "top" else (ask,)


KINDS = {
    "argmax": OpKind.ARGMAX,
    "draw": OpKind.DRAW,
    "top": OpKind.TOP,
    "log_sum_exp": OpKind.LOG_SUM_EXP,
    "digest": OpKind.DIGEST,
}


@dataclass
class AnswerOp:
    """An op that answers for some of a set's rows, and its arrays.

    Attributes
    ----------
    rows : int32, the rows looked at. count : int32 [1], how many.
    """

    ask: Ask
    args: arguments.AnswerArgs
    rows: np.ndarray
    count: np.ndarray
    faults: np.ndarray
    index: np.ndarray
    values: np.ndarray
    words: np.ndarray
    draws: Any

    @classmethod
    def bound(cls, ask: Ask, place: int, width: int, capacity: int, workspace: int) -> AnswerOp:
        """Make the op for a value at this address, of rows of `width` floats."""
        each = max(1, ask.number) if ask.kind == "top" else 1
        rows, count = np.zeros(capacity, np.int32), np.zeros(1, np.int32)
        index, values = np.zeros((capacity, each), np.int32), np.zeros((capacity, each), F32)
        words, draws = np.zeros((capacity, WORDS), np.uint32), (arguments.DrawArgs * capacity)()
        args = arguments.AnswerArgs(
            x=place,
            from_rows=address(rows),
            draws=ctypes.addressof(draws),
            index=address(index),
            values=address(values),
            words=address(words),
            workspace=workspace,
            x_stride=width,
            width=width,
            count=ask.number,
        )
        faults = np.zeros(capacity, np.uint8)
        return cls(ask, args, rows, count, faults, index, values, words, draws)

    def op(self) -> NativeOp:
        """Return the native op."""
        kind = int(KINDS[self.ask.kind])
        places = address(self.count), address(self.faults), ctypes.addressof(self.args)
        return NativeOp(kind, 0, *places)

    def start(self, rows: Sequence[int]) -> None:
        """Set the rows to answer for."""
        self.count[0] = len(rows)
        self.rows[: len(rows)] = rows
        self.faults[: len(rows)] = 0

    def answer(self, place: int) -> Any:
        """Return the answer for the row in this place."""
        if self.ask.kind == "top":
            return self.index[place].copy(), self.values[place].copy()
        if self.ask.kind == "log_sum_exp":
            return self.values[place].copy()
        if self.ask.kind == "digest":
            return tuple(int(word) for word in self.words[place])
        return int(self.index[place, 0])


def fill_draw(draw: Any, want: Draw, history: np.ndarray | None, position: int) -> object:
    """Fill in a row's sampling parameters; keep the returned arrays alive until it is drawn.

    Parameters
    ----------
    draw : the `arguments.DrawArgs` to fill.
    history : ids that penalties look at; None when none is on.
    position : that of the drawn token.
    """
    numbers = draw_numbers(want, history, position)
    mask = None if numbers.mask is None else np.frombuffer(numbers.mask, np.uint8)
    given = numbers._asdict() | {"mask": mask}
    given["top_k"] = min(numbers.top_k, MOST_KEPT)  # as many ids as there are, and more, keep all
    draw.bias_count, draw.seen_count = len(numbers.bias_ids), len(numbers.seen_ids)
    for name, value in given.items():
        pointer = name in ("bias", "bias_ids", "seen_ids", "seen_counts", "mask")
        setattr(draw, name, address(value) if pointer else value)
    return numbers, mask
