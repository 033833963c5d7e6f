"""Warming meets every launch that serving makes, so that nothing compiles while requests wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

from cortiq.backend import CompileOptions  # noqa: E402
from cortiq_conformance import models  # noqa: E402
from cortiq_triton import compiled  # noqa: E402
from cortiq_triton.backend import TritonBackend  # noqa: E402

PROBE = Path(__file__).with_name("warm_probe.py")


@pytest.mark.parametrize("model", ["tiny-gemma3", "mini-qwen3_next", "tiny-mixtral"])
def test_serving_launches_nothing_that_warming_had_not_met(model):
    assert ", 0 late" in probed(model, "w8")


@pytest.mark.parametrize("layout", ["w8", "Q4_1"])
def test_nor_does_serving_by_the_kernels_for_hopper(layout):
    said = probed("mini-qwen3", layout, "hopper")
    assert ", 0 late" in said and "; 0 Gluon" not in said


def probed(*arguments):
    done = subprocess.run([sys.executable, PROBE, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_arguments_that_triton_specialises_alike_are_of_one_kind():
    alike = [(0, 16, 4096), (3, 17, -5), (1,), (2**31, 2**40), (2**31 + 3,), (0.5, 1.0)]
    kinds = [{compiled._kind(value) for value in values} for values in alike]
    assert all(len(found) == 1 for found in kinds)
    assert len(set.union(*kinds)) == len(alike)


def test_a_compilation_is_counted_and_named_when_nobody_expects_it(caplog):
    counts = compiled.Compilations()
    counts.note(src="first", cache_hit=True, metadata={})
    counts.note(src="second", cache_hit=False, metadata={})
    assert (counts.compiled, counts.loaded, counts.late) == (1, 1, 0) and not caplog.records
    counts.expected = False
    counts.note(src="third", cache_hit=False)
    assert counts.late == 1 and "third was compiled while a request waited" in caplog.text


def test_the_interpreter_compiles_nothing_ahead():
    model = models.load("tiny-llama")
    executable = TritonBackend().compile(model.program, model.weights, CompileOptions())
    assert executable.warm() is False
    executable.close()
