"""Primitives that see positions: rotary embedding, attention over tiles, convolution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from cortiq.ir import Builder, Type, ops
from cortiq.numerics.contract import F32
from cortiq.numerics.rope import RopeTable, Sections
from cortiq.numerics.rope_scaling import Axial, Growth, Linear, Staggered
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import SequenceInput
from cortiq_conformance.probes import CONTEXT, OUTPUT, ProbeProgram, attend, floats, one, vector
from cortiq_conformance.probes import TOKEN as POSITION

TABLE = RopeTable(10000.0, 16)
WINDOWS = (1, 5, 63, 64, 65, 100)
GEOMETRIES = ((4, 2, 16, 16), (6, 1, 8, 12), (3, 3, 32, 8))


def cases() -> Iterator[Case]:
    """Yield sequence primitives of level 0."""
    for what, build in ROTATIONS.items():
        yield _case("Rope", "Rope", what, build)
    for geometry in GEOMETRIES:
        yield _case("Attend", "Attend", _described(geometry), partial(_plain, geometry))
    yield _case("Attend", "Attend", "1100 rows, more than a run of tiles", _long)
    yield _case("Attend", "Attend", "values whose exponents range from -36 to 40", _ladders)
    yield _case("Attend", "Attend", "scores beyond the clamp", _clamped)
    for window in WINDOWS:
        what = f"{window}, starting at every offset in a tile"
        yield _case("Attend window", "Attend", what, partial(_window, window))
    for geometry in GEOMETRIES:
        yield _case("Attend sinks", "Attend", _described(geometry), partial(_sinks, geometry))
    for rows, size in BLOCKS:
        what = f"{rows} rows, then a block of {size}"
        yield _case("Attend block", "Attend", what, partial(_in_block, rows, size))
    for window, rows in SPANS:
        what = f"{window} keys back and {window - 1} ahead, of {rows}"
        yield _case("Attend span", "Attend", what, partial(_span, window, rows))
    for far, images in IMAGES:
        what = f"images at {' and '.join(f'{a} to {b}' for a, b in images)}"
        what += f", a window of {far}" if far else ""
        yield _case("Attend block", "Attend", what, partial(_images, far, images))
    for cap in (5.0, 50.0):
        yield _case("Attend soft cap", "Attend", f"{cap:g}", partial(_capped, cap))
    for what, build in SLOPED.items():
        yield _case("Attend slopes", "Attend", what, build)
    for heads, dim in STORED:
        yield _case("Recall", "Recall", f"{heads} of {dim}", partial(_recalled, heads, dim))
    for kernel in (2, 3, 4):
        for biased in (False, True):
            what = f"{kernel} taps{', biased' if biased else ''}"
            yield _case("CausalConv", "CausalConv", what, partial(_conv, kernel, biased))


def _case(family: str, op: str, what: str, build: Callable[[CaseData], Scenario]) -> Case:
    return Case(f"level0/{family}[{what}]", 0, family, op, build)


def _described(geometry: tuple[int, int, int, int]) -> str:
    heads, kv_heads, key_dim, value_dim = geometry
    return f"{heads} heads on {kv_heads}, keys of {key_dim}, values of {value_dim}"


def rope(
    table: RopeTable = TABLE, pairing: str = "half", heads: int = 3, width: int = 16
) -> ProbeProgram:
    """Build a probe of heads turned by their row's position."""
    inputs = {"x": floats(heads, width), "position": POSITION}
    return one(ops.Rope(table, pairing), inputs)


def _sections(sections: Sections, source: CaseData, table: RopeTable = TABLE) -> Scenario:
    """Return heads turned by positions that the row supplies, one for each axis."""
    op = ops.Rope(table, sections=sections)
    inputs = {"x": floats(3, 16), "positions": Type((sections.count,), "i32")}
    return one(op, inputs, limits={"positions": 4096}).scenario(source, 40)


ROTATIONS: dict[str, Callable[[CaseData], Scenario]] = {
    "pairs of halves": lambda s: rope().scenario(s, 40),
    "interleaved pairs": lambda s: rope(pairing="interleaved").scenario(s, 40),
    "16 of 24 values turn": lambda s: rope(width=24).scenario(s, 10),
    "1100 positions, scaled linearly": lambda s: rope(
        RopeTable(500000.0, 8, Linear(4.0)), heads=1, width=8
    ).scenario(s, 1100),
    "an amplitude that grows every 16 positions": lambda s: rope(
        RopeTable(500000.0, 16, Growth(Linear(4.0), 0.3, 16))
    ).scenario(s, 40),
    "three axes, one after the other": partial(_sections, Sections((2, 3, 3))),
    "three axes, interleaved": partial(_sections, Sections((4, 2, 2), interleaved=True)),
    "two axes of the same frequencies": partial(
        _sections, Sections((4, 4)), table=RopeTable(10000.0, 16, Axial(2))
    ),
    "two axes that take frequencies in turns": partial(
        _sections, Sections((4, 4)), table=RopeTable(10000.0, 16, Staggered(2))
    ),
}


STORED = ((1, 1), (3, 5), (2, 64), (1, 300))


def recall(heads: int = 2, dim: int = 8) -> ProbeProgram:
    """Build a probe of rows that are stored and recalled at their own positions."""
    b = Builder(context=CONTEXT)
    b.input("token")
    position, shape = b.input("position"), floats(heads, dim)
    x = b.add(ops.Quantise(), b.input("x", shape.shape, "f32"), name="x.quantised")
    b.add_node(ops.StoreKV(heads, dim, 0), x, name="store", slots={"kv": "kv"})
    b.add(ops.Recall(heads, dim), position, name=OUTPUT, slots={"kv": "kv"})
    return ProbeProgram(b.program((OUTPUT,)), {}, {"x": shape})


def _recalled(heads: int, dim: int, source: CaseData) -> Scenario:
    """Return rows of all magnitudes, more than a tile of them."""
    rows = source.spread(130, heads, dim, low=-44, high=48)
    return recall(heads, dim).given(x=rows)


def attention(
    geometry: tuple[int, int, int, int] = (4, 2, 16, 16),
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: np.ndarray | None = None,
    scale: float | None = None,
    slopes: tuple[float, ...] = (),
) -> ProbeProgram:
    """Build an Attend whose rows supply q, k and v."""
    factor = geometry[2] ** -0.5 if scale is None else scale
    op = ops.Attend(*geometry, factor, window, soft_cap, sinks is not None, slopes=slopes)
    return attend(op, sinks)


def _plain(geometry: tuple[int, int, int, int], source: CaseData) -> Scenario:
    return attention(geometry).scenario(source, 150, amplitude=2.0)


def _long(source: CaseData) -> Scenario:
    return attention((1, 1, 8, 8)).scenario(source, 1100, amplitude=2.0)


def _ladders(source: CaseData) -> Scenario:
    probe = attention((2, 1, 8, 8))
    feed = probe.feed(source, 140, amplitude=2.0)
    power = 2.0 ** source.integers(-36, 40, 140, 1, 1)
    v = feed.inputs["v"] * power.astype(F32)
    v = np.where(np.abs(v) < 2.0**-40, F32(0), v)
    scenario = Scenario(probe.program, probe.weights, [feed])
    return replace(scenario, feeds=[SequenceInput(feed.tokens, {**feed.inputs, "v": v})])


def _clamped(source: CaseData) -> Scenario:
    """Return scores of some ten thousand, partly beyond ±16384; far weights vanish."""
    return attention((2, 2, 8, 8), scale=1.0).scenario(source, 100, amplitude=60.0)


def _window(window: int, source: CaseData) -> Scenario:
    return attention((2, 1, 8, 8), window=window).scenario(source, 64 + window + 70, 1.5)


BLOCKS = ((0, 5), (60, 7), (1, 130), (100, 16))
IMAGES = (
    (None, ((3, 19), (19, 35))), (40, ((5, 37), (50, 82))), (64, ((60, 124), (130, 193))),
)  # fmt: skip
SPANS = ((2, 9), (3, 70), (64, 200), (65, 330), (100, 1300))


def until(window: int | None = None, slopes: tuple[float, ...] = ()) -> ProbeProgram:
    """Build an Attend whose rows supply the last key they see, as `last`."""
    b = Builder(context=CONTEXT)
    b.input("token")
    b.input("position")
    shapes = {"q": floats(4, 8), "k": floats(2, 8), "v": floats(2, 8)}
    given = {n: b.input(n, kind.shape, "f32") for n, kind in shapes.items()}
    last = b.input("last")
    q, k, v = (b.add(ops.Quantise(), x, name=f"{n}.quantised") for n, x in given.items())
    b.add_node(ops.StoreKV(2, 8, 8), k, v, name="store", slots={"kv": "kv"})
    op = ops.Attend(4, 2, 8, 8, 8**-0.5, window, until=True, slopes=slopes)
    b.add(op, q, last, name=OUTPUT, slots={"kv": "kv"})
    return ProbeProgram(b.program((OUTPUT,)), {}, shapes)


def _in_block(rows: int, size: int, source: CaseData, slopes: tuple[float, ...] = ()) -> Scenario:
    """Return rows that see everything before them, then a block whose rows see one another."""
    probe = until(slopes=slopes)
    feed = probe.feed(source, rows + size, 2.0)
    ends = np.minimum(np.arange(rows + size), rows - 1)
    ends[rows:] = rows + size - 1
    feed = SequenceInput(feed.tokens, {**feed.inputs, "last": ends.astype(np.int32)})
    return Scenario(probe.program, {}, [feed])


def _images(window: int | None, images: tuple[tuple[int, int], ...], source: CaseData) -> Scenario:
    """Return a text with images, whose rows see all of their own image, and no later one."""
    probe, rows = until(window), images[-1][1] + 9
    feed, last = probe.feed(source, rows, 2.0), np.arange(rows, dtype=np.int32)
    for first, end in images:
        last[first:end] = end - 1
    feed = SequenceInput(feed.tokens, {**feed.inputs, "last": last})
    return Scenario(probe.program, {}, [feed])


def _span(window: int, rows: int, source: CaseData) -> Scenario:
    """Return rows that see as many keys after themselves as before, where there are so many."""
    probe = until(window)
    feed = probe.feed(source, rows, 2.0)
    last = np.minimum(np.arange(rows) + window - 1, rows - 1).astype(np.int32)
    feed = SequenceInput(feed.tokens, {**feed.inputs, "last": last})
    return Scenario(probe.program, {}, [feed])


def sink_values(source: CaseData, heads: int) -> np.ndarray:
    """Return sink logits that take a share of every row."""
    return source.floats(heads) + F32(2)


def _sinks(geometry: tuple[int, int, int, int], source: CaseData) -> Scenario:
    probe = attention(geometry, sinks=sink_values(source, geometry[0]))
    return probe.scenario(source, 80, amplitude=1.5)


def _capped(cap: float, source: CaseData) -> Scenario:
    return attention((4, 2, 16, 16), soft_cap=cap).scenario(source, 80, amplitude=3.0)


def slopes_of(heads: int) -> tuple[float, ...]:
    """Return slopes from ⅔ down, no power of two; the last head has none."""
    return (*(2.0 / (3 + 7 * n) for n in range(heads - 1)), 0.0)


def _sloped(
    geometry: tuple[int, int, int, int], rows: int, options: dict, source: CaseData
) -> Scenario:
    probe = attention(geometry, slopes=slopes_of(geometry[0]), **options)
    return probe.scenario(source, rows, amplitude=2.0)


def _sloped_blocks(source: CaseData) -> Scenario:
    """Return rows that see later keys, too, and count distances from their own positions."""
    return _in_block(100, 16, source, slopes_of(4))


SLOPED: dict[str, Callable[[CaseData], Scenario]] = {
    **{_described(g): partial(_sloped, g, 150, {}) for g in GEOMETRIES},
    "1100 rows, more than a run of tiles": partial(_sloped, (2, 1, 8, 8), 1100, {}),
    "a window of 65, soft-capped": partial(
        _sloped, (4, 2, 8, 8), 200, {"window": 65, "soft_cap": 5.0}
    ),
    "100 rows, then a block of 16 that see one another": _sloped_blocks,
}


def conv(source: CaseData, kernel: int = 3, biased: bool = False) -> ProbeProgram:
    """Build a causal convolution of 32 channels."""
    weights = {"weight": vector(source.floats(32, kernel))}
    if biased:
        weights["bias"] = vector(source.floats(32))
    return one(ops.CausalConv(32, kernel, biased), {"x": floats(32)}, weights)


def _conv(kernel: int, biased: bool, source: CaseData) -> Scenario:
    return conv(source, kernel, biased).scenario(source, 20)
