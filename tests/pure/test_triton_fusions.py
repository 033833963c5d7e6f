"""Steps that the Triton backend computes together: the bits of each, and a tower's steps."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

from cortiq.backend import Batch, CompileOptions, Digest, Row  # noqa: E402
from cortiq.models import load_program  # noqa: E402
from cortiq.models.synthetic import (  # noqa: E402
    SyntheticCheckpoint,
    open_synthetic,
    synthetic_weights,
)
from cortiq.vision import qwen3_vl  # noqa: E402
from cortiq.vision.encode import images_rows  # noqa: E402
from cortiq_reference.backend import ReferenceBackend  # noqa: E402
from cortiq_triton import elementwise, fused, qkv_prologue  # noqa: E402
from cortiq_triton.backend import TritonBackend  # noqa: E402
from cortiq_triton.rows import LAYER, RMS, normalised, quantise_rows  # noqa: E402
from cortiq_triton.steps import Fused  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflows that faults are


def floats(*shape, seed=1):
    """Return floats of different sizes; the second row has one whose square leaves the domain."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    x[0] *= 300
    x[1, 7] = 2.0**45
    return torch.from_numpy(x)


def flags(x):
    return torch.zeros(len(x), dtype=torch.int32)


def assert_same_rows(mine, theirs):
    assert all(one.equal(other) for one, other in zip(mine[:4], theirs[:4], strict=True))


@pytest.mark.parametrize("kind", [RMS, LAYER])
@pytest.mark.parametrize("roles", ["", "weight", "weight bias"])
@pytest.mark.parametrize("width", [144, 700, 2100])  # in pieces, and whole
def test_a_norm_and_its_quantised_rows_are_both_of_them(kind, roles, width):
    x = floats(5, width)
    weights = {role: floats(2, width, seed=2)[0] for role in roles.split()}
    found, expected = flags(x), flags(x)
    out, rows = fused.normed_rows(kind, x, weights, 1e-6, found, keep=True)
    alone = normalised(kind, x, expected, 1e-6, weights.get("weight"), weights.get("bias"))
    assert out.equal(alone) and found.equal(expected)
    assert_same_rows(rows, quantise_rows(alone))


@pytest.mark.parametrize("function", sorted(elementwise.ACTIVATIONS))
@pytest.mark.parametrize("count", [2, 5])
def test_an_activation_and_its_quantised_rows_are_both_of_them(function, count):
    """By a program for some columns and for whole rows; past the last column are zeros."""
    x = floats(count, 1100)
    found, expected = flags(x), flags(x)
    rows = fused.gated_rows(elementwise.ACTIVATIONS[function], x, None, found)
    alone = elementwise.apply(elementwise.ACTIVATIONS[function], x, expected)
    assert found.equal(expected)
    assert_same_rows(rows, quantise_rows(alone))


@pytest.fixture(scope="module")
def tower():
    config = qwen3_vl.Config(
        text_width=32, image_token=0, num_hidden_layers=3, hidden_size=144, intermediate_size=72,
        num_attention_heads=2, num_position_embeddings=64, deepstack_visual_indexes=(0,),
        sections=(24, 20, 20),
    )  # fmt: skip
    processor = qwen3_vl.Processor(config, {"min_pixels": 1024, "max_pixels": 1 << 14})
    program = qwen3_vl.build(config, processor.most)
    weights = synthetic_weights(SyntheticCheckpoint("qwen3_vl", 0, "w8", {}), program, "w8")
    random = np.random.default_rng(1)
    sides = ((96, 64), (32, 64))
    images = [processor.prepare(random.integers(0, 256, (*s, 3), np.uint8)) for s in sides]
    return program, weights, images


def names_of(executable):
    """Return the names of a tower's steps, those of layer 1 only."""
    plan = executable.plans["trunk"]
    pairs = plan.fused(frozenset(plan.graph.outputs), frozenset())
    steps = [step for step, _ in pairs if step.node.name.startswith("layers.1.")]
    return [step.node.op.name if isinstance(step.node.op, Fused) else "" for step in steps]


def test_a_tower_has_the_reference_bits_in_nine_steps_a_layer(tower, monkeypatch):
    """A layer's attention and its quantised row are two launches of one step.

    Of blocks of 16 rows the first goes to one page, side by side, the second to two.
    """
    monkeypatch.setattr(qkv_prologue, "ROWS", 16)
    program, weights, images = tower
    found = []
    for backend in (ReferenceBackend(), TritonBackend()):
        with closing(backend.compile(program, weights, CompileOptions())) as executable:
            found.append(images_rows(executable, images))
            names = names_of(executable) if isinstance(backend, TritonBackend) else []
    assert len(names) == 9 and all(names) and "BiasedProducts" in names, names
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine.view(np.uint32), theirs.view(np.uint32))


def test_biased_products_of_different_heights_are_one_product():
    """Queries, keys and values of a text model, whose norms have means, of a prompt and a step."""
    loaded = load_program(open_synthetic("synthetic:mini-starcoder2"), context=None)
    wants, found = (Digest("logits"),), []
    for backend in (ReferenceBackend(), TritonBackend()):
        with closing(backend.compile(loaded.program, loaded.weights, CompileOptions())) as on:
            state = on.open(40)
            rows = [Row(state, i, i + 1) for i in range(17)] + [Row(state, 17, 3, wants)]
            answers = [on.forward(Batch(rows)).result().rows[17]]
            answers.append(on.forward(Batch([Row(state, 18, 4, wants)])).result().rows[0])
            found.append(answers)
            if isinstance(backend, TritonBackend):
                pairs = on.plans["trunk"].fused(frozenset({"logits"}), frozenset())
                names = [step.node.op.name for step, _ in pairs if isinstance(step.node.op, Fused)]
                assert "BiasedProducts" in names
    assert found[0] == found[1]
