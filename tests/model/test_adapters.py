"""LoRA adapters merged at load: peft's own merge in float64 is the oracle, tensor by tensor."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("peft")
pytest.importorskip("gguf")
pytest.importorskip("compressed_tensors")

import gguf
import numpy as np
import peft
import torch
import transformers
from checkpoints import case, draw_weights
from gguf_files import GGUF, close_writer, write_gguf
from quantised_folders import SCHEMES
from quantised_folders import write as write_quantised
from safetensors.numpy import load_file, save_file

import cortiq
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.adapter import open_adapter, split_scale
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.models.adapter_rows import turned_rows
from cortiq.models.exact_products import exact_product, row_sums
from cortiq.models.registry import families
from cortiq_reference.ideal import evaluate

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EVERY = [*LINEAR, "embed_tokens", "lm_head"]
ULP = 2.0**-24
OPTIONS = {"hidden_size": 48, "intermediate_size": 64}


def base_model(**options):
    """A tiny Llama with random weights."""
    config = case("llama", "LlamaConfig", OPTIONS | options).build()
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    draw_weights(model)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The model without an adapter."""
    made = tmp_path_factory.mktemp("base")
    base_model().save_pretrained(made)
    return made


def adapter(model, folder: Path, **options):
    """Write an adapter with random matrices; return what peft's merge makes of the model."""
    usual = {"r": 4, "lora_alpha": 6, "target_modules": EVERY, "init_lora_weights": False}
    torch.manual_seed(7)
    made = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **(usual | options)))
    for name, parameter in made.named_parameters():
        if "magnitude" in name:
            parameter.data *= 1 + torch.rand_like(parameter)
    made.save_pretrained(folder)
    return made.double().merge_and_unload()


def merged_error(loaded, expected) -> float:
    """The largest difference of a matrix from the oracle's, in the matrix's own largest value."""
    state, worst, seen = dict(expected.named_parameters()), 0.0, 0
    for name, weight in loaded.weights.items():
        want = state[name].detach().numpy()
        got = weight.parts["raw"].reshape(-1).view("<f4").reshape(want.shape).astype(np.float64)
        worst = max(worst, np.abs(got - want).max() / np.abs(want).max())
        seen += 1
    assert seen == len({p.data_ptr() for p in expected.parameters()})
    return worst


def load(folder, *adapters):
    opened = [open_adapter(Path(path), scale) for path, scale in adapters]
    return load_program(open_checkpoint(folder), weight_format="f32", adapters=opened)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True, "target_modules": LINEAR},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.up_proj": 9, "v_proj": 3}},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"]},
    ],
    ids=["all", "rank-stabilised", "dora", "patterns", "whole"],
)
def test_a_merged_model_is_pefts(folder, tmp_path, options):
    expected = adapter(base_model(), tmp_path, **options)
    loaded = load(folder, (tmp_path, 1.0))
    assert merged_error(loaded, expected) < 2 * ULP
    plain = load(folder)
    changed = [n for n, w in loaded.weights.items()
               if not np.array_equal(w.parts["raw"], plain.weights[n].parts["raw"])]  # fmt: skip
    assert changed and set(loaded.checkpoint.merged) >= set(changed)


def test_a_matrix_held_whole_is_changed_by_its_factors_too(folder, tmp_path):
    """PEFT saves a table so, whose base layer was resized."""
    base, name = base_model(), "model.layers.0.self_attn.q_proj"
    weight = base.get_submodule(name).weight
    weight.data = torch.randn_like(weight)
    given = weight.detach().numpy().copy()
    expected = adapter(base, tmp_path, target_modules=["q_proj", "v_proj"])
    file = tmp_path / "adapter_model.safetensors"
    held = {f"base_model.model.{name}.base_layer.weight": given}
    save_file(load_file(file) | held, file)
    assert merged_error(load(folder, (tmp_path, 1.0)), expected) < 2 * ULP


def test_logits_are_those_of_the_merged_model(folder, tmp_path):
    expected = adapter(base_model(), tmp_path)
    loaded, tokens = load(folder, (tmp_path, 1.0)), list(range(0, 40, 3))
    logits = evaluate(loaded.program, loaded.weights, tokens, ["logits"])["logits"]
    with torch.no_grad():
        want = expected(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    assert np.abs(logits - want).max() < 1e-5 * np.abs(want).max()
    without = load(folder)
    plain = evaluate(without.program, without.weights, tokens, ["logits"])["logits"]
    assert np.abs(plain - want).max() > 0.1 * np.abs(want).max()


@pytest.mark.parametrize("targets", [["embed_tokens"], ["lm_head"], ["embed_tokens", "q_proj"]])
def test_a_tied_table_is_changed_for_both_its_uses(tmp_path, targets):
    base, made = tmp_path / "base", tmp_path / "lora"
    base_model(tie_word_embeddings=True).save_pretrained(base)
    expected = adapter(base_model(tie_word_embeddings=True), made, target_modules=targets)
    assert merged_error(load(base, (made, 1.0)), expected) < 2 * ULP


def test_adapters_are_merged_in_order_with_their_scales(folder, tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    adapter(base_model(), first, target_modules=["q_proj"])
    adapter(base_model(), second, target_modules=["q_proj", "o_proj"], use_dora=True)
    name = "model.layers.0.self_attn.q_proj.weight"
    torch.manual_seed(0)
    model = peft.PeftModel.from_pretrained(base_model(), str(first), adapter_name="a")
    model.load_adapter(str(second), adapter_name="b")
    model = model.double()
    for module in model.modules():
        if hasattr(module, "set_scale") and "a" in getattr(module, "lora_A", {}):
            module.set_scale("a", 0.5)
        if hasattr(module, "set_scale") and "b" in getattr(module, "lora_A", {}):
            module.set_scale("b", 2.0)
    want = model.merge_and_unload(adapter_names=["a", "b"]).get_parameter(name).detach().numpy()
    loaded = load(folder, (first, 0.5), (second, 2.0))
    got = loaded.weights[name].parts["raw"].reshape(-1).view("<f4").reshape(want.shape)
    assert np.abs(got - want).max() < 2 * ULP * np.abs(want).max()
    other = load(folder, (second, 2.0), (first, 0.5))
    assert loaded.program.facts["adapters"] == other.program.facts["adapters"][::-1]


def test_the_fingerprint_names_the_adapter_and_its_scale(folder, tmp_path):
    adapter(base_model(), tmp_path / "a")
    prints = []
    for lora in (
        (),
        (f"{tmp_path / 'a'}",),
        (f"{tmp_path / 'a'}:1.0",),
        (f"{tmp_path / 'a'}:0.5",),
    ):
        with cortiq.load(folder, backend="reference", lora=lora) as model:
            prints.append(model.fingerprint)
            told = [note for note in model.notes if "merged into" in note]
            assert len(told) == bool(lora) and all("16 tensors" in note for note in told)
    assert prints[1] == prints[2] and len(set(prints)) == 3


def test_a_quantised_matrix_is_dequantised_and_converted(folder, tmp_path):
    """Of an 8-bit GGUF file and an adapter for it, as llama.cpp's converters write them."""
    base, lora = gguf_pair(folder, tmp_path)
    plain = load_program(open_checkpoint(base))
    loaded = load_program(open_checkpoint(base), adapters=[open_adapter(lora, 2.0)])
    name, table = "model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight"
    assert plain.program.weights[name].layout == "Q8_0"
    assert loaded.program.weights[name].layout == "w16"
    f32 = load_program(
        open_checkpoint(base), weight_format="f32", adapters=[open_adapter(lora, 2.0)]
    )
    file = gguf.GGUFReader(base)
    values = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in file.tensors}
    parts = {t.name: t.data.astype(np.float64) for t in gguf.GGUFReader(lora).tensors}
    up, embedding = "blk.0.ffn_up.weight", "token_embd.weight"
    change = parts[f"{up}.lora_b"] @ parts[f"{up}.lora_a"]
    looked_up = parts[f"{embedding}.lora_a"] @ parts[f"{embedding}.lora_b"].T
    for ours, theirs, product in ((name, up, change), (table, embedding, looked_up)):
        want = values[theirs] + 2.0 * 5.0 / 4 * product
        got = f32.weights[ours].parts["raw"].reshape(-1).view("<f4").reshape(want.shape)
        assert np.abs(got - want).max() < 2 * ULP * np.abs(want).max()


@pytest.mark.parametrize("name", ["fp8-block", "awq", "modelopt-nvfp4"])
def test_codes_of_other_programs_are_dequantised_for_an_adapter(name, tmp_path):
    base, made, tensor = tmp_path / "base", tmp_path / "lora", "layers.1.mlp.down_proj"
    scheme = next(scheme for scheme in SCHEMES if scheme.name == name)
    meant, _ = write_quantised(scheme, base)
    want = meant[f"model.{tensor}.weight"]
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, want.shape[1]), (len(want), 2)))
    save_adapter(made, {f"model.{tensor}.lora_A.weight": a, f"model.{tensor}.lora_B.weight": b})
    loaded = load(base, (made, -0.5))
    got = loaded.weights[f"model.{tensor}.weight"].parts["raw"].reshape(-1).view("<f4")
    want = want - 0.5 * 6 / 2 * (b.astype(np.float64) @ a)
    assert np.abs(got.reshape(want.shape) - want).max() < 2 * ULP * np.abs(want).max()
    layouts = {n: spec.layout for n, spec in loaded.program.weights.items()}
    assert layouts[f"model.{tensor}.weight"] == "f32"
    assert layouts["model.layers.0.mlp.down_proj.weight"] == scheme.layout


def save_adapter(folder, tensors):
    """An adapter of rank 2 and alpha 6, by hand."""
    folder.mkdir()
    named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 6}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def test_a_receipt_is_verified_with_the_same_adapter(folder, tmp_path):
    adapter(base_model(), tmp_path / "a", target_modules=["q_proj"])
    lora = (str(tmp_path / "a"),)
    with cortiq.load(folder, backend="reference", lora=lora) as model:
        receipt = model.generate([1, 2, 3], max_tokens=4, ignore_eos=True).receipt()
    assert cortiq.verify(receipt, folder, backend="reference", lora=lora)
    for other in ((), (f"{lora[0]}:0.5",)):
        verdict = cortiq.verify(receipt, folder, backend="reference", lora=other)
        assert not verdict and {found.field for found in verdict.differences} >= {"digests"}


def gguf_pair(folder, tmp_path):
    """A GGUF file of 8-bit matrices, and a GGUF adapter of two of them."""
    plain, base, lora = (tmp_path / name for name in ("plain.gguf", "base.gguf", "lora.gguf"))
    wide = base_model(hidden_size=64)
    wide.save_pretrained(tmp_path / "wide")
    write_gguf(plain, tmp_path / "wide", GGUF("llama", permuted=True))
    shapes = quantised(plain, base)
    writer, rng = gguf.GGUFWriter(lora, "llama"), np.random.default_rng(2)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 5.0)
    for name in ("blk.0.ffn_up.weight", "token_embd.weight"):
        rows, columns = shapes[name]
        a, b = (4, columns), (rows, 4)
        if name == "token_embd.weight":
            a, b = (rows, 4), (columns, 4)
        writer.add_tensor(f"{name}.lora_a", rng.standard_normal(a).astype(np.float32))
        writer.add_tensor(f"{name}.lora_b", rng.standard_normal(b).astype(np.float32))
    close_writer(writer)
    return base, lora


def quantised(plain, base):
    """Write a GGUF file with its matrices in Q8_0; return the shapes of its tensors."""
    reader, kind = gguf.GGUFReader(plain), gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(base, "llama")
    for key, entry in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(key, entry.contents(), entry.types[0],
                                 entry.types[1] if len(entry.types) > 1 else None)  # fmt: skip
    for tensor in reader.tensors:
        data = tensor.data
        if data.ndim == 2:
            writer.add_tensor(tensor.name, gguf.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, data)
    close_writer(writer)
    return {tensor.name: tuple(tensor.data.shape) for tensor in reader.tensors}


def test_a_gguf_adapter_is_not_for_a_folder(folder, tmp_path):
    base, lora = gguf_pair(folder, tmp_path)
    with pytest.raises(UnsupportedError, match=r"is a GGUF adapter, and the model is a Hugging"):
        load(folder, (lora, 1.0))
    with pytest.raises(FormatError, match=r"is no LoRA: general\.type"):
        open_adapter(base)


@pytest.mark.parametrize(
    ("config", "how"),
    [("LlamaConfig", GGUF("llama", permuted=True)), ("Qwen3Config", GGUF("qwen3"))],
    ids=["llama", "qwen3"],
)
@pytest.mark.parametrize("dora", [False, True])
def test_a_peft_adapter_for_a_gguf_file(config, how, dora, tmp_path):
    """The file's own permutation of rows is that of llama.cpp's converter."""
    made, base, file = (tmp_path / name for name in ("lora", "base", "m.gguf"))
    torch.manual_seed(5)
    chosen = case("any", config, OPTIONS | {"head_dim": 12}).build()
    model = transformers.AutoModelForCausalLM.from_config(chosen).eval()
    draw_weights(model)
    model.save_pretrained(base)
    write_gguf(file, base, how)
    adapter(model, made, use_dora=dora, target_modules=LINEAR if dora else EVERY)
    logits = []
    for place in (base, file):
        loaded = load(place, (made, 0.7))
        logits.append(evaluate(loaded.program, loaded.weights, [1, 5, 9, 2], ["logits"])["logits"])
    assert np.abs(logits[0] - logits[1]).max() < 1e-5 * np.abs(logits[0]).max()


def test_a_norm_held_whole_is_not_for_a_gguf_file(folder, tmp_path):
    base, _ = gguf_pair(folder, tmp_path)
    made = tmp_path / "lora"
    adapter(base_model(hidden_size=64), made, target_modules=["v_proj"], modules_to_save=["norm"])
    with pytest.raises(UnsupportedError, match=r"norm\.weight whole"):
        load(base, (made, 1.0))


def test_a_family_whose_gguf_files_differ_takes_no_peft_adapter(tmp_path):
    chosen = families()["granitemoehybrid"]
    config = chosen.Config(
        vocab_size=96, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, source="gguf", layer_types=("mamba", "attention"),
        shared_intermediate_size=64, mamba_n_heads=8, mamba_d_head=12,
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="arrange their weights otherwise"):
        turned_rows(chosen, config, "x")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"peft_type": "VERA"}, UnsupportedError, "'VERA' adapter"),
        ({"peft_type": "IA3"}, FormatError, "that no IA³ adapter has"),
        ({"fan_in_fan_out": True}, UnsupportedError, "fan_in_fan_out is True"),
        ({"init_lora_weights": "pissa_niter_4"}, UnsupportedError, "pissa_niter_4 has changed"),
        ({"use_dora": True}, FormatError, "use_dora does not agree"),
        ({"lora_alpha": "x"}, FormatError, "lora_alpha of .* is 'x'"),
        ({"alpha_pattern": {"(a+)+": 1}}, UnsupportedError, "only names are supported"),
        ({"layer_replication": [[0, 1]]}, UnsupportedError, "layer_replication"),
    ],
)
def test_what_cannot_be_merged_is_named(folder, tmp_path, changes, error, words):
    adapter(base_model(), tmp_path, target_modules=["q_proj"])
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | changes))
    with pytest.raises(error, match=words):
        load(folder, (tmp_path, 1.0))


def test_damaged_adapters_are_named(folder, tmp_path):
    adapter(base_model(), tmp_path / "good", target_modules=["q_proj"])
    good = load_file(tmp_path / "good" / "adapter_model.safetensors")
    first = next(name for name in good if "layers.0" in name and "lora_A" in name)
    second = first.replace("lora_A", "lora_B")
    nan = good[first].copy()
    nan[0, 0] = np.nan
    cases = {
        "has no lora_B": {n: t for n, t in good.items() if n != second},
        "have no common rank": good | {first: good[first][:2]},
        "changes .*q_proj.*by a tensor of the shape": good | {second: good[second][:-1]},
        "layers.7.*does not have": good | {
            n.replace("layers.0", "layers.7"): t for n, t in good.items() if "layers.0" in n
        },
        "that no LoRA has": good | {"base_model.model.x.lora_C": good[first]},
        "I64, not F32": good | {first: good[first].astype(np.int64)},
        "not a valid weight": good | {first: nan},
    }  # fmt: skip
    bad = tmp_path / "bad"
    bad.mkdir()
    shutil.copy(tmp_path / "good" / "adapter_config.json", bad)
    for words, tensors in cases.items():
        save_file(tensors, bad / "adapter_model.safetensors")
        with pytest.raises(FormatError, match=words):
            dict(load(folder, (bad, 1.0)).weights["model.layers.0.self_attn.q_proj.weight"].parts)
    (bad / "adapter_model.safetensors").rename(bad / "adapter_model.bin")
    with pytest.raises(UnsupportedError, match="pickle"):
        open_adapter(bad)
    for place in (tmp_path, folder):
        with pytest.raises(FormatError, match="is no adapter"):
            open_adapter(place)


def test_synthetic_models_take_none(tmp_path):
    adapter(base_model(), tmp_path, target_modules=["q_proj"])
    with pytest.raises(RequestError, match="takes no adapters"):
        cortiq.load("synthetic:tiny-llama", lora=(str(tmp_path),))


def test_a_scale_stands_behind_the_last_colon(tmp_path):
    assert split_scale("a/b:0.5") == ("a/b", 0.5) and split_scale("hf:a/b") == ("hf:a/b", 1.0)
    assert split_scale("hf:a/b:-1e-2") == ("hf:a/b", -0.01)
    (tmp_path / "x:2").mkdir()
    assert split_scale(f"{tmp_path}/x:2") == (f"{tmp_path}/x:2", 1.0)


def test_products_are_the_same_in_any_order_and_nearly_exact():
    rng = np.random.default_rng(1)
    b = rng.standard_normal((40, 70)) * np.exp2(rng.integers(-20, 20, (40, 1)))
    a = rng.standard_normal((70, 50)).astype(np.float32).astype(np.float64)
    made, order = exact_product(b, a), rng.permutation(70)
    assert np.array_equal(made, exact_product(b[:, order], a[order]))
    assert np.array_equal(made[:, :7], np.stack([exact_product(b, a[:, [j]])[:, 0]
                                                 for j in range(7)], axis=1))  # fmt: skip
    limit = 70 * 2.0**-40 * np.abs(b).max(1)[:, None] * np.abs(a).max(0)
    assert (np.abs(made - b @ a) <= limit).all()
    assert not exact_product(np.zeros((2, 3)), a[:3]).any()
    many = exact_product(np.ones((1, 3000)), np.ones((3000, 1)))
    assert many == 3000
    for columns in (1, 2, 7, 48):
        part = rng.standard_normal((3, columns))
        assert np.allclose(row_sums(part)[:, 0], part.sum(1), rtol=1e-12)
