"""Stages that answer the wants of rows, and the reading of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cortiq.backend import Draw
from cortiq.backend.requests import WORD, Ask, draw_numbers
from cortiq_wgpu.binder import DispatchBinder
from cortiq_wgpu.dispatch import MOST_TURNS
from cortiq_wgpu.shader_source import Stage, bits, stage

BLOCK_WORDS = 18
"""Words of a draw's block before its lists."""


def words_of(ask: Ask) -> int:
    """Count the words of an answer."""
    return {"digest": 4, "top": 1 + 2 * ask.number}.get(ask.kind, 1)


STAGES = {"argmax": "pick", "digest": "digest", "top": "top", "draw": "draw"}


def answering(
    binder: DispatchBinder, ask: Ask, out: int, work: int, bit: int
) -> list[tuple[Stage, Mapping[str, int]]]:
    """Make the dispatches that answer for all rows of a set, one stage each.

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
