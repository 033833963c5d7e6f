"""GGUF files of the tiny checkpoints, written by the `gguf` package in llama.cpp's conventions."""

from __future__ import annotations

import dataclasses
import math

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import gguf
import numpy as np
from checkpoints import CASES, write
from safetensors.numpy import load_file

from cortiq.errors import CortiqError, FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import check_weights, load_program
from cortiq_reference.ideal import evaluate

TOLERANCE = 1e-5
BY_NAME = {case.name: case for case in CASES}
ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3",
    "lfm2": "lfm2",
}  # fmt: skip
SCALARS = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers", "attention.head_count": "num_attention_heads",
    "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok",
    "vocab_size": "vocab_size", "attention.sliding_window": "sliding_window",
    "final_logit_softcapping": "final_logit_softcapping", "shortconv.l_cache": "conv_L_cache",
}  # fmt: skip


def permuted(rows, heads):
    """Rows of q or k as llama.cpp orders them: pairs (i, i + d/2) of a head become neighbours."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def tensors_for_gguf(folder, config, architecture):
    """Tensors by GGUF name, through the package's own name map."""
    kind = gguf.MODEL_ARCH[architecture.upper()]
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    tensors, experts = {}, {}
    for name, values in load_file(folder / "model.safetensors").items():
        if architecture == "llama" and ".q_proj." in name:
            values = permuted(values, config["num_attention_heads"])
        if architecture == "llama" and ".k_proj." in name:
            values = permuted(values, config["num_key_value_heads"])
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values + np.float32(1)
        if name.endswith("conv.conv.weight"):
            values = values[:, 0]
        if ".experts." in name:
            layer, expert, role = name.split(".")[2], name.split(".")[5], name.split(".")[6]
            experts.setdefault((layer, role), {})[int(expert)] = values
            continue
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        tensors[found] = values
    for (layer, role), parts in experts.items():
        name = f"layers.{layer}.feed_forward.experts.{role}"
        stack = np.stack([parts[e] for e in range(len(parts))])
        tensors[names.get_name(name) + ".weight"] = stack
    return tensors


def write_gguf(path, folder, change=None):
    """The checkpoint as GGUF in F32; `change` edits metadata and tensors before that."""
    checkpoint = open_checkpoint(folder)
    config, loaded = dict(checkpoint.config), load_program(checkpoint)
    architecture = ARCHITECTURES[config["model_type"]]
    tensors = tensors_for_gguf(folder, config, architecture)
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    values = {key: config[name] for key, name in SCALARS.items() if config.get(name) is not None}
    values |= {
        "feed_forward_length": getattr(loaded.config, "inner", config["intermediate_size"]),
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", config.get("norm_eps")),
        "attention.key_length": head, "attention.value_length": head,
        "rope.freq_base": rope["rope_theta"],
    }  # fmt: skip
    if architecture == "lfm2":
        kinds, heads = config["layer_types"], config["num_key_value_heads"]
        values["attention.head_count_kv"] = [heads * (k == "full_attention") for k in kinds]
    if rope["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(rope, head)
    elif rope["rope_type"] != "default":
        values["rope.scaling.type"] = rope["rope_type"]
        values["rope.scaling.factor"] = rope["factor"]
        original = rope.get("original_max_position_embeddings", 0)
        values["rope.scaling.original_context_length"] = original
    if change:
        change(values, tensors)
    emit(path, architecture, values, tensors)


def llama3_factors(rope, dim):
    """What llama.cpp's converter stores for Llama 3: each frequency's divisor."""
    frequencies = rope["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def emit(path, architecture, values, tensors):
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        key = f"{architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


CONVERTIBLE = [
    "llama", "llama-tied", "llama-biased", "llama-wide-heads", "llama-linear", "llama-llama3",
    "llama-yarn", "mistral", "gemma3-gguf", "mixtral", "mixtral-window", "lfm2",
]  # fmt: skip
GEMMA_DEFAULTS = {
    "layer_types": ..., "num_hidden_layers": 6, "query_pre_attn_scalar": 16,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 2000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}  # fmt: skip


def case_of(name):
    if name != "gemma3-gguf":
        return BY_NAME[name]
    base = BY_NAME["gemma3"]
    options = {k: v for k, v in (base.options | GEMMA_DEFAULTS).items() if v is not ...}
    return dataclasses.replace(base, name=name, options=options)


@pytest.mark.parametrize("name", CONVERTIBLE)
def test_gguf_in_float64_equals_transformers_in_double(name, tmp_path):
    case = case_of(name)
    model = write(case, tmp_path / "folder")
    write_gguf(tmp_path / "model.gguf", model.folder)
    loaded = load_program(open_checkpoint(tmp_path / "model.gguf"), weight_format="f32")
    logits = evaluate(loaded.program, loaded.weights, model.tokens, ["logits"])["logits"]
    assert np.abs(logits - model.logits).max() < TOLERANCE * np.abs(model.logits).max()


def test_experts_one_by_one_are_the_stack(tmp_path):
    """Files from before stacks were one tensor: blk.N.ffn_gate.E.weight."""

    def change(values, tensors):
        for name in [n for n in tensors if "_exps." in n]:
            for expert, matrix in enumerate(tensors.pop(name)):
                tensors[name.replace("_exps.", f".{expert}.")] = matrix

    model = write(BY_NAME["mixtral"], tmp_path / "folder")
    write_gguf(tmp_path / "model.gguf", model.folder, change)
    for layout in ("f32", "w16"):
        loaded = load_program(open_checkpoint(tmp_path / "model.gguf"), weight_format=layout)
        logits = evaluate(loaded.program, loaded.weights, model.tokens, ["logits"])["logits"]
        bound = TOLERANCE if layout == "f32" else 200 * TOLERANCE
        assert np.abs(logits - model.logits).max() < bound * np.abs(model.logits).max()


@pytest.fixture(scope="module")
def llama_file(tmp_path_factory):
    """Writes the first case's GGUF file with an edit."""
    folder = tmp_path_factory.mktemp("llama")
    model = write(BY_NAME["llama"], folder)

    def make(path, change):
        write_gguf(path, model.folder, change)
        return open_checkpoint(path)

    return make


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("logit_scale", 2.0, "logit_scale = 2.0"),
        ("expert_count", 4, "ffn_gate_inp"),
        ("attention.value_length", 8, "value heads of 8"),
        ("vocab_size", 95, "vocab_size is 95"),
        ("rope.scaling.type", "longrope", "longrope"),
        ("block_count", 3, "blk.2.attn_norm.weight"),
        ("embedding_length", 48, r"blk.0.attn_q.weight is \[40, 40\], should be \[48, 48\]"),
    ],
)
def test_metadata_that_is_unknown_or_wrong_is_refused_by_name(
    key, value, words, llama_file, tmp_path
):
    def change(values, tensors):
        values[key] = value
        if key == "rope.scaling.type":
            values["rope.scaling.factor"] = 2.0
        if key == "embedding_length":
            del values["attention.key_length"], values["attention.value_length"]

    with pytest.raises((UnsupportedError, FormatError), match=words):
        load_program(llama_file(tmp_path / "model.gguf", change))


def test_missing_and_left_over_tensors_are_listed_at_once(llama_file, tmp_path):
    def change(values, tensors):
        tensors["blk.0.attn_k_extra.weight"] = tensors.pop("blk.0.attn_k.weight")

    with pytest.raises(FormatError) as error:
        load_program(llama_file(tmp_path / "model.gguf", change))
    assert "blk.0.attn_k.weight [20, 40] is missing" in str(error.value)
    assert "blk.0.attn_k_extra.weight belongs to nothing" in str(error.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "blk.1.ffn_norm.weight"])
def test_a_value_that_is_not_finite_is_found_and_its_tensor_named(bad, name, llama_file, tmp_path):
    def change(values, tensors):
        tensors[name].reshape(-1)[17] = bad

    loaded = load_program(llama_file(tmp_path / "model.gguf", change))
    with pytest.raises(FormatError, match=name):
        check_weights(loaded)
    if "norm" not in name:
        with pytest.raises(FormatError, match=name):
            loaded.weights["model.layers.1.mlp.up_proj.weight"].rows(0, 1)


@pytest.mark.parametrize("dtype", [np.float16, "BF16"])
def test_half_precision_floats_are_read_and_converted(dtype, llama_file, tmp_path):
    plain = load_program(llama_file(tmp_path / "plain.gguf", None), weight_format="f32")

    def change(values, tensors):
        for name, tensor in tensors.items():
            if dtype == "BF16":
                bits = tensor.view(np.uint32) & np.uint32(0xFFFF0000)
                tensors[name] = bits.view(np.float32)
            else:
                tensors[name] = tensor.astype(dtype)

    loaded = load_program(llama_file(tmp_path / "half.gguf", change), weight_format="f32")
    tokens = [5, 3, 80, 7]
    logits = [evaluate(m.program, m.weights, tokens, ["logits"])["logits"] for m in (plain, loaded)]
    difference = np.abs(logits[0] - logits[1]).max() / np.abs(logits[0]).max()
    assert 1e-5 < difference < 0.1


def test_quantised_norms_are_refused_by_name(llama_file, tmp_path):
    def change(values, tensors):
        values["vocab_size"] = 96

    checkpoint = llama_file(tmp_path / "model.gguf", change)
    original = checkpoint.tensor

    def tensor(name):
        found = original(name)
        return dataclasses.replace(found, type="Q8_0") if name == "output_norm.weight" else found

    checkpoint.tensor = tensor
    with pytest.raises(CortiqError, match=r"output_norm\.weight|Q8_0"):
        load_program(checkpoint)


@pytest.mark.parametrize("layout", ["w16", "w8", "w8b256", "f32"])
def test_matrices_get_the_format_asked_for_and_vectors_stay_floats(layout, llama_file, tmp_path):
    loaded = load_program(llama_file(tmp_path / "model.gguf", None), weight_format=layout)
    layouts = {name: spec.layout for name, spec in loaded.program.weights.items()}
    assert layouts["model.layers.0.self_attn.q_proj.weight"] == layout
    assert layouts["model.embed_tokens.weight"] == layout
    assert layouts["model.norm.weight"] == "f32"


def test_an_unknown_format_and_a_context_too_long_are_refused(llama_file, tmp_path):
    checkpoint = llama_file(tmp_path / "model.gguf", None)
    with pytest.raises(CortiqError, match="w17"):
        load_program(checkpoint, weight_format="w17")
    with pytest.raises(CortiqError, match="1025"):
        load_program(checkpoint, context=1025)
    assert load_program(checkpoint, context=100).program.context == 100
