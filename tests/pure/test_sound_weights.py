"""Impossible weights are refused at compilation, before a backend sees them."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import gguf
import numpy as np
import pytest
from small_program import bound, small_program

from cortiq.backend import Supported, Versions
from cortiq.backend.protocol import CompileOptions
from cortiq.errors import FormatError, GraphError
from cortiq.ir import Builder, ops
from cortiq.numerics import soundness
from cortiq.numerics.layouts import LAYOUTS, Weight
from cortiq.numerics.soundness import check_finite
from cortiq.numerics.synthetic import synthetic_weight
from cortiq.numerics.weights import convert
from cortiq.placement.place import place, place_split
from cortiq_conformance.case_weights import MATRIX_LAYOUTS
from cortiq_cpu.backend import CpuBackend
from cortiq_cpu.packing import PackedMatrix
from cortiq_reference.backend import ReferenceBackend

LIMIT = 2.0**50
RAW = [
    layout
    for name, layout in LAYOUTS.items()
    if layout.kind != "parts" and name not in ("f32", "IQ1_M")  # whose scale lies in pieces
]
SPOILT = [name for name in MATRIX_LAYOUTS if name != "IQ1_M"]
SHAPE = (6, 512)
PLANTED = {"F32": 4, "F16": 2, "BF16": 2, "MXFP4": 1}
"""Bytes of the number that is planted in a layout; f16 in all others."""


def numbers(layout, raw):
    """Values or scales of raw bytes, in float64, by NumPy's and the gguf package's types."""
    if layout.name == "F32":
        return raw.view("<f4").astype(np.float64)
    if layout.name == "F16":
        return raw.view("<f2").astype(np.float64)
    if layout.name == "BF16":
        return gguf.quants.BF16.dequantize_rows(raw.view(np.uint8)).astype(np.float64)
    blocks = raw.reshape(-1, layout.block_bytes)
    if layout.words == "f32":
        scales = [blocks[:, at : at + 4].view("<f4")[:, 0] for at in layout.scales_at]
        return np.stack(scales).astype(np.float64)
    if layout.name == "MXFP4":
        exponents = blocks[:, 0].astype(np.float64)
        return np.where(exponents == 255, np.inf, 2.0 ** (exponents - 128))
    with np.errstate(all="ignore"):
        kind = gguf.GGMLQuantizationType(layout.ggml_type)
        return gguf.quants.dequantize(blocks, kind).astype(np.float64)


def sound(layout):
    """Raw bytes of a matrix."""
    if layout.kind == "blocks":
        return synthetic_weight(layout.name, "w", 0, SHAPE).parts["raw"].copy()
    values = np.float32(np.random.default_rng(1).standard_normal(SHAPE))
    if layout.name == "BF16":
        return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    return values.astype({"F32": "<f4", "F16": "<f2"}[layout.name]).view(np.uint8)


def scales_in(layout, raw, width):
    """Bytes of a block where an infinity makes its values other than finite."""
    found = []
    for at in range(0, layout.block_bytes - width + 1, 2):
        spoilt = raw[:1].copy()
        word = {1: b"\xff", 2: b"\x00\x7c", 4: b"\0\0\x80\x7f"}[width]
        spoilt[0, at : at + width] = np.frombuffer(word, np.uint8)
        found += [] if np.isfinite(numbers(layout, spoilt)).all() else [at]
    assert found
    return found


PATTERNS = {
    4: [0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF, 0x58800000, 0xD8800000, 0x587FFFFF,
        0xD87FFFFF, 0x80000000, 0x00000001, 0x80000001],
    2: [0x7C00, 0xFC00, 0x7E01, 0xFFFF, 0x7BFF, 0xFBFF, 0x5880, 0xD880, 0x587F, 0xD87F, 0x8000, 1],
    1: [0, 1, 127, 177, 178, 254, 255],
}  # fmt: skip


@pytest.mark.parametrize("layout", RAW, ids=lambda layout: layout.name)
def test_exactly_what_leaves_the_domain_is_refused(layout):
    """Every place where a layout has a number, every kind of pattern, the first and last row."""
    raw = sound(layout)
    width = PLANTED.get(layout.name, 4 if layout.words == "f32" else 2)
    places = scales_in(layout, raw, width) if layout.kind == "blocks" else (0,)
    last = raw.shape[1] - (layout.block_bytes if layout.kind == "blocks" else width)
    check_finite(Weight.from_bytes(layout, raw, SHAPE), "w")
    seen = set()
    for pattern in PATTERNS[width]:
        for row, start in ((0, 0), (SHAPE[0] - 1, last)):
            for at in places:
                spoilt = raw.copy()
                word = np.frombuffer(pattern.to_bytes(width, "little"), np.uint8)
                spoilt[row, start + at : start + at + width] = word
                given = numbers(layout, spoilt)
                bad = not np.isfinite(given).all() or np.abs(given).max() >= LIMIT
                seen.add(bad)
                if bad:
                    with pytest.raises(FormatError, match=rf"w: row {row} holds"):
                        check_finite(Weight.from_bytes(layout, spoilt, SHAPE), "w")
                else:
                    check_finite(Weight.from_bytes(layout, spoilt, SHAPE), "w")
    assert seen == {True, False}


@pytest.mark.parametrize("layout", ["w8", "w16", "w8b256"])
def test_scales_of_our_own_layouts_are_looked_at(layout):
    weight = convert(Weight.from_floats(np.ones(SHAPE, np.float32)), layout, "w")
    check_finite(weight, "w")
    for value in (np.inf, -np.inf, np.nan, LIMIT, -LIMIT):
        scale = weight.parts["scale"].copy()
        scale[4, -1] = value
        with pytest.raises(FormatError, match="w: row 4 holds"):
            check_finite(replace(weight, parts={**weight.parts, "scale": scale}), "w")


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_code_that_is_no_number_is_refused(code):
    raw = sound(LAYOUTS["e4m3b32"])
    raw[2, 36 + 4 + 31] = code
    with pytest.raises(FormatError, match="w: row 2 holds nan"):
        check_finite(Weight.from_bytes(LAYOUTS["e4m3b32"], raw, SHAPE), "w")


class Spy:
    """A backend that takes weights when told to, and remembers what it was given."""

    name, priority, versions = "spy", 5, Versions()
    open = import_ = forward = state_bytes = free_bytes = Mock()

    def __init__(self, takes):
        self.takes, self.given, self.closed = takes, [], 0

    def devices(self):
        return []

    def supports(self, node, graph, program):
        return Supported()

    def compile(self, program, weights, options):
        for name in self.takes:
            self.given.append((name, weights[name]))
        self.program = program
        nodes = (node.name for graph in program.graphs.values() for node in graph.nodes)
        self.placement = dict.fromkeys(nodes, "spy")
        return self

    def close(self):
        self.closed += 1


def product(weight, name="w"):
    b = Builder(context=8)
    x = b.input("x", (weight.shape[1],), "f32")
    if weight.layout.kind != "float":
        x = b.add(ops.Quantise(), x, name="x.quantised")
    b.add(ops.MatMul(weight.shape[1], weight.shape[0]), x, name="y", weights={"weight": name})
    given = "f32" if weight.layout.kind == "float" else weight.layout.name
    return b.program(("y",)).with_layouts({name: given})


def spoilt(layout):
    """A matrix in a layout, one number of which is a NaN or infinity."""
    weight = synthetic_weight(layout, "w", 0, SHAPE)
    parts = {name: part.copy() for name, part in weight.parts.items()}
    if "scale" in parts:
        parts["scale"][3, 0] = np.nan
        return replace(weight, parts=parts)
    kind = LAYOUTS[layout]
    at = kind.scales_at[-1] if kind.kind == "blocks" else 0
    raw = parts["raw"]
    word = {"f32": b"\0\0\xc0\x7f", "e8m0": b"\xff"}.get(kind.words, b"\x00\xfc")
    raw[3, at : at + len(word)] = np.frombuffer(word, np.uint8)
    return replace(weight, parts={"raw": raw})


@pytest.mark.parametrize("layout", SPOILT)
@pytest.mark.parametrize("takes", [("w",), ()], ids=["taken", "left alone"])
def test_a_backend_is_never_given_what_no_weight_can_be(layout, takes):
    weight = spoilt(layout)
    spy = Spy(takes)
    with pytest.raises(FormatError, match="w: row 3 holds"):
        place(spy, product(weight), {"w": weight})
    assert not spy.given and spy.closed == (not takes)


@pytest.mark.parametrize("layout", SPOILT)
@pytest.mark.parametrize("backend", [ReferenceBackend(), CpuBackend()], ids=lambda b: b.name)
def test_every_backend_refuses_at_load_in_the_same_words(layout, backend):
    weight = spoilt(layout)
    with pytest.raises(FormatError) as there:
        place(backend, product(weight), {"w": weight})
    with pytest.raises(FormatError) as here:
        check_finite(weight, "w")
    assert str(there.value) == str(here.value)


def test_every_weight_of_a_program_is_looked_at_once(monkeypatch):
    """Also where two backends share it; the CPU backend looks at matrices as it packs them."""
    program, weights = bound(small_program())
    looked, packed, pack = [], [], PackedMatrix.pack

    def counted_pack(self, weight, name, pool=None):
        packed.append(name)
        pack(self, weight, name, pool)

    def counted(weight, name):
        looked.append(name)
        check_finite(weight, name)

    monkeypatch.setattr("cortiq.backend.compiling.check_finite", counted)
    place(ReferenceBackend(), program, weights).close()
    assert sorted(looked) == sorted(program.weights)
    monkeypatch.setattr(PackedMatrix, "pack", counted_pack)
    looked.clear()
    place(CpuBackend(), program, weights).close()
    assert len(packed) > 10 and sorted(looked + packed) == sorted(program.weights)
    looked.clear()
    packed.clear()
    parts = [(CpuBackend(), CompileOptions()), (ReferenceBackend(), CompileOptions())]
    place_split(parts, program, weights, ["layers.1"]).close()
    assert packed and sorted({*looked, *packed}) == sorted(program.weights)
    assert len(looked) == len(set(looked)) and len(packed) == len(set(packed))


@pytest.mark.parametrize("backend", [ReferenceBackend(), CpuBackend()], ids=lambda b: b.name)
def test_every_weight_that_is_spoilt_is_found_by_name(backend):
    program, weights = bound(small_program())
    for name, weight in weights.items():
        key = "scale" if "scale" in weight.parts else "raw"
        part = weight.parts[key].copy()
        part.view("<f4").reshape(-1)[-1] = np.inf
        bad = replace(weight, parts={**weight.parts, key: part})
        with pytest.raises(FormatError, match=f"^{name}: row {weight.shape[0] - 1} holds inf"):
            place(backend, program, {**weights, name: bad})


def test_slices_end_where_the_weight_does(monkeypatch):
    """The last rows are looked at however many slices there are."""
    values = np.ones((7, 16), np.float32)
    for size in (1, 64, 65, 200, 447, 448, 10**6):
        monkeypatch.setattr(soundness, "CHECK_BYTES", size)
        for row in range(7):
            spoilt = values.copy()
            spoilt[row, -1] = np.nan
            with pytest.raises(FormatError, match=f"w: row {row} holds nan"):
                check_finite(Weight.from_floats(spoilt), "w")
        check_finite(Weight.from_floats(values), "w")


def test_weights_of_other_forms_than_the_program_says_are_refused():
    b = Builder(context=8)
    position = b.input("position")
    q = b.add(ops.Quantise(), b.input("q", (4, 8), "f32"), name="q.quantised")
    k = b.add(ops.Quantise(), b.input("k", (2, 8), "f32"), name="k.quantised")
    b.add_node(ops.StoreKV(2, 8, 8), k, k, name="store", slots={"kv": "kv"})
    op = ops.Attend(4, 2, 8, 8, 0.3, sinks=True)
    b.add(op, q, position, name="y", weights={"sinks": "sinks"}, slots={"kv": "kv"})
    program = b.program(("y",)).with_layouts({"sinks": "f32"})
    weights = {"sinks": Weight.from_floats(np.zeros((1, 4), np.float32))}
    spy = Spy(())
    assert place(spy, program, weights).program is spy.program
    for shape in ((1, 3), (1, 5), (4, 1), (2, 2)):
        other = {"sinks": Weight.from_floats(np.zeros(shape, np.float32))}
        with pytest.raises(GraphError, match=r"sinks: is \[.*but the program takes \[4\]"):
            place(spy, program, other)
    with pytest.raises(GraphError, match="sinks: the program has no such weight"):
        place(spy, program, {})
    with pytest.raises(GraphError, match="sinks: is in w8, but the program says f32"):
        place(spy, program, {"sinks": convert(weights["sinks"], "w8", "sinks")})


def test_the_conformance_kit_compiles_through_the_same_check():
    from cortiq_conformance.subject import Subject

    weight = spoilt("Q4_K")
    compiled = Subject(ReferenceBackend()).compiled(product(weight), {"w": weight})
    with pytest.raises(FormatError, match="row 3"), compiled:
        pass
