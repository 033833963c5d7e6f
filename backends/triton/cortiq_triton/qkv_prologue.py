"""Launches of heads on their way into attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from cortiq.numerics.contract import F32
from cortiq_triton.call import LaunchCall
from cortiq_triton.head_rows import head_rows
from cortiq_triton.language import INTERPRETED, ceil_div, launch, pow2
from cortiq_triton.rows import Rows, empty_rows

ROWS = 64 if INTERPRETED else 16
"""Rows of a program, which computes one head of them after another; a part of a page of keys."""
APIECE = 4
"""Heads of a program at most, which turn by the same angles."""
FEW_ROWS = 2 if INTERPRETED else 64
"""Rows up to which a program computes one of them, by one warp."""
WIDEST = 256
"""Columns of a head up to which its norm is one chunk of lanes."""


@dataclass(frozen=True)
class Way:
    """Norm and rotation of heads before they are quantised.

    Attributes
    ----------
    shape : heads and their width. norm : eps of an RMSNorm, or None. turn : a `Rope`, or None.
    """

    shape: tuple[int, ...]
    norm: float | None
    turn: Any


@dataclass(frozen=True)
class _Part:
    """Arguments of a kind of heads; `weight` and the angles stand in as x where there are none."""

    x: torch.Tensor
    weight: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    axes: torch.Tensor
    pairs: int
    eps: float
    bits: int


def _part(call: LaunchCall, way: Way | None, x: torch.Tensor, role: str) -> _Part:
    x = x.contiguous()
    if way is None:
        return _Part(x, x, x, x, x, 1, 0.0, 0)
    weight, cos, sin, axes, pairs = call.weights.get(role), x, x, x, 1
    if way.turn is not None:
        cos, sin, axes = call.shared.angles.of(way.turn)
        pairs = cos.shape[1]
    bits = (way.norm is not None) + 2 * (weight is not None) + 4 * (way.turn is not None)
    if way.turn is not None and way.turn.pairing == "half":
        normed = way.norm is not None and way.shape[1] not in (64, 128, 256)
        whole = way.shape[1] == 2 * pairs and role != "value" and not normed
        bits += 8 + 16 * whole
    eps = float(F32(way.norm or 0))
    return _Part(x, x if weight is None else weight, cos, sin, axes, pairs, eps, bits)


def into_attention(
    call: LaunchCall, ways: dict[str, Way], given: dict[str, torch.Tensor], *places: torch.Tensor
) -> Rows | tuple[()]:
    """Heads of "query", "key" and "value", or of some of these: quantised queries (their sums are
    not there), keys and values in the cache.

    places : on axes, int32 [rows, axes], by which heads turn; none if by the rows' positions.
    """
    x = next(iter(given.values()))
    turns = [name for name, way in ways.items() if way.turn is not None]
    q, k, v = (_part(call, ways.get(n), given.get(n, x), n) for n in ("query", "key", "value"))
    count, at = len(x), call.rows
    (heads, width), (groups, value_width) = (
        ways[name].shape if name in ways else (0, 0) for name in ("query", "value")
    )
    offset, table = (call.slot("kv")[1], call.table("kv")) if groups else (0, at.table)
    key_width = ways["key"].shape[1] if groups else width
    out = empty_rows((count, heads), key_width, x.device)
    axes = {"query": q, "key": k, "value": v}[turns[0]].axes if places else x
    padded, each = out.high.shape[-1], ROWS if INTERPRETED or count > FEW_ROWS else 1
    each = min(each, pow2(count))
    apiece = math.gcd(heads, groups, APIECE) if count > FEW_ROWS else 1
    wide = max(16, pow2(max(1, value_width)))
    launch(
        head_rows, ((heads + 2 * groups) // apiece, ceil_div(count, each)), q.x, k.x, v.x,
        q.weight, k.weight, v.weight, q.cos, q.sin, k.cos, k.sin, v.cos, v.sin, *(places or (x,)),
        axes, at.positions, at.owners, table, out.high, out.e, call.faults, count, q.pairs,
        k.pairs, v.pairs, padded,
        out.low.data_ptr() - out.high.data_ptr(), at.pages, offset,
        _inverse(key_width), _inverse(value_width), q.eps, k.eps, v.eps, H=heads, G=groups,
        DK=key_width, DV=value_width, Q_WAY=q.bits, K_WAY=k.bits, V_WAY=v.bits,
        AXES=places[0].shape[1] if places else 0, RB=each,
        KP=max(16, padded, pow2(key_width)), VP=wide, REST=max(16, pow2(value_width - wide // 2)),
        EACH=apiece, warps=1 if each == 1 else 4, early=True,
    )  # fmt: skip
    return out if heads else ()


def _inverse(n: int) -> float:
    return float(F32(1) / F32(max(1, n)))
