"""The CPU backend's kernels on rows: 0 bits of difference to cortiq.numerics.

Every kernel on every instruction set of this machine, one and two threads, widths around every
vector length, and with flush-to-zero set.
"""

from __future__ import annotations

import numpy as np
import pytest
from floats import LIMIT, LOWEST, canonical, every, next_down, next_up, same_bits
from native_ops import (
    PATHS,
    address,
    args,
    read_records,
    record_buffer,
    run_ops,
)

from cortiq.numerics import norms, recurrent, rope, route, scalar
from cortiq.numerics.contract import F32, snap
from cortiq.numerics.quantise import quantise_rows
from cortiq_cpu.weights import tap_blocks

Kind = args.OpKind
WIDTHS = (1, 3, 16, 31, 64, 255, 256, 257, 576, 1000)
EDGES = np.array(
    [0, LOWEST, next_up(LOWEST), next_down(LIMIT), 1, 0.625, next_down(0.625), 16, 80, 2.0**25],
    F32,
)
pytestmark = pytest.mark.parametrize("path", PATHS)


def values(rows, width, seed=0, low=-40, high=50):
    rng = np.random.default_rng(seed)
    x = canonical(rng, (rows, width), low, high)
    if width > 4 and high == 50:
        x[0, : len(EDGES)] = EDGES[:width]
        x[-1, -len(EDGES) :] = -EDGES[:width]
    return snap(x)


def elementwise(path, kind, a, b=None, *, record=False, **fields):
    rows, width = a.shape
    out = np.full_like(a, 7)
    records = record_buffer(rows, width) if record else None
    struct = args.ElementwiseArgs(
        address(a), address(b), address(out), address(records),
        width, 0 if b is None or b.ndim == 1 else width, width, 1, width, **fields,
    )  # fmt: skip
    faults = run_ops(path, rows, (kind, struct))
    return out, faults, read_records(records, width) if record else None


def check(ours, expect, *inputs, **options):
    """Check that bits and faults equal those of the contract's function."""
    faults = np.zeros(len(inputs[0]), np.bool_)
    exact = expect(*inputs, faults=faults, **options)
    assert same_bits(ours[0], exact)
    assert np.array_equal(ours[1], faults)
    if ours[2] is not None:
        row = quantise_rows(exact)
        assert np.array_equal(ours[2].q, row.q)
        assert np.array_equal(ours[2].e, row.e)
    return faults


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("record", [False, True])
def test_add_multiply_scale_bias(path, width, record):
    a, b = values(5, width), values(5, width, 1)
    check(elementwise(path, Kind.ADD, a, b, record=record), scalar.add, a, b)
    check(elementwise(path, Kind.MULTIPLY, a, b, record=record), scalar.multiply, a, b)
    check(elementwise(path, Kind.BIAS, a, b[0], record=record), scalar.add, a, b[0])
    factor = F32(0.088388346)
    ours = elementwise(path, Kind.SCALE, a, record=record, factor=factor)
    check(ours, scalar.scale, a, factor)


def test_faults_are_flagged_in_their_rows_only(path):
    a = np.ones((6, 40), F32)
    a[1, 39] = a[4, 0] = 2.0**49
    faults = check(elementwise(path, Kind.ADD, a, a), scalar.add, a, a)
    assert faults.tolist() == [False, True, False, False, True, False]


def test_sums_at_the_edge_of_the_domain(path):
    """Results of ±2⁻⁴⁰ and one ulp around it, and −0."""
    a = np.array([[LOWEST, next_up(LOWEST), 1, -1, LOWEST * 2, -LOWEST * 3]], F32)
    b = np.array([[LOWEST, -LOWEST, -1, 1, -next_up(LOWEST), LOWEST * 2]], F32)
    ours = elementwise(path, Kind.ADD, a, b)
    check(ours, scalar.add, a, b)
    assert not np.signbit(ours[0][ours[0] == 0]).any()


@pytest.mark.parametrize("function", list(scalar.ACTIVATIONS))
def test_activation(path, function):
    number = list(scalar.ACTIVATIONS).index(function)
    positive = every(2.0**-40, next_down(2.0**50), 40009)
    x = np.concatenate([positive, -positive, EDGES, -EDGES])[None]
    x = snap(np.concatenate([x, x[:, ::-1]]))
    ours = elementwise(path, Kind.ACTIVATION, x, function=number)
    check(ours, scalar.activation, x, kind=function)
    up = values(2, x.shape[1], 3)
    ours = elementwise(path, Kind.ACTIVATION, x, up, record=True, function=number)

    def gated(x, up, faults):
        return scalar.multiply(scalar.activation(x, function, faults), up, faults)

    check(ours, gated, x, up)


def test_soft_cap(path):
    x = values(3, 300)
    cap = F32(30)
    ours = elementwise(path, Kind.SOFT_CAP, x, factor=cap, inverse=F32(1) / cap)
    check(ours, scalar.soft_cap, x, cap=30.0)


def test_wide_rows_are_shared_between_workers(path):
    x = values(2, 50001)
    ours = elementwise(path, Kind.SCALE, x, factor=4.0)
    check(ours, scalar.scale, x, factor=4.0)


def norm(path, kind, x, inner=1, weight=None, bias=None, eps=1e-6, record=True, **more):
    rows, width = len(x), x.shape[-1]
    total = width * inner
    out = np.full_like(x, 7)
    records = record_buffer(rows * inner, width) if record else None
    arrays = {"residual": None, "after_weight": None, "sum": None} | more
    pointers = {name: address(array) for name, array in arrays.items()}
    struct = args.NormArgs(
        x=address(x), weight=address(weight), bias=address(bias), out=address(out),
        record=address(records), x_stride=total, residual_stride=total, sum_stride=total,
        out_stride=total, inner=inner, width=width, inverse_width=F32(1) / F32(width), eps=eps,
        after=more.get("after_weight") is not None, after_eps=1e-5, **pointers,
    )  # fmt: skip
    faults = run_ops(path, rows, (kind, struct))
    return out, faults, read_records(records, width) if record else None


@pytest.mark.parametrize("width", WIDTHS)
def test_norms(path, width):
    x = values(5, width, high=20)
    weight, bias = values(1, width, 1, -8, 8)[0], values(1, width, 2, -8, 8)[0]
    check(norm(path, Kind.RMS_NORM, x, weight=weight), norms.rms_norm, x, weight, 1e-6)
    check(norm(path, Kind.RMS_NORM, x), norms.rms_norm, x, None, 1e-6)
    ours = norm(path, Kind.LAYER_NORM, x, weight=weight, bias=bias)
    check(ours, norms.layer_norm, x, weight, bias, 1e-6)
    ours = norm(path, Kind.LAYER_NORM, x, weight=weight)
    check(ours, norms.layer_norm, x, weight, None, 1e-6)
    check(norm(path, Kind.L2_NORM, x), norms.l2_norm, x, 1e-6)


def test_norm_of_heads(path):
    x = values(3, 4 * 64, high=10).reshape(3, 4, 64)
    weight = values(1, 64, 1, -8, 8)[0]
    out, faults, quantised = norm(path, Kind.RMS_NORM, x, inner=4, weight=weight)
    exact = norms.rms_norm(x, weight, 1e-6)
    assert same_bits(out, exact)
    assert not faults.any()
    assert np.array_equal(quantised.q.reshape(3, 4, 64), quantise_rows(exact).q)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("width", (64, 577))
def test_residual_sum_norm_and_rows_in_one_op(path, width, after):
    x, residual = values(4, width, high=20), values(4, width, 5, high=20)
    weight, after_weight = values(1, width, 1, -8, 8)[0], values(1, width, 2, -8, 8)[0]
    y = norms.rms_norm(x, after_weight, 1e-5) if after else x
    total = scalar.add(residual, y)
    more = {"residual": residual.copy(), "after_weight": after_weight if after else None}
    more["sum"] = more["residual"]
    ours = norm(path, Kind.RMS_NORM, x, weight=weight, **more)
    assert same_bits(more["sum"], total)
    check(ours, norms.rms_norm, total, weight, 1e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_quantised_rows(path, width):
    rng = np.random.default_rng(7)
    x = np.stack([values(1, width, s, -40 + s, -38 + 3 * s)[0] for s in range(28)])
    x[3] = 0
    x[4, 0] = LOWEST
    x[5] = F32(1.5) * rng.choice(np.float32([1, -1]), width)
    x[6] = next_down(2.0**50)
    x[7, 0] = np.int32(0x3F7DFFFF).view(F32)
    buffer = record_buffer(len(x), width)
    run_ops(
        path,
        len(x),
        (Kind.QUANTISE, args.QuantiseArgs(address(x), address(buffer), width, 1, width)),
    )
    ours, exact = read_records(buffer, width), quantise_rows(x)
    assert np.array_equal(ours.q, exact.q)
    assert np.array_equal(ours.e, exact.e)


@pytest.mark.parametrize("pairing", rope.PAIRINGS)
@pytest.mark.parametrize(("width", "pairs"), [(64, 32), (80, 16), (10, 3), (256, 128)])
def test_rope(path, pairing, width, pairs):
    x = values(5, 3 * width, high=49).reshape(5, 3, width)
    cos, sin = rope.RopeTable(10000.0, 2 * pairs).table([0, 1, 77, 4000, 5])
    out = np.full_like(x, 7)
    struct = args.RopeArgs(
        address(x), address(cos), address(sin), address(out), 3 * width, 3 * width,
        3, width, pairs, pairing == "interleaved",
    )  # fmt: skip
    faults = run_ops(path, 5, (Kind.ROPE, struct))
    check((out, faults, None), rope.apply_rope, x, cos, sin, pairing)


def test_copies_and_supplied_values(path):
    x = values(6, 70)
    out = np.full((3, 40), 7, F32)
    source = np.array([5, 0, 3], np.int32)
    start = address(x) + 4 * 20
    run_ops(
        path, 3, (Kind.COPY, args.CopyArgs(start, address(out), address(source), 70, 40, 40, 0))
    )
    assert same_bits(out, x[source, 20:60])
    x[2, 3], x[4, 5], x[0, 0] = np.nan, 2.0**50, LOWEST / 2
    out = np.full_like(x, 7)
    faults = run_ops(
        path, 6, (Kind.COPY, args.CopyArgs(address(x), address(out), None, 70, 70, 70, 1))
    )
    check((out, faults, None), snap, x)


def segments(*lengths):
    """Segments of consecutive rows as (array, count); positions are given later."""
    ends = np.cumsum(lengths)
    listed = [args.SegmentArgs(int(e - n), int(e), 0) for e, n in zip(ends, lengths, strict=True)]
    return (args.SegmentArgs * len(listed))(*listed), np.array([len(listed)], np.int32)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("width", "taps", "capacity"), [(70, 4, 3), (70, 3, 17), (2050, 2, 5), (150, 4, 67)]
)
def test_causal_convolution_continues_across_batches(path, width, taps, capacity, biased, in_place):
    lengths = (2, 9, 1)
    weight = values(width, taps, 1, -6, 6)
    bias = values(1, width, 2, -6, 6)[0] if biased else None
    taken = tap_blocks(weight)
    rings = [np.full((capacity, width), 2.0**49, F32) for _ in lengths]
    pointers = np.array([address(r) for r in rings], np.uint64)
    capacities = np.full(3, capacity, np.int32)
    history = [np.zeros((taps - 1, width), F32) for _ in lengths]
    parts, count = segments(*lengths)
    for step in range(4):
        x = values(sum(lengths), width, 3 + step, -10, 20)
        out = np.full_like(x, 7)
        source = x.copy()
        if in_place:
            out = source
        struct = args.ConvArgs(
            address(source), address(taken), address(bias), address(out), address(pointers),
            address(capacities), args.ctypes.addressof(parts), address(count), width, width,
            width, taps,
        )  # fmt: skip
        if step == 3:
            x[4, ::7] = x[11, 5] = 1.9 * 2.0**49
            source[:] = x
        faults = run_ops(path, len(x), (Kind.CAUSAL_CONV, struct))
        for i, part in enumerate(parts):
            rows = x[part.start : part.stop]
            failed = np.zeros(len(rows), bool)
            exact = recurrent.causal_conv(history[i], rows, weight, bias, failed)
            assert same_bits(out[part.start : part.stop], exact)
            assert np.array_equal(faults[part.start : part.stop], failed)
            history[i] = recurrent.conv_history(history[i], rows)
            part.position += len(rows)


ROUTERS = [
    route.Router(2),
    route.Router(8, "softmax", renormalise=True),
    route.Router(4, "sigmoid", True, 1e-20, 2.5),
    route.Router(4, "softmax_topk"),
    route.Router(60, "softmax_topk", renormalise=True),
    route.Router(5, "sigmoid", True, groups=6, kept_groups=2, group_score="top2"),
    route.Router(7, groups=12, kept_groups=5, tau=0.8),
    route.Router(50, "softmax_topk", tau=0.6, groups=4, kept_groups=4, group_score="top2"),
]
"""Those with tau get a mask too."""


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("router", ROUTERS, ids=str)
def test_route_and_combine(path, router, biased):
    experts, rows, width = 60, 9, 75
    scores = values(rows, experts, high=6)
    scores[1] = 0
    scores[2, ::7] = scores[2, 0]
    scores[3] = 40
    bias = values(1, experts, 1, -10, 0)[0] if biased else None
    index = np.full((rows, router.top_k), -1, np.int32)
    weights = np.full((rows, router.top_k), 7, F32)
    mask = (np.arange(experts) % 5 != 1).astype(F32) if router.tau else None
    struct = args.RouteArgs(
        address(scores), address(bias), address(mask), address(index), address(weights),
        experts, experts, router.top_k, route.ROUTER_KINDS.index(router.kind), router.renormalise,
        router.groups, router.kept_groups, router.group_score == "top2",
        router.denominator_floor, router.routed_scaling, router.tau or 0.0,
    )  # fmt: skip
    faults = run_ops(path, rows, (Kind.ROUTE, struct))
    chosen, exact = route.route(scores, router, bias, mask=mask)
    assert np.array_equal(index, chosen)
    assert same_bits(weights, exact)
    assert not faults.any()
    outputs = values(rows * router.top_k, width, 5, high=45).reshape(rows, router.top_k, width)
    out = np.full((rows, width), 7, F32)
    stride = router.top_k * width
    struct = args.CombineExpertsArgs(
        address(weights), address(outputs), address(out), stride, width, router.top_k, width
    )
    faults = run_ops(path, rows, (Kind.COMBINE_EXPERTS, struct))
    check((out, faults, None), route.combine_experts, weights, outputs)
