"""Rotary tables: exact against mpmath, scalings against transformers, application, errors."""

from __future__ import annotations

import hashlib
import importlib
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
from floats import LIMIT, canonical, flush_to_zero, same_bits

from cortiq.errors import GraphError, UnsupportedError
from cortiq.numerics import ideal, rope, rope_scaling
from cortiq.numerics.contract import F32
from cortiq.numerics.rope import RopeTable, Sections, apply_rope

SHORT = tuple(1 + i / 64 for i in range(32))
LONG = tuple(1 + i * 1.25 for i in range(32))
SCALINGS = {
    "default": rope_scaling.Default(),
    "linear": rope_scaling.Linear(8.0),
    "llama3": rope_scaling.Llama3(8.0, 1.0, 4.0, 8192),
    "yarn": rope_scaling.Yarn(4.0, 4096),
    "yarn exact ramp": rope_scaling.Yarn(32.0, 4096, 16.0, 2.0, truncate=False),
    "yarn mscale": rope_scaling.Yarn(40.0, 4096, mscale=0.7, mscale_all_dim=1.1),
    "yarn given": rope_scaling.Yarn(40.0, 4096, attention_factor=0.9),
    "longrope long": rope_scaling.LongRope(SHORT, LONG, 4096, 131072),
    "longrope short": rope_scaling.LongRope(SHORT, LONG, 4096, 4096),
    "proportional": rope_scaling.Proportional(0.25, 2.0),
    "ntk alpha": rope_scaling.NTKAlpha(1000.0),
    "axial": rope_scaling.Axial(2),
    "staggered": rope_scaling.Staggered(2),
    "learned": rope_scaling.Learned(
        rope_scaling.Yarn(32.0, 4096), tuple(i / 16 - 1.25 for i in range(32))
    ),
}


def mp_frequency(base, dim, i):
    return mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / dim)


@pytest.mark.parametrize(("base", "dim"), [(10000.0, 128), (500000.0, 128), (1e6, 256)])
def test_entries_are_correctly_rounded(base, dim):
    rng = np.random.default_rng(dim)
    positions = rng.integers(0, 1 << 20, 300)
    cos, sin = RopeTable(base, dim).compute(positions)
    with mpmath.workdps(50):
        for row, position in enumerate(positions):
            i = int(rng.integers(0, dim // 2))
            angle = int(position) * mp_frequency(base, dim, i)
            for entry, exact in ((cos, mpmath.cos(angle)), (sin, mpmath.sin(angle))):
                assert entry[row, i] == F32(float(exact))
                assert abs(float(entry[row, i]) - exact) <= rope.TABLE_MAX_ERROR


def test_identity_and_error_bound():
    table = RopeTable(10000.0, 64)
    cos, sin = table.compute(np.arange(0, 1 << 20, 4999))
    assert cos[0].tolist() == [1] * 32
    assert not sin[0].view(np.uint32).any()
    unit = cos.astype(np.float64) ** 2 + sin.astype(np.float64) ** 2
    assert np.abs(unit - 1).max() < 4 * rope.TABLE_MAX_ERROR


@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_equal_many_digits(name):
    """Our decimals against mpmath, from the formulas of the docstrings."""
    scaling, base, dim = SCALINGS[name], 10000.0, 64
    with mpmath.workdps(50):
        expected = [mp_scaled(scaling, base, dim, i) for i in range(dim // 2)]
        for ours, theirs in zip(RopeTable(base, dim, scaling).frequencies, expected, strict=True):
            assert abs(mpmath.mpf(str(ours)) - theirs) <= mpmath.mpf(10) ** -40


def mp_scaled(scaling, base, dim, i):
    f = mp_frequency(base, dim, i)
    two_pi = 2 * mpmath.pi
    match scaling:
        case rope_scaling.Linear(factor):
            return f / factor
        case rope_scaling.Llama3(factor, low, high, original):
            wave = two_pi / f
            if wave > original / low:
                return f / factor
            if wave < original / high:
                return f
            smooth = (original / wave - low) / (high - low)
            return (1 - smooth) * f / factor + smooth * f
        case rope_scaling.Yarn():
            ends = [
                dim * mpmath.log(scaling.original_context / (beta * two_pi)) / 2 / mpmath.log(base)
                for beta in (scaling.beta_fast, scaling.beta_slow)
            ]
            if scaling.truncate:
                ends = [mpmath.floor(ends[0]), mpmath.ceil(ends[1])]
            low, high = max(ends[0], 0), min(ends[1], dim - 1)
            ramp = min(max((i - low) / (high - low), 0), 1)
            return f / scaling.factor * ramp + f * (1 - ramp)
        case rope_scaling.LongRope():
            long = scaling.declared_context > scaling.original_context
            return f / (scaling.long_factors if long else scaling.short_factors)[i]
        case rope_scaling.Proportional(partial, factor):
            return f / factor if i < int(partial * dim // 2) else mpmath.mpf(0)
        case rope_scaling.NTKAlpha(alpha):
            return mp_frequency(base * mpmath.mpf(alpha) ** (mpmath.mpf(dim) / (dim - 2)), dim, i)
        case rope_scaling.Axial(axes):
            return mp_frequency(base, dim // axes, i % (dim // (2 * axes)))
        case rope_scaling.Staggered(axes):
            axis, n = divmod(i, dim // (2 * axes))
            return mp_frequency(base, dim, n * axes + axis)
        case rope_scaling.Learned(inner, logarithms):
            return mp_scaled(inner, base, dim, i) * mpmath.exp(mpmath.mpf(logarithms[i]))
    return f


HF_PARAMETERS = {
    "linear": {"rope_type": "linear", "factor": 8.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    "yarn exact ramp": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "yarn mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.1,
        "original_max_position_embeddings": 4096,
    },
    "yarn given": {
        "rope_type": "yarn",
        "factor": 40.0,
        "attention_factor": 0.9,
        "original_max_position_embeddings": 4096,
    },
    "longrope long": {
        "rope_type": "longrope",
        "short_factor": list(SHORT),
        "long_factor": list(LONG),
        "original_max_position_embeddings": 4096,
    },
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
}


@pytest.mark.parametrize("name", HF_PARAMETERS)
def test_scalings_equal_transformers(name):
    utilities = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": 10000.0, **HF_PARAMETERS[name]},
    )
    compute = utilities.ROPE_INIT_FUNCTIONS[HF_PARAMETERS[name]["rope_type"]]
    length = 131072 if name.startswith("longrope") else None
    theirs, attention = compute(config, device="cpu", seq_len=length)
    table = RopeTable(10000.0, 64, SCALINGS[name])
    ours = np.array([float(f) for f in table.frequencies])
    np.testing.assert_allclose(ours, theirs.double().numpy(), rtol=3e-6, atol=0)
    assert abs(float(table.amplitude) - attention) < 1e-6


def test_amplitude_is_multiplied_in_once():
    plain = RopeTable(1e4, 64, rope_scaling.Yarn(4.0, 4096, attention_factor=1.0))
    louder = RopeTable(1e4, 64, rope_scaling.Yarn(4.0, 4096))
    assert louder.amplitude == F32(0.1 * np.log(4) + 1)
    positions = np.arange(50)
    for one, other in zip(plain.compute(positions), louder.compute(positions), strict=True):
        assert same_bits(one * louder.amplitude, other)


def test_learned_factors_keep_the_amplitude():
    inner = rope_scaling.Yarn(40.0, 4096, attention_factor=0.9)
    table = RopeTable(1e4, 64, rope_scaling.Learned(inner, (0.0,) * 32))
    assert table.amplitude == F32(0.9)
    assert (table.phase_steps == RopeTable(1e4, 64, inner).phase_steps).all()


def test_frequency_factors_divide():
    factors = (1.0,) * 16 + (8.0,) * 15 + (1e30,)
    table = RopeTable(1e4, 64, rope_scaling.FrequencyFactors(factors))
    plain = RopeTable(1e4, 64)
    assert (table.phase_steps[:16] == plain.phase_steps[:16]).all()
    eighth = plain.phase_steps[16:31].astype(np.float64) / 8
    np.testing.assert_allclose(table.phase_steps[16:31].astype(np.float64), eighth, rtol=1e-12)
    assert table.phase_steps[31] == 0


def test_the_tail_of_a_proportional_rotation_stays_in_place():
    table = RopeTable(1e6, 64, SCALINGS["proportional"])
    cos, sin = table.table([0, 5, 9999])
    assert (cos[:, 8:] == 1).all()
    assert not sin[:, 8:].view(np.uint32).any()
    assert (sin[1:, :8] != 0).all()


def test_cached_table_equals_direct_computation_and_computes_no_position_twice(monkeypatch):
    computed, compute = [], RopeTable.compute

    def counted(self, positions):
        computed.append(len(positions))
        return compute(self, positions)

    table = RopeTable(10000.0, 128)
    with monkeypatch.context() as patched:
        patched.setattr(RopeTable, "compute", counted)
        cos, sin = table.table(np.arange(131072))
        table.table(np.arange(131072))
    assert sum(computed) == 131072
    positions = np.array([131071, 0, 1023, 1024, 77777, 0])
    for whole, direct, again in zip(
        (cos, sin), table.compute(positions), table.table(positions), strict=True
    ):
        assert same_bits(whole[positions], direct)
        assert same_bits(again, direct)
    digest = hashlib.sha256(cos.tobytes() + sin.tobytes()).hexdigest()
    assert digest == WHOLE_TABLE


WHOLE_TABLE = "f4ad5147b3e6d5632a26d8804a67ea3c2324cd3d8970f7d7347a7b9aff105fb8"
"""The table of base 10000, 128 dimensions, positions below 131072: cosines, then sines."""


def test_flush_to_zero_changes_no_bit():
    x = canonical(np.random.default_rng(3), (200, 3, 64))
    table = RopeTable(1e7, 64, rope_scaling.Linear(1e6))
    positions = np.arange(200)

    def compute():
        cos, sin = table.compute(positions)
        return cos, sin, apply_rope(x, cos, sin, "half", np.zeros(200, bool))

    plain = compute()
    with flush_to_zero():
        flushed = compute()
    assert all(same_bits(p, f) for p, f in zip(plain, flushed, strict=True))


@pytest.mark.parametrize("name", SCALINGS)
def test_float64_twin(name):
    table = RopeTable(10000.0, 64, SCALINGS[name])
    positions = np.arange(0, 100_000, 999)
    for ours, exact in zip(table.table(positions), ideal.rope_table(table, positions), strict=True):
        assert np.abs(ours - exact).max() < 2.0**-23
    x = np.random.default_rng(7).standard_normal((len(positions), 2, 80)).astype(F32)
    for pairing in rope.PAIRINGS:
        y = apply_rope(x, *table.table(positions), pairing)
        exact = ideal.apply_rope(x, *ideal.rope_table(table, positions), pairing)
        np.testing.assert_allclose(y, exact, atol=4e-6)


@pytest.mark.parametrize("pairing", rope.PAIRINGS)
def test_rotation_equals_complex_multiplication(pairing):
    x = np.random.default_rng(4).standard_normal((10, 3, 48)).astype(F32)
    cos, sin = RopeTable(1e4, 32).table(np.arange(10) * 37)
    y = apply_rope(x, cos, sin, pairing)
    assert same_bits(y[..., 32:], x[..., 32:])
    order = np.arange(32).reshape(2, 16) if pairing == "half" else np.arange(32).reshape(16, 2).T
    turned = (x[..., order[0]] + 1j * x[..., order[1]]) * (cos + 1j * sin)[:, None]
    np.testing.assert_allclose(y[..., order[0]], turned.real, atol=1e-6)
    np.testing.assert_allclose(y[..., order[1]], turned.imag, atol=1e-6)


def test_pairings_are_permutations_of_each_other():
    x = np.random.default_rng(5).standard_normal((4, 2, 32)).astype(F32)
    cos, sin = RopeTable(1e4, 32).table(np.arange(4))
    woven = x.reshape(4, 2, 2, 16).swapaxes(2, 3).reshape(4, 2, 32)
    y = apply_rope(woven, cos, sin, "interleaved")
    assert same_bits(y.reshape(4, 2, 16, 2).swapaxes(2, 3).reshape(4, 2, 32),
                     apply_rope(x, cos, sin, "half"))  # fmt: skip


def test_products_are_rounded_before_they_are_added():
    """One element where a fused multiply-add gives other bits."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((50, 1, 64)).astype(F32)
    cos, sin = RopeTable(1e4, 64).table(np.arange(1, 51))
    y = apply_rope(x, cos, sin)
    wide = x.astype(np.float64)
    once = wide[:, 0, :32] * cos - (x[:, 0, 32:] * sin).astype(np.float64)
    assert (once.astype(F32) != y[:, 0, :32]).any()


def test_faults_flag_the_row():
    x = np.ones((3, 1, 4), F32)
    x[1] = LIMIT * F32(0.99)
    cos, sin = RopeTable(1e4, 4).table([1, 1, 1])
    faults = np.zeros(3, bool)
    apply_rope(x, cos, sin, faults=faults)
    assert faults.tolist() == [False, True, False]


def test_unsupported_scalings_are_refused_by_name():
    with pytest.raises(UnsupportedError, match="length of the sequence"):
        rope_scaling.scaling_of("dynamic", {"factor": 2.0})
    with pytest.raises(UnsupportedError, match="supported: default, linear"):
        rope_scaling.scaling_of("axial", {})
    with pytest.raises(UnsupportedError, match="low_freq_factor"):
        rope_scaling.scaling_of("llama3", {"factor": 8.0, "high_freq_factor": 4.0})
    with pytest.raises(UnsupportedError, match="unknown or missing parameters: stretch"):
        rope_scaling.scaling_of("linear", {"factor": 8.0, "stretch": 1})
    assert rope_scaling.scaling_of("linear", {"factor": 8.0}) == rope_scaling.Linear(8.0)
    assert rope_scaling.scaling_of("yarn", {"factor": 4.0, "original_context": 4096})


@pytest.mark.parametrize(
    "scaling",
    [
        rope_scaling.Linear(0.0),
        rope_scaling.LongRope((1.0,), (1.0,), 4096, 8192),
        rope_scaling.FrequencyFactors((0.0,) * 32),
        rope_scaling.Learned(rope_scaling.Default(), (0.0,) * 31),
        rope_scaling.Learned(rope_scaling.Default(), (1e30,) * 32),
    ],
)
def test_senseless_parameters_are_our_error(scaling):
    with pytest.raises(UnsupportedError):
        _ = RopeTable(1e4, 64, scaling).phase_steps


def test_bad_geometry_is_our_error():
    for base, dim in ((1e4, 0), (1e4, 7), (1.0, 8), (float("inf"), 8)):
        with pytest.raises(GraphError):
            RopeTable(base, dim)
    cos, sin = RopeTable(1e4, 8).table([0])
    with pytest.raises(GraphError, match="pairing"):
        apply_rope(np.ones((1, 1, 8), F32), cos, sin, "quarter")
    with pytest.raises(GraphError, match="8 rotary dimensions in heads of 6"):
        apply_rope(np.ones((1, 1, 6), F32), cos, sin)


MULTIMODAL = {
    "one after the other": (Sections((8, 12, 12)), "qwen2_vl", "Qwen2VLRotaryEmbedding"),
    "interleaved": (Sections((12, 10, 10), True), "qwen3_vl", "Qwen3VLTextRotaryEmbedding"),
}


@pytest.mark.parametrize("name", MULTIMODAL)
def test_sections_pick_the_axes_that_transformers_picks(name):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    sections, module, kind = MULTIMODAL[name]
    code = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    table = RopeTable(10000.0, 64)
    positions = np.random.default_rng(0).integers(0, 5000, (30, 3))
    every = [table.compute(positions[:, axis]) for axis in range(3)]
    embedding = SimpleNamespace(mrope_section=list(sections.pairs))
    pairs = zip(sections.table(table, positions), zip(*every, strict=True), strict=True)
    for ours, of_axes in pairs:
        wide = torch.tensor(np.stack(of_axes))[:, None]
        theirs = getattr(code, kind).recomposition_frequencies(embedding, wide)
        assert same_bits(ours, theirs[0, :, :32].numpy())


@pytest.mark.parametrize("sections", [s for s, *_ in MULTIMODAL.values()])
def test_equal_positions_of_all_axes_give_the_plain_rotation(sections):
    table = RopeTable(10000.0, 64)
    positions = np.array([0, 7, 4095])
    sectioned = sections.table(table, np.repeat(positions[:, None], 3, axis=1))
    assert all(same_bits(a, b) for a, b in zip(sectioned, table.table(positions), strict=True))


@pytest.mark.parametrize(
    ("pairs", "interleaved"), [((), False), ((4, 0), False), ((2, 4, 4), True)]
)
def test_sections_that_do_not_fit_are_refused(pairs, interleaved):
    with pytest.raises(GraphError, match="sections: pairs"):
        Sections(pairs, interleaved)


def test_a_growing_amplitude_is_correctly_rounded_at_every_step():
    inner = rope_scaling.Yarn(4.0, 4096)
    table = RopeTable(1e6, 16, rope_scaling.Growth(inner, 0.1, 4096))
    positions = np.array([0, 4095, 4096, 8191, 8192, 3 * 4096 + 5, 130000])
    cos, sin = table.compute(positions)
    unscaled = RopeTable(1e6, 16, rope_scaling.Yarn(4.0, 4096, attention_factor=1.0))
    for row, position in enumerate(positions):
        with mpmath.workdps(40):
            grown = 1 + mpmath.mpf("0.1") * mpmath.log(1 + int(position) // 4096)
            factor = F32(float((1 + mpmath.mpf("0.1") * mpmath.log(4)) * grown))
        bare = unscaled.compute(positions[row : row + 1])
        assert same_bits(cos[row], bare[0][0] * factor)
        assert same_bits(sin[row], bare[1][0] * factor)
    for beta, every in ((-0.1, 4096), (0.1, 0)):
        with pytest.raises(UnsupportedError, match="grows by"):
            RopeTable(1e6, 16, rope_scaling.Growth(inner, beta, every)).check()
