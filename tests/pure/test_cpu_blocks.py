"""The CPU backend's block-sparse attention: 0 bits of difference to cortiq.numerics.

Which blocks are chosen, attention to their keys only, and caches of keys without values, on every
instruction set of this machine. Cache bytes that no row was written to are set to garbage.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from floats import same_bits
from kv_cache import Cache, segments, workspace
from native_ops import PATHS, address, args, run_ops, write_records

from cortiq.numerics import attention
from cortiq.numerics.contract import F32, snap
from cortiq.numerics.key_blocks import choose_blocks
from cortiq.numerics.quantise import Quantised, no_values, quantise_rows

Kind = args.OpKind
pytestmark = pytest.mark.parametrize("path", PATHS)


def quantised(rng, shape):
    """Rows whose sizes differ from row to row, some of them zero."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, shape[:-1])[..., None]
    x[rng.random(shape[:-1]) < 0.05] = 0
    return quantise_rows(snap(x.astype(F32)))


def whole(rng, shape):
    """Rows of −1, 0 and 1, many of whose products are equal."""
    return quantise_rows(rng.integers(-1, 2, shape).astype(F32))


class Choice(NamedTuple):
    """Sequences as (first position, rows), and what is chosen from them."""

    sequences: tuple[tuple[int, int], ...]
    heads: int = 4
    dim: int = 32
    block: int = 16
    top: int = 4
    local: int = 1
    rows: object = quantised


CHOICES = {
    "one key": Choice(((0, 1),)),
    "a few blocks are all taken": Choice(((0, 65),)),
    "decode": Choice(((1500, 1),), heads=5, block=128),
    "prefill": Choice(((0, 300),), heads=3, top=6),
    "blocks across tiles": Choice(((100, 150),), block=50, top=2),
    "one key a block": Choice(((130, 20),), block=1, top=7, local=3),
    "none must be there": Choice(((250, 20),), top=2, local=0),
    "none but the last": Choice(((250, 20),), top=3, local=3),
    "equal scores": Choice(((300, 40),), dim=8, top=5, local=2, rows=whole),
    "wide rows": Choice(((90, 40),), heads=2, dim=576, block=8),
    "odd width": Choice(((90, 40),), heads=1, dim=5, block=8),
    "batch": Choice(((0, 1), (700, 1), (63, 40), (400, 3)), block=32),
}


@cache
def chosen_from(case):
    """Queries and keys of every sequence, and the contract's choices."""
    rng = np.random.default_rng(case.block + case.dim)
    parts = [
        (case.rows(rng, (rows, case.heads, case.dim)), case.rows(rng, (end, 1, case.dim)))
        for rows, end in ((rows, first + rows) for first, rows in case.sequences)
    ]
    exact = [
        choose_blocks(q, k, np.arange(first, first + rows), case.block, case.top, case.local)
        for (q, k), (first, rows) in zip(parts, case.sequences, strict=True)
    ]
    return parts, np.concatenate(exact)


def joined(rows):
    return Quantised(*(np.concatenate([getattr(r, part) for r in rows]) for part in "qe"))


def spans_of(sequences):
    """The batch's segments."""
    ends = np.cumsum([rows for _, rows in sequences])
    parts = zip(sequences, ends, strict=True)
    return segments(*((int(end) - rows, int(end), first) for (first, rows), end in parts))


@pytest.mark.parametrize("name", CHOICES)
def test_choices(path, name):
    case = CHOICES[name]
    parts, exact = chosen_from(case)
    longest = max(len(k.q) for _, k in parts)
    store = Cache(len(parts), longest, 1, case.dim, 0, page_tiles=2)
    for i, (_, keys) in enumerate(parts):
        store.write(i, 0, keys, no_values(len(keys.q), 1))
    listed, count = spans_of(case.sequences)
    records, out = write_records(joined([q for q, _ in parts])), np.full_like(exact, -7)
    struct = args.ChooseBlocksArgs(
        store.struct(listed, count), address(records), address(out), case.heads, case.block,
        case.top, case.local,
    )  # fmt: skip
    faults = run_ops(path, len(out), (Kind.CHOOSE_BLOCKS, struct))
    assert np.array_equal(out, exact)
    assert not faults.any()


class Layer(NamedTuple):
    """A sequence as (first position, rows), heads, and the blocks that each set of them sees."""

    first: int
    rows: int
    heads: int = 6
    kv: int = 2
    sets: int = 2
    count: int = 4
    block: int = 16
    dim: int = 16
    window: int = 0
    sinks: bool = False


LAYERS = {
    "prefill": Layer(0, 150),
    "decode": Layer(900, 1, heads=8, block=64),
    "decode, runs without a key": Layer(4200, 1, count=1, kv=1, sets=1),
    "more sets than KV heads": Layer(200, 20, sets=6),
    "fewer": Layer(200, 20, sets=1),
    "blocks across tiles": Layer(100, 90, block=50, count=2),
    "one key a block": Layer(100, 40, block=1, count=9),
    "one key a block, wide rows": Layer(190, 5, heads=5, kv=1, sets=1, block=1, count=60, dim=576),
    "more heads than a wide block": Layer(1100, 2, heads=150, kv=1, sets=1, block=1, count=70),
    "one key a block, runs without a key": Layer(4200, 1, kv=1, sets=1, block=1, count=30),
    "large blocks": Layer(700, 5, block=1 << 30, count=2),
    "windows and sinks": Layer(300, 40, window=70, sinks=True, block=32, count=3),
    "no block at all": Layer(100, 3, count=1, block=4096),
}


@cache
def attended(layer):
    """Inputs, and the contract's output: blocks in no order, some of them twice or past the end."""
    rng = np.random.default_rng(layer.first + layer.sets)
    end = layer.first + layer.rows
    q, k, v = (
        quantised(rng, (rows, heads, layer.dim))
        for rows, heads in ((layer.rows, layer.heads), (end, layer.kv), (end, layer.kv))
    )
    shape = layer.rows, layer.sets, layer.count
    chosen = rng.integers(0, end // layer.block + 2, shape).astype(np.int32)
    sinks = np.linspace(-3, 9, layer.heads).astype(F32) if layer.sinks else None
    out = attention.attend(
        q, k, v, np.arange(layer.first, end), 0.25, window=layer.window, sinks=sinks,
        blocks=attention.ChosenBlocks(layer.block, chosen),
    )  # fmt: skip
    return (q, k, v, chosen, sinks), out


@pytest.mark.parametrize("name", LAYERS)
def test_attention_to_chosen_blocks(path, name):
    layer = LAYERS[name]
    (q, k, v, chosen, sinks), exact = attended(layer)
    store = Cache(1, len(k.q), layer.kv, layer.dim, layer.dim, page_tiles=2)
    store.write(0, 0, k, v)
    listed, count = segments((0, layer.rows, layer.first))
    records, out = write_records(q), np.full(exact.shape, 7, F32)
    room = workspace(layer.dim, len(k.q), path[1])
    struct = args.AttendArgs(
        store.struct(listed, count), address(records), address(sinks), address(out), None,
        address(room), layer.heads * layer.dim, len(room), layer.heads, layer.window,
        *(float(c) for c in attention.scoring(0.25)), address(chosen), layer.sets, layer.count,
        layer.block,
    )  # fmt: skip
    faults = run_ops(path, layer.rows, (Kind.ATTEND, struct))
    assert same_bits(out, exact)
    assert not faults.any()


def test_keys_without_values_are_read_back(path):
    keys = quantised(np.random.default_rng(3), (130, 2, 19))
    store = Cache(1, 140, 2, 19, 0)
    listed, count = segments((0, 130, 7))
    records = write_records(keys)
    struct = args.StoreKVArgs(store.struct(listed, count), address(records))
    run_ops(path, 130, (Kind.STORE_KV, struct))
    read, _ = store.read(0, 7, 130)
    assert np.array_equal(read.q, keys.q)
    assert np.array_equal(read.e, keys.e)
