"""GGUF files of the tiny checkpoints, written by the `gguf` package in llama.cpp's conventions."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import gguf_files
import numpy as np
from checkpoints import CASES, write
from gguf_files import GGUF

from cortiq.errors import CortiqError, FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import check_weights, lfm2, load_program
from cortiq_reference.ideal import evaluate

TOLERANCE = 1e-5
BY_NAME = {case.name: case for case in CASES}


def lfm2_values(config):
    """Metadata of LFM2: KV heads by layer, the MLP's width as it is."""
    kinds, heads = config["layer_types"], config["num_key_value_heads"]
    return {
        "attention.head_count_kv": [heads * (kind == "full_attention") for kind in kinds],
        "attention.layer_norm_rms_epsilon": config["norm_eps"],
        "shortconv.l_cache": config["conv_L_cache"],
        "feed_forward_length": lfm2.Config(**{
            k: v for k, v in config.items() if k in lfm2.Config.__dataclass_fields__
        }).inner,
    }  # fmt: skip


LLAMA = GGUF("llama", permuted=True, values=lambda config: {
    "attention.sliding_window": config.get("sliding_window"),
    "expert_count": config.get("num_local_experts"),
    "expert_used_count": config.get("num_experts_per_tok"),
})  # fmt: skip
GEMMA3 = GGUF("gemma3", norm_offset=1.0, values=lambda config: {
    "attention.sliding_window": config["sliding_window"],
    "final_logit_softcapping": config["final_logit_softcapping"],
})  # fmt: skip
WRITERS = {
    "llama": LLAMA, "mistral": LLAMA, "mixtral": LLAMA, "gemma3_text": GEMMA3,
    "lfm2": GGUF("lfm2", values=lfm2_values),
}  # fmt: skip


def write_gguf(path, folder, change=None):
    """The checkpoint as GGUF, as its family is written."""
    kind = open_checkpoint(folder).config["model_type"]
    gguf_files.write_gguf(path, folder, WRITERS[kind], change)


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
    assert "blk.0.attn_k_extra.weight is not used" in str(error.value)


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
