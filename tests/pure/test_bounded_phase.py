"""Phase mixers of plugins/cortiq-bounded: the original's bits as oracle, one result everywhere."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from bounded import MODEL, computed, loaded_plugins, one_layer, rewritten_model
from safetensors.numpy import save_file

from cortiq.backend import Batch, CompileOptions, Digest, Kernel, Row
from cortiq.errors import FormatError
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import Weight
from cortiq.placement.place import place
from cortiq_bounded.ideal import FORMULAS
from cortiq_bounded.ops import PhaseFeatures
from cortiq_bounded.phase import PHASE_MAX_ERROR, phase_features
from cortiq_bounded.phase_layer import TENSORS, PhaseMixer
from cortiq_conformance.runner import run
from cortiq_cpu.backend import CpuBackend
from cortiq_reference.ideal import evaluate

HEADS, PHASES, DIM, WIDTH, ROWS = 2, 3, 4, 8, 5
VECTORS = {
    "plain": ("60a5e4ca0ae8b035", "753e458e0c184f73"),
    "mass": ("83de9080cfb6c977", "1a0bacaca84a894f"),
    "kappa": ("d25806677cfcbdc4", "6a5e64d1e91addec"),
}
"""FNV-1a-64 of the original's outputs, and of its last state."""


def fnv(values):
    h = 0xCBF29CE484222325
    for byte in np.asarray(values, "<f4").tobytes():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def formula(rows, columns, salt):
    """A matrix of the vectors, float32."""
    i = np.arange(rows * columns)
    part = ((i * 13 + salt * 7) % 97).astype(F32) / F32(97)
    return ((part - F32(0.5)) * F32(0.4)).astype(F32).reshape(rows, columns)


@cache
def given(kind):
    weights = {
        "thq": formula(HEADS * PHASES, WIDTH, 1), "thk": formula(HEADS * PHASES, WIDTH, 2),
        "v_proj": formula(HEADS * DIM, WIDTH, 3), "out_proj": formula(WIDTH, HEADS * DIM, 4),
        "A_log": (-3 + 0.25 * np.arange(HEADS * 2 * PHASES)).astype(F32),
    }  # fmt: skip
    if kind == "kappa":
        weights["k_gate"] = formula(HEADS, WIDTH, 5)
        weights["k_gate_bias"] = np.array([0.5, -0.25], F32)
    x = ((np.arange(ROWS * WIDTH) / 16).astype(F32) - F32(1)).reshape(ROWS, WIDTH)
    return weights, x, 1.0 if kind == "mass" else 0.0


def product(matrix, x):
    """Sums in ascending order, every product and sum rounded."""
    y = np.zeros(len(matrix), F32)
    for column in range(matrix.shape[1]):
        y = y + matrix[:, column] * x[column]
    return y


def original(weights, x, mass):
    """The original's steps: states of float32, sums of float64, the readout before the rounding."""
    decay = np.exp(-np.exp(weights["A_log"].astype(np.float64))).reshape(HEADS, 2 * PHASES)
    state, outputs = np.zeros((HEADS, 2 * PHASES, DIM), F32), []
    scale = 1 / (1 + np.float64(mass))
    for row in x:
        tq, tk, v = (product(weights[r], row) for r in ("thq", "thk", "v_proj"))
        kappa = np.ones(HEADS, F32)
        if "k_gate" in weights:
            z = product(weights["k_gate"], row) + weights["k_gate_bias"]
            kappa = (1 / (1 + np.exp(-z.astype(np.float64)).astype(F32))).astype(F32)
        out = np.zeros((HEADS, DIM), F32)
        for h in range(HEADS):
            for f in range(2 * PHASES):
                turn = np.cos if f < PHASES else np.sin
                angle = h * PHASES + f % PHASES
                pq, pk = (turn(t[angle].astype(np.float64) * scale) for t in (tq, tk))
                values = v[h * DIM : (h + 1) * DIM].astype(np.float64)
                cell = decay[h, f] * state[h, f] + pk * np.float64(kappa[h]) * values
                state[h, f] = cell.astype(F32)
                out[h] = (out[h] + (pq * cell).astype(F32)).astype(F32)
        outputs.append(product(weights["out_proj"], out.reshape(-1)))
    return np.stack(outputs), state


@pytest.fixture(scope="module")
def plugins():
    found = loaded_plugins(CpuBackend())
    assert not found.problems
    return found


def layer(kind, x=None):
    weights, rows, mass = given(kind)
    op = PhaseMixer(WIDTH, HEADS, PHASES, DIM, kind == "kappa", mass)
    program, _, _ = one_layer(op, 1, width=WIDTH)
    made = {role: Weight.from_floats(np.atleast_2d(w)) for role, w in weights.items()}
    return program, made, rows if x is None else x


@pytest.mark.parametrize("kind", VECTORS)
def test_the_oracle_has_the_bits_of_the_original(kind):
    outputs, state = original(*given(kind))
    assert (fnv(outputs), fnv(state)) == VECTORS[kind]


@pytest.mark.parametrize("kind", VECTORS)
def test_the_layer_is_the_original_to_float32(plugins, kind):
    expected, _ = original(*given(kind))
    program, weights, x = layer(kind)
    largest = np.abs(expected).max()
    for name in ("reference", "cpu"):
        found = computed(
            plugins.backends[name], program, weights, x, plugins=plugins.backends["reference"]
        )
        assert np.abs(found - expected).max() < 1e-6 * largest
    ideal = evaluate(
        program, weights, np.zeros(ROWS, int), ["y"], inputs={"x": x}, formulas=FORMULAS
    )
    assert np.abs(ideal["y"] - expected).max() < 1e-6 * largest


def test_a_gate_that_is_open_is_none_and_one_that_is_shut_leaves_nothing(plugins):
    reference = plugins.backends["reference"]
    program, weights, x = layer("kappa")
    plain = computed(reference, *layer("plain")[:2], x)
    found = {}
    for bias in (20.0, -20.0):
        gate = {
            "k_gate": Weight.from_floats(np.zeros((HEADS, WIDTH), F32)),
            "k_gate_bias": Weight.from_floats(np.full((1, HEADS), bias, F32)),
        }
        found[bias] = computed(reference, program, {**weights, **gate}, x)
    assert np.abs(found[20.0] - plain).max() < 1e-5 and np.abs(found[-20.0]).max() < 1e-6
    assert (computed(reference, *layer("mass")[:2], x) != plain).any()


def test_features_are_cosines_and_sines_of_angles_of_any_size():
    random = np.random.default_rng(0)
    for size in (2.0**-30, 0.7, 0.8, 3.0, 1e3, 1e9, 2.0**50):
        x = (random.uniform(-1, 1, 500) * size).astype(F32)
        cos, sin = np.split(phase_features(x), 2)
        assert np.abs(cos - np.cos(x.astype(np.float64))).max() < PHASE_MAX_ERROR
        assert np.abs(sin - np.sin(x.astype(np.float64))).max() < PHASE_MAX_ERROR
    assert (phase_features(np.zeros(2, F32)) == [1, 1, 0, 0]).all()


def test_the_kit_compares_features_with_their_definition(plugins, monkeypatch):
    monkeypatch.setattr("cortiq_conformance.oracle.default_plugins", lambda: plugins)
    cpu = plugins.backends["cpu"]
    report = run(cpu, levels=(0,), only="level0/PhaseFeatures[")
    assert report.passed and len(report.results) == 3 and set(report.computed) == {"cpu/bounded"}

    def turned(op, x):
        return np.roll(phase_features(x.reshape(len(x), -1, op.width)), 1)

    wrong = cpu.host_kernel(turned)
    other = Kernel("cpu", PhaseFeatures, wrong, "turned")
    monkeypatch.setattr(cpu, "given", {**cpu.given, PhaseFeatures: other})
    found = run(cpu, levels=(0,), only="level0/PhaseFeatures[")
    assert not found.passed and found.blamed() == {"PhaseFeatures"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model whose attention phase mixers replace, and its file."""
    op, tensors = PhaseMixer(64, 2, 4, 8, gated=True), {}
    random = np.random.default_rng(2)
    for n in range(len(attention_layers())):
        for role, shape in op.weight_shapes().items():
            values = random.standard_normal(shape).astype(F32) / 4
            tensors[f"model.layers.{n}.vmf_attn.{TENSORS[role]}"] = values - (role == "A_log")
    path = tmp_path_factory.mktemp("phase") / "phase.safetensors"
    save_file(tensors, path)
    return rewritten_model(f"vmf_phase:heads=2,phases=4,value_dim=8,kappa=yes,file={path}"), path


def attention_layers():
    nodes = load_program(open_synthetic(MODEL)).program.trunk.nodes
    return [node for node in nodes if node.name.endswith(".attention")]


@pytest.mark.parametrize("name", ["cpu", pytest.param("triton", marks=pytest.mark.slow)])
def test_any_batches_and_any_backend_give_one_result(plugins, model, name):
    (program, weights), _ = model
    reference, tokens = plugins.backends["reference"], np.arange(30) * 7 % 50
    backend = plugins.backends.get(name)
    if name == "triton":
        from cortiq_triton.backend import TritonBackend

        backend = loaded_plugins(TritonBackend()).backends["triton"]
    whole = computed(reference, program, weights, tokens, size=30)
    executable = place(backend, program, weights, CompileOptions(), strict=True)
    owners = {owner for value in executable.placement.values() for owner in value.split("+")}
    assert owners == {name, f"{name}/bounded"}
    executable.close()
    assert (computed(backend, program, weights, tokens, size=11) == whole).all()


def test_it_goes_back_and_its_memory_does_not_grow(plugins, model):
    (program, weights), _ = model
    executable = place(plugins.backends["cpu"], program, weights, CompileOptions())
    wants, state = (Digest("logits"),), executable.open(200)

    def fed(count):
        start = state.length()
        rows = [Row(state, start + i, (start + i) % 50, wants) for i in range(count)]
        return [row[wants[0]] for row in executable.forward(Batch(rows)).result().rows]

    expected = fed(40)
    reached = state.rewind(33)
    assert fed(40 - reached) == expected[reached:]
    assert len({executable.state_bytes(rows) for rows in (10, 10_000, 1_000_000)}) == 1


def test_a_file_of_other_layers_is_named(model):
    _, path = model
    for argument, sentence in (
        ("heads=3,phases=4,value_dim=8,kappa=yes", "not a tensor of floats"),
        ("heads=2,phases=4,value_dim=8", "belongs to no layer"),
    ):
        with pytest.raises(FormatError, match=sentence):
            rewritten_model(f"vmf_phase:{argument},file={path}")
