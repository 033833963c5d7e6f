"""What rows want of a value, as stages, and what these bring back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from cortiq.backend import Argmax, Digest, Draw, Top, Want
from cortiq_wgpu.binder import Binder
from cortiq_wgpu.source import Stage, bits, stage
from cortiq_wgpu.wide import MOST_TURNS

F32 = np.float32
WORD = (1 << 32) - 1
SHARE = 1 << 24
BLOCK_WORDS = 18
"""Words of a draw's block before its lists."""


class Ask(NamedTuple):
    """One kind of answer about one value: the key of a stage.

    `number` is how many of `Top`, and which of the draws of its row for a draw.
    """

    kind: str
    value: str
    number: int = 0

    @property
    def words(self) -> int:
        """Words of an answer."""
        return {"digest": 4, "top": 1 + 2 * self.number}.get(self.kind, 1)


@lru_cache(maxsize=128)  # masks have kilobytes, and every row may have its own
def asked_by(wants: tuple[Want, ...]) -> tuple[tuple[Want, Ask | None], ...]:
    """What has to be computed for each want of a row; named values are only looked up.

    The draws of one row are numbered, since a stage draws once from each row.
    """
    draws = [want for want in wants if isinstance(want, Draw)]
    return tuple((want, _ask(want, draws)) for want in wants)


def _ask(want: Want, draws: list[Draw]) -> Ask | None:
    if isinstance(want, Digest):
        return Ask("digest", want.name)
    if isinstance(want, Draw):
        return Ask("draw", want.name, draws.index(want))
    if isinstance(want, Top):
        return Ask("top", "logits", want.count)
    return Ask("argmax", want.name) if isinstance(want, Argmax) else None


STAGES = {"argmax": "pick", "digest": "digest", "top": "top", "draw": "draw"}


def answering(
    binder: Binder, ask: Ask, out: int, work: int, bit: int
) -> list[tuple[Stage, Mapping[str, int]]]:
    """What answers for all rows of a set: dispatches of one stage each.

    Parameters
    ----------
    out : where answers go. work : where a draw keeps its keys and weights. bit : of the rows that
        want this `top`.
    """
    n = binder.size(ask.value)
    text, values = stage(STAGES[ask.kind]), {"x": binder.at(ask.value), "n": n, "out": out}
    if ask.kind == "top":
        step = max(1, MOST_TURNS // (-(-n // 1024) + 16))
        values |= {"count": ask.number, "bit": bit, "step": step}
        return [(text, {**values, "begin": begin}) for begin in range(0, ask.number, step)]
    if ask.kind == "draw":
        values |= {"number": ask.number, "work": work}
    return [(text, values)]


def answer(ask: Ask, words: np.ndarray) -> Any:
    """What a row gets from its words."""
    if ask.kind == "digest":
        return tuple(int(word) for word in words)
    if ask.kind == "top":
        ids, values = words[1 : 1 + ask.number], words[1 + ask.number :]
        return ids.astype(np.int32), values.view(F32).copy(), words[:1].view(F32).copy()
    return int(words[0])


def draw_block(want: Draw, history: Sequence[int] | None, position: int, place: int) -> np.ndarray:
    """The words of a draw, as `stage_draw` reads them from `place` on.

    Parameters
    ----------
    history : ids that penalties look at; None when none is on.
    position : that of the drawn token.
    """
    s = want.sampling
    seen, counts = np.unique(np.array(history or [], np.uint32), return_counts=True)
    ids = np.array(list(s.logit_bias), np.uint32)
    bias = np.array(list(s.logit_bias.values()), np.float64).astype(F32)
    mask = np.zeros(0, np.uint32)
    if want.mask is not None:
        mask = np.frombuffer(want.mask + bytes(-len(want.mask) % 4), "<u4")
    bias_at = place + BLOCK_WORDS
    seen_at = bias_at + 2 * len(ids)
    mask_at = seen_at + 2 * len(seen)
    repetition = F32(s.repetition_penalty)
    head = [
        int(s.temperature == 0), bits(F32(1) / F32(s.temperature or 1)), bits(repetition),
        bits(F32(1) / repetition), bits(s.presence_penalty), bits(s.frequency_penalty),
        min(s.top_k, WORD), round(s.top_p * SHARE) if s.top_p < 1 else 0, round(s.min_p * SHARE),
        s.seed & WORD, s.seed >> 32, want.choice, position, len(ids), bias_at, len(seen), seen_at,
        mask_at if len(mask) else 0,
    ]  # fmt: skip
    lists = ids, bias.view(np.uint32), seen, counts.astype(np.uint32), mask
    return np.concatenate([np.array(head, np.uint32), *lists])


def penalises(want: Draw) -> bool:
    """Whether the draw looks at the history."""
    s = want.sampling
    return s.repetition_penalty != 1 or s.presence_penalty != 0 or s.frequency_penalty != 0
