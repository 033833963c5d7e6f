"""The MLX backend's own kernels: their one text, compiled for the host and held to the contract."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from cortiq.backend.array_attention import AttentionGeometry, attend
from cortiq.numerics.attention import scoring
from cortiq.numerics.layouts import LAYOUTS, decode
from cortiq.numerics.matmul import run_sums
from cortiq.numerics.quantise import planes, quantise_rows
from cortiq_conformance.runner import run

mx = pytest.importorskip("mlx.core", reason="MLX has no wheel here", exc_type=ImportError)
COMPILER = shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")

pytest.importorskip("cortiq_cpu")
from cpu_products import random_rows, random_weight  # noqa: E402

from cortiq_mlx import (  # noqa: E402
    custom_kernels,
    exact_sums,
    executable,
    kernel_sources,
    kernel_trial,
    matrices,
)
from cortiq_mlx.array_library import FLOATS  # noqa: E402
from cortiq_mlx.backend import MlxBackend  # noqa: E402
from cortiq_mlx.quantised_rows import CachedPlanes, MlxRows  # noqa: E402

TYPES = {
    "cortiq_quantise": ("float", "uint32_t", "int16_t", "int32_t"),
    "cortiq_matvec": (
        "int16_t", "int8_t", "float", "float", "int8_t", "int8_t", "uint32_t", "float",
    ),
    "cortiq_tile": (
        "int8_t", "int32_t", "int8_t", "int32_t", "int8_t", "int32_t", "uint8_t", "float",
        "uint32_t", "float", "int32_t", "float", "int32_t",
    ),
}  # fmt: skip
PROLOGUE = """
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>
static thread_local int thread_number, group_number, lane_number;
static std::barrier<>* meeting;
static void wait_for_others() { meeting->arrive_and_wait(); }
"""
LAUNCH = """
extern "C" void run_{name}(int groups, int threads, const int* numbers, void** arrays) {{
    {set_numbers}
    if (threads == 0) {{
        for (thread_number = 0; thread_number < groups; ++thread_number) {{ {call} }}
        return;
    }}
    std::barrier<> all(threads);
    meeting = &all;
    std::vector<std::thread> workers;
    for (int lane = 0; lane < threads; ++lane) workers.emplace_back([=] {{
        lane_number = lane;
        for (group_number = 0; group_number < groups; ++group_number) {{
            {call}
            wait_for_others();
        }}
    }});
    for (auto& worker : workers) worker.join();
}}
"""


def host_source():
    """Every body as C++, with a function that runs it: numbers are variables there."""
    numbers = sorted({number for body in kernel_sources.KERNEL_SOURCES for number in body.numbers})
    parts = [
        PROLOGUE,
        f"static int {', '.join(numbers)};",
        kernel_sources.source_of(kernel_sources.TILE, "host")[0],
    ]
    for body in kernel_sources.KERNEL_SOURCES:
        names, types = [*body.inputs, *body.outputs], TYPES[body.name]
        known = list(zip(types, names, strict=True))
        signature = ", ".join(f"{kind}* {name}" for kind, name in known)
        _, text = kernel_sources.source_of(body, "host")
        parts.append(f"static void {body.name}({signature}) {{ {text} }}")
        given = ", ".join(f"({kind}*)arrays[{at}]" for at, (kind, _) in enumerate(known))
        setting = " ".join(f"{number} = numbers[{at}];" for at, number in enumerate(body.numbers))
        call = f"{body.name}({given});"
        parts.append(LAUNCH.format(name=body.name, set_numbers=setting, call=call))
    return "\n".join(parts)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bodies")
    (folder / "bodies.cpp").write_text(host_source())
    options = ["-std=c++20", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-pthread", "-w"]
    command = [COMPILER, *options, "bodies.cpp", "-o", "bodies.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "bodies.so"))


@pytest.fixture
def on_host(host, monkeypatch):
    """Kernels are launched on the host instead of a GPU."""
    launches = []

    def launched(body, arrays, numbers, groups, outputs):
        given = [np.ascontiguousarray(np.array(array)) for array in arrays]
        given.append(np.zeros(1, np.uint32))
        made = [np.zeros(shape, np.array(mx.zeros(0, kind)).dtype) for shape, kind in outputs]
        places = (ctypes.c_void_p * (len(given) + len(made)))(
            *(array.ctypes.data for array in (*given, *made))
        )
        chosen = (ctypes.c_int * len(body.numbers))(*(numbers[n] for n in body.numbers))
        getattr(host, f"run_{body.name}")(groups, body.threads, chosen, places)
        launches.append(body.name)
        return [mx.array(array) for array in made]

    monkeypatch.setattr(custom_kernels, "launched", launched)
    return launches


@needs_compiler
def test_quantising_rows_has_the_definitions_bits(on_host):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((5, 300)) * np.exp2(rng.integers(-30, 40, (5, 1)))
    x[1], x[2, 7], x[3] = 0, 2.0**49, np.rint(x[3] / x[3].max() * 4000) + 0.5
    x = np.where(np.abs(x) < 2.0**-40, 0, x).astype(np.float32)
    q, e = custom_kernels.quantise(mx.array(x))
    expected = quantise_rows(x)
    np.testing.assert_array_equal(np.array(q), expected.q)
    np.testing.assert_array_equal(np.array(e), expected.e)


LAYOUT_NAMES = [name for name, layout in LAYOUTS.items() if layout.kind != "float"]


WIDE = {"w16", "e4m3b32", "nf4b32", "fp4b32", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ4_XS"}
"""Layouts whose codes take several planes, which the matvec does not know."""


@needs_compiler
@pytest.mark.parametrize("name", [name for name in LAYOUT_NAMES if name not in WIDE])
def test_the_matvec_has_the_definitions_bits(on_host, name):
    weight, rows = random_weight(name, 70, 2304 if name == "w8" else 768), random_rows(3, 768)
    if name == "w8":
        rows = random_rows(3, 2304)
    matrix = matrices.MlxMatrix(weight, name)
    matrix.split()
    assert matrix.form.planes == 1
    got = custom_kernels.matvec(matrix.parts[0], mx.array(rows.q.astype(np.int16)))
    expected = np.zeros((3, 70), np.float32)
    for part in run_sums(rows.q, decode(weight)):
        expected = expected + part
    np.testing.assert_array_equal(np.array(got), expected)


@needs_compiler
def test_products_take_the_matvec_when_it_is_in_use(on_host, monkeypatch):
    monkeypatch.setattr(
        executable, "confirmed", lambda device: frozenset({kernel_sources.MATVEC.name})
    )
    report = run(MlxBackend(), levels=(0,), only="MatMul")
    assert report.passed, report.summary()
    assert on_host.count(kernel_sources.MATVEC.name) > 20


def cache_rows(rng, rows, heads, dim):
    """Quantised rows as a cache keeps them, and as the definition takes them."""
    x = rng.standard_normal((rows, heads, dim)) * np.exp2(rng.integers(-6, 6, (rows, heads, 1)))
    known = quantise_rows(x.astype(np.float32))
    sides = mx.array(np.stack(planes(known.q), axis=2))
    return known, CachedPlanes(sides, mx.array(known.e.astype(np.int8)))


@needs_compiler
@pytest.mark.parametrize("window", [None, 9])
def test_tiles_have_the_bits_of_the_array_operations(on_host, window):
    rng = np.random.default_rng(7)
    _, keys = cache_rows(rng, 130, 2, 24)
    _, values = cache_rows(rng, 130, 2, 40)
    queries = quantise_rows(rng.standard_normal((2, 4, 24)).astype(np.float32) * 3)
    q = MlxRows(mx.array(queries.q.astype(np.int16)), mx.array(queries.e))
    how = AttentionGeometry(scoring(0.2), window, None)
    plain, _ = attend(FLOATS, q, keys, values, [128, 129], how, {})
    with custom_kernels.using(frozenset({kernel_sources.TILE.name})):
        own, _ = attend(FLOATS, q, keys, values, [128, 129], how, {})
    assert on_host == [kernel_sources.TILE.name]
    np.testing.assert_array_equal(np.array(own), np.array(plain))


@pytest.mark.parametrize("target", ["cuda", "metal", "host"])
@pytest.mark.parametrize("body", kernel_sources.KERNEL_SOURCES, ids=lambda body: body.name)
def test_every_word_has_its_language(body, target):
    header, source = kernel_sources.source_of(body, target)
    assert "$" not in source
    others = {
        "cuda": ("thread_position", "as_type", "nearbyintf"),
        "metal": ("threadIdx", "__fmul", "nearbyintf"),
        "host": ("threadIdx", "as_type"),
    }
    assert not any(word in header + source for word in others[target])
    # Products and sums of floats are spelled so that no compiler may join them.
    floats = {"run", "sum", "term", "dot", "least", "g", "s", "f", "factor", "whole"}
    for line in source.splitlines():
        words = line.replace("(", " ").replace(")", " ").replace(";", " ").split()
        joined = zip(words, words[1:], words[2:])  # noqa: B905
        assert not any(a in floats and op in "*+" and b in floats for a, op, b in joined), line


@needs_compiler
def test_kernels_are_used_where_a_device_gives_their_bits(on_host, monkeypatch):
    monkeypatch.setattr(custom_kernels, "target_of", lambda device: "cuda")
    monkeypatch.setitem(kernel_trial.DEVICES, "gpu", mx.cpu)
    kernel_trial.confirmed.cache_clear()
    assert kernel_trial.confirmed("gpu") == {body.name for body in kernel_sources.KERNEL_SOURCES}
    honest = custom_kernels.launched

    def wrong(body, *arguments):
        first, *others = honest(body, *arguments)
        if body is kernel_sources.QUANTISE:
            raise RuntimeError("it does not compile")
        return [first + 1 if body is kernel_sources.MATVEC else first, *others]

    monkeypatch.setattr(custom_kernels, "launched", wrong)
    kernel_trial.confirmed.cache_clear()
    assert kernel_trial.confirmed("gpu") == {kernel_sources.TILE.name}
    kernel_trial.confirmed.cache_clear()


def test_the_cpu_device_has_array_operations_only():
    assert kernel_trial.confirmed("cpu") == frozenset()


def test_sums_are_rounded_by_parts_where_wide_integers_are_not_rounded_once(monkeypatch):
    monkeypatch.setattr(exact_sums, "_wide", False)
    report = run(MlxBackend(), levels=(0,), only="MatMul")
    assert report.passed, report.summary()
    report = run(MlxBackend(), levels=(0,), only="Attend")
    assert report.passed, report.summary()
