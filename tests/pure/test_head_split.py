"""A whole attention layer over shards of its heads, combined as the contract says, to the bit.

A shard holds some KV heads, their query heads, those rows of q, k and v and those columns of o.
Nothing is exchanged but integers and run sums: the row's largest magnitude, then integer dots
(formats with one block a row) or the sums of whole runs (block formats).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from graphs import bind
from sequences import completed, same

from cortiq.backend import CompileOptions, Named, Row
from cortiq.ir import Builder
from cortiq.ir.layers import Attention, QKNorm
from cortiq.numerics.attention import attend
from cortiq.numerics.contract import Floats, Ints, exp2_int, magnitude_bits
from cortiq.numerics.layouts import Weight, decode, floats
from cortiq.numerics.matmul import finish, finish_rows, matmul, row_dot, run_sums
from cortiq.numerics.norms import rms_norm
from cortiq.numerics.quantise import Quantised, quantise_rows
from cortiq.numerics.rope import RopeTable, apply_rope
from cortiq.numerics.scalar import add
from cortiq_reference.backend import ReferenceBackend

WIDTH, KV_HEADS, GROUP, HEAD_DIM, ROWS, EPS = 256, 4, 2, 16, 70, 1e-6
ROPE = RopeTable(1e4, 8)
SHARDS = {2: [0, 2, 4], 3: [0, 1, 3, 4], 4: [0, 1, 2, 3, 4]}
"""Edges of the KV heads that each shard holds."""
VALUE_DIMS = {"w8": 20, "w16": 20, "Q8_0": 128, "Q4_1": 128, "w8b256": 1024, "Q4_K": 1024}
"""Width of a value head: for block formats a KV head's columns of o are whole runs of 8 blocks."""


class Shard(NamedTuple):
    """One device's share: attention over its heads, as float rows and their columns of o."""

    rows: Floats
    columns: slice


def layer(value_dim: int) -> Attention:
    return Attention(
        WIDTH, KV_HEADS * GROUP, KV_HEADS, HEAD_DIM, value_dim=value_dim, rope=ROPE, window=40,
        sinks=True, soft_cap=30.0, qk_norm=QKNorm(EPS), biased=True, output_biased=True,
    )  # fmt: skip


def whole(op: Attention, layout: str, x: Floats) -> tuple[dict[str, Weight], Floats]:
    """Weights of the layer by role, and what the reference computes."""
    b = Builder(context=128)
    b.input("token")
    position, row = b.input("position"), b.input("x", (WIDTH,), "f32")
    weights = {role: role for role in op.weight_shapes()}
    b.add(op, row, position, name="y", weights=weights, slots={"kv": "kv"})
    bound = bind(b.program(outputs=("y",)), [layout], 5)
    executable = ReferenceBackend().compile(bound.program, bound.weights, CompileOptions(threads=1))
    state = executable.open(ROWS)
    rows = [Row(state, i, 0, (Named("y"),), {"x": x[i]}) for i in range(ROWS)]
    y = np.stack([answers[Named("y")] for answers in completed(executable, rows)])
    return dict(bound.weights), y


def heads_of(x: Quantised, weights: dict[str, Weight], role: str, heads: slice, dim: int) -> Floats:
    """Projection to some heads: a split along N of the matrix and its bias."""
    rows = slice(heads.start * dim, heads.stop * dim)
    y = matmul(x, decode(weights[role].rows(rows.start, rows.stop)))
    y = add(y, floats(weights[f"{role}_bias"])[0, rows])
    y = y.reshape(len(x.q), -1, dim)
    if role == "v":
        return y
    cos, sin = ROPE.table(np.arange(ROWS))
    return apply_rope(rms_norm(y, floats(weights[f"{role}_norm"])[0], EPS), cos, sin)


def shard(op: Attention, weights: dict[str, Weight], x: Floats, held: slice) -> Shard:
    """Attention over the KV heads `held` and their queries."""
    quantised, queries = quantise_rows(x), slice(held.start * GROUP, held.stop * GROUP)
    q = heads_of(quantised, weights, "q", queries, HEAD_DIM)
    k = heads_of(quantised, weights, "k", held, HEAD_DIM)
    v = heads_of(quantised, weights, "v", held, op.value_width)
    y = attend(
        *map(quantise_rows, (q, k, v)), np.arange(ROWS), HEAD_DIM**-0.5, window=op.window or 0,
        soft_cap=op.soft_cap, sinks=floats(weights["sinks"])[0, queries],
    )  # fmt: skip
    width = op.value_width
    return Shard(y.reshape(ROWS, -1), slice(queries.start * width, queries.stop * width))


def exponents(shards: list[Shard]) -> Ints:
    """The rows' exponents, from an integer maximum over the shards."""
    largest = np.max([magnitude_bits(s.rows).max(axis=1) for s in shards], axis=0)
    return quantise_rows(largest.view(np.float32)[:, None]).e


def combined(shards: list[Shard], o: Weight, e: Ints) -> Floats:
    """The output projection, split along K."""
    codes = decode(o)
    parts = [
        (np.rint(s.rows * exp2_int(-e)[:, None]).astype(np.int32),
         codes.columns(s.columns.start, s.columns.stop))
        for s in shards
    ]  # fmt: skip
    if codes.scale.shape[1] == 1:
        total = sum(row_dot(q, mine) for q, mine in reversed(parts))
        return finish_rows(total, codes, e)
    return finish(np.concatenate([run_sums(q, mine) for q, mine in parts]), e)


@pytest.mark.parametrize("count", SHARDS)
@pytest.mark.parametrize("layout", VALUE_DIMS)
def test_an_attention_layer_over_shards_of_its_heads(layout, count):
    op = layer(VALUE_DIMS[layout])
    x = np.random.default_rng(3).standard_normal((ROWS, WIDTH)).astype(np.float32)
    weights, expected = whole(op, layout, x)
    shards = [shard(op, weights, x, slice(*edges)) for edges in pairwise(SHARDS[count])]
    y = combined(shards, weights["o"], exponents(shards))
    y = add(y, floats(weights["o_bias"])[0])
    assert np.count_nonzero(expected) > expected.size // 2
    assert same(y, expected)


def test_a_shards_own_exponent_would_change_bits():
    """The integer maximum over shards matters: quantising each shard's rows apart differs."""
    op = layer(VALUE_DIMS["w16"])
    x = np.random.default_rng(3).standard_normal((ROWS, WIDTH)).astype(np.float32)
    weights, expected = whole(op, "w16", x)
    shards = [shard(op, weights, x, slice(*edges)) for edges in pairwise(SHARDS[2])]
    codes = decode(weights["o"])
    apart = [matmul(quantise_rows(s.rows), codes.columns(s.columns.start, s.columns.stop))
             for s in shards]  # fmt: skip
    y = add(apart[0] + apart[1], floats(weights["o_bias"])[0])
    assert not same(y, expected)
    assert np.abs(y - expected).max() < 1e-3 * np.abs(expected).max()
