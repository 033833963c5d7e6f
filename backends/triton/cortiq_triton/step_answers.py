"""Answers of a step's rows: launched or captured for all alike, read in one copy.

A row's answer is words of 32 bits: fault flag, token, digest (4), the drawn token's logit and
logsumexp, then ids, values and logsumexp of the most likely tokens, and values asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from cortiq.backend import Argmax, Digest, Draw, DrawnLogit, Named, Row, Top, Want
from cortiq.backend.wants import value_of
from cortiq.numerics.contract import TILE
from cortiq_triton import draw, tail, top_logprobs
from cortiq_triton.draw_numbers import (
    Features,
)
from cortiq_triton.rowset import RowBuffer

LOGITS = "logits"
TOKEN, DIGEST, LOGIT, TOPS = 1, slice(2, 6), slice(6, 8), 8
"""Columns of an answer."""
MOST_TOP = 256
"""Of the most likely tokens that a captured step brings."""


@dataclass(frozen=True)
class Asked:
    """Requests of any row of a step; with equal ones, steps are equal launches.

    Attributes
    ----------
    draws : what draws use; None where all rows want the argmax. tokens : whether any draws.
    digests : whether there are digests. top : how many of the most likely, a power of two.
    logits : whether the drawn tokens' logits are wanted; scaled : of logits with a calibration.
    named : values asked for by name.
    """

    draws: Features | None
    tokens: bool
    digests: bool
    top: int
    logits: bool
    scaled: bool
    named: tuple[str, ...] = ()


def names_of(wants: Sequence[Want]) -> tuple[str, ...]:
    """Return the values that wants ask for by name."""
    return tuple(sorted({want.name for want in wants if isinstance(want, Named)}))


def answerable(row: Row) -> bool:
    """Check whether a step can answer a row's wants: something of its logits, one token at most,
    and values by name, if these are floats.
    """
    drawing = 0
    for want in row.wants:
        if isinstance(want, Draw | Argmax):
            drawing += 1
            if want.name != LOGITS or (isinstance(want, Draw) and want.history is not None):
                return False
        elif isinstance(want, Top):
            if not (type(want.count) is int and want.count <= MOST_TOP):
                return False
        elif not (isinstance(want, DrawnLogit | Named) or want == Digest(LOGITS)):
            return False
    return drawing < 2 and any(value_of(want) == LOGITS for want in row.wants)


class StepAnswers:
    """Answers of one kind of step, over the logits that a run leaves.

    Attributes
    ----------
    packed : int32 [rows, words], once launched.
    """

    def __init__(
        self, run: Any, asked: Asked, arrays: Mapping[str, np.ndarray], pages: int
    ) -> None:
        self.run, self.asked, self._longest = run, asked, pages * TILE
        self._buffer = RowBuffer(run.shared.device)
        self.replay = self.launch
        self.fill(arrays)
        self.there = self._buffer.views(arrays) if arrays else {}

    def fill(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Upload what rows ask for."""
        if arrays:
            self._buffer.fill(arrays)

    def launch(self) -> None:
        """Compute all answers; what was drawn is also where the next step looks for it."""
        run, asked = self.run, self.asked
        group = run.all if LOGITS in run.all.values else run.tail
        x, faults = group.values[LOGITS], run.all.faults
        count = len(x)
        tokens = self._tokens(x, faults)
        parts = [tokens, tail.digests(x) if asked.digests else tokens.new_zeros((count, 4))]
        ordered = top_logprobs.ordered(x, asked.top) if asked.top or asked.logits else None
        found = [] if ordered is None else [*top_logprobs.sums_of(ordered, faults, tokens)]
        total = found[-1:]
        if ordered is not None and asked.scaled:
            scales = self.there["scales"].view(torch.float32)
            found = [*top_logprobs.sums_of(ordered, faults, tokens, scales)]
        parts += found or [tokens.new_zeros((count, 2))]
        if ordered is not None and asked.top:
            parts += [*top_logprobs.most_likely(ordered, asked.top), *total]
        parts += [self._value(name) for name in asked.named]
        parts = [run.shared.peers.worst(faults), *parts]
        columns = [part.view(torch.int32).reshape(count, -1) for part in parts]
        self.packed = torch.cat(columns, dim=1)
        run.drawn[:count] = tokens

    def _value(self, name: str) -> torch.Tensor:
        run = self.run
        return (run.all if name in run.all.values else run.tail).values[name].contiguous()

    def _named(self, words: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of values asked for by name, of their words."""
        found, at = {}, TOPS + (2 * self.asked.top + 1 if self.asked.top else 0)
        for name in self.asked.named:
            shape = self.run.plan.graph.values[name].shape
            part = words[:, at : at + prod(shape)].view(np.float32)
            found[name], at = part.reshape(len(words), *shape), at + prod(shape)
        return found

    def _tokens(self, x: torch.Tensor, faults: torch.Tensor) -> torch.Tensor:
        run, asked = self.run, self.asked
        if not asked.tokens:
            return torch.full((len(x),), -1, dtype=torch.int32, device=x.device)
        if asked.draws is None:
            return tail.argmax(x)
        counters = run.shared.counters
        return draw.draw(x, asked.draws, self.there, faults, counters, self._longest, run.ids)

    def read(self, words: np.ndarray, wants: Sequence[tuple[Want, ...]]) -> list[RowAnswers]:
        """Return each row's answers, of their words: int32 [rows, words]."""
        n = self.asked.top
        tokens = words[:, TOKEN].tolist()
        digests = [tuple(row) for row in words[:, DIGEST].view(np.uint32).tolist()]
        logits = words[:, LOGIT].view(np.float32)
        ids, values = words[:, TOPS : TOPS + n], words[:, TOPS + n : TOPS + 2 * n].view(np.float32)
        totals = words[:, TOPS + 2 * n : TOPS + 2 * n + 1].view(np.float32)
        named = self._named(words)

        def answer(want: Want, row: int) -> Any:
            if isinstance(want, Argmax | Draw):
                return tokens[row]
            if isinstance(want, Digest):
                return digests[row]
            if isinstance(want, DrawnLogit):
                return tuple(logits[row])
            if isinstance(want, Named):
                return named[want.name][row].copy()
            assert isinstance(want, Top)
            return ids[row, : want.count], values[row, : want.count], totals[row]

        return [RowAnswers(mine, answer, row) for row, mine in enumerate(wants)]


class RowAnswers(Mapping[Want, Any]):
    """Answers of a row, made of the columns of its step when somebody looks.

    Wants are compared, the same object first: hashing one takes longer than all the rest.
    """

    __slots__ = ("_answer", "_row", "_wants")

    def __init__(
        self, wants: tuple[Want, ...], answer: Callable[[Want, int], Any], row: int
    ) -> None:
        self._wants, self._answer, self._row = wants, answer, row

    def __getitem__(self, want: Want) -> Any:
        for known in self._wants:
            if known is want:
                return self._answer(known, self._row)
        if want in self._wants:
            return self._answer(want, self._row)
        raise KeyError(want)

    def get(self, want: Want, default: Any = None) -> Any:
        """Return the answer to a want, or the default."""
        for known in self._wants:
            if known is want:
                return self._answer(known, self._row)
        return self._answer(want, self._row) if want in self._wants else default

    def __iter__(self) -> Iterator[Want]:
        return iter(dict.fromkeys(self._wants))

    def __len__(self) -> int:
        return len(dict.fromkeys(self._wants))
