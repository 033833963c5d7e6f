"""Stages that answer the wants of rows, and the reading of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from cortiq.backend import Draw, DrawnLogit, Want
from cortiq.backend.requests import WORD, Ask, draw_numbers
from cortiq_wgpu.binder import DispatchBinder
from cortiq_wgpu.dispatch import MOST_TURNS
from cortiq_wgpu.shader_source import Stage, bits, source, stage

BLOCK_WORDS = 18
"""Words of a draw's block before its lists."""


def words_of(ask: Ask) -> int:
    """Count the words of an answer."""
    return {"digest": 4, "drawn": 2, "top": 1 + 2 * ask.number}.get(ask.kind, 1)


STAGES = {"argmax": "pick", "digest": "digest", "drawn": "drawn", "top": "top"}
PHASES = {"adjust": True, "weigh": True, "bound": False, "pick": True, "end": False}
"""Dispatches of a draw, and whether several workgroups share a row."""
PART, MOST_PARTS = 2048, 64
"""Values of a row that are worth a workgroup, and the most workgroups of a row."""


def _parts(n: int) -> int:
    """Return the workgroups that share a row of a draw."""
    return min(MOST_PARTS, -(-n // PART))


def draw_words(n: int) -> int:
    """Count the words of memory that the draw of a row takes."""
    return 3 * n + 4 + 3 * _parts(n)


def answering(
    binder: DispatchBinder, ask: Ask, out: int, work: int, bit: int
) -> list[tuple[Stage, Mapping[str, int], int]]:
    """Make the dispatches that answer for all rows of a set: stage, parameters, workgroups.

    Parameters
    ----------
    out : where answers go. work : where a draw keeps its keys and weights. bit : of the rows that
        want this `top`.
    """
    n = binder.size(ask.value)
    values = {"x": binder.at(ask.value), "n": n, "out": out}
    if ask.kind == "draw":
        parts = _parts(n)
        values |= {"number": ask.number, "work": work, "parts": parts, "each": draw_words(n)}
        return [
            (
                stage("draw", PHASE=phase, SEARCH=source("draw_search")),
                values,
                parts if shared else 1,
            )
            for phase, shared in PHASES.items()
        ]
    text = stage(STAGES[ask.kind])
    if ask.kind == "drawn":
        return [(text, {**values, "number": ask.number}, 1)]
    if ask.kind == "top":
        step = max(1, MOST_TURNS // (-(-n // 1024) + 16))
        values |= {"count": ask.number, "bit": bit, "step": step}
        return [(text, {**values, "begin": begin}, 1) for begin in range(0, ask.number, step)]
    return [(text, values, 1)]


def with_drawn(
    asked: Sequence[tuple[Want, Ask | None]],
) -> list[tuple[Want, Ask | None]]:
    """Return a row's wants with what answers them, drawn logits too, which are numbered."""
    numbers = count()
    return [
        (want, Ask("drawn", "logits", next(numbers)) if isinstance(want, DrawnLogit) else ask)
        for want, ask in asked
    ]


def answer(ask: Ask, words: np.ndarray) -> Any:
    """Read a row's answer from its words."""
    if ask.kind == "digest":
        return tuple(int(word) for word in words)
    if ask.kind == "top":
        ids, values = words[1 : 1 + ask.number], words[1 + ask.number :]
        return (
            ids.astype(np.int32),
            values.view(np.float32).copy(),
            words[:1].view(np.float32).copy(),
        )
    if ask.kind == "drawn":
        logit, total = words.view(np.float32)
        return logit, total
    return int(words[0])


def draw_block(want: Draw, history: np.ndarray | None, position: int, place: int) -> np.ndarray:
    """Write a draw as `stage_draw` reads it from `place` on.

    Parameters
    ----------
    history : ids that penalties look at; None when none is on.
    position : that of the drawn token.
    """
    d, cold = draw_numbers(want, history, position), want.sampling.temperature == 0
    mask = np.zeros(0, np.uint32)
    if d.mask is not None:
        mask = np.frombuffer(d.mask + bytes(-len(d.mask) % 4), "<u4")
    bias_at = place + BLOCK_WORDS
    seen_at = bias_at + 2 * len(d.bias_ids)
    mask_at = seen_at + 2 * len(d.seen_ids)
    constants = (d.repetition, d.inverse_repetition, d.presence, d.frequency)
    head = [
        int(cold),
        bits(1.0 if cold else d.inverse_temperature),
        *map(bits, constants),
        min(d.top_k, WORD),
        d.top_p if d.top_p_on else 0,
        d.min_p,
        d.seed_low,
        d.seed_high,
        d.choice,
        d.position,
        len(d.bias_ids),
        bias_at,
        len(d.seen_ids),
        seen_at,
        mask_at if len(mask) else 0,
    ]
    lists = (part.view(np.uint32) for part in (d.bias_ids, d.bias, d.seen_ids, d.seen_counts))
    return np.concatenate([np.array(head, np.uint32), *lists, mask])
