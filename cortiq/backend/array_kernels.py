"""Kernels over any array library that has `Arithmetic`: all but products and attention.

Each is (call, *inputs) → output, or a tuple of outputs, where call is a `KernelCall`.
Products go through matrices of the backend's own, which are its prepared weights: `multiply(rows,
flags)` of rows [n, K], `rows(ids, flags)` of a table, and `height`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from cortiq.backend.arithmetic import ACTIVATIONS
from cortiq.backend.array_mixers import (
    causal_conv,
    compress,
    delta_step,
    diagonal_delta_step,
    hash_ngrams,
    recurrent,
    sinkhorn,
    state_space_step,
)
from cortiq.backend.array_routing import combined, index_select, keep_listed, routed, softmax
from cortiq.backend.kernel_walk import KernelCall as Call
from cortiq.backend.plan import Kernels, SharedMatMul
from cortiq.ir import ops
from cortiq.numerics.contract import F32
from cortiq.numerics.quantise import ZERO_ROW_EXPONENT


def reshaped(x: Any, *shape: int) -> Any:
    """Return rows, quantised or not, with these leading axes; the last one stays."""
    if isinstance(x, tuple):
        q, e = x
        return type(x)(q.reshape(*shape, q.shape[-1]), e.reshape(shape))  # type: ignore[call-arg]
    return x.reshape(*shape, x.shape[-1])


def product(library: Any, matrix: Any, x: Any, faults: Any) -> Any:
    """Return rows [rows, ..., K] times a matrix."""
    shape = (x[0] if isinstance(x, tuple) else x).shape
    count = prod(shape[1:-1])
    flags = faults if count == 1 else library.flags(shape[0] * count)
    y = matrix.multiply(reshaped(x, shape[0] * count), flags)
    if count != 1:
        library.gather_flags(faults, [flags])
    return y.reshape(*shape[:-1], y.shape[-1])


def matmul(call: Call, x: Any) -> Any:
    """Multiply rows with a matrix."""
    return product(call.library, call.weights["weight"], x, call.faults)


def shared_matmul(call: Call, x: Any) -> tuple[Any, ...]:
    """Multiply rows with several matrices in one."""
    return tuple(call.library.split(matmul(call, x), call.op.widths))


def snapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel that ends a function of (call, *inputs) with `snap`."""
    return lambda call, *inputs: call.library.snap(function(call, *inputs), call.faults)


def _weighted(call: Call, y: Any) -> Any:
    weight, bias = call.weights.get("weight"), call.weights.get("bias")
    y = y if weight is None else y * weight
    return call.library.snap(y if bias is None else y + bias, call.faults)


def _rms_norm(call: Call, x: Any) -> Any:
    library = call.library
    mean = library.canonical_mean(x * x) + float(F32(call.op.eps))
    return _weighted(call, x * library.inverse_root(mean))


def _layer_norm(call: Call, x: Any) -> Any:
    library = call.library
    centred = library.snap(x - library.canonical_mean(x), call.faults)
    variance = library.canonical_mean(centred * centred) + float(F32(call.op.eps))
    return _weighted(call, centred * library.inverse_root(variance))


def _l2_norm(call: Call, x: Any) -> Any:
    return x * call.library.inverse_root(
        call.library.canonical_sum(x * x) + float(F32(call.op.eps))
    )


def _rope(call: Call, x: Any, position: Any) -> Any:
    """Rotate pairs by the angles of each row; what lies behind the pairs passes through."""
    library, (cos, sin) = call.library, call.angles()
    pairs, half = cos.shape[-1], call.op.pairing == "half"
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if half:
        left, right = turned[..., :pairs], turned[..., pairs:]
    else:
        left, right = turned[..., 0::2], turned[..., 1::2]
    both = [left * cos - right * sin, right * cos + left * sin]
    y = library.concatenate(both, -1) if half else library.stack(both, -1).reshape(turned.shape)
    return library.concatenate([y, rest], -1) if rest.shape[-1] else y


def _embed_rows(call: Call, token: Any) -> Any:
    library, table = call.library, call.weights["table"]
    if token.ndim > 1:
        flags = library.flags(len(token) * token.shape[1])
        rows = _embed_rows(replace(call, faults=flags), token.reshape(-1))
        library.gather_flags(call.faults, [flags])
        return rows.reshape(*token.shape, -1)
    if not call.op.missing:
        return table.rows(token, call.faults)
    known, flags = token < table.height, library.flags(len(token))
    rows = table.rows(library.where(known, token, 0), flags)
    library.flag(call.faults, slice(None), flags, known)
    return library.where(known[:, None], rows, 0.0)


def _store_kv(call: Call, keys: Any, values: Any = None) -> tuple:
    library, rows = call.library, type(keys)
    if values is None:
        nothing = library.full((*keys.e.shape, 0), library.row_type)
        values = rows(nothing, library.full(keys.e.shape, "i32", ZERO_ROW_EXPONENT))
    for segment in call.segments:
        cut = segment.cut
        store = segment.state.stores[call.slots["kv"]]
        store.append(rows(keys.q[cut], keys.e[cut]), rows(values.q[cut], values.e[cut]))
    return ()


def _gain(call: Call, x: Any) -> Any:
    weight = call.weights["weight"]
    return x * (weight[:, None] if call.op.per == "head" else weight)


def _expert_gain(call: Call, x: Any, index: Any) -> Any:
    gains = call.weights["weight"][index]
    return x * (gains if x.ndim == index.ndim else gains[..., None])


def _clamp(call: Call, x: Any) -> Any:
    low, high = (
        None if bound is None else float(F32(bound)) for bound in (call.op.low, call.op.high)
    )
    x = x if low is None else call.library.where(x < low, low, x)
    return x if high is None else call.library.where(x > high, high, x)


def _route(call: Call, scores: Any) -> tuple[Any, Any]:
    bias, mask = call.weights.get("bias"), call.weights.get("mask")
    return routed(call.library, scores, call.op.router, bias, mask, call.faults)


def _list_keys(call: Call, position: Any) -> Any:
    """See `cortiq.numerics.key_blocks.list_keys`."""
    library, every, top = call.library, call.op.every, call.op.top
    there = ((position + 1) // every)[:, None]
    first = library.where(there > top, there - top, 0)
    entry = first + library.counted(top)
    beyond = position[:, None] + 1 + entry - there
    return library.where(entry < there, (entry + 1) * every - 1, beyond)[:, None]


def _window_blocks(call: Call, keys: Any, position: Any) -> Any:
    """See `cortiq.numerics.key_blocks.window_blocks`."""
    library, every, own = call.library, call.op.every, position[:, None, None]
    last = keys[..., -1:]
    listed = library.concatenate([keys, library.where(last > own, last, own) + 1], -1)
    beyond = (own + 1) // every + listed - own - 1
    return library.where(listed > own, beyond, listed // every)


def _keep_listed(call: Call, scores: Any, token: Any) -> Any:
    return keep_listed(call.library, scores, call.weights["table"][token])


def _stack_index(call: Call, number: Any, index: Any = None) -> Any:
    """See `cortiq.numerics.route.stack_index`."""
    index = call.library.counted(call.op.size) if index is None else index
    return number[:, None] * call.op.size + index


ARRAY_KERNELS: Kernels = {
    ops.EmbedRows: _embed_rows,
    ops.Quantise: lambda call, x: call.library.quantised(x),
    ops.MatMul: matmul,
    SharedMatMul: shared_matmul,
    ops.Add: snapped(lambda call, x, y: x + y),
    ops.Multiply: snapped(lambda call, x, y: x * y),
    ops.Scale: snapped(lambda call, x: x * float(F32(call.op.factor))),
    ops.Bias: snapped(lambda call, x: x + call.weights["bias"]),
    ops.Activation: snapped(lambda call, x: call.library.activation(call.op.function, x)),
    ops.SoftCap: snapped(lambda call, x: call.library.soft_cap(x, call.op.cap)),
    ops.RMSNorm: _rms_norm,
    ops.LayerNorm: _layer_norm,
    ops.L2Norm: snapped(_l2_norm),
    ops.Rope: snapped(_rope),
    ops.StoreKV: _store_kv,
    ops.CausalConv: causal_conv,
    ops.Compress: compress,
    ops.Sinkhorn: sinkhorn,
    ops.ListKeys: _list_keys,
    ops.WindowBlocks: _window_blocks,
    ops.HashNGrams: hash_ngrams,
    ops.KeepListed: _keep_listed,
    ops.IndexSelect: lambda call, x: index_select(call.library, x, call.weights["index"]),
    ops.StackIndex: _stack_index,
    ops.DeltaRule: recurrent(delta_step),
    ops.DiagonalDeltaRule: recurrent(diagonal_delta_step),
    ops.StateSpace: recurrent(state_space_step),
    ops.Route: _route,
    ops.CombineExperts: lambda call, w, y: combined(call.library, w, y, call.faults),
    ops.Slice: lambda call, x: x[..., call.op.start : call.op.stop : call.op.step],
    ops.Concat: lambda call, *parts: call.library.concatenate(parts, -1),
    ops.Permute: lambda call, x: x[..., call.library.array(call.op.order.columns)],
    ops.Reshape: lambda call, x: x.reshape(len(x), *call.op.shape),
    ops.Gain: snapped(_gain),
    ops.ScaleRows: snapped(lambda call, x, factor: x * factor),
    ops.Shift: snapped(lambda call, x: x + float(F32(call.op.amount))),
    ops.Clamp: _clamp,
    ops.Softmax: lambda call, x: softmax(call.library, x, call.faults),
    ops.ExpertGain: snapped(_expert_gain),
    ops.ExpertBias: snapped(lambda call, x, index: x + call.weights["bias"][index]),
}
"""By primitive; missing are products of stacks, and those of `ATTENTION_KERNELS`."""
ARRAY_OPTIONS = frozenset(
    {
        *ACTIVATIONS,
        "step",
        "missing",
        "sections",
        "groups",
        "mask",
        "tau",
        "keys only",
        "sqrt_softplus",
        "sparse_mixer",
    }
)
"""Options that they know."""
