"""Faults of kernels: a rounding too many, another choice, a term left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cortiq.backend.walk import Call
from cortiq.ir import ops
from cortiq.numerics import norms
from cortiq.numerics.contract import F32, Floats, Ints, exp2_int, round_to_f32, snap
from cortiq.numerics.groupquants import WIDE_LAYOUTS
from cortiq.numerics.key_blocks import choose_blocks
from cortiq.numerics.layouts import W16, decode
from cortiq.numerics.matmul import matmul
from cortiq.numerics.quantise import Quantised
from cortiq.numerics.sums import canonical_mean
from cortiq_conformance.faults.folds import ReplacedFunction, with_replaced
from cortiq_conformance.faults.kernels import Wrong
from cortiq_reference import kernels
from cortiq_reference.kernels import KERNELS


def _not_snapped(call: Call, a: Floats, b: Floats) -> Floats:
    """Compute a + b without snap: small results and −0 stay; faults are still flagged."""
    snap(a + b, call.faults)
    return a + b


def _rounded_twice(call: Call, x: Quantised | Floats) -> Floats:
    """Compute w16 as RN(RN(high products)·256 + RN(low products)): one rounding too many."""
    matrix = call.weights["weight"]
    if matrix.weight.layout is not W16 or not isinstance(x, Quantised):
        return KERNELS[ops.MatMul](call, x)
    codes, scale = decode(matrix.weight).codes.astype(np.int64), matrix.weight.parts["scale"][:, 0]
    q = x.q.reshape(-1, x.q.shape[-1]).astype(np.int64)
    high, low = q >> 8, q & 255
    total = (high @ codes.T).astype(F32) * F32(256) + (low @ codes.T).astype(F32)
    y = (total * scale) * exp2_int(x.e.reshape(-1))[:, None]
    return snap(y.reshape(*x.q.shape[:-1], -1), call.faults)


def _no_minimum(call: Call, x: Quantised | Floats) -> Floats:
    """Compute Q4_K without minima: codes times scales only."""
    matrix = call.weights["weight"]
    if matrix.weight.layout.name != "Q4_K" or not isinstance(x, Quantised):
        return KERNELS[ops.MatMul](call, x)
    codes = decode(matrix.weight)._replace(minimum=None, offsets=None)
    flat = Quantised(x.q.reshape(-1, x.q.shape[-1]), x.e.reshape(-1))
    return matmul(flat, codes, call.faults).reshape(*x.q.shape[:-1], -1)


def _upper_bytes(call: Call, x: Quantised | Floats) -> Floats:
    """Compute codes of more than 8 bits, in blocks, by their upper bytes only."""
    matrix = call.weights["weight"]
    if matrix.weight.layout.name not in WIDE_LAYOUTS or not isinstance(x, Quantised):
        return KERNELS[ops.MatMul](call, x)
    codes = decode(matrix.weight)
    flat = Quantised(x.q.reshape(-1, x.q.shape[-1]), x.e.reshape(-1))
    y = matmul(flat, codes._replace(codes=codes.codes >> 8 << 8), call.faults)
    return y.reshape(*x.q.shape[:-1], -1)


def _other_pairs(call: Call, x: Floats, position: Ints) -> Floats:
    """Turn pairs (2i, 2i + 1) instead of (i, i + n), and the other way round."""
    pairing = "half" if call.op.pairing == "interleaved" else "interleaved"
    call.op = replace(call.op, pairing=pairing)
    return KERNELS[ops.Rope](call, x, position)


def _first_axis(call: Call, x: Floats, position: Ints) -> Floats:
    """Turn every pair by the position on the first axis."""
    if call.op.sections is not None:
        position = np.repeat(position[:, :1], call.op.sections.count, axis=1)
    return KERNELS[ops.Rope](call, x, position)


def _short_table(call: Call, x: Floats, position: Ints) -> Floats:
    """Turn by a table of 4096 positions that repeats."""
    return KERNELS[ops.Rope](call, x, position % 4096)


def _highest_block(
    q: Quantised, keys: Quantised, positions: Ints, block: int, top: int, local: int = 1
) -> Ints:
    """Choose the last of blocks with equal scores."""
    out = choose_blocks(q, keys, positions, block, top, local)
    for row, head in np.ndindex(*q.e.shape):
        seen, count = int(positions[row]) + 1, int(positions[row]) // block + 1
        dot = q.q[row, head].astype(np.int64) @ keys.q[:seen, 0].astype(np.int64).T
        scores = round_to_f32(dot) * exp2_int(q.e[row, head] + keys.e[:seen, 0])
        index = np.arange(count)
        best = np.maximum.reduceat(scores, index * block)
        chosen = np.lexsort((-index, -best, index < count - local))[:top]
        out[row, head, : len(chosen)] = np.sort(chosen)
    return out


def _moments(call: Call, x: Floats) -> Floats:
    """Compute the variance as E[x²] − m²."""
    mean = canonical_mean(x)
    variance = canonical_mean(x * x) - mean * mean
    centred = snap(x - mean[..., None], call.faults)
    root = norms.inverse_root(np.maximum(variance, F32(0)) + F32(call.op.eps))
    y, weight, bias = centred * root, call.weights.get("weight"), call.weights.get("bias")
    y = y if weight is None else y * weight
    return snap(y if bias is None else y + bias, call.faults)


WRONG_ROUNDINGS: dict[str, Wrong] = {
    "sums that are not snapped": {ops.Add: _not_snapped},
    "an integer rounded twice": {ops.MatMul: _rounded_twice},
    "minima left out": {ops.MatMul: _no_minimum},
    "wide codes without their lower bytes": {ops.MatMul: _upper_bytes},
    "the other rotary pairs": {ops.Rope: _other_pairs},
    "every pair turned by the first axis": {ops.Rope: _first_axis},
    "a rotary table of 4096 positions": {ops.Rope: _short_table},
    "the last of equal blocks": {
        ops.ChooseBlocks: with_replaced(
            KERNELS[ops.ChooseBlocks], ReplacedFunction(kernels, "choose_blocks", _highest_block)
        )
    },
    "a variance of moments": {ops.LayerNorm: _moments},
}
"""Wrong kernels by fault."""
