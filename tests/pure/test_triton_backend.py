"""The Triton backend, in Triton's interpreter: bits, seam, and what it says where it cannot run."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

import cortiq_triton  # noqa: E402
from cortiq.backend import (  # noqa: E402
    Argmax,
    Batch,
    CompileOptions,
    Declined,
    Digest,
    Draw,
    Drawn,
    Named,
    Row,
    Status,
    Top,
)
from cortiq.errors import BackendError  # noqa: E402
from cortiq.ir import ops  # noqa: E402
from cortiq.numerics.sampling import Sampling  # noqa: E402
from cortiq_conformance import models  # noqa: E402
from cortiq_conformance.runner import run  # noqa: E402
from cortiq_reference.backend import ReferenceBackend  # noqa: E402
from cortiq_triton import backend as triton_backend  # noqa: E402
from cortiq_triton import kernels, memory, self_test  # noqa: E402
from cortiq_triton.backend import TritonBackend, gpus  # noqa: E402
from cortiq_triton.kernels import KERNELS  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflows that faults are

FILES = sorted(Path(cortiq_triton.__file__).parent.glob("*.py"))
WANTS = (Argmax(), Digest("logits"))
SEAM = {"backend", "ir", "numerics", "errors", "hookspecs"}


def test_every_primitive_has_a_kernel():
    assert set(KERNELS) == set(ops.PRIMITIVES)


@pytest.mark.parametrize(
    ("level", "only"),
    [
        (0, "MatMul[Q4_K, 3 runs"),  # of matrices, of heads, of experts
        (0, "Attend window[5,"),
        (0, "Attend soft cap[5]"),
        (0, "CausalConv[3 taps, biased]"),
        (0, "Route ties[equal groups]"),
        (0, "Draw[top-p 0.8]"),
        (1, "ShortConv[width=32"),
    ],
)
def test_cases_are_computed_by_triton_alone(level, only):
    report = run(TritonBackend(), levels=(level,), only=only)
    assert report.results and report.passed, report.summary()
    assert set(report.computed) == {"triton"}


def steps_of(executable, wanted=("logits",)):
    pairs = executable.plans["trunk"].fused(frozenset(wanted), frozenset())
    return [step for step, _ in pairs]


def stream(executable, ahead, steps=2):
    """Two prompts in one batch, then steps that read their ids from the step before."""
    states = [executable.open(100) for _ in range(2)]
    rows = [Row(states[0], i, 7 * i + 1) for i in range(18)] + [Row(states[0], 18, 5, WANTS)]
    rows += [Row(states[1], 0, 9, WANTS)]
    first = executable.forward(Batch(rows)).result()
    found, under_way, drawn = [first.rows[18], first.rows[19]], [], (18, 19)
    for step in range(steps):
        at = zip(states, (19 + step, 1 + step), drawn, strict=True)
        under_way.append(
            executable.forward(Batch([Row(s, p, Drawn(row), WANTS) for s, p, row in at]))
        )
        drawn = (0, 1)
        if len(under_way) > ahead:
            found += under_way.pop(0).result().rows
    for ticket in under_way:
        found += ticket.result().rows
    ids = [state.export().tokens.tolist() for state in states]
    return found, ids


@pytest.fixture(scope="module")
def defined():
    model = models.load("tiny-gemma3")
    return stream(ReferenceBackend().compile(model.program, model.weights, CompileOptions()), 0)


@pytest.mark.parametrize("extra", [{"fuse": False}, {"graphs": True}])
def test_fused_or_not_captured_or_not_the_bits_are_the_same(extra, defined):
    model = models.load("tiny-gemma3")
    options = CompileOptions(extra=extra)
    executable = TritonBackend().compile(model.program, model.weights, options)
    assert stream(executable, ahead=1) == defined
    fused, alone = len(steps_of(executable)), len(executable.plans["trunk"].steps)
    assert fused < 0.6 * alone if extra.get("fuse", True) else fused == alone
    assert bool(executable.decoder.shapes) == bool(extra.get("graphs"))
    executable.close()


def test_nothing_is_fused_across_what_a_row_asks_for_or_supplies():
    model = models.load("tiny-gemma3")
    executable = TritonBackend().compile(model.program, model.weights, CompileOptions())
    every = {o for s in executable.plans["trunk"].steps for o in s.node.outputs}
    kept = {o for s in steps_of(executable, every) for o in s.node.outputs}
    assert kept == every
    executable.close()


def test_heads_that_rows_supply_are_read_in_place_of_what_they_are_views_of():
    model = models.load("tiny-llama")
    executable = TritonBackend().compile(model.program, model.weights, CompileOptions())
    plan = executable.plans["trunk"]
    nodes = [step.node for step in plan.steps]
    views = [node.outputs[0] for node in nodes if isinstance(node.op, ops.Reshape)]
    assert len(views) > 6
    for view in views:
        pairs = plan.fused(frozenset({"logits"}), frozenset({view}))
        assert view in {name for step, _ in pairs for name in step.node.inputs}, view
    executable.close()


def forbidden(*arguments, **options):
    raise AssertionError("a function of cortiq.numerics was called while a batch ran")


def test_numerics_is_not_called_while_a_batch_runs(monkeypatch):
    model = models.load("tiny-llama")
    wants = (
        *WANTS,
        Top(5),
        Named("logits"),
        Draw(Sampling(seed=3, top_k=9, top_p=0.9, min_p=0.01)),
    )
    found = []
    for backend in (ReferenceBackend(), TritonBackend()):
        executable = backend.compile(model.program, model.weights, CompileOptions())
        state = executable.open(20)
        batch = Batch([*(Row(state, i, i + 3) for i in range(4)), Row(state, 4, 9, wants)])
        if backend.name == "triton":
            replaced = 0
            for name, module in list(sys.modules.items()):
                for key, value in list(vars(module).items()) if "cortiq" in name else ():
                    home = getattr(value, "__module__", "") or ""
                    here = name.startswith(("cortiq.numerics", "cortiq_triton"))
                    if here and isinstance(value, FunctionType) and "cortiq.numerics" in home:
                        monkeypatch.setattr(module, key, forbidden)
                        replaced += 1
            assert replaced > 100
        found.append(executable.forward(batch).result().rows[-1])
    monkeypatch.undo()
    assert found[0].keys() == found[1].keys()
    for want, value in found[0].items():
        pairs = zip(*(v if isinstance(v, tuple) else (v,) for v in (value, found[1][want])))  # noqa: B905
        for mine, other in pairs:
            assert np.array_equal(mine, other), want


def test_only_the_public_seam_is_imported():
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                package, _, rest = name.partition(".")
                assert not package.startswith("cortiq") or package in ("cortiq", "cortiq_triton")
                assert package != "cortiq" or rest.split(".")[0] in SEAM, (file.name, name)


def test_nobody_is_given_the_interpreter_unasked():
    assert (TritonBackend().priority < 0) == (os.environ.get("TRITON_INTERPRET") == "1")


def test_an_unknown_device_is_refused():
    model = models.load("tiny-llama")
    with pytest.raises(BackendError, match="triton has no device 'cuda:77'"):
        TritonBackend().compile(model.program, model.weights, CompileOptions(device="cuda:77"))


def test_a_device_with_other_arithmetic_is_refused(monkeypatch):
    self_test.check_device.cache_clear()
    wrong = dict(self_test.CHECKS)
    right = wrong["tanh"]
    wrong["tanh"] = lambda x, device: (right(x, device)[0], right(x, device)[1] * 2)
    monkeypatch.setattr(self_test, "CHECKS", wrong)
    with pytest.raises(BackendError, match="triton on cpu computes tanh with other bits"):
        self_test.check_device("cpu")
    self_test.check_device.cache_clear()


def test_states_beyond_a_program_are_declined_with_the_reason():
    program = models.load("tiny-llama").program
    node = next(n for n in program.trunk.nodes if not n.op.primitive)
    backend = TritonBackend()
    assert backend.supports(node, program.trunk, program) == Declined("computed as its primitives")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("", "there is no driver of an NVIDIA GPU"),
        (
            "import triton, os; os.environ['TRITON_INTERPRET'] = '1'",
            "too late for it to interpret",
        ),
    ],
)
def test_without_a_gpu_it_says_why_it_is_not_there(script, said):
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("there is a driver")
    ask = "from cortiq_triton.backend import TritonBackend\nTritonBackend().devices()"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", f"{script}\n{ask}"], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode and "BackendError" in done.stderr and said in done.stderr


@pytest.fixture
def llama():
    model = models.load("tiny-llama")

    def make(**extra):
        options = CompileOptions(memory_limit=extra.pop("memory_limit", None), extra=extra)
        return TritonBackend().compile(model.program, model.weights, options)

    return make


def no_room(*arguments, **options):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_weights_that_do_not_fit_are_an_error_that_says_what_to_do(llama, monkeypatch):
    monkeypatch.setattr(kernels, "pack", no_room)
    with pytest.raises(BackendError, match="the weights do not fit the memory of cpu") as error:
        llama()
    assert "w8" in str(error.value.hint)
    assert isinstance(error.value, MemoryError)  # for which a server unloads another model


def test_without_memory_to_grow_a_batch_is_declined_and_smaller_ones_are_computed(
    llama, monkeypatch
):
    executable = llama()
    first, second = executable.open(200), executable.open(200)
    monkeypatch.setattr(memory.TritonMemory, "_fresh", no_room)
    long = Batch([Row(first, i, 1) for i in range(70)])
    outcome = executable.forward(long).result().outcomes[first]
    assert outcome.status is Status.DECLINED and "no room for 70 rows" in outcome.reason
    assert first.length() == 0 and not first.reserve(65)
    monkeypatch.undo()
    assert (
        executable.forward(Batch([Row(second, 0, 1)])).result().outcomes[second].status
        == "completed"
    )
    assert first.reserve(70)
    executable.close()


def test_a_memory_limit_is_kept_to_by_whole_pages(llama):
    page = llama().layout.page_bytes
    executable = llama(memory_limit=page + page // 2)
    state = executable.open(200)
    assert state.reserve(64) and not state.reserve(65)
    assert executable.free_bytes() == page // 2
    other = state.fork()
    assert executable.free_bytes() == page // 2  # the page is shared until it is written
    other.release()
    executable.close()


def test_a_capture_that_fails_is_said_once_and_steps_go_on_launch_by_launch(llama):
    def refuse(run, device):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    plain, executable = llama(), llama(graphs=True)
    executable.decoder.capture = refuse
    with pytest.warns(RuntimeWarning, match="graphs are off.* not permitted when stream"):
        found = stream(executable, ahead=1, steps=2)
    assert found == stream(plain, ahead=0, steps=2)
    assert executable.decoder.refused.startswith("CUDA error")


def test_a_fault_under_way_fails_its_sequence_and_what_was_run_ahead_of_it(llama):
    executable = llama(graphs=True)
    good, bad = executable.open(20), executable.open(20)
    executable.forward(Batch([Row(good, 0, 1, WANTS), Row(bad, 0, 2, WANTS)])).result()
    first = executable.forward(Batch([Row(good, 1, 3, WANTS), Row(bad, 1, 4, WANTS)]))
    first.answer[1, 0] = 1  # the flag of the second row, as a kernel would have set it
    second = executable.forward(
        Batch([Row(good, 2, Drawn(0), WANTS), Row(bad, 2, Drawn(1), WANTS)])
    )
    assert second.result().outcomes[bad].status is Status.FAILED
    assert first.result().outcomes[bad].status is Status.FAILED and bad.length() == 0
    assert second.result().outcomes[good].status is Status.COMPLETED and good.length() == 3
    assert executable.forward(Batch([Row(bad, 0, 1)])).result().outcomes[bad].status == "completed"
    executable.close()


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"cuda": "13.0", "error": "The NVIDIA driver on your system is too old"},
            "driver .* too old",
        ),
        ({"cuda": "13.0", "error": None}, "there is no NVIDIA GPU"),
        ({"cuda": "13.0", "capability": (7, 5)}, "Old card has compute capability 7.5"),
    ],
)
def test_what_keeps_a_gpu_from_being_used_is_named(facts, said, monkeypatch):
    def init():
        if facts["error"]:
            raise RuntimeError(facts["error"])

    there = "capability" in facts
    monkeypatch.setattr(torch.version, "cuda", facts["cuda"])
    for name, value in {
        "init": init, "is_available": lambda: there, "device_count": lambda: int(there),
        "get_device_name": lambda at: "Old card",
        "get_device_capability": lambda at: facts["capability"],
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(triton_backend, "check_driver", lambda: None)
    with pytest.raises(BackendError, match=said):
        gpus()


class Driver:
    """A driver's library with the status that `cuInit` returns."""

    def __init__(self, status):
        self.cuInit = lambda flags: status


def test_a_driver_without_a_gpu_says_so_before_torch_is_asked(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(100))
    with pytest.raises(BackendError, match="driver finds no NVIDIA GPU"):
        gpus()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(0))
    triton_backend.check_driver()
