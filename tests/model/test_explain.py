"""`cortiq.explain`: rows, activations, experts and probabilities are transformers' in float64; two
runs are compared bit by bit; a temperature is found again in a model that was made too sure.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")

import torch
import transformers
import vision_folders
from adapter_folders import write_lora
from checkpoints import case, draw_weights
from click.testing import CliRunner
from PIL import Image
from vision_oracles import processed

import cortiq
from cortiq.cli.main import cli
from cortiq.errors import FormatError, RequestError
from cortiq.explain import (
    calibrate,
    compare,
    explain,
    hidden_rows,
    mean_row,
    open_observed,
    read_calibration,
)
from cortiq.explain.calibrate import POWERS, STEPS, calibration_error, predictions
from cortiq.explain.observed import ROWS

SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3}
FAMILIES = {
    "llama": ("LlamaConfig", SIZES),
    "mixtral": ("MixtralConfig", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
PROMPT, FORCED = [1, 5, 9, 2, 71, 33, 8, 4, 19, 60] * 4, [7, 3, 11]
LARGEST_ERROR = 1e-3


@cache
def base_model(family):
    config, options = FAMILIES[family]
    torch.manual_seed(5)
    made = case(family, config, options).build()
    made._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    draw_weights(model)
    return model


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explained")
    for family in FAMILIES:
        base_model(family).save_pretrained(folder / family)
    return folder


@cache
def computed(family):
    """Return what transformers computes in float64: rows, and what `down` matrices multiply."""
    model, held = base_model(family).double(), {}
    downs = [m.mlp.experts if family == "mixtral" else m.mlp.down_proj for m in model.model.layers]
    hooks = [
        down.register_forward_pre_hook(lambda _, given, i=i: held.setdefault(i, given))
        for i, down in enumerate(downs)
    ]
    rows = []
    hooks += [layer.register_forward_hook(lambda _, __, out: rows.append(out))
              for layer in model.model.layers]  # fmt: skip
    with torch.no_grad():
        found = model(torch.tensor([[*PROMPT, *FORCED]]))
    for hook in hooks:
        hook.remove()
    rows = [(row[0] if isinstance(row, tuple) else row)[0].numpy() for row in rows]
    given = {i: [v[0] if v.ndim == 3 else v for v in values] for i, values in held.items()}
    return rows, given, found.logits[0].numpy(), model


def error(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_and_probabilities_are_transformers(family, root):
    rows, _, logits, _ = computed(family)
    ids = [*PROMPT, *FORCED]
    with open_observed(root / family, backend="cpu") as model:
        made = explain(model, PROMPT, FORCED)
        for layer, wanted in enumerate(rows):
            assert error(hidden_rows(model, ids, layer), wanted) < LARGEST_ERROR
            assert made.layers[layer].rms == pytest.approx(np.sqrt((wanted**2).mean()), rel=1e-3)
            assert made.layers[layer].largest == pytest.approx(np.abs(wanted).max(), rel=1e-2)
        change = np.linalg.norm(rows[2] - rows[1]) / np.linalg.norm(rows[1])
        assert made.layers[2].change == pytest.approx(change, rel=1e-3)
        span = mean_row(model, ids, 1, 3, 11)
        assert error(span, rows[1][3:11].mean(axis=0)) < LARGEST_ERROR
        assert np.array_equal(span, mean_row(model, ids[:11], 1, 3))  # nothing behind it counts
        assert not mean_row(model, ids, 1, 5, 5).any()
        with pytest.raises(RequestError, match="layer 3 is none of 0 to 2"):
            hidden_rows(model, ids, 3)
    chances = torch.softmax(torch.tensor(logits), -1).numpy()[len(PROMPT) - 1 :]
    assert [one.position for one in made.following] == list(range(len(PROMPT) - 1, len(ids)))
    for one, wanted, forced in zip(made.following, chances, [*FORCED, None], strict=True):
        assert one.best == wanted.argmax() and one.forced == forced
        assert one.probability == pytest.approx(wanted.max(), rel=1e-2)
        if forced is not None:
            assert one.forced_probability == pytest.approx(wanted[forced], rel=1e-2)
            assert one.rank == (wanted > wanted[forced]).sum()


def test_activations_of_neurons_are_transformers(root):
    _, given, _, _ = computed("llama")
    with open_observed(root / "llama", backend="cpu") as model:
        sums = list(explain(model, PROMPT, FORCED).neurons.values())
    for layer, one in enumerate(sums):
        wanted = given[layer][0].numpy()
        assert error(one.magnitude, np.abs(wanted).sum(axis=0)) < LARGEST_ERROR
        assert error(one.square, (wanted**2).sum(axis=0)) < LARGEST_ERROR
        assert error(one.energy, (wanted**2).sum(axis=0)) < LARGEST_ERROR
        ordered = np.sort(np.abs(wanted).sum(axis=0))[::-1]
        assert one.share_of_largest(0.25) == pytest.approx(ordered[:16].sum() / ordered.sum(), 1e-3)


def test_experts_and_their_activations_are_transformers(root):
    _, given, _, model = computed("mixtral")
    with open_observed(root / "mixtral", backend="cpu") as opened:
        sums = list(explain(opened, PROMPT, FORCED).neurons.values())
    for layer, one in enumerate(sums):
        rows, chosen, shares = given[layer]
        experts = model.model.layers[layer].mlp.experts
        for expert in range(4):
            row, place = torch.where(chosen == expert)
            assert one.runs[expert] == len(row)
            weighs = shares[row, place]
            assert one.shares[expert] == pytest.approx(float(weighs.sum()), rel=1e-3)
            gate, up = (rows[row] @ experts.gate_up_proj[expert].T).chunk(2, -1)
            values = torch.nn.functional.silu(gate) * up
            for found, wanted in (
                (one.magnitude, values.abs()),
                (one.square, values**2),
                (one.energy, (values * weighs[:, None]) ** 2),
            ):
                assert error(found[expert], wanted.sum(0).detach().numpy()) < LARGEST_ERROR


def test_two_backends_have_the_same_bits(root):
    with (
        open_observed(root / "mixtral", backend="cpu") as one,
        open_observed(root / "mixtral", backend="reference") as other,
    ):
        found = compare(one, other, PROMPT)
    assert found.same and found.inside is None and found.same_best == 1.0
    assert found.nll[0] == found.nll[1]
    assert [layer.layer for layer in found.layers] == [None, 0, 1, 2, None]


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    """A Gemma 3, transformers' model of it in double, and an image."""
    folder = tmp_path_factory.mktemp("gemma3")
    model = vision_folders.gemma3(folder).double()
    drawn = np.random.default_rng(5).integers(0, 256, (40, 70, 3), dtype=np.uint8)
    Image.fromarray(drawn).save(folder / "seen.png")
    return folder, model, drawn


def test_rows_of_a_text_with_an_image_are_transformers(seeing):
    """Its rows see one another, and lie across the border of what is computed at once."""
    folder, model, image = seeing
    with open_observed(folder, images=True, backend="cpu", weight_format="f32") as run:
        ids = run.with_images("a" * (ROWS - 5) + "<start_of_image>?", [image])
        places = run.spans[0].places
        assert places[0] < ROWS <= places[-1]
        made, rows = explain(run, ids, [7]), hidden_rows(run, [*ids, 7], 1)
        fed = torch.tensor([[*ids, 7]])
        kinds = torch.isin(fed, torch.tensor(ids[places[0]])).long()
        with torch.no_grad():
            given = processed("gemma3", folder, [image])["pixel_values"].double()
            found = model(
                input_ids=fed,
                pixel_values=given,
                token_type_ids=kinds,
                attention_mask=torch.ones_like(fed),
                output_hidden_states=True,
            )
        logits = found.logits[0, len(ids) - 1]
        assert made.following[0].best == int(logits.argmax())
        assert abs(made.following[0].probability - float(logits.softmax(0).max())) < 1e-4
        assert error(rows, found.hidden_states[2][0].numpy()) < 1e-4
        with open_observed(folder, images=True, backend="reference", weight_format="f32") as other:
            assert other.with_images("a" * (ROWS - 5) + "<start_of_image>?", [image]) == ids
            assert compare(run, other, ids).same
            other.with_images("a" * (ROWS - 5) + "<start_of_image>?", [image[::-1]])
            assert not compare(run, other, ids).same
    with open_observed(folder, backend="cpu") as run, pytest.raises(RequestError, match="--images"):
        run.with_images("a", [image])


def test_the_command_looks_at_an_image(seeing):
    folder, _, image = seeing
    usual = ("explain", folder, "-p", "what?", "--image", folder / "seen.png", "-b", "cpu")
    done, against = run(*usual, "--json"), run(*usual, "--against-backend", "reference")
    assert done.exit_code == against.exit_code == 0, done.output + against.output
    with open_observed(folder, images=True, backend="cpu") as model:
        made = explain(model, model.with_images("what?", [image]), [])
    assert json.loads(done.stdout)["following"] == made.as_object()["following"]
    assert "the same bits after every layer" in against.stdout


@pytest.mark.parametrize("changed", ["self_attn.v_proj", "mlp.up_proj"])
def test_the_first_layer_that_differs_is_the_one_that_was_changed(changed, root, tmp_path):
    with torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_pretrained(root / "llama")
        model.model.layers[1].get_submodule(changed).weight[3, 5] *= 1.5
    model.save_pretrained(tmp_path / "other")
    with (
        open_observed(root / "llama", backend="cpu") as one,
        open_observed(tmp_path / "other", backend="cpu") as other,
    ):
        found = compare(one, other, PROMPT)
        a, b = (hidden_rows(run, PROMPT, 1) for run in (one, other))
    assert found.first.layer == 1 and not found.same
    assert [layer.same for layer in found.layers] == [True, True, False, False, False]
    end = {"self_attn.v_proj": "attention.v", "mlp.up_proj": "mlp.up"}[changed]
    assert found.inside.value == f"layers.1.{end}"
    assert found.first.relative == pytest.approx(error(a.astype(float), b.astype(float)))
    assert found.first.rows == (a != b).any(axis=1).sum()


def test_two_adapters_differ_where_they_do(root, tmp_path):
    """With one of them rows are those of the loaded adapter; tables have rows of their own."""
    with cortiq.load(root / "llama", backend="cpu") as model:
        folder = write_lora(tmp_path / "a", model, 1, targets=("q_proj", "embed_tokens"))
        model.load_adapter("a", folder)
        wanted = np.array(
            [model.generate(PROMPT[:n], adapter="a", max_tokens=1, temperature=0).token_ids[0]
             for n in (3, 10, 40)]
        )  # fmt: skip
    with (
        open_observed(root / "llama", backend="cpu", adapter=str(folder)) as one,
        open_observed(root / "llama", backend="reference", adapter=str(folder)) as same,
        open_observed(root / "llama", backend="cpu", adapter=f"{folder}:0.5") as other,
    ):
        assert compare(one, same, PROMPT).same
        found = compare(one, other, PROMPT)
        best = [explain(one, PROMPT[:n]).following[-1].best for n in (3, 10, 40)]
    assert found.first.value == "embed" and best == wanted.tolist()


def test_models_of_other_layers_are_not_compared(root):
    with (
        open_observed(root / "llama", backend="cpu") as one,
        open_observed("synthetic:mini-qwen3", backend="cpu") as other,
        pytest.raises(RequestError, match=r"has 3 layers, synthetic:mini-qwen3 on cpu 2"),
    ):
        compare(one, other, PROMPT)


def drawn_text(model, length):
    """Return ids that the model itself draws, so that its probabilities are right."""
    made = model.generate([1], max_tokens=length - 1, temperature=1.0, seed=3, ignore_eos=True,
                          top_k=0, top_p=1.0, min_p=0.0)  # fmt: skip
    return [1, *made.token_ids]


def test_a_temperature_is_found_again(root, tmp_path):
    """Two seconds: of a text that a model drew, and of the same model with a head 1.6 times as
    large, which is too sure by as much.
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(root / "llama")
    with torch.no_grad():
        model.lm_head.weight *= 1.6
    model.save_pretrained(tmp_path / "sure")
    with cortiq.load(root / "llama", backend="cpu", context=1024) as drawing:
        ids = drawn_text(drawing, 900)
    found = {}
    for name, folder in (("plain", root / "llama"), ("sure", tmp_path / "sure")):
        with open_observed(folder, backend="cpu", context=1024) as opened:
            found[name] = calibrate(opened, ids, window=900)
            logits = np.concatenate([v["logits"] for v in opened.rows(ids, ["logits"])])[:-1]
            seen = predictions(opened, ids, 900)
            cut = predictions(opened, ids, 400)  # the next window's first token follows none
            assert len(cut.right) == 399 + 399 + 99
            assert np.array_equal(cut.nll[:399], seen.nll[:399])
        chances = torch.log_softmax(torch.tensor(logits).double() * 20 / STEPS, -1).numpy()
        at = POWERS.index(20)
        assert np.allclose(seen.confidence[:, at], np.exp(chances.max(axis=1)), rtol=1e-9)
        assert np.allclose(seen.nll[:, at], -chances[np.arange(len(ids) - 1), ids[1:]], rtol=1e-9)
        assert (seen.right == (logits.argmax(axis=1) == ids[1:])).all()
    assert found["plain"].temperature == pytest.approx(1.0, abs=0.1)
    ratio = found["sure"].temperature / found["plain"].temperature
    assert ratio == pytest.approx(1.6, rel=0.06)
    sure = found["sure"]
    assert sure.nll < sure.nll_before and sure.error < sure.error_before
    assert sure.confidence < sure.confidence_before and sure.tokens == 899


def test_the_calibration_error_is_its_definition():
    confidence, right = np.array([0.1, 0.12, 0.5, 0.99, 1.0]), np.array([0, 1, 1, 1, 1], bool)
    wanted = (abs(1 - 0.22) + abs(1 - 0.5) + abs(2 - 1.99)) / 5
    assert calibration_error(confidence, right) == pytest.approx(wanted)


def run(*arguments):
    return CliRunner().invoke(cli, [str(a) for a in arguments])


def test_commands_show_compare_and_calibrate(root, tmp_path):
    """Two seconds: every form of both commands."""
    folder, ids = root / "mixtral", ",".join(map(str, PROMPT))
    usual = ("--ids", ids, "-b", "cpu")
    shown = run("explain", folder, *usual, "--force-ids", "7,3", "--save", tmp_path / "a.npz")
    assert shown.exit_code == 0 and "rows of each expert" in shown.stdout
    assert "rank" in shown.stdout
    held = np.load(tmp_path / "a.npz")
    with open_observed(folder, backend="cpu") as model:
        rows = hidden_rows(model, [*PROMPT, 7, 3], 2)
    assert np.array_equal(held["layers.2.out"], rows) and held["ids"].tolist()[-2:] == [7, 3]
    again = run("explain", folder, *usual, "--save", tmp_path / "a.npz")
    assert isinstance(again.exception, RequestError) and "there already" in str(again.exception)
    same = run("explain", folder, *usual, "--against-backend", "reference")
    assert same.exit_code == 0 and "the same bits after every layer" in same.stdout
    other = run("explain", folder, *usual, "--against", folder, "--weight-format", "w8", "--json")
    assert json.loads(other.stdout)["same"]  # both are converted
    made = json.loads(run("explain", folder, *usual, "--json").stdout)
    assert len(made["layers"]) == 3 and made["ids"] == PROMPT
    both = run("explain", folder, *usual, "--against", folder, "--force-ids", "7")
    assert "go with one run" in str(both.exception)

    text, out = tmp_path / "t.txt", tmp_path / "c.json"
    text.write_text("Some bytes that a model by formula has never seen. " * 12)
    name = "synthetic:tiny-llama"
    made = run("calibrate", name, text, "-b", "cpu", "--out", out)
    assert made.exit_code == 0 and "calibration error" in made.stdout
    temperature = read_calibration(out).temperature
    usual = ("generate", name, "-b", "cpu", "--ids", "5,9", "-n", 3, "--confidence", "--json")
    from_file, by_number, plain = (
        json.loads(run(*usual, *more).stdout)["confidence"]
        for more in (("--calibration", out), ("--calibration", temperature), ())
    )
    assert from_file == by_number != plain
    other = ("generate", f"{name}?seed=4", *usual[2:], "--calibration", out)
    assert "of another model" in run(*other).stderr
    assert "of another model" not in run(*usual, "--calibration", out).stderr


@pytest.mark.parametrize(
    "change",
    [{"temperature": "1"}, {"temperature": 0}, {"format": "x"}, {"more": 1}, {"nll": None},
     {"tokens": 10**400}, {"temperature": 10**400}, {"nll": float("nan")},
     {"model_hash": "a" * 10**5}],
)  # fmt: skip
def test_files_that_are_no_calibrations_are_refused(change, tmp_path):
    numbers = dict.fromkeys(("accuracy", "nll", "nll_before", "error", "error_before"), 0.5)
    sound = {"format": "cortiq-calibration-1", "temperature": 1.5, "tokens": 9, **numbers,
             "confidence": 0.5, "confidence_before": 0.5, "model_hash": "a",
             "text_sha256": "b"}  # fmt: skip
    (tmp_path / "c.json").write_text(json.dumps(sound))
    assert read_calibration(tmp_path / "c.json").temperature == 1.5
    (tmp_path / "c.json").write_text(json.dumps(sound | change))
    with pytest.raises(FormatError):
        read_calibration(tmp_path / "c.json")


def test_what_is_no_text_no_window_and_no_file_is_said():
    """Arrays of ids are ids; everything else that these functions are given is our error."""
    model = open_observed("synthetic:tiny-llama", backend="reference")
    with model:
        made = explain(model, [1, 2])
        assert explain(model, np.array([1, 2])) == made != explain(model, [1, 3])
        assert made != made.layers
        assert compare(model, model, np.array([1, 2])).same
        for given in (None, 5, b"ab", [1.5]):
            for call in (explain, lambda m, ids: compare(m, m, ids), calibrate):
                with pytest.raises(RequestError):
                    call(model, given)
        for window in (0, -1, 3.5, "a", True):
            with pytest.raises(RequestError, match="window"):
                calibrate(model, [1] * 300, window=window)
            with pytest.raises(RequestError, match="window"):
                next(model.rows([1], ["logits"], window))


def test_files_that_cannot_be_made_are_refused_before_anything_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr("cortiq.explain.open_observed", lambda *_, **__: pytest.fail("computed"))
    text, taken = tmp_path / "t.txt", tmp_path / "taken"
    text.write_text("a" * 300)
    taken.symlink_to(tmp_path / "nothing" / "there")
    for place in (tmp_path / "none" / "x", taken, text / "x", "", "a\0b"):
        for command in (("explain", "--ids", "1", "--save"), ("calibrate", text, "--out")):
            made = run(command[0], "synthetic:tiny-llama", *command[1:], place)
            assert isinstance(made.exception, RequestError), made.output
    named = run("explain", "synthetic:tiny-llama", "--ids", "1", "--force-ids", "x")
    assert str(named.exception).startswith("--force-ids")
    none = run("explain", "synthetic:tiny-llama", "--ids", "1", "--against-backend", "")
    assert "names no backend" in str(none.exception)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_rows_that_were_not_saved_whole_are_not_there(error, tmp_path, monkeypatch):
    def saved(file, **arrays):
        file.write(b"half")
        raise error

    monkeypatch.setattr(np, "savez", saved)
    made = run("explain", "synthetic:tiny-llama", "--ids", "1,2", "--save", tmp_path / "a.npz")
    assert made.exit_code and not list(tmp_path.iterdir())
    if isinstance(error, OSError):
        assert made.exception.filename == str(tmp_path / "a.npz")


@pytest.mark.slow
def test_a_real_model_is_explained_and_calibrated(smollm2_path):
    """Ten seconds: a fact is likely, and a text of ours is predicted better than by chance."""
    with open_observed(smollm2_path, backend="cpu", context=512) as model:
        made = explain(model, model.ids("The capital of France is"), [7042])
        assert len(made.layers) == 30 and len(made.neurons) == 30
        assert made.following[0].forced_probability > 0.1 and made.following[0].rank < 3
        text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()[:6000]
        found = calibrate(model, model.source.tokenizer.encode(text, add_bos=False), window=256)
        assert found.accuracy > 0.2 and found.nll <= found.nll_before
