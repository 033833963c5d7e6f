"""Masks of neurons, heads and layers: bits of the model whose weights are zeros there."""

from __future__ import annotations

import numpy as np
import pytest
from installed import backends
from masked import loaded_plugins

import cortiq
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.model.load import model_of
from cortiq.model.source import open_source
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import LAYOUTS, decode
from cortiq.numerics.matmul import matmul, matmul_f32
from cortiq.numerics.quantise import quantise_rows
from cortiq.options import LoadOptions
from cortiq.plugins.selection import find_backend
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.case_weights import typical
from cortiq_masks.files import read_mask, write_mask
from cortiq_masks.mask import ActivationMask, difference, intersection, union
from cortiq_masks.narrowing import columns_of, granule
from cortiq_masks.overlay import mask_overlay
from cortiq_masks.statistics import (
    energy_gain,
    keep_largest,
    mask_of,
    neuron_statistics,
)
from cortiq_masks.transformed import load_sparse

NAME = "synthetic:tiny-llama?seed=1&format="
PROMPT = [5, 9, 2, 71, 33, 8, 4, 19, 60, 7, 1, 3]
WIDTH, HEADS, LAYERS = 96, 4, 3


@pytest.fixture(scope="module", autouse=True)
def plugin():
    with loaded_plugins(masks="cortiq_masks"):
        yield


def bits(seed: int, width: int = WIDTH, share: float = 0.4) -> np.ndarray:
    return (np.random.default_rng(seed).random(width) < share).astype(F32)


MASKS = {
    "neurons": ActivationMask("n", {0: bits(1), 2: bits(2)}),
    "heads": ActivationMask("h", heads={1: np.array([1, 0, 0, 1], F32)}),
    "layer": ActivationMask("l", {0: bits(3)}, closed=frozenset({1})),
    "factors": ActivationMask("f", {1: bits(4) + F32(0.5)}),
    "means": ActivationMask("m", {0: bits(5)}, means={0: np.linspace(-1, 1, WIDTH, dtype=F32)}),
}


def opened(backend="reference", layout="w8", **options):
    return cortiq.load(NAME + layout, backend=backend, context=64, keep_weights=False, **options)


def digests(model, adapter=None):
    made = model.generate(PROMPT, max_tokens=4, ignore_eos=True, temperature=0, adapter=adapter)
    return made.step_digests


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masks")
    for name, mask in MASKS.items():
        write_mask(folder / f"{name}.mask", mask)
    return {name: folder / f"{name}.mask" for name in MASKS}


@pytest.fixture(scope="module")
def alone(files):
    found = {}
    with opened() as model:
        found[None] = digests(model)
        for name, path in files.items():
            model.load_adapter(name, path)
            found[name] = digests(model, name)
    assert len(set(found.values())) == len(found)
    return found


def with_zeros(layout, zeros):
    """Return a model whose weights have zeros in some rows, by name."""
    options = LoadOptions(context=64, keep_weights=False)
    source = open_source(NAME + layout, options)
    weights = dict(source.weights)
    for name, rows in zeros.items():
        parts = {part: array.copy() for part, array in weights[name].parts.items()}
        for array in parts.values():
            array[rows] = 0
        weights[name] = weights[name].__class__(weights[name].layout, weights[name].shape, parts)
    source.weights = weights
    return model_of("zeros", source, find_backend("reference"), options)


@pytest.mark.parametrize("layout", ["w8", "Q4_0", "f32"])
def test_closed_neurons_are_those_whose_rows_are_zeros(layout, files):
    closed = {f"model.layers.{i}.mlp.up_proj.weight": v == 0 for i, v in
              MASKS["neurons"].neurons.items()}  # fmt: skip
    with opened(layout=layout, adapters=[f"m={files['neurons']}"]) as model:
        found, plain = digests(model, "m"), digests(model)
    with with_zeros(layout, closed) as oracle:
        assert found == digests(oracle) != plain


def test_a_layer_that_is_left_out_adds_nothing(files):
    ends = [f"model.layers.1.{name}.weight" for name in ("self_attn.o_proj", "mlp.down_proj")]
    zeros = {name: np.ones(64, bool) for name in ends}
    zeros["model.layers.0.mlp.up_proj.weight"] = MASKS["layer"].neurons[0] == 0
    with opened(adapters=[f"m={files['layer']}"]) as model, with_zeros("w8", zeros) as oracle:
        assert digests(model, "m") == digests(oracle)


@pytest.mark.parametrize("backend", backends())
def test_masks_share_a_batch_on_every_backend(backend, files, alone):
    names = ["neurons", None, "means", "layer", "heads", "factors", "neurons"]
    given = [f"{name}={path}" for name, path in files.items()]
    with opened(backend, adapters=given) as model:
        made = model.generate_many([PROMPT] * len(names), max_tokens=4, ignore_eos=True,
                                   temperature=0, adapters=names)  # fmt: skip
    assert [m.step_digests for m in made] == [alone[name] for name in names]


def test_a_scale_of_0_changes_nothing_and_the_notice_is_shown(files, alone):
    with opened(adapters=[f"m={files['means']}:0"]) as model:
        assert digests(model, "m") == alone[None]
        assert any("patent" in note for note in model.notes)


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (ActivationMask("x", {7: bits(1)}), "masks layer 7, and the model has 3"),
        (ActivationMask("x", {0: bits(1, 90)}), "has 90 neurons of layer 0, and the model has 96"),
        (ActivationMask("x", heads={0: np.ones(8, F32)}), "has 8 heads of layer 0"),
    ],
)
def test_a_mask_of_another_model_is_refused(mask, says, tmp_path):
    write_mask(tmp_path / "a.mask", mask)
    with pytest.raises(UnsupportedError, match=says):
        opened(adapters=[f"m={tmp_path / 'a.mask'}"])


@pytest.mark.parametrize("name", ["tiny-mixtral", "mini-mamba2"])
def test_parts_that_no_mask_fits_are_refused(name, tmp_path):
    write_mask(tmp_path / "a.mask", ActivationMask("x", {0: bits(1)}))
    with pytest.raises(UnsupportedError, match="no feed-forward part of its own"):
        cortiq.load(f"synthetic:{name}", backend="reference", adapters=[f"m={tmp_path}/a.mask"])


def test_files_keep_a_mask_and_damaged_ones_are_refused(files, tmp_path):
    for name, path in files.items():
        read, mask = read_mask(path), MASKS[name]
        assert (read.name, read.closed) == (mask.name, mask.closed)
        for kind in ("neurons", "heads", "means"):
            mine, theirs = getattr(read, kind), getattr(mask, kind)
            assert mine.keys() == theirs.keys()
            assert all(np.array_equal(mine[i], theirs[i]) for i in mine)
    whole = files["neurons"].read_bytes()
    damaged = {
        "truncated": whole[:-3],
        "no mask": whole.replace(b"cortiq.mask", b"cortiq.nask"),
        "which no mask has": whole.replace(b"neurons.2", b"neurinos2"),
        "not finite": whole[:-4] + np.array([np.nan], "<f4").tobytes(),
    }
    for says, content in damaged.items():
        (tmp_path / "d.mask").write_bytes(content)
        with pytest.raises(FormatError, match=says):
            read_mask(tmp_path / "d.mask")


def test_algebra_of_masks():
    one, other = bits(1), bits(2)
    a, b = ActivationMask("a", {0: one}, closed=frozenset({1})), ActivationMask("b", {0: other})
    both, either = union(a, b), intersection(a, b)
    assert np.array_equal(both.neurons[0], one.astype(bool) | other.astype(bool))
    assert np.array_equal(either.neurons[0], one.astype(bool) & other.astype(bool))
    assert both.closed == frozenset() and either.closed == frozenset({1}) and both.name == "a+b"
    assert union(a, ActivationMask("open")).fully_open
    assert not difference(a, a) and difference(a, b)[1].gate
    shifted = ActivationMask("s", {0: np.tile(np.array([1, 0], F32), 8)})
    back = ActivationMask("t", {0: np.tile(np.array([0, 1], F32), 8)})
    found = difference(shifted, back)[0]
    assert (found.added, found.removed) == (8, 8)
    widths = dict.fromkeys(range(LAYERS), WIDTH)
    assert a.sparsity(widths) == 1 - (int(one.sum()) + 2 * WIDTH) / (3 * WIDTH)


@pytest.mark.parametrize("layout", ["w8", "w16", "Q4_0", "f32"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_the_sparse_form_is_the_masked_one(layout, backend, files):
    with opened(backend, layout, adapters=[f"m={files['neurons']}"]) as model:
        want, known = digests(model, "m"), model.generate(PROMPT, max_tokens=1).fingerprint
    options = {"backend": backend, "context": 64}
    with load_sparse(NAME + layout, files["neurons"], **options) as model:
        assert digests(model) == want
        assert model.generate(PROMPT, max_tokens=1).fingerprint != known
        width = model.program.weights["model.layers.0.mlp.up_proj.weight"].shape[0]
    by_rows = layout in ("w8", "w16")
    assert width == (int(MASKS["neurons"].neurons[0].sum()) if by_rows else WIDTH)


@pytest.mark.parametrize("layout", ["w8", "w16", "w8b256", "Q8_0", "Q4_K", "e2m1b16", "f32"])
def test_whole_runs_of_zeros_may_be_left_out_of_a_product(layout):
    size = granule(layout)
    step, count = (size, min(20, 32768 // size)) if size > 1 else (1, 700)
    source = CaseData(f"runs of {layout}")
    weight = typical(source, layout, 7, step * count)
    live = np.random.default_rng(3).random(count) < 0.5
    live[0], live[-1] = False, True
    kept = np.flatnonzero(np.repeat(live, step))
    x = source.floats(5, step * count)
    x[:, np.repeat(~live, step)] = 0
    faults = np.zeros(5, np.bool_)

    def product(rows, matrix):
        if LAYOUTS[layout].kind == "float":
            return matmul_f32(rows, matrix.parts["raw"].view("<f4"), faults)
        return matmul(quantise_rows(rows), decode(matrix), faults)

    assert product(x, weight).tobytes() == product(x[:, kept], columns_of(weight, kept)).tobytes()


@pytest.mark.parametrize("name", ["heads", "layer", "factors", "means"])
def test_the_sparse_form_takes_no_other_masks(name, files):
    with pytest.raises(UnsupportedError, match="closes more than neurons"):
        load_sparse(NAME + "w8", files[name], backend="reference")


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_statistics_are_those_of_rows_however_they_are_cut(backend):
    source, ids = open_source(NAME + "w16", LoadOptions()), [3, 7, 11, 50, 9, 2, 60]
    found = neuron_statistics(source, ids, top=5, backend=backend)
    one, two = (neuron_statistics(source, part, top=5) for part in (ids[:4], ids[4:]))
    again = neuron_statistics(source, ids, top=5, window=4)
    for kind in ("magnitude", "square", "total", "hits"):
        for layer, mass in getattr(again, kind).items():
            parts = getattr(one, kind)[layer] + getattr(two, kind)[layer]
            assert np.allclose(mass, parts, rtol=1e-12, atol=1e-12)
    assert found.rows == len(ids) and all(h.sum() >= 35 for h in found.hits.values())
    assert np.allclose(found.means()[0] * 7, found.total[0], rtol=1e-6, atol=1e-7)


def test_the_largest_are_kept_and_the_first_of_equal_ones():
    mass = np.array([1.0, 3.0, 3.0, 2.0, 3.0, 0.0])
    assert list(np.flatnonzero(keep_largest(mass, 0.34))) == [1, 2, 4]
    assert list(np.flatnonzero(keep_largest(mass, 0.3))) == [1, 2]
    assert keep_largest(mass, 0.1, align=4).sum() == 4 and keep_largest(mass, 0.9, 4).all()
    with pytest.raises(RequestError, match="a share in"):
        keep_largest(mass, 0.0)
    made = mask_of("t", {0: mass, 1: np.ones(4)}, 0.5, means={0: np.ones(6, F32), 1: None})
    assert made.neurons[0].tolist() == [0, 1, 1, 0, 1, 0] and made.neurons[1].tolist() == [
        1,
        1,
        0,
        0,
    ]
    square = {0: np.array([4.0, 4.0, 4.0, 4.0, 0.0, 0.0])}
    gained = ActivationMask("g", {0: np.array([1, 0, 0, 0, 0, 0], F32)})
    assert energy_gain(square, gained) == 2.0
    assert gained.times(2.0).neurons[0].tolist() == [2, 0, 0, 0, 0, 0]


def test_means_of_another_width_are_refused_wherever_they_stand():
    program = load_program(open_synthetic("synthetic:tiny-llama?seed=1"), context=64).program
    mask = ActivationMask("m", means={0: np.ones(5, F32)})
    with pytest.raises(UnsupportedError, match="has 5 means of layer 0"):
        mask_overlay(mask, program, "00")
