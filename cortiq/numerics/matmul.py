"""Matrix products: integer dots rounded once, float scales in a written order.

A block is the run of columns under one scale, a run 8 consecutive blocks. For each output:

    t_b = RN(RN(I_b)·scale_b) [+ RN(RN(J_b)·minimum_b)]     for each block b
    r   = ((+0 + t_0) + t_1) + …                            for each run
    y   = snap((((+0 + r_0) + r_1) + …)·2^e)

I = Σ code·q and J = Σ offset·Σq are mathematical integers: plane sums, tensor-core tiles and
reductions over devices may be taken in any order, and only RN rounds them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.errors import UnsupportedError
from cortiq.numerics.contract import (
    RUN_BLOCKS,
    Flags,
    Floats,
    Ints,
    exp2_int,
    round_to_f32,
    snap,
)
from cortiq.numerics.quantise import Quantised
from cortiq.numerics.sums import canonical_sum
from cortiq.numerics.unpacked_weights import Codes

MAX_COLUMNS = 32768
"""Largest K: up to here the sums of int8·int8 plane products fit in int32."""

MATMUL_UNIT_ERROR = 2.0**-24
"""Relative error of one rounding; a matmul's error is at most `rounding_count` of them."""


def matmul(x: Quantised, weight: Codes, faults: Flags | None = None) -> Floats:
    """Multiply quantised rows by a weight: float32 [rows, N] from q [rows, K], e [rows], codes [N,
    K].

    Error against the exact product of the dequantised operands: at most
    `rounding_count(weight)`·2⁻²⁴ times Σ_b (|I_b·scale_b| + |J_b·minimum_b|)·2^e, and 2⁻⁴⁰ by snap.
    """
    return finish(run_sums(x.q, weight), x.e, faults)


def rounding_count(weight: Codes) -> int:
    """Return the roundings between operand and result, plus 3 for second-order terms."""
    runs = -(-weight.scale.shape[1] // RUN_BLOCKS)
    terms = 2 if weight.minimum is None else 3
    return terms + min(weight.scale.shape[1], RUN_BLOCKS) + runs + 3


def check_columns(columns: int) -> None:
    """Raise `UnsupportedError` if K is larger than the contract allows."""
    if columns > MAX_COLUMNS:
        raise UnsupportedError(
            f"a matmul over {columns} columns; integer sums are defined up to {MAX_COLUMNS}"
        )


def block_dot(q: Ints, weight: Codes, block: int) -> npt.NDArray[np.int64]:
    """Return I of one block, the exact integer Σ code·q: int64 [rows, N]."""
    columns = slice(block * weight.block, (block + 1) * weight.block)
    return q[:, columns].astype(np.int64) @ weight.codes[:, columns].astype(np.int64).T


def block_offset_dot(q: Ints, weight: Codes, block: int) -> npt.NDArray[np.int64]:
    """Return J of one block, the exact integer Σ offset·Σq over its sub-blocks: int64 [rows, N]."""
    assert weight.offsets is not None
    subs = weight.block // weight.sub
    columns = q[:, block * weight.block : (block + 1) * weight.block].astype(np.int64)
    sums = columns.reshape(len(q), subs, weight.sub).sum(axis=-1)
    return sums @ weight.offsets[:, block * subs : (block + 1) * subs].astype(np.int64).T


def block_term(q: Ints, weight: Codes, block: int) -> Floats:
    """Return the t of one block: RN(RN(I)·scale) [+ RN(RN(J)·minimum)], float32 [rows, N]."""
    term = round_to_f32(block_dot(q, weight, block)) * weight.scale[:, block]
    if weight.minimum is None:
        return term
    low = round_to_f32(block_offset_dot(q, weight, block)) * weight.minimum[:, block]
    return term + low


def run_sums(q: Ints, weight: Codes) -> Floats:
    """Sum each run's terms in order from +0: float32 [runs, rows, N].

    A device that holds whole runs of the columns gets exactly its share of these; gathered in
    order, they `finish` to the bits of the unsplit matmul.
    """
    check_columns(q.shape[1])
    blocks = weight.scale.shape[1]
    runs = -(-blocks // RUN_BLOCKS)
    sums = np.zeros((runs, len(q), len(weight.codes)), np.float32)
    for block in range(blocks):
        sums[block // RUN_BLOCKS] = sums[block // RUN_BLOCKS] + block_term(q, weight, block)
    return sums


def finish(sums: Floats, e: Ints, faults: Flags | None = None) -> Floats:
    """Add run sums in order from +0, multiply by 2^e and snap: float32 [rows, N]."""
    y = np.zeros(sums.shape[1:], np.float32)
    for run in sums:
        y = y + run
    return snap(y * exp2_int(e)[:, None], faults)


def row_dot(q: Ints, weight: Codes) -> npt.NDArray[np.int64]:
    """Return I of a weight with one block a row (w8, w16): int64 [rows, N].

    Shards along K, cut anywhere, add their integers (or those of the planes) in any order.
    """
    if weight.scale.shape[1] != 1:
        raise ValueError("only weights with one block per row reduce as integers")
    check_columns(q.shape[1])
    return block_dot(q, weight, 0)


def finish_rows(
    total: npt.NDArray[np.int64], weight: Codes, e: Ints, faults: Flags | None = None
) -> Floats:
    """Return snap((RN(I)·scale)·2^e), the matmul of a one-block weight from its integer dot."""
    return finish((round_to_f32(total) * weight.scale[:, 0])[None], e, faults)


def matmul_f32(x: Floats, weight: Floats, faults: Flags | None = None) -> Floats:
    """Multiply unquantised rows: y[i, n] = snap(canonical_sum_k(snap(x[i, k]·weight[n, k]))).

    x float32 [rows, K] and weight float32 [N, K], canonical; for tests and float checkpoints.
    """
    y = np.zeros((len(x), len(weight)), np.float32)
    for i, row in enumerate(x):
        flag = None if faults is None else faults[i : i + 1]
        products = snap((row * weight)[None], flag)[0]
        y[i] = snap(canonical_sum(products)[None], flag)[0]
    return y
