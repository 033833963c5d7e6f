"""Faults of kernels: each function makes one kernel of the reference's wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cortiq.backend.walk import Call
from cortiq.ir import Op, ops
from cortiq.numerics import attention, norms, route
from cortiq.numerics.contract import F32, TILE, Floats, Ints, exp2_int, magnitude_bits, snap
from cortiq.numerics.layouts import W16, Weight
from cortiq.numerics.quantise import Quantised, quantise_rows
from cortiq.numerics.sums import canonical_mean, canonical_sum
from cortiq_reference.kernels import KERNELS
from cortiq_reference.matrix import TiledMatrix

Kernel = Callable[..., Any]
Wrong = dict[type[Op], Kernel]
FIRST_ROWS = 4
"""Rows of a chunk that a fault of chunks spoils."""


def _fused(call: Call, x: Floats) -> Floats:
    """Compute mean·(1/n) + eps with one rounding."""
    inverse, eps = F32(1) / F32(x.shape[-1]), F32(call.op.eps)
    total = canonical_sum(x * x).astype(np.float64) * np.float64(inverse) + np.float64(eps)
    return _scaled(call, x, total.astype(F32))


def _scaled(call: Call, x: Floats, variance: Floats) -> Floats:
    y, weight = x * norms.inverse_root(variance), call.weights.get("weight")
    return snap(y if weight is None else y * weight, call.faults)


def _weight_first(call: Call, x: Floats) -> Floats:
    """Compute x·(r·w) instead of (x·r)·w."""
    weight = call.weights.get("weight")
    if weight is None:
        return KERNELS[ops.RMSNorm](call, x)
    root = norms.inverse_root(canonical_mean(x * x) + F32(call.op.eps))
    return snap(x * (root * weight), call.faults)


def _half_away(call: Call, x: Floats) -> Quantised:
    right = quantise_rows(x)
    scaled = x * exp2_int(-right.e)[..., None]
    away = np.trunc(scaled + np.copysign(F32(0.5), scaled)).astype(np.int32)
    return Quantised(np.where(magnitude_bits(x) > 0, away, 0), right.e)


def _planes_swapped(call: Call, x: Any) -> Floats:
    matrix = call.weights["weight"]
    if matrix.weight.layout is W16:
        parts = matrix.weight.parts
        swapped = {"hi": parts["lo"], "lo": parts["hi"], "scale": parts["scale"]}
        weight = Weight(W16, matrix.weight.shape, swapped)
        call.weights = {"weight": TiledMatrix(weight, matrix.name, matrix.pool)}
    return KERNELS[ops.MatMul](call, x)


def _float_matmul(call: Call, x: Any) -> Floats:
    if isinstance(x, Quantised):
        return KERNELS[ops.MatMul](call, x)
    weight = call.weights["weight"].weight
    values = np.ascontiguousarray(weight.parts["raw"]).view("<f4")
    return snap((x.reshape(-1, x.shape[-1]) @ values.T).reshape(*x.shape[:-1], -1), call.faults)


def _window(call: Call, q: Quantised, position: Ints, *chosen: Ints) -> Floats:
    if call.op.window:
        call.op = _with(call.op, window=call.op.window + 1)
    return KERNELS[ops.Attend](call, q, position, *chosen)


def _window_of_last(call: Call, q: Quantised, position: Ints, *chosen: Ints) -> Floats:
    """Count windows back from the last key that a row sees, not from its own position."""
    if call.op.window:
        call.op = _with(call.op, until=False)
    return KERNELS[ops.Attend](call, q, position, *chosen)


def _causal(call: Call, q: Quantised, position: Ints, *chosen: Ints) -> Floats:
    """Let no row see keys after itself."""
    if call.op.until:
        own = [np.array(segment.positions, np.int32) for segment in call.segments]
        position = np.concatenate(own)
    return KERNELS[ops.Attend](call, q, position, *chosen)


def _unlisted(call: Call, q: Quantised, last: Ints, *chosen: Ints) -> Floats:
    """Let rows that supply their last key and a list of blocks see all keys up to the last."""
    if call.op.until and chosen:
        call.op, chosen = _with(call.op, block=0), ()
    return KERNELS[ops.Attend](call, q, last, *chosen)


def _joined_images(call: Call, q: Quantised, last: Ints, *chosen: Ints) -> Floats:
    """Let rows that see keys after themselves see those of later images, too."""
    if call.op.until:
        own = np.concatenate([np.array(segment.positions, np.int32) for segment in call.segments])
        ends = np.concatenate(
            [np.full(len(segment.positions), segment.positions[-1]) for segment in call.segments]
        )
        last = np.where(last > own, ends, last).astype(np.int32)
    return KERNELS[ops.Attend](call, q, last, *chosen)


def _own_position(call: Call, q: Quantised, last: Ints, *chosen: Ints) -> Floats:
    """Let rows that attend to an encoder's see none of these beyond their own number."""
    if call.op.until:
        last = last.copy()
        for segment in _crossing(call):
            last[segment.cut] = np.minimum(last[segment.cut], segment.positions)
    return KERNELS[ops.Attend](call, q, last, *chosen)


def _first_sound(call: Call, q: Quantised, last: Ints, *chosen: Ints) -> Floats:
    """Let all requests of a batch attend to the rows that the first one's encoder made."""
    crossing, last = _crossing(call) if call.op.until else [], last.copy()
    if crossing:
        first = crossing[0].state
        most = _stored(call, crossing[0]) - 1
        for segment in crossing:
            last[segment.cut] = np.minimum(last[segment.cut], most)
        call.segments = [
            one._replace(state=first) if one in crossing else one for one in call.segments
        ]
    return KERNELS[ops.Attend](call, q, last, *chosen)


def _crossing(call: Call) -> list[Any]:
    """Return the segments whose keys another entry has stored: they are not as many as its rows."""
    return [one for one in call.segments if _stored(call, one) != one.positions[-1] + 1]


def _stored(call: Call, segment: Any) -> int:
    """Return how many keys a sequence has."""
    return len(segment.state.stores[call.slots["kv"]].read()[0].q)


def _with(op: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(op, **changes)


def _no_sinks(call: Call, q: Quantised, position: Ints, *chosen: Ints) -> Floats:
    call.weights = {}
    return KERNELS[ops.Attend](call, q, position, *chosen)


def _slopes_away(call: Call, q: Quantised, position: Ints, *chosen: Ints) -> Floats:
    """Let scores not fall with distance."""
    call.op = _with(call.op, slopes=())
    return KERNELS[ops.Attend](call, q, position, *chosen)


def _slopes_in_turns(call: Call, q: Quantised, position: Ints, *chosen: Ints) -> Floats:
    """Give each head the slope of its place in another order: of its place in a group first."""
    slopes, each = call.op.slopes, call.op.heads // call.op.kv_heads
    turned = tuple(s for place in range(each) for s in slopes[place::each])
    call.op = _with(call.op, slopes=turned)
    return KERNELS[ops.Attend](call, q, position, *chosen)


def _relative_tiles(call: Call, q: Quantised, position: Ints, *chosen: Ints) -> Floats:
    """Begin tiles at the chunk's first position: keys are moved to where the contract's tiles
    begin.
    """
    op, out = call.op, KERNELS[ops.Attend](call, q, position, *chosen)
    for segment in call.segments if not chosen else ():
        pad = -int(position[segment.start]) % TILE
        store = segment.state.stores[call.slots["kv"]]
        keys, values = (_moved(r, store.base + pad) for r in store.read())
        stop = min(segment.start + FIRST_ROWS, segment.stop)
        for row in range(segment.start, stop if pad else segment.start):
            at = int(position[row])
            window = min(op.window or at + 1, at + 1)
            one = Quantised(q.q[row : row + 1], q.e[row : row + 1])
            out[row] = attention.attend(
                one, keys, values, np.array([at + pad]), op.scale, window=window,
                soft_cap=op.soft_cap, sinks=call.weights.get("sinks"), slopes=op.slopes,
            )[0]  # fmt: skip
    return out


def _moved(rows: Quantised, pad: int) -> Quantised:
    q = np.concatenate([np.zeros((pad, *rows.q.shape[1:]), np.int32), rows.q.astype(np.int32)])
    return Quantised(q, np.concatenate([np.zeros((pad, *rows.e.shape[1:]), np.int32), rows.e]))


def _neighbour(kind: type[Op]) -> Kernel:
    """Let a sequence's first row take a little of the row before it in the batch."""

    def kernel(call: Call, *inputs: Any) -> Any:
        found = KERNELS[kind](call, *inputs)
        out, *others = found if isinstance(found, tuple) else (found,)
        for segment in call.segments[1:]:
            out[segment.start] += out[segment.start - 1] * F32(2.0**-12)
        out = snap(out, call.faults)
        return (out, *others) if others else out

    return kernel


def _highest_expert(call: Call, scores: Floats) -> tuple[Ints, Floats]:
    """Let the last expert win among equal scores."""
    router = call.op.router
    indices, _ = route.route(scores[:, ::-1], router, _reversed(call.weights.get("bias")))
    chosen = np.sort(scores.shape[1] - 1 - indices, axis=1).astype(np.int32)
    right = KERNELS[ops.Route](call, scores)
    if (np.sort(scores, axis=1)[:, 1:] > np.sort(scores, axis=1)[:, :-1]).all():
        return right
    return chosen, right[1]


def _reversed(bias: Floats | None) -> Floats | None:
    return None if bias is None else bias[::-1]


def _filled(kind: type[Op], value: float) -> Kernel:
    """Return the right shape, filled with one value; no fault is raised."""

    def kernel(call: Call, *inputs: Any) -> Floats:
        return np.full_like(KERNELS[kind](call, *inputs), value)

    return kernel


def _never_written(call: Call, x: Floats) -> Floats:
    """Return uninitialised memory."""
    held = np.frombuffer(b"\xcd\xab\x01\x40" * x.size, "<f4").copy()
    return (held * np.arange(1, x.size + 1, dtype=F32)).reshape(x.shape)


def _put_back(call: Call, x: Floats) -> Floats:
    """Put columns where they came from: the inverse order."""
    return x[..., np.argsort(call.op.order.columns)]


WRONG_KERNELS: dict[str, Wrong] = {
    "fused multiply-add in RMSNorm": {ops.RMSNorm: _fused},
    "weight times root first": {ops.RMSNorm: _weight_first},
    "half-away rounding in the quantiser": {ops.Quantise: _half_away},
    "planes swapped": {ops.MatMul: _planes_swapped},
    "float matmul in the f32 format": {ops.MatMul: _float_matmul},
    "window off by one": {ops.Attend: _window},
    "a window counted from the last key": {ops.Attend: _window_of_last},
    "rows that see nothing after themselves": {ops.Attend: _causal},
    "an image that sees the one after it": {ops.Attend: _joined_images},
    "an encoder's rows up to a row's own number": {ops.Attend: _own_position},
    "a batch that hears its first sound": {ops.Attend: _first_sound},
    "rows that see more than the blocks that they list": {ops.Attend: _unlisted},
    "sink dropped": {ops.Attend: _no_sinks},
    "scores that do not fall with distance": {ops.Attend: _slopes_away},
    "slopes of heads by their place in a group": {ops.Attend: _slopes_in_turns},
    "a tile counted from the chunk's start": {ops.Attend: _relative_tiles},
    "a row that sees its batch neighbour": {ops.Attend: _neighbour(ops.Attend)},
    "wrong tie-break in routing": {ops.Route: _highest_expert},
    "all NaN": {ops.Multiply: _filled(ops.Multiply, float("nan"))},
    "all zero": {ops.Activation: _filled(ops.Activation, 0.0)},
    "output never written": {ops.Bias: _never_written},
    "columns in the inverse order": {ops.Permute: _put_back},
}  # fmt: skip
"""Wrong kernels by fault."""
