"""Masks of families, and models pruned and reordered: transformers in float64 is the oracle."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
import vision_folders
from checkpoints import case, draw_weights
from click.testing import CliRunner
from masked import loaded_plugins

import cortiq
from cortiq.backend import Batch, Named, Row
from cortiq.convert.run import convert_model
from cortiq.errors import RequestError, UnsupportedError
from cortiq.ir.overlays import overlay_inputs
from cortiq.model.source import open_source
from cortiq.numerics.contract import F32
from cortiq.options import LoadOptions
from cortiq_masks.commands import mask as command
from cortiq_masks.files import read_mask, write_mask
from cortiq_masks.mask import ActivationMask
from cortiq_masks.pruning import prune_model, reorder_model
from cortiq_masks.refit import read_support, refit, support_of
from cortiq_masks.transformed import load_sparse
from cortiq_masks.tubes import in_new_order, task_mask, tubes_of

IDS = [3, 7, 11, 50, 9, 2]
TEXT = [int(i) for i in np.random.default_rng(0).integers(3, 60, 90)]
SIZES = {"hidden_size": 48, "intermediate_size": 64}
FAMILIES = {
    "llama": ("llama", "LlamaConfig", SIZES),
    "fused": ("phi3", "Phi3Config", SIZES | {"pad_token_id": 0}),
    "gemma": ("gemma2", "Gemma2Config", SIZES | {"head_dim": 16}),
}
LARGEST_ERROR = 5e-4
"""Of logits, in the largest one: what matrices and rows of 16 bits leave."""


@pytest.fixture(scope="module", autouse=True)
def plugin():
    with loaded_plugins(masks="cortiq_masks"):
        yield


def base_model(family):
    name, config, options = FAMILIES[family]
    made = case(name, config, options).build()
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    draw_weights(model)
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        base_model(family).save_pretrained(folder / family)
    return folder


def mask_for(model):
    layers, width = model.config.num_hidden_layers, model.config.intermediate_size
    random = np.random.default_rng(9)
    neurons = {i: (random.random(width) < 0.3 + 0.2 * i).astype(F32) for i in range(layers)}
    return ActivationMask("task", neurons)


def oracle(model, mask, ids=IDS):
    """Return logits of a model in float64 with a mask's factors on its rows."""
    model, handles = model.double(), []

    def changed(index):
        factors = torch.tensor(mask.neurons.get(index, np.ones(1, F32)), dtype=torch.float64)
        means = torch.tensor(mask.means.get(index, np.zeros(1, F32)), dtype=torch.float64)
        filled = torch.where(factors == 0, means, torch.zeros(1, dtype=torch.float64))
        return lambda module, given: (given[0] * factors + filled,)

    def headed(index, layer):
        heads = torch.tensor(mask.heads.get(index, np.ones(1, F32)), dtype=torch.float64)
        size = layer.self_attn.o_proj.in_features // max(len(heads), 1)
        return lambda module, given: (given[0] * heads.repeat_interleave(size),)

    for index, layer in enumerate(model.model.layers):
        handles.append(layer.mlp.down_proj.register_forward_pre_hook(changed(index)))
        handles.append(layer.self_attn.o_proj.register_forward_pre_hook(headed(index, layer)))
    with torch.no_grad():
        found = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    for handle in handles:
        handle.remove()
    return found


def logits(model, adapter=None, ids=IDS):
    overlay = model.adapters.named(adapter)
    model.adapters.sync(overlay)
    given = {} if overlay is None else overlay_inputs(overlay.number)
    state, want = model.executable.open(len(ids)), Named("logits")
    rows = [Row(state, at, token, (want,), given) for at, token in enumerate(ids)]
    found = model.executable.forward(Batch(rows)).result().rows
    state.release()
    return np.array([row[want] for row in found], np.float64)


def error(got, want):
    return np.abs(got - want).max() / np.abs(want).max()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_mask_is_transformers_with_its_factors(family, folders, tmp_path):
    model = base_model(family)
    plain, mask = oracle(model, ActivationMask("none")), mask_for(model)
    heads = np.ones(model.config.num_attention_heads, F32)
    heads[1] = 0
    masks = {
        "neurons": mask,
        "heads": ActivationMask("h", heads={0: heads}),
        "means": ActivationMask("m", mask.neurons, means={0: np.linspace(-1, 1, 64, dtype=F32)}),
        "factors": ActivationMask("f", {1: np.linspace(0.2, 1.7, 64, dtype=F32)}),
    }
    for name, one in masks.items():
        write_mask(tmp_path / f"{name}.mask", one)
    given = [f"{name}={tmp_path / name}.mask" for name in masks]
    path = folders / family
    with cortiq.load(path, backend="cpu", weight_format="w16", adapters=given) as loaded:
        for name, one in masks.items():
            want = oracle(model, one)
            assert error(logits(loaded, name), want) < LARGEST_ERROR < error(want, plain), name
        assert error(logits(loaded), plain) < LARGEST_ERROR


def test_leaving_out_a_layer_is_transformers_without_it(folders, tmp_path):
    write_mask(tmp_path / "l.mask", ActivationMask("l", closed=frozenset({0})))
    model = base_model("llama")
    model.model.layers = model.model.layers[1:]
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = index
    options = {"backend": "cpu", "weight_format": "w16", "adapters": [f"l={tmp_path / 'l.mask'}"]}
    with cortiq.load(folders / "llama", **options) as loaded:
        want = oracle(model, ActivationMask("none"))
        assert error(logits(loaded, "l"), want) < LARGEST_ERROR


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pruned_folder_is_the_masked_model_in_transformers(family, folders, tmp_path):
    mask = mask_for(base_model(family))
    write_mask(tmp_path / "t.mask", mask)
    made = prune_model(str(folders / family), tmp_path / "t.mask", tmp_path / "out")
    pruned = transformers.AutoModelForCausalLM.from_pretrained(made.path).eval()
    width = max(int(v.sum()) for v in mask.neurons.values())
    assert pruned.config.intermediate_size == width < 64
    assert pruned.model.layers[0].mlp.down_proj.weight.shape[1] == width
    want = oracle(base_model(family), mask)
    assert error(oracle(pruned, ActivationMask("none")), want) < 1e-6
    with cortiq.load(made.path, backend="cpu", weight_format="w16") as loaded:
        assert error(logits(loaded), want) < LARGEST_ERROR


def test_a_pruned_model_that_sees_keeps_its_tower(tmp_path):
    (tmp_path / "whole").mkdir()
    model = vision_folders.llava(tmp_path / "whole")
    mask = mask_for(SimpleNamespace(config=model.config.text_config))
    write_mask(tmp_path / "t.mask", mask)
    made = prune_model(str(tmp_path / "whole"), tmp_path / "t.mask", tmp_path / "out")
    assert made.notes == ()
    pruned = transformers.LlavaForConditionalGeneration.from_pretrained(made.path)
    width = max(int(v.sum()) for v in mask.neurons.values())
    assert pruned.config.text_config.intermediate_size == width < 72
    theirs = model.model.vision_tower.state_dict()
    own = pruned.model.vision_tower.state_dict()
    unread = ("post_layernorm", "encoder.layers.2")  # the projector reads the layer before
    assert all(torch.equal(own[k], v) for k, v in theirs.items() if not any(u in k for u in unread))
    image = np.zeros((56, 56, 3), np.uint8)
    with cortiq.load(made.path, backend="cpu", images=True) as loaded:
        assert loaded.image_prompt("what?", [image]).ids


@pytest.mark.parametrize("layout", ["w8", "w16"])
def test_a_pruned_model_in_codes_has_the_masked_models_bits(layout, folders, tmp_path):
    mask = mask_for(base_model("llama"))
    write_mask(tmp_path / "t.mask", mask)
    coded = convert_model(str(folders / "llama"), tmp_path / "coded", layout).path
    pruned = prune_model(str(coded), tmp_path / "t.mask", tmp_path / "pruned").path
    with cortiq.load(coded, backend="cpu", adapters=[f"t={tmp_path / 't.mask'}"]) as loaded:
        want, plain = logits(loaded, "t"), logits(loaded)
    with load_sparse(str(coded), tmp_path / "t.mask", backend="cpu") as loaded:
        assert logits(loaded).tobytes() == want.tobytes()
        with pytest.raises(RequestError, match=r"by the package that loaded it.*\n.*--lora PATH"):
            loaded.load_adapter("t", tmp_path / "t.mask")
    for backend in ("cpu", "reference"):
        with cortiq.load(pruned, backend=backend) as loaded:
            assert logits(loaded).tobytes() == want.tobytes() != plain.tobytes()
    sizes = [sum(f.stat().st_size for f in p.glob("*.safetensors")) for p in (pruned, coded)]
    assert sizes[0] < sizes[1]
    with pytest.raises(RequestError, match="is there already"):
        prune_model(str(coded), tmp_path / "t.mask", tmp_path / "pruned")


def test_a_refit_is_least_squares_and_loses_less(folders, tmp_path):
    mask = mask_for(base_model("llama"))
    write_mask(tmp_path / "t.mask", mask)
    source = open_source(str(folders / "llama"), LoadOptions(weight_format="w16"))
    sums = refit(source, TEXT, support_of(mask), backend="cpu")
    again = refit(source, TEXT, support_of(mask), window=7, backend="reference")
    source.close()
    assert sums.rows == len(TEXT) and again.rows == len(TEXT)
    assert sums.write(tmp_path / "sums") == 2
    for layer, kept in read_support(tmp_path / "sums").items():
        assert np.array_equal(kept, np.flatnonzero(mask.neurons[layer]))
        gss = np.fromfile(tmp_path / f"sums/gss.{layer}.f32", "<f4").reshape(len(kept), -1)
        assert np.allclose(gss, sums.gss[layer], rtol=1e-5, atol=1e-5)
        best = np.linalg.lstsq(sums.gss[layer], sums.ya[layer].T, rcond=None)[0].T
        assert np.allclose(sums.matrix(layer, 1e-12), best, rtol=1e-3, atol=1e-3 * abs(best).max())
    wanted = oracle(base_model("llama"), ActivationMask("none"), TEXT)
    losses = []
    for name, how in (("plain", None), ("refitted", sums)):
        made = prune_model(str(folders / "llama"), tmp_path / "t.mask", tmp_path / name, refit=how)
        pruned = transformers.AutoModelForCausalLM.from_pretrained(made.path).eval()
        found = oracle(pruned, ActivationMask("none"), TEXT)
        losses.append(float(((found - wanted) ** 2).mean()))
    assert losses[1] < 0.8 * losses[0]


def test_tubes_reorder_a_model_without_changing_a_bit(folders, tmp_path):
    masks = [
        mask_for(base_model("llama")),
        ActivationMask("other", {0: np.tile([1, 0], 32).astype(F32)}),
    ]
    coded = convert_model(str(folders / "llama"), tmp_path / "coded", "w8").path
    tubes = tubes_of(masks, {0: 64, 1: 64})
    for layer, one in tubes.items():
        assert sorted(one.order) == list(range(64)) and sum(one.widths) == 64
        assert one.tasks[0] == {"task", "other"}
        for mask in masks:
            same, moved = task_mask(mask.name, tubes), in_new_order(mask, tubes)
            open_ = [m.live(layer, 64) for m in (same, moved)]
            assert np.array_equal(*open_)
            assert (np.diff(open_[0].astype(int)) != 0).sum() <= len(one.widths)
    made = reorder_model(str(coded), tubes, tmp_path / "tubes").path
    write_mask(tmp_path / "old.mask", masks[0])
    write_mask(tmp_path / "new.mask", task_mask("task", tubes))
    with cortiq.load(coded, backend="cpu", adapters=[f"t={tmp_path / 'old.mask'}"]) as loaded:
        want = [logits(loaded, name).tobytes() for name in (None, "t")]
    with cortiq.load(made, backend="cpu", adapters=[f"t={tmp_path / 'new.mask'}"]) as loaded:
        assert [logits(loaded, name).tobytes() for name in (None, "t")] == want
        with pytest.raises(UnsupportedError, match="blocks of 32"):
            quantised = convert_model(str(folders / "llama"), tmp_path / "q", "w4").path
            reorder_model(str(quantised), tubes, tmp_path / "no")


def test_commands_make_join_compare_and_prune(folders, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be")
    source = str(folders / "llama")

    def run(*arguments):
        return CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)

    config = json.loads((folders / "llama/config.json").read_text())
    assert config["intermediate_size"] == 64
    ids = tmp_path / "a.mask"
    write_mask(ids, mask_for(base_model("llama")))
    write_mask(tmp_path / "b.mask", ActivationMask("b", {0: np.tile([1, 0], 32).astype(F32)}))
    assert run("join", ids, tmp_path / "b.mask", tmp_path / "c.mask").exit_code == 0
    assert read_mask(tmp_path / "c.mask").name == "task+b"
    shown = run("diff", ids, tmp_path / "b.mask")
    assert "opened" in shown.output and "patent" in shown.output
    assert run("prune", source, ids, tmp_path / "out").exit_code == 0
    assert json.loads((tmp_path / "out/config.json").read_text())["intermediate_size"] < 64
    model, keep = "synthetic:tiny-llama", ("--keep", "0.25", "--mean-fill")
    made = run("make", model, tmp_path / "t.mask", "--text", text, *keep)
    assert made.exit_code == 0 and "75.0% of neurons closed" in made.output
    assert read_mask(tmp_path / "t.mask").means
