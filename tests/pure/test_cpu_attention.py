"""The CPU backend's attention and caches: 0 bits of difference to cortiq.numerics.

Shapes, windows, sinks, chunks and pages, on every instruction set of this machine, on one thread
and on two. Cache bytes that no row was written to are set to garbage.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from floats import canonical, same_bits
from kv_cache import Cache, segments, workspace
from native_ops import (
    PATHS,
    address,
    args,
    read_records,
    read_rows,
    record_buffer,
    run_ops,
    write_records,
)

from cortiq.numerics import attention, norms, rope
from cortiq.numerics.contract import F32, snap
from cortiq.numerics.quantise import Quantised, quantise_rows

Kind = args.OpKind
pytestmark = pytest.mark.parametrize("path", PATHS)


class Case(NamedTuple):
    """Sequences as (first position, rows); the geometry of a layer; how values are spread."""

    sequences: tuple[tuple[int, int], ...]
    heads: int = 3
    kv: int = 1
    dk: int = 64
    dv: int = 64
    window: int = 0
    soft_cap: float | None = None
    sinks: bool = False
    page_tiles: int = 1
    spread: float = 1.0
    workspace: bool = True


def quantised(rng, shape, spread):
    """Rows whose sizes differ from row to row, some of them zero."""
    x = rng.standard_normal(shape) * spread * 2.0 ** rng.integers(-3, 4, shape[:-1])[..., None]
    x[rng.random(shape[:-1]) < 0.05] = 0
    return quantise_rows(snap(x.astype(F32)))


def sinks_of(case):
    return np.linspace(-3, 12, case.heads).astype(F32) if case.sinks else None


@cache
def expected(case):
    """Inputs of every sequence, and the contract's outputs for them."""
    rng = np.random.default_rng(case.heads + case.dk)
    parts, outs = [], []
    for first, rows in case.sequences:
        q = quantised(rng, (rows, case.heads, case.dk), case.spread)
        k = quantised(rng, (first + rows, case.kv, case.dk), case.spread)
        v = quantised(rng, (first + rows, case.kv, case.dv), 1.0)
        parts.append((q, k, v))
        outs.append(
            attention.attend(
                q, k, v, np.arange(first, first + rows), case.dk**-0.5, window=case.window,
                soft_cap=case.soft_cap, sinks=sinks_of(case),
            )
        )  # fmt: skip
    return parts, np.concatenate(outs)


def attend(path, case, record=False):
    """Outputs, faults and quantised outputs of the native op."""
    parts, _ = expected(case)
    longest = max(first + rows for first, rows in case.sequences)
    store = Cache(len(parts), longest, case.kv, case.dk, case.dv, case.page_tiles)
    spans, start = [], 0
    for i, ((first, rows), (_, k, v)) in enumerate(zip(case.sequences, parts, strict=True)):
        store.write(i, 0, k, v)
        spans.append((start, start + rows, first))
        start += rows
    q = Quantised(*(np.concatenate([getattr(p[0], part) for p in parts]) for part in "qe"))
    records = write_records(q)
    listed, count = segments(*spans)
    constants = attention.scoring(case.dk**-0.5, case.soft_cap)
    width = case.heads * case.dv
    out = np.full((start, width), 7, F32)
    quantised_out = record_buffer(start, width) if record else None
    room = workspace(case.dv, longest, path[1]) if case.workspace else None
    sinks = sinks_of(case)
    struct = args.AttendArgs(
        store.struct(listed, count), address(records), address(sinks), address(out),
        address(quantised_out), address(room), width, 0 if room is None else len(room),
        case.heads, case.window, *(float(c) for c in constants),
    )  # fmt: skip
    faults = run_ops(path, start, (Kind.ATTEND, struct))
    return out.reshape(start, case.heads, case.dv), faults, quantised_out


def check(path, case):
    ours, faults, _ = attend(path, case)
    assert same_bits(ours, expected(case)[1])
    assert not faults.any()


SHAPES = {
    "one key": Case(((0, 1),)),
    "decode": Case(((700, 1),)),
    "decode past two runs": Case(((2100, 1),), heads=2),
    "decode in runs": Case(((5000, 1),), heads=1, dk=8, dv=8),
    "prefill": Case(((0, 150),)),
    "chunk": Case(((190, 75),), heads=6, kv=2),
    "wide heads": Case(((130, 3),), heads=4, dk=256, dv=256),
    "narrow values": Case(((100, 40),), heads=4, kv=4, dk=16, dv=3),
    "odd widths": Case(((100, 5),), heads=4, kv=2, dk=5, dv=19),
    "eighty": Case(((70, 9),), heads=2, kv=2, dk=80, dv=80),
    "many wide heads": Case(((130, 12),), heads=2, dk=256, dv=240),
    "many odd widths": Case(((60, 21),), heads=2, dk=71, dv=19),
    "latent": Case(((200, 2),), heads=16, kv=1, dk=576, dv=512),
    "many heads a group": Case(((90, 2),), heads=40, kv=1, dk=16, dv=32),
    "batch": Case(((0, 1), (63, 1), (64, 1), (1100, 1), (127, 2), (300, 30)), heads=4, kv=2),
    "big pages": Case(((600, 3), (0, 130)), page_tiles=4),
    "soft cap": Case(((250, 20),), soft_cap=30.0, spread=3.0),
    "sinks": Case(((100, 70),), heads=4, kv=2, sinks=True),
    "window and sinks": Case(((60, 140),), heads=4, kv=2, sinks=True, window=65),
    "steep": Case(((1500, 2),), spread=20.0),
    "no workspace": Case(((900, 1),), workspace=False),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(path, name):
    check(path, SHAPES[name])


@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 100, 128, 1030])
@pytest.mark.parametrize("position", [0, 62, 63, 64, 127, 1023, 1024, 1087])
def test_a_window_at_every_kind_of_offset(path, window, position):
    check(path, Case(((position, 1),), heads=2, dk=8, dv=8, window=window))
    check(path, Case(((position, 3),), heads=2, dk=8, dv=8, window=window))


@pytest.mark.parametrize(("dk", "rows"), [(512, 1), (576, 1), (256, 12)])
def test_largest_integers(path, dk, rows):
    """Every q, k and v at ±32512, in the widest rows that int32 sums are allowed, and on tiles."""
    case = Case(((70, rows),), heads=2, dk=dk, dv=16)
    parts, _ = expected(case)
    big = [Quantised(np.where(p.q >= 0, 32512, -32512).astype(np.int32), p.e * 0 - 20)
           for p in parts[0]]  # fmt: skip
    big[0].q[:] = big[1].q[:] = 32512
    big[1].q[::2] = -32512
    q, k, v = big
    store = Cache(1, 70 + rows, 1, dk, 16)
    store.write(0, 0, k, v)
    records, out = write_records(q), np.full((rows, 32), 7, F32)
    listed, count = segments((0, rows, 70))
    c = attention.scoring(2.0**-30)
    struct = args.AttendArgs(
        store.struct(listed, count), address(records), None, address(out), None, None, 32, 0,
        2, 0, *(float(x) for x in c),
    )  # fmt: skip
    run_ops(path, rows, (Kind.ATTEND, struct))
    exact = attention.attend(q, k, v, 70 + np.arange(rows), 2.0**-30)
    assert same_bits(out.reshape(rows, 2, 16), exact)


@pytest.mark.parametrize("step", [-61, -59, -12, 12, 30, 59, 61, 70])
def test_ladders_of_scores(path, step):
    """Scores climb or fall by `step` a tile, so that rescaled sums run through the subnormals."""
    rng = np.random.default_rng(0)
    keys, positions = 1300, np.array([1298, 1299])
    k = snap(
        (rng.standard_normal((keys, 1, 4)) * 2.0 ** rng.uniform(-45, 0, (keys, 1, 4))).astype(F32)
    )
    k[:, 0, 0] = (np.arange(keys) // 64 - 10) * step
    v = canonical(rng, (keys, 1, 4), -40, 30)
    q = quantise_rows(np.ones((2, 2, 4), F32))
    k, v = quantise_rows(k), quantise_rows(v)
    store = Cache(1, keys, 1, 4, 4)
    store.write(0, 0, k, v)
    records, out = write_records(q), np.full((2, 8), 7, F32)
    sinks = np.float32([-30, 900])
    listed, count = segments((0, 2, 1298))
    room = workspace(4, keys, path[1])
    struct = args.AttendArgs(
        store.struct(listed, count), address(records), address(sinks), address(out), None,
        address(room), 8, len(room), 2, 0, *(float(x) for x in attention.scoring(1.0)),
    )  # fmt: skip
    run_ops(path, 2, (Kind.ATTEND, struct))
    exact = attention.attend(q, k, v, positions, 1.0, sinks=sinks)
    assert same_bits(out.reshape(2, 2, 4), exact)


def test_rows_are_quantised_for_the_projection(path):
    case = SHAPES["chunk"]
    ours, _, records = attend(path, case, record=True)
    row, exact = read_records(records, 6 * 64), quantise_rows(ours.reshape(len(ours), -1))
    assert np.array_equal(row.q, exact.q)
    assert np.array_equal(row.e, exact.e)


def test_an_output_out_of_the_domain_is_a_fault_of_its_row(path):
    store = Cache(1, 64, 1, 4, 4)
    x = quantise_rows(np.full((3, 1, 4), 2.0**49 * 1.99, F32))
    x.q[2], x.e[2] = 16384, 36
    store.write(0, 0, Quantised(x.q * 0, x.e * 0), x)
    records = write_records(Quantised(x.q * 0, x.e * 0))
    out = np.full((3, 4), 7, F32)
    listed, count = segments((0, 3, 0))
    struct = args.AttendArgs(
        store.struct(listed, count), address(records), None, address(out), None, None, 4, 0, 1, 1,
        *(float(c) for c in attention.scoring(1.0)),
    )  # fmt: skip
    faults = run_ops(path, 3, (Kind.ATTEND, struct))
    assert faults.tolist() == [False, False, True]
    assert not out[2].any()


@pytest.mark.parametrize(("dk", "dv", "page_tiles"), [(64, 64, 1), (5, 19, 2), (256, 3, 4)])
def test_stored_rows_are_read_back(path, dk, dv, page_tiles):
    rng = np.random.default_rng(2)
    k, v = quantised(rng, (200, 3, dk), 1.0), quantised(rng, (200, 3, dv), 1.0)
    store = Cache(2, 300, 3, dk, dv, page_tiles)
    listed, count = segments((0, 130, 7), (130, 200, 0))
    keys, values = write_records(k), write_records(v)
    struct = args.StoreKVArgs(store.struct(listed, count), address(keys), address(values))
    run_ops(path, 200, (Kind.STORE_KV, struct))
    for sequence, first, cut in ((0, 7, slice(0, 130)), (1, 0, slice(130, 200))):
        read = store.read(sequence, first, cut.stop - cut.start)
        for ours, exact in zip(read, (k, v), strict=True):
            assert np.array_equal(ours.q, exact.q[cut])
            assert np.array_equal(ours.e, exact.e[cut])


@pytest.mark.parametrize("pairing", rope.PAIRINGS)
@pytest.mark.parametrize("normed", [False, True])
def test_heads_in_one_op(path, pairing, normed):
    """Norm, rope, quantise and store of a projection's queries, keys and values."""
    rows, heads, kv, dk, dv, pairs = 37, 4, 2, 64, 48, 24
    rng = np.random.default_rng(5)
    width = heads * dk + kv * (dk + dv)
    x = canonical(rng, (rows, width), -20, 20)
    weights = [canonical(rng, dk, -4, 4) if normed else None for _ in "qk"]
    positions = np.arange(50, 50 + rows)
    cos, sin = rope.RopeTable(1e4, 2 * pairs).table(positions)
    store = Cache(1, 100, kv, dk, dv)
    listed, count = segments((0, rows, 50))
    records = record_buffer(rows * heads, dk)
    common = {"x_stride": width, "pairs": pairs, "interleaved": pairing == "interleaved",
              "normed": normed, "cos": address(cos), "sin": address(sin), "eps": 1e-6,
              "inverse_width": F32(1) / F32(dk), "width": dk}  # fmt: skip
    start = address(x)
    query = {"x": start, "weight": address(weights[0]), "heads": heads, "record": address(records)}
    key = {"x": start + 4 * heads * dk, "weight": address(weights[1]), "heads": kv, "target": 1}
    value = {"x": start + 4 * (heads + kv) * dk, "heads": kv, "target": 2, "width": dv}
    parts = (args.HeadGroupArgs * 3)(
        args.HeadGroupArgs(**query, **common),
        args.HeadGroupArgs(**key, **common),
        args.HeadGroupArgs(**value, x_stride=width),
    )
    struct = args.QKVPrologueArgs(store.struct(listed, count), ctypes.addressof(parts), 3)
    faults = run_ops(path, rows, (Kind.HEADS, struct))
    assert not faults.any()

    def shaped(y, weight):
        y = norms.rms_norm(y, weight, 1e-6) if normed else y
        return quantise_rows(rope.apply_rope(y, cos, sin, pairing))

    q, k, v = np.split(x, [heads * dk, (heads + kv) * dk], axis=1)
    exact = shaped(q.reshape(rows, heads, dk), weights[0])
    queries = read_rows(records, dk)
    assert np.array_equal(queries.q, exact.q.reshape(-1, dk))
    assert np.array_equal(queries.e, exact.e.reshape(-1))
    keys, values = store.read(0, 50, rows)
    exact_keys = shaped(k.reshape(rows, kv, dk), weights[1])
    exact_values = quantise_rows(v.reshape(rows, kv, dv))
    for ours, exact in ((keys, exact_keys), (values, exact_values)):
        assert np.array_equal(ours.q, exact.q)
        assert np.array_equal(ours.e, exact.e)
