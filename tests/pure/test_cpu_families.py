"""Families with experts, gates, gains, recurrences: each instruction set has the reference bits."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cortiq_cpu")

from sequences import alone, same

from cortiq.backend import CompileOptions, Digest, Supported
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq_cpu.backend import CpuBackend
from cortiq_cpu.native import supported_isas
from cortiq_reference.backend import ReferenceBackend

MODELS = ("qwen2_moe", "glm4_moe", "deepseek_v2", "deepseek_v3", "lfm2_moe", "gpt_oss", "laguna",
          "qwen3_next", "qwen3_5_moe_text")  # fmt: skip
WANTS = (Digest(), Digest("hidden"))


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    """A small model, ids, and what the reference gives."""
    loaded = load_program(open_synthetic(f"synthetic:mini-{request.param}?format=w8"))
    ids = np.random.default_rng(1).integers(0, 320, 30).tolist()
    options = CompileOptions(threads=1)
    executable = ReferenceBackend().compile(loaded.program, loaded.weights, options)
    return loaded, ids, alone(executable, ids, WANTS)[0]


@pytest.mark.parametrize("isa", supported_isas())
def test_every_instruction_set_gives_the_bits_of_the_reference(model, isa):
    loaded, ids, expected = model
    backend, options = CpuBackend(), CompileOptions(threads=2, extra={"isa": isa})
    trunk = loaded.program.trunk
    answers = [backend.supports(node, trunk, loaded.program) for node in trunk.nodes]
    assert set(map(type, answers)) == {Supported}
    executable = backend.compile(loaded.program, loaded.weights, options)
    assert same(alone(executable, ids, WANTS)[0], expected)
    executable.close()
