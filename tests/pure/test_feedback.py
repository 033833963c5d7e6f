"""Error feedback: second moments of the rows that matrices meet, and less lost on such rows."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from cmf_by_hand import BY_HAND
from converted import opened, write_model

from cortiq.cli.main import cli
from cortiq.convert import calibration
from cortiq.convert.calibration import moments_of, rows_of_matrices
from cortiq.convert.feedback import CodeGrid, best_codes, best_rows, feedback_of
from cortiq.convert.run import Calibration, convert_model
from cortiq.convert.scratch import ScratchArrays
from cortiq.errors import CortiqError, RequestError
from cortiq.formats.cmf.decode import decode_rows
from cortiq.formats.cmf.dtypes import BY_NAME
from cortiq.formats.cmf.encode import encode, survey
from cortiq.formats.cmf.fitted_codes import FITTED, fit_rows
from cortiq.formats.cmf.payloads import problem
from cortiq.models.weight_rules import matrix_names
from cortiq.numerics.four_bits import BLOCKS, four_bit_rows
from cortiq.numerics.layouts import LAYOUTS, Weight
from cortiq.numerics.weights import weight_values

F32 = np.float32


def correlated(rows, columns, seed=0):
    """Rows whose columns go together, as activations' do."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((rows, columns // 8)) @ rng.standard_normal((columns // 8, columns))
    return (mixed + rng.standard_normal((rows, columns))).astype(F32)


def loss_on(x, values, found):
    return np.square(x.astype(float) @ (found.astype(float) - values).T).sum(axis=0)


def held_by(layout, raw):
    return weight_values(Weight.from_bytes(LAYOUTS[layout], raw, (len(raw), 512)), "w")


@pytest.mark.parametrize("layout", BLOCKS)
def test_products_lose_less_than_with_the_nearest_codes(layout):
    x, values = correlated(600, 512), np.random.default_rng(1).standard_normal((24, 512))
    values = values.astype(F32)
    feedback = feedback_of(x.T @ x, ScratchArrays())
    plain, fed = four_bit_rows(layout, values), best_rows(layout, values, feedback)
    least, most = (loss_on(x, values, held_by(layout, raw)).sum() for raw in (fed, plain))
    assert least < 0.6 * most
    halves = [best_rows(layout, values[a:b], feedback) for a, b in ((0, 11), (11, 24))]
    codes = [held_by(layout, raw) for raw in (np.concatenate(halves), fed)]
    assert np.abs(codes[0] - codes[1]).mean() < 0.01 * np.abs(codes[1]).mean()


@pytest.mark.parametrize("name", FITTED)
def test_rows_of_cmf_lose_less_than_the_originals_and_are_what_the_file_holds(name):
    x, rng = correlated(600, 96), np.random.default_rng(1)
    values = (rng.standard_normal((24, 96)) * np.exp2(rng.integers(-4, 4, (24, 1)))).astype(F32)
    values[3], values[[5, 15], 32:64] = 0, 0
    feedback = feedback_of(x.T @ x, ScratchArrays())
    found, start = survey(name, values.shape, lambda: [values]), 0
    meant, parts = [], []
    for rows in (values[:11], values[11:]):
        fitted = fit_rows(name, rows, feedback.weights, found, start)
        steps = CodeGrid(fitted.scale, fitted.low, fitted.largest)
        codes = best_codes(rows, steps, feedback)
        assert name == "q4tp" or ((fitted.scale.min() < 0) and np.any(fitted.scale == 0))
        meant.append((codes + steps.low / np.where(steps.scale != 0, steps.scale, 1)) * steps.scale)
        parts.append([part.tobytes() for part in fitted.pack(codes.astype(np.uint8))])
        start += len(rows)
    raw = b"".join(b"".join(part) for part in zip(*parts, strict=True))
    files = [np.frombuffer(data, np.uint8) for data in (raw, encode(name, values))]
    assert not problem(BY_NAME[name], values.shape, files[0])
    fed, plain = (decode_rows(BY_NAME[name], values.shape, data, 0, 24) for data in files)
    assert np.allclose(fed, np.concatenate(meant), rtol=1e-6, atol=0)
    by_hand = np.array(BY_HAND[name](raw, *values.shape)).reshape(values.shape)
    assert np.array_equal(fed, by_hand.astype(F32))
    assert loss_on(x, values, fed).sum() < 0.3 * loss_on(x, values, plain).sum()


def test_rows_that_four_bits_hold_keep_their_codes_and_others_get_better_ones():
    x, values = correlated(600, 512), np.random.default_rng(1).standard_normal((8, 512))
    values = held_by("Q4_1", four_bit_rows("Q4_1", values.astype(F32)))
    values[4:] += np.random.default_rng(2).standard_normal((4, 512)).astype(F32) * F32(0.3)
    found = best_rows("Q4_1", values, feedback_of(x.T @ x, ScratchArrays()))
    plain = four_bit_rows("Q4_1", values)
    assert np.array_equal(found[:4], plain[:4])
    least, most = (loss_on(x, values, held_by("Q4_1", raw))[4:] for raw in (found, plain))
    assert np.all(least < 0.8 * most)


def test_the_factor_is_that_of_the_damped_inverse_and_dead_columns_lose_nothing():
    x = correlated(300, 64)
    x[:, 5] = 0
    h = (x.T @ x).astype(float)
    feedback = feedback_of((x.T @ x).astype(F32), ScratchArrays())
    order, factor = feedback.order, feedback.factor.astype(float)
    assert order[-1] == 5 and np.all(np.diff(np.diagonal(h)[order]) <= 0)
    damped = h + 0.01 * np.diagonal(h).mean() * np.eye(64)
    damped[5, 5] = 1
    assert np.allclose(factor.T @ factor @ damped[order][:, order], np.eye(64), atol=1e-3)
    assert np.allclose(factor, np.triu(factor))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model("folder", tmp_path_factory.mktemp("model") / "model")


def test_moments_are_those_of_the_rows_that_a_matrix_meets(folder):
    source = opened(folder, weight_format="f32")
    table = weight_values(source.weights["model.embed_tokens.weight"], "t").astype(float)
    ids = np.random.default_rng(0).integers(0, 250, 150).tolist()
    rows = table[ids]
    gain = weight_values(source.weights["model.layers.0.input_layernorm.weight"], "g")[0]
    normed = rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + 1e-5) * gain
    names = matrix_names(source.program)
    default = opened(folder)
    found = {
        name: moments
        for held, moments in moments_of(
            default.program, default.weights, ids, names, ScratchArrays()
        )
        for name in held
    }
    assert {name.split(".")[-2] for name in found} == {
        *(f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down"))
    }
    expected = normed.T @ normed
    error = np.abs(found["model.layers.0.self_attn.k_proj.weight"] - expected).max()
    assert error < 1e-3 * np.abs(expected).max()


def all_moments(source, ids):
    names = matrix_names(source.program)
    found = moments_of(source.program, source.weights, ids, names, ScratchArrays())
    return [(held, moments.tobytes()) for held, moments in found]


@pytest.mark.parametrize("model", ["folder", "mini-gemma4_text", "mini-qwen3_next"])
def test_moments_are_the_same_however_many_layers_are_read_at_a_time(model, folder, monkeypatch):
    source = opened(folder if model == "folder" else f"synthetic:{model}")
    ids = list(range(2, 60))
    whole, read = all_moments(source, ids), []
    monkeypatch.setattr("cortiq.convert.calibration.MOMENT_BYTES", 1)
    compiled = calibration._Reading.compiled
    monkeypatch.setattr(
        calibration._Reading,
        "compiled",
        lambda self, part, weights: read.append(part) or compiled(self, part, weights),
    )
    assert whole == all_moments(source, ids) and len(read) > 1
    assert len(whole) == len(rows_of_matrices(source.program, matrix_names(source.program))) > 3


def test_large_moments_and_factors_lie_in_files_without_a_name(tmp_path, monkeypatch):
    x = correlated(300, 64)
    held = feedback_of((x.T @ x).astype(F32), ScratchArrays()).factor
    monkeypatch.setattr("cortiq.convert.scratch.HELD_BYTES", 0)
    monkeypatch.setattr("cortiq.convert.scratch.PANEL", 24)
    found = feedback_of((x.T @ x).astype(F32), ScratchArrays(tmp_path)).factor
    assert isinstance(found, np.memmap) and not list(tmp_path.iterdir())
    assert np.allclose(found, held, atol=1e-5 * np.abs(held).max()) and np.any(held)
    with pytest.raises(CortiqError, match="are free"):
        ScratchArrays(tmp_path).zeros((1 << 30, 1 << 30), F32)


def test_the_text_is_part_of_the_rule_and_changes_the_codes(folder, tmp_path):
    text = tmp_path / "text"
    text.write_text("the quick brown fox jumps over it, and so on. " * 20)
    plain = convert_model(folder, tmp_path / "plain", "w4")
    command = ["convert", folder, str(tmp_path / "fed"), "--calibrate", str(text)]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    one, other = (opened(path) for path in (plain.path, tmp_path / "fed"))
    differing = {
        name for name, weight in one.weights.items() if weight.layout.name in BLOCKS
        and not np.array_equal(weight.parts["raw"], other.weights[name].parts["raw"])
    }  # fmt: skip
    assert differing and all("_proj" in name for name in differing)
    again = convert_model(folder, tmp_path / "again", "w4", calibration=Calibration(text))
    files = [path / "model.safetensors" for path in (tmp_path / "fed", again.path)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_text_that_says_too_little_is_refused(folder, tmp_path):
    text = tmp_path / "text"
    text.write_text("short")
    with pytest.raises(RequestError, match="at least 512 tokens"):
        convert_model(folder, tmp_path / "out", "w4", calibration=Calibration(text))
    text.write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="not UTF-8"):
        convert_model(folder, tmp_path / "out", "w4", calibration=Calibration(text))
    text.write_text("the quick brown fox jumps over it, and so on. " * 20)
    for recipe in ("w8", "keep"):
        with pytest.raises(RequestError, match=f"no matrix gets codes .*{recipe}"):
            convert_model(folder, tmp_path / "out", recipe, calibration=Calibration(text))
    assert not (tmp_path / "out").exists()
