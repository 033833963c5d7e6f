"""The wgpu backend on models: nothing is declined, and nothing of the definition is called."""

from __future__ import annotations

import os
import sys
import tempfile
from types import FunctionType

import adapter
import numpy as np
import pytest

os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp())  # software Vulkan asks for one

from cortiq.backend import (
    Argmax,
    Batch,
    CompileOptions,
    Digest,
    Draw,
    DrawnLogit,
    Named,
    Row,
    Supported,
    Top,
)
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.numerics.sampling import Sampling
from cortiq_conformance import models
from cortiq_reference.backend import ReferenceBackend
from cortiq_wgpu.backend import WgpuBackend
from cortiq_wgpu.run import WgpuRun

PROMPT = [17, 4, 99, 4, 203, 11, 58]
WANTS = (
    Argmax(),
    Digest("logits"),
    Named("hidden"),
    Top(5),
    DrawnLogit(1.5),
    Draw(Sampling(seed=3, top_k=9, top_p=0.8, repetition_penalty=1.2)),
)


pytestmark = adapter.needed


def last(executable, state, tokens=PROMPT):
    """Return the results of the last of some tokens."""
    rows = [Row(state, i, t, WANTS if t == tokens[-1] else ()) for i, t in enumerate(tokens)]
    return executable.forward(Batch(rows)).result().rows[-1]


def assert_same(brought, expected):
    assert brought.keys() == expected.keys()
    for want, value in expected.items():
        parts = value if isinstance(value, tuple) else (value,)
        mine = brought[want] if isinstance(value, tuple) else (brought[want],)
        for one, other in zip(mine, parts, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(want))


def forbidden(*arguments, **options):
    raise AssertionError("a function of cortiq.numerics was called while a batch ran")


@pytest.mark.parametrize("name", ["tiny-gemma3", "tiny-mixtral", "tiny-lfm2"])
def test_numerics_is_not_called_while_a_batch_runs(name, monkeypatch):
    model = models.load(name)
    reference = ReferenceBackend().compile(model.program, model.weights, CompileOptions())
    expected = last(reference, reference.open(len(PROMPT)))
    executable = WgpuBackend().compile(model.program, model.weights, CompileOptions())
    state = executable.open(len(PROMPT))
    replaced = 0
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith(("cortiq.numerics", "cortiq_wgpu")):
            continue
        for key, value in list(vars(module).items()):
            home = getattr(value, "__module__", "") or ""
            if isinstance(value, FunctionType) and home.startswith("cortiq.numerics"):
                monkeypatch.setattr(module, key, forbidden)
                replaced += 1
    assert replaced > 100
    brought = last(executable, state)
    monkeypatch.undo()
    assert_same(brought, expected)


def steps(executable):
    """Return the results of steps whose wants and sequences change."""
    one, other = executable.open(20), executable.open(20)
    turns = [
        *3 * [((one, (Argmax(),)),)],
        *2 * [((one, (Named("hidden"),)),)],
        ((one, (Named("hidden"),)), (other, ())),
        *2 * [((one, ()), (other, (Named("hidden"),)))],
        *2 * [((other, (Argmax(), Digest("logits"))),)],
    ]
    brought = []
    for turn, wanting in enumerate(turns):
        rows = [Row(s, s.length(), (7 * turn + 3) % 50, wants) for s, wants in wanting]
        brought += executable.forward(Batch(rows)).result().rows
    return brought


def test_commands_made_ahead_are_used_only_by_batches_like_the_last(monkeypatch):
    model = models.load("tiny-lfm2")
    reference = ReferenceBackend().compile(model.program, model.weights, CompileOptions())
    executable = WgpuBackend().compile(model.program, model.weights, CompileOptions())
    waited = []
    encoded = WgpuRun._encoded
    monkeypatch.setattr(
        WgpuRun, "_encoded", lambda run, rows: (waited.append(run), encoded(run, rows))[1]
    )
    for mine, right in zip(steps(executable), steps(reference), strict=True):
        assert_same(mine, right)
    assert len(waited) == 10 + 5, "each turn encodes the next one, and five were unlike the last"


def declined(program):
    """Nodes that the backend declines."""
    backend = WgpuBackend()
    return {
        node.name: answer
        for graph in program.graphs.values()
        for node in graph.nodes
        if not isinstance(answer := backend.supports(node, graph, program), Supported)
    }


def test_no_node_of_the_real_models_is_declined(smollm2_path, gemma3_path):
    for path in (smollm2_path, gemma3_path):
        assert declined(load_program(open_checkpoint(path)).program) == {}


def test_a_real_model_brings_the_cpu_backends_bits(smollm2_path):
    cpu = pytest.importorskip("cortiq_cpu.backend").CpuBackend
    loaded = load_program(open_checkpoint(smollm2_path))
    brought = []
    for backend in (cpu(), WgpuBackend()):
        executable = backend.compile(loaded.program, loaded.weights, CompileOptions())
        brought.append(last(executable, executable.open(len(PROMPT))))
        executable.close()
    assert_same(brought[1], brought[0])
