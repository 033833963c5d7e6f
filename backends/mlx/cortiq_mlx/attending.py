"""Kernels that read or write keys and values: each sequence of a batch with its own rows."""

from __future__ import annotations

from functools import cache

import numpy as np

from cortiq.backend.kernel_walk import KernelCall as Call
from cortiq.numerics.attention import scoring
from cortiq_mlx.arithmetic import Rows, snap
from cortiq_mlx.arrays import FLOATS
from cortiq_mlx.attention import Geometry, attend, choose_blocks
from cortiq_mlx.library import mx

SCORES = 1 << 21
"""Scores of queries against keys held at a time, about."""
_constants = cache(scoring)


def attend_rows(
    call: Call, q: Rows, position: mx.array, chosen: mx.array | None = None
) -> mx.array:
    """Attention of each sequence's rows, so many at a time that scores stay bounded."""
    op, out = call.op, []
    sinks = call.weights.get("sinks")
    how = Geometry(_constants(op.scale, op.soft_cap), op.window, sinks, op.block)
    for segment in call.segments:
        store = segment.state.stores[call.slots["kv"]]
        keys, values = store.read()
        step = max(1, SCORES // (op.heads * (segment.positions[-1] + 1)))
        for start in range(segment.start, segment.stop, step):
            cut = slice(start, min(start + step, segment.stop))
            at = segment.positions[cut.start - segment.start : cut.stop - segment.start]
            if op.until:  # an input of the batch: nothing that is under way has to be computed
                at = np.array(position[cut]).tolist()
            whole = len(at) == len(q.e)
            part = q if whole else Rows(q.q[cut], q.e[cut])
            blocks = chosen if chosen is None or whole else chosen[cut]
            out.append(attend(part, keys, values, at, how, call.shared, blocks, store.base))
    return snap(out[0] if len(out) == 1 else mx.concatenate(out), call.faults)


def choose_rows(call: Call, q: Rows, position: mx.array) -> mx.array:
    """The blocks that each sequence's rows attend to."""
    op, found = call.op, []
    for segment in call.segments:
        cut = segment.cut
        keys, _ = segment.state.stores[call.slots["kv"]].read()
        part, last = Rows(q.q[cut], q.e[cut]), segment.positions[-1]
        found.append(choose_blocks(part, keys, position[cut], last, op.block, op.top, op.local))
    return mx.concatenate(found)


def recall_rows(call: Call, position: mx.array) -> mx.array:
    """Key rows as floats, q·2^e: the products are exact. Rows past the last are supplied ones."""
    parts = []
    for segment in call.segments:
        keys, _ = segment.state.stores[call.slots["kv"]].read()
        there = [place for place in segment.positions if place < len(keys.e)]
        if there:
            at = mx.array(there)
            planes, e = mx.take(keys.q, at, axis=0).astype(mx.int32), mx.take(keys.e, at, axis=0)
            q = (planes[:, :, 0] << 8) + planes[:, :, 1]
            parts.append(q.astype(mx.float32) * FLOATS.exp2_int(e.astype(mx.int32))[..., None])
        missing = len(segment.positions) - len(there)
        if missing:
            parts.append(mx.zeros((missing, call.op.heads, call.op.dim)))
    return snap(mx.concatenate(parts), call.faults)
