"""The MLX backend on real models: no node declined, the CPU backend's bits, no growing memory."""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from types import FunctionType

import numpy as np
import pytest

from cortiq.backend import Argmax, Batch, CompileOptions, Digest, Draw, Drawn, Named, Row, Top
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.ir import primitives_of
from cortiq.models import load_program
from cortiq.numerics.sampling import Sampling
from cortiq_conformance import models

mx = pytest.importorskip("mlx.core", reason="MLX has no wheel here", exc_type=ImportError)
pytest.importorskip("cortiq_cpu")

from cortiq_cpu.backend import CpuBackend  # noqa: E402
from cortiq_mlx.backend import MlxBackend  # noqa: E402

PROMPT = [(11 + 7919 * i) % 40000 for i in range(66)]
"""More than a tile of attention."""
ON_CPU = CompileOptions(device="cpu", threads=1)
WANTS = (
    Argmax(),
    Digest("logits"),
    Named("layers.3.out"),
    Top(5),
    Draw(Sampling(seed=3, top_k=9, top_p=0.9, min_p=0.01, frequency_penalty=0.5)),
)


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    with closing(open_checkpoint(smollm2_path)) as checkpoint:
        yield load_program(checkpoint)


@pytest.fixture(scope="module")
def gemma3(gemma3_path):
    with closing(open_checkpoint(gemma3_path)) as checkpoint:
        yield load_program(checkpoint)


@pytest.fixture(scope="module")
def executable(smollm2):
    with closing(MlxBackend().compile(smollm2.program, smollm2.weights, ON_CPU)) as compiled:
        yield compiled


def stream(executable, prompt, steps, wants, state=None):
    """Return the results of the last row of a prompt and of each greedy step."""
    state = state or executable.open(len(prompt) + steps)
    last = len(prompt) - 1
    rows = [Row(state, i, t, wants if i == last else ()) for i, t in enumerate(prompt)]
    brought, drawn = [executable.forward(Batch(rows)).result().rows[-1]], Drawn(last)
    for step in range(steps):
        row = Row(state, len(prompt) + step, drawn, wants)
        brought.append(executable.forward(Batch([row])).result().rows[0])
        drawn = Drawn(0)
    state.release()
    return brought


def on_cpu(loaded, prompt, steps, wants):
    with closing(CpuBackend().compile(loaded.program, loaded.weights, ON_CPU)) as compiled:
        return stream(compiled, prompt, steps, wants)


def assert_same(brought, expected):
    assert len(brought) == len(expected)
    for mine, other in zip(brought, expected, strict=True):
        assert mine.keys() == other.keys()
        for want, value in other.items():
            parts = zip(*(v if isinstance(v, tuple) else (v,) for v in (mine[want], value)))  # noqa: B905
            for a, b in parts:
                np.testing.assert_array_equal(a, b, err_msg=str(want))


def forbidden(*arguments, **options):
    raise AssertionError("a function of cortiq.numerics was called while a batch ran")


def forbid_numerics(monkeypatch):
    """Let every function of `cortiq.numerics` raise, wherever its name stands."""
    replaced = 0
    for name, module in list(sys.modules.items()):
        if not name.startswith(("cortiq.numerics", "cortiq_mlx")):
            continue
        for key, value in list(vars(module).items()):
            home = getattr(value, "__module__", "") or ""
            if isinstance(value, FunctionType) and home.startswith("cortiq.numerics"):
                monkeypatch.setattr(module, key, forbidden)
                replaced += 1
    assert replaced > 100


def test_smollm2_without_a_function_of_the_definition(executable, smollm2, monkeypatch):
    expected = on_cpu(smollm2, PROMPT, 2, WANTS)
    state = executable.open(len(PROMPT) + 2)
    with monkeypatch.context() as patched:
        forbid_numerics(patched)
        brought = stream(executable, PROMPT, 2, WANTS, state)
    assert_same(brought, expected)


def test_gemma3_has_the_cpu_backends_bits(gemma3):
    compiled = MlxBackend().compile(gemma3.program, gemma3.weights, ON_CPU)
    brought = stream(compiled, PROMPT[:5], 1, WANTS)
    compiled.close()
    assert_same(brought, on_cpu(gemma3, PROMPT[:5], 1, WANTS))


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_no_node_of_a_real_model_is_declined(name, request):
    program, backend = request.getfixturevalue(name).program, MlxBackend()
    for graph in primitives_of(program).graphs.values():
        for node in graph.nodes:
            assert type(backend.supports(node, graph, program)).__name__ == "Supported"


def test_a_sequence_goes_on_in_another_thread():
    model = models.load("tiny-llama")
    executable = MlxBackend().compile(model.program, model.weights, ON_CPU)
    alone = stream(executable, [1, 2, 3], 4, (Argmax(), Digest("logits")))
    state, found = executable.open(8), []

    def step(position, token):
        row = Row(state, position, token, (Argmax(), Digest("logits")))
        found.append(executable.forward(Batch([row])).result().rows[0])

    for position, token in enumerate([1, 2, 3, Drawn(0), Drawn(0), Drawn(0), Drawn(0)]):
        thread = threading.Thread(target=step, args=(position, token))
        thread.start()
        thread.join()
    assert found[2:] == alone
    executable.close()


def test_nothing_grows_while_decoding():
    model = models.load("tiny-llama")
    executable = MlxBackend().compile(model.program, model.weights, ON_CPU)
    state, sizes = executable.open(1 << 10), []
    state.reserve(1 << 9)
    for position in range(300):
        token = Drawn(0) if position else 5
        executable.forward(Batch([Row(state, position, token, (Argmax(),))])).result()
        sizes.append(mx.get_active_memory())
    # Constants of new shapes are held as tiles are added; everything else is given back.
    assert sizes[-1] - sizes[99] < 1 << 19
    executable.close()
