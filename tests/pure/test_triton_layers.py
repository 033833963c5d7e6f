"""Decoder layers in one launch: the CUDA source, compiled for the CPU with each thread a coroutine,
has the CPU backend's bits; and which steps become such a launch.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

from cortiq.backend import Argmax, Batch, CompileOptions, Digest, Row, Status  # noqa: E402
from cortiq.models import load_program, synthetic_configs  # noqa: E402
from cortiq.models.synthetic import open_synthetic  # noqa: E402
from cortiq_conformance import models  # noqa: E402
from cortiq_cpu.backend import CpuBackend  # noqa: E402
from cortiq_triton import layer_launch, nvrtc  # noqa: E402
from cortiq_triton.backend import TritonBackend  # noqa: E402
from tests.pure import emulated_cuda  # noqa: E402
from tests.pure.emulated_cuda import Emulated  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflows that faults are

LAYERS, BLOCKS, CONTEXT = 3, 4, 2048
CONFIG = {
    "model_type": "llama", "vocab_size": 800, "hidden_size": 256, "intermediate_size": 704,
    "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 64, "max_position_embeddings": CONTEXT, "tie_word_embeddings": False,
}  # fmt: skip
GEOMETRY = layer_launch.Geometry(256, 8, 2, 64, 704)
SMALL = {"STAGE": 1024, "STAGES": 12, "SLOTS": 576}
"""Stages and slots so small that rings go round and products are added up more than once."""
SHARED = 1024 * 12 + 8 * 576 + layer_launch.BESIDE + 16 * 12
WANTS = (Argmax(), Digest("logits"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers")
    return emulated_cuda.built(folder, "layers.cu", "layers", GEOMETRY.constants | SMALL)


@pytest.fixture
def emulated(built, monkeypatch):
    kernel = Emulated(built, BLOCKS, layer_launch.THREADS, SHARED)
    monkeypatch.setattr(layer_launch, "available", lambda: True)
    monkeypatch.setattr(layer_launch, "function_of", lambda geometry: kernel)
    return kernel


@pytest.fixture
def loaded(monkeypatch):
    monkeypatch.setitem(synthetic_configs.CONFIGS, "layered", CONFIG)
    return load_program(open_synthetic("synthetic:layered?format=w8&seed=3"), context=CONTEXT)


def steps_from(executable, state, position, count):
    """Results of steps of one row."""
    found = []
    for at in range(position, position + count):
        result = executable.forward(Batch([Row(state, at, at % 800, WANTS)])).result()
        assert {o.status for o in result.outcomes.values()} == {Status.COMPLETED}
        found.append(result.rows[0])
    return found


@pytest.mark.parametrize(("position", "count"), [(62, 3), (1090, 1)])  # tiles; 18 of them, 2 runs
def test_bits_are_the_cpu_backends(emulated, loaded, position, count):
    """18 tiles are spans of 16 by two blocks for each head of keys."""
    cpu = CpuBackend().compile(loaded.program, loaded.weights, CompileOptions())
    state = cpu.open(position + count)
    cpu.forward(Batch([Row(state, i, (7 * i + 13) % 800) for i in range(position)])).result()
    exported = state.export()
    expected = steps_from(cpu, state, position, count)
    executable = TritonBackend().compile(loaded.program, loaded.weights, CompileOptions())
    copy = executable.import_(exported, position + count)
    assert steps_from(executable, copy, position, count) == expected
    assert emulated.launches == count
    same = [torch.equal(*map(torch.as_tensor, pair)) for pair in planes(state, copy)]
    assert len(same) == 6 * LAYERS and all(same)
    executable.close()


def planes(state, other):
    """Keys and values of both, slot by slot, which the kernel wrote."""
    for name, kept in state.export().slots.items():
        yield from zip(vars(kept).values(), vars(other.export().slots[name]).values(), strict=True)


def launches_of(executable, wanted=("logits",), alone=True):
    """Count the launches of layers, and the layers in them."""
    steps = executable.plans["trunk"].fused(frozenset(wanted), frozenset(), alone)
    made = [step.kernel for step, _ in steps if isinstance(step.kernel, layer_launch.Layers)]
    return [(len(found.layers), found.head is not None) for found in made]


def test_layers_are_one_launch_for_one_row_and_never_across_what_it_asks_for(emulated, loaded):
    executable = TritonBackend().compile(loaded.program, loaded.weights, CompileOptions())
    assert launches_of(executable) == [(LAYERS, True)]
    assert launches_of(executable, alone=False) == []
    assert launches_of(executable, ("logits", "layers.1.middle")) == [(1, False), (1, True)]
    assert launches_of(executable, ("logits", "layers.2.out")) == [(3, False)]
    assert launches_of(executable, ("logits", "layers.0.mlp.gate")) == [(2, True)]
    executable.close()


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-gemma3", "tiny-mixtral"])
def test_what_the_kernel_is_not_made_for_stays_launches(emulated, model):
    known = models.load(model)
    executable = TritonBackend().compile(known.program, known.weights, CompileOptions())
    assert launches_of(executable) == []
    executable.close()


def test_sizes_that_fit():
    assert layer_launch.Geometry(4096, 32, 8, 128, 14336).fits()
    assert not layer_launch.Geometry(4096, 32, 4, 128, 14336).fits()  # eight heads a key's head
    assert not layer_launch.Geometry(4096, 32, 8, 96, 14336).fits()
    assert not layer_launch.Geometry(8192, 64, 16, 128, 28672).fits()  # rows wider than its room


def test_a_kernel_that_cannot_be_had_is_said_and_stays_launches(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))

    def refuse(*arguments):
        raise nvrtc.NotCompiledError("layers.cu(1): error: no")

    monkeypatch.setattr(nvrtc, "binary", refuse)
    with pytest.warns(RuntimeWarning, match=r"kernel by kernel: layers.cu\(1\): error: no"):
        assert layer_launch.function_of.__wrapped__(GEOMETRY) is None


def test_nvrtc_compiles_it_for_hopper():
    try:
        nvrtc.library()
    except nvrtc.NotCompiledError as error:
        pytest.skip(str(error))
    constants = layer_launch.Geometry(4096, 32, 8, 128, 14336).constants
    options = ["--gpu-architecture=sm_90", *nvrtc.FLAGS]
    options += [f"-D{name}={value}" for name, value in constants.items()]
    assert nvrtc.compiled("layers.cu", nvrtc.sources(), options).startswith(b"\x7fELF")
    with pytest.raises(nvrtc.NotCompiledError, match="stages enough"):
        nvrtc.compiled("layers.cu", nvrtc.sources(), [*options, "-DSTAGES=2"])
