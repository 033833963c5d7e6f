"""The wgpu backend on whatever adapter there is: bits, adapters, limits, a lost device."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import adapter
import numpy as np
import pytest

os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp())  # software Vulkan asks for one

import cortiq_wgpu
from cortiq.backend import Argmax, Batch, CompileOptions, Digest, Named, Row
from cortiq.errors import BackendError
from cortiq.ir import Builder, ops
from cortiq.numerics.synthetic import synthetic_weight
from cortiq.plugins import find_backend
from cortiq_conformance import models, probes
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.catalogue import cases
from cortiq_conformance.report import CaseOutcome
from cortiq_conformance.runner import make_subject, run, run_case
from cortiq_reference.backend import ReferenceBackend
from cortiq_wgpu import adapters, row_dispatches, self_test, wants
from cortiq_wgpu.backend import KERNELS, WgpuBackend
from cortiq_wgpu.device import DeviceLostError, GpuDevice

FILES = sorted(Path(cortiq_wgpu.__file__).parent.glob("*.py"))
SEAM = {"backend", "ir", "numerics", "errors", "hookspecs"}


pytestmark = adapter.needed


@pytest.mark.parametrize("level", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_primitives_and_layers(level):
    """Layers once: this backend has no other way to compute them than their decomposition."""
    subject = make_subject(WgpuBackend())
    listed = [c for c in cases((level,)) if not c.id.endswith(", as its decomposition]")]
    results, computed = [], set()
    for case in listed:
        results.append(run_case(case, subject))
        computed |= set(subject.computed)
    others = {r.case.id: str(r.outcome) for r in results if r.outcome is not CaseOutcome.SAME}
    lacking = [op.__name__ for op in ops.PRIMITIVES if op not in KERNELS]
    lacking += [re.sub("(?<!^)([A-Z])", r" \1", name).lower() for name in lacking]
    declined = {case.id for case in listed if any(name in case.id for name in lacking)}
    assert others == dict.fromkeys(declined, "declined")
    assert len(results) > 120
    assert computed == {"wgpu"}


def test_triton_can_be_loaded_after_the_adapters_were_looked_for():
    """Two copies of LLVM in one process: in the wrong order it dies."""
    pytest.importorskip("triton")
    code = "from cortiq_wgpu import adapters; adapters.devices(); import triton; print('alive')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (found.stdout, found.returncode) == ("alive\n", 0), found.stderr


@pytest.mark.parametrize(
    ("level", "only"),
    [
        (2, "tiny-lfm2, 70 tokens, whole"),
        (2, "tiny-mixtral, 70 tokens, whole"),
        (3, "tiny-gemma3, 3 prompts, in one batch"),
        (3, "tiny-lfm2, 3 prompts, with rewinds"),
        (4, "sampled batch[tiny-llama, 3 prompts, temperature 0.7"),
    ],
)
def test_graphs_and_streams(level, only):
    report = run(WgpuBackend(), levels=(level,), only=only)
    assert report.passed, report.summary()
    assert set(report.computed) == {"wgpu"}


@pytest.mark.parametrize("only", ["Draw[masked", "Draw[penalties"])
def test_draws_of_rows_that_workgroups_share(only, monkeypatch):
    monkeypatch.setattr(wants, "PART", 200)
    report = run(WgpuBackend(), levels=(0,), only=only)
    assert report.passed, report.summary()


def compiled(name="tiny-llama", **extra):
    model = models.load(name)
    return WgpuBackend().compile(model.program, model.weights, CompileOptions(extra=extra))


def fed(executable, tokens=(3, 1, 4, 1, 5, 9, 2, 6)):
    """Return the results of the last of some tokens."""
    state = executable.open(len(tokens))
    wants = (Argmax(), Digest("logits"), Digest("hidden"))
    rows = [Row(state, i, t, wants if i == len(tokens) - 1 else ()) for i, t in enumerate(tokens)]
    return executable.forward(Batch(rows)).result().rows[-1]


def test_weights_larger_than_a_buffer_are_split():
    whole, split = compiled(), compiled(binding_bytes=1 << 14)
    heights = [len(m.parts) for m in split.plans["trunk"].weights._matrices.values()]
    assert max(heights) > 1
    assert fed(whole) == fed(split)


def test_progress_of_uploads_counts_every_byte():
    told = []
    compiled(progress=lambda *told_now: told.append(told_now))
    done = [now for _, now, _ in told]
    assert done == sorted(done) and len(set(done)) > 3
    assert {what for what, _, _ in told} == {"Uploading weights"}
    assert told[-1][1] == told[-1][2] > 0


def test_products_for_gpus_give_the_same_bits():
    """Forty tokens are many rows: heads that share keys are computed side by side."""
    tokens = (3, 1, 4, 1, 5, 9, 2, 6) * 5
    assert fed(compiled(gpu_kernels=False), tokens) == fed(compiled(gpu_kernels=True), tokens)


def brought_by(backend, probe, feed, **extra):
    """Return the results of a probe's rows, and the labels and widths of the dispatches."""
    options = CompileOptions(extra=extra)
    executable = backend.compile(probe.program, probe.weights, options)
    state, wants = executable.open(len(feed.tokens)), (Named(probes.OUTPUT),)
    rows = [
        Row(state, i, int(t), wants, {n: v[i] for n, v in feed.inputs.items()})
        for i, t in enumerate(feed.tokens)
    ]
    found = executable.forward(Batch(rows)).result().rows
    works = executable.plans["trunk"]._compiled.values() if extra else ()
    widths = {w.label: w.grid.x for c in works for w in c.works}
    return np.stack([row[wants[0]] for row in found]), widths


def wide_values():
    """x·silu(x) of 2,500 values."""
    b = Builder(context=100)
    b.input("token")
    b.input("position")
    x = b.input("x", (2500,), "f32")
    b.add(ops.Multiply(), b.add(ops.Activation("silu"), x, name="a"), x, name=probes.OUTPUT)
    return probes.ProbeProgram(b.program((probes.OUTPUT,)), {}, {"x": probes.floats(2500)})


@pytest.mark.parametrize(
    ("probe", "label"),
    [
        (wide_values(), "Activation Multiply"),
        (probes.attend(ops.Attend(9, 3, 32, 64, 0.2)), "AttentionMerge"),
    ],
)
def test_rows_of_many_values_are_shared_out_to_workgroups(probe, label, monkeypatch):
    monkeypatch.setattr(row_dispatches, "MANY_VALUES", 2500)
    monkeypatch.setattr(row_dispatches, "MERGED", 9 * 64)
    feed = probe.feed(CaseData("shared out"), 3)
    expected, _ = brought_by(ReferenceBackend(), probe, feed)
    found, widths = brought_by(WgpuBackend(), probe, feed, gpu_kernels=True)
    assert widths[label] == 3
    np.testing.assert_array_equal(found, expected)


SIZES = (
    {"rows": 4, "outputs": 8, "down": 16},
    {"lanes": 32, "lines": 8, "turns": 2, "rows": 4, "down": 8},
)


@pytest.mark.parametrize("tuning", SIZES)
def test_sizes_of_products_for_gpus_change_no_bit(tuning):
    program, weights = products("w8")
    x = np.random.default_rng(1).standard_normal((70, COLUMNS)).astype(np.float32)
    brought = []
    for backend, extra in (
        (ReferenceBackend(), {}),
        (WgpuBackend(), {"gpu_kernels": True, "tuning": tuning}),
    ):
        executable = backend.compile(program, weights, CompileOptions(extra=extra))
        state, rows = executable.open(80), []
        for start, stop in ((0, 3), (3, 70)):
            batch = [Row(state, i, 0, (Named("y1"),), {"x": x[i]}) for i in range(start, stop)]
            rows += executable.forward(Batch(batch)).result().rows
        brought.append(np.stack([row[Named("y1")] for row in rows]))
    np.testing.assert_array_equal(brought[1], brought[0])


LAYOUTS = ("w8", "w16", "Q8_0", "Q4_K", "e2m1b16")
SLOW_LAYOUTS = (
    "w8b256", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4",
    "i4b32", "i8b32m", "e4m3b32", "nf4b32", "fp4b32",
)  # fmt: skip
"""Kernels take a second each to compile on a processor."""
COLUMNS, HEIGHTS = 768, (100, 36, 70)


def products(layout):
    """Three matrices that meet one row, so that they are one dispatch."""
    b = Builder(context=100)
    b.input("token")
    b.input("position")
    q = b.add(ops.Quantise(), b.input("x", (COLUMNS,), "f32"), name="q")
    for i, height in enumerate(HEIGHTS):
        b.add(ops.MatMul(COLUMNS, height), q, name=f"y{i}", weights={"weight": f"w{i}"})
    weights = {
        f"w{i}": synthetic_weight(layout, f"w{i}", 3, (height, COLUMNS))
        for i, height in enumerate(HEIGHTS)
    }
    return b.program(("y0",)).with_layouts(dict.fromkeys(weights, layout)), weights


@pytest.mark.parametrize(
    "layout", [*LAYOUTS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_LAYOUTS)]
)
def test_products_of_one_row_of_few_and_of_many(layout):
    program, weights = products(layout)
    x = np.random.default_rng(1).standard_normal((70, COLUMNS)).astype(np.float32)
    wants = tuple(Named(f"y{i}") for i in range(len(HEIGHTS)))
    brought = []
    small = {"gpu_kernels": True, "tuning": {"rows": 4}}
    for backend, extra in ((ReferenceBackend(), {}), (WgpuBackend(), small)):
        executable = backend.compile(program, weights, CompileOptions(extra=extra))
        state, rows = executable.open(80), []
        for start, stop in ((0, 1), (1, 4), (4, 70)):
            batch = [Row(state, i, 0, wants, {"x": x[i]}) for i in range(start, stop)]
            rows += executable.forward(Batch(batch)).result().rows
        brought.append([np.concatenate([row[want] for want in wants]) for row in rows])
    np.testing.assert_array_equal(np.array(brought[1]), np.array(brought[0]))


@pytest.mark.parametrize("layout", ["w8", "w16", "Q4_1", "Q6_K"])
def test_experts_products_for_gpus_in_parts_of_any_size(layout):
    experts, chosen, height, width = 6, 3, 37, 512
    b = Builder(context=100)
    b.input("token")
    b.input("position")
    x, index = b.input("x", (chosen, width), "f32"), b.input("index", (chosen,), "i32")
    op = ops.ExpertMatMul(experts, width, height)
    b.add(op, b.add(ops.Quantise(), x, name="q"), index, name="y", weights={"weight": "w"})
    program = b.program(("y",)).with_layouts({"w": layout})
    weights = {"w": synthetic_weight(layout, "w", 3, (experts * height, width))}
    rng = np.random.default_rng(1)
    given = [
        {
            "x": rng.standard_normal((chosen, width)).astype(np.float32),
            "index": np.sort(rng.permutation(experts)[:chosen]).astype(np.int32),
        }
        for _ in range(9)
    ]
    brought = []
    kinds = ((ReferenceBackend(), {}), (WgpuBackend(), {"gpu_kernels": True}))
    split = (WgpuBackend(), {"gpu_kernels": True, "binding_bytes": 1 << 15})
    for backend, extra in (*kinds, split):
        executable = backend.compile(program, weights, CompileOptions(extra=extra))
        state = executable.open(20)
        batch = Batch([Row(state, i, 0, (Named("y"),), row) for i, row in enumerate(given)])
        rows = executable.forward(batch).result().rows
        brought.append(np.stack([row[Named("y")] for row in rows]))
    for other in brought[1:]:
        np.testing.assert_array_equal(other, brought[0])


def test_portable_products_of_bytes_give_the_same_bits():
    assert fed(compiled()) == fed(compiled(portable_dot=True))


def test_a_lost_device_fails_one_request_and_is_opened_again():
    executable = compiled()
    expected = fed(executable)
    executable.gpu.device.destroy()
    with pytest.raises(DeviceLostError, match="was lost while a batch was computed"):
        fed(executable)
    assert fed(executable) == expected


def test_an_unknown_adapter_is_refused():
    with pytest.raises(BackendError, match="wgpu has no device 'warp drive'"):
        adapters.chosen("warp drive")


class Adapter:
    """An adapter as wgpu describes one."""

    def __init__(self, device, kind="DiscreteGPU"):
        self.info = {"device": device, "adapter_type": kind, "backend_type": "Vulkan"}


def test_adapters_are_chosen_by_name_or_number(monkeypatch):
    both = [Adapter("llvmpipe (LLVM 15)", "CPU"), Adapter("NVIDIA H200"), Adapter("NVIDIA H200")]
    monkeypatch.setattr("wgpu.gpu.enumerate_adapters_sync", lambda: both)
    assert [d.name for d in WgpuBackend().devices()] == ["nvidia-h200", "nvidia-h200-2", "llvmpipe"]
    assert adapters.chosen("llvmpipe") == ("llvmpipe", both[0])
    assert adapters.chosen("1") == ("nvidia-h200-2", both[2])
    assert adapters.chosen(None) == ("nvidia-h200", both[1])


def test_a_device_is_named_or_numbered_on_the_command_line():
    by_number, device = find_backend("wgpu:0")
    assert by_number.name == "wgpu"
    assert device == by_number.devices()[0].name == find_backend(f"wgpu:{device}")[1]
    with pytest.raises(BackendError, match="has no device '77'"):
        find_backend("wgpu:77")


def test_a_wrong_bit_refuses_the_device_by_name(monkeypatch):
    name, adapter = adapters.chosen(None)
    expression, exact = self_test.EXPRESSIONS["a * b + a"]

    def off_by_one(given):
        bits = np.ascontiguousarray(exact(given)).view(np.uint32).copy()
        bits[77] += 1
        return bits.view(np.float32)

    monkeypatch.setattr(self_test, "EXPRESSIONS", {"a * b + a": (expression, off_by_one)})
    with pytest.raises(BackendError, match=rf"wgpu on {name} computes a \* b \+ a with other bits"):
        self_test.check_device(GpuDevice(name, adapter))


def test_only_the_public_seam_is_imported():
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                package, _, rest = name.partition(".")
                assert not package.startswith("cortiq") or package in ("cortiq", "cortiq_wgpu")
                assert package != "cortiq" or rest.split(".")[0] in SEAM, (file.name, name)
