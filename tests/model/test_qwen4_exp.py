"""Qwen 3.8 Flash Next: GGUF files in llama.cpp's conventions, published names, wrong tables."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from checkpoints import write
from families_streams import INDEXED, QWEN4_EXP
from family_harness import changed, distance, logits_of
from gguf_files import close_writer
from gguf_hybrid import tiled_tensors
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint

TOLERANCE = 1e-5
NAMES = {
    r"model\.embed_tokens": "token_embd", r"lm_head": "output",
    r"model\.hyper_connection_mixer\.hc_norm": "output_hc_norm",
    r"model\.hyper_connection_mixer\.input_mix_weight_(up|down)": r"output_hc_\1",
    r".*attn_hyper_connection\.hc_norm": "hc_attn_norm",
    r".*attn_hyper_connection\.input_mix_weight_(up|down)": r"hc_attn_\1",
    r".*attn_hyper_connection\.block_inject_weight": "hc_attn_inject",
    r".*mlp_hyper_connection\.hc_norm": "hc_ffn_norm",
    r".*mlp_hyper_connection\.input_mix_weight_(up|down)": r"hc_ffn_\1",
    r".*mlp_hyper_connection\.block_inject_weight": "hc_ffn_inject",
    r".*ple\.(key|value)_proj": r"ple_\1", r".*ple\.(norm_\w+|conv1d)": r"ple_\1",
    r".*indexer\.([qk])_proj": r"indexer.\1_proj",
    r".*indexer\.([qk])_layernorm": r"indexer.\1_norm",
    r".*self_attn\.([qkv])_proj": r"attn_\1", r".*self_attn\.o_proj": "attn_output",
    r".*self_attn\.([qk])_norm": r"attn_\1_norm",
    r".*mlp\.gate": "ffn_gate_inp", r".*experts\.(gate|up|down)_proj": r"ffn_\1_exps",
    r".*shared_expert\.(gate|up|down)_proj": r"ffn_\1_shexp",
    r".*shared_expert_gate": "ffn_gate_inp_shexp",
    r".*linear_attn\.in_proj_qkv": "attn_qkv", r".*linear_attn\.in_proj_z": "attn_gate",
    r".*linear_attn\.in_proj_a": "ssm_alpha", r".*linear_attn\.in_proj_b": "ssm_beta",
    r".*linear_attn\.conv1d": "ssm_conv1d", r".*linear_attn\.dt_proj": "ssm_dt",
    r".*linear_attn\.norm": "ssm_norm", r".*linear_attn\.out_proj": "ssm_out",
}  # fmt: skip
"""Names that llama.cpp's constants have, by those of folders without their ends."""
ABOVE_ONE = ("norm_key.weight", "norm_query.weight", "norm_conv.weight", "layernorm.weight")
"""Ends of norms that are held less one, and not by a name that ends with `norm`."""


def written_names(name):
    """GGUF's name of a tensor."""
    if name.endswith("A_log"):
        return f"blk.{name.split('.')[2]}.ssm_a"
    stem, _, end = name.rpartition(".")
    found = next(m.expand(to) for at, to in NAMES.items() if (m := re.fullmatch(at, stem)))
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    return f"blk.{layer[1]}.{found}.{end}" if layer else f"{found}.{end}"


def tensors_of(folder, config):
    """Tensors as llama.cpp's converter writes them, by GGUF name."""
    given, shards, experts, found = load_file(folder / "model.safetensors"), {}, {}, {}
    for name, values in given.items():
        if shard := re.search(r"shard_(\d+)", name):
            shards[int(shard[1])] = values
        elif expert := re.search(r"experts\.(\d+)\.", name):
            stack = experts.setdefault(name.replace(expert[0], "experts."), {})
            stack[int(expert[1])] = values
        elif "ple_embedding" in name:
            continue
        elif name.endswith("index_qk_proj.weight"):
            rows = config["indexer_n_heads"] * config["indexer_head_dim"]
            for part, piece in (("q", values[:rows]), ("k", values[rows:])):
                found[written_names(name.replace("index_qk", part))] = piece
        elif name.endswith("ple.conv1d.weight"):
            found[written_names(name)] = values[:, 0]
        else:
            values = values + np.float32(1) if name.endswith(ABOVE_ONE) else values
            for own, piece in tiled_tensors(config, name, values).items():
                found[written_names(own)] = piece
    for name, stack in experts.items():
        found[written_names(name)] = np.stack([stack[n] for n in sorted(stack)])
    found["per_layer_token_embd.weight"] = np.concatenate([shards[n] for n in sorted(shards)])
    return found


def metadata(config, folder):
    """Metadata as llama.cpp's converter writes it."""
    hashes = {
        name.rpartition(".")[2]: values.tolist()
        for name, values in load_file(folder / "model.safetensors").items()
        if "ple_embedding" in name and "shard" not in name
    }
    ratio = config["indexer_compress_ratio"]
    kinds = [kind == INDEXED for kind in config["layer_types"]]
    return {
        "context_length": 256, "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"], "feed_forward_length": 0,
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.dimension_count": int(config["head_dim"] * 0.5),
        "rope.dimension_sections": [2, 2, 1, 0], "rope.freq_base": 1e3,
        "expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "full_attention_interval": kinds.index(True) + 1,
        "hyper_connection.count": config["hc_count"],
        "hyper_connection.low_rank": config["hc_lowrank"],
        "attention.indexer.head_count": config["indexer_n_heads"],
        "attention.indexer.key_length": config["indexer_head_dim"],
        "attention.indexer.top_k": config["indexer_budget"],
        "attention.compress_ratios": [ratio * kind for kind in kinds],
        "ple.layers": [n - 1 for n in config["ple_layer_ids"]],
        "ple.ngram_size": config["ngram_size"],
        "ple.heads_per_ngram": config["heads_per_ngram"],
        "ple.conv_kernel": config["ple_conv_kernel_size"], "ple.eos_token_id": 3,
        "ple.image_token_id": 90,
        "embedding_length_per_layer_input": config["ple_embed_dim"] // 4,
        "ple.layer_multipliers": hashes["layer_multipliers"],
        "ple.head_offsets": hashes["ngram_heads_offsets"],
        "ple.head_vocab_sizes": hashes["ngram_heads_vocab_sizes"], "vocab_size": 96,
    }  # fmt: skip


def write_file(path, values, tensors):
    """Write a GGUF file of this architecture."""
    import gguf

    writer = gguf.GGUFWriter(path, "qwen4exp")
    for key, value in values.items():
        name = f"qwen4exp.{key}"
        if value is None:
            continue
        if isinstance(value, list):
            wide = "multipliers" in key or ("head_" in key and "ple" in key)
            kind = gguf.GGUFValueType.UINT64 if wide else gguf.GGUFValueType.INT32
            writer.add_key_value(name, value, gguf.GGUFValueType.ARRAY, kind)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    writer.add_tokenizer_model("no_vocab")
    for name, array in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    close_writer(writer)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with widths and a table as llama.cpp has them, and its file."""
    case = QWEN4_EXP.case("wide")
    case.options.update(
        output_gate_type="sigmoid", linear_value_head_dim=10,
        make_ngram_vocab_size_divisible_by=128, ple_embed_dim=48, rms_norm_eps=1e-6,
    )  # fmt: skip
    written = write(case, tmp_path_factory.mktemp("qwen4"))
    config = open_checkpoint(written.folder).config
    values, tensors = metadata(config, written.folder), tensors_of(written.folder, config)
    path = write_file(written.folder / "model.gguf", values, tensors)
    return written, values, tensors, path


def test_a_gguf_file_gives_the_folders_logits(model):
    written, _, _, path = model
    assert distance(logits_of(open_checkpoint(path), written.tokens), written.logits) < TOLERANCE


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ple.head_offsets": [0, 53, 112, 174]}, "head_offsets"),
        ({"ple.layers": [0, 1]}, "layers"),
        ({"ple.layer_multipliers": None}, "multipliers"),
        ({"attention.compress_ratios": [0, 0]}, "windows of"),
    ],
)
def test_metadata_that_no_graph_has_is_refused(model, tmp_path, changes, words):
    written, values, tensors, _ = model
    path = write_file(tmp_path / "model.gguf", {**values, **changes}, tensors)
    with pytest.raises((FormatError, UnsupportedError), match=words):
        logits_of(open_checkpoint(path), written.tokens)


def test_tables_of_other_sizes_and_layers_without_them_are_named(model):
    checkpoint = open_checkpoint(model[0].folder)
    for changes, words in (
        ({"ngram_vocab_size_base": 100}, r"shard_0\.weight is \[64, 12\]"),
        ({"ple_layer_ids": None}, r"ple\.value_proj\.weight is not used"),
    ):
        with pytest.raises(FormatError, match=words):
            logits_of(changed(checkpoint, changes), [1, 2, 3])


def test_a_context_that_a_query_sees_whole_needs_no_indexer(model):
    written = model[0]
    checkpoint = open_checkpoint(written.folder)
    short, full = (logits_of(checkpoint, written.tokens[:9], n) for n in (11, 256))
    assert distance(short, full) < 1e-12
    assert distance(short[:8], written.logits[:8]) < TOLERANCE
    assert distance(logits_of(checkpoint, written.tokens, 256)[:9], full) < 1e-12


SHARDS = r"(.*ngram_embedding)\.shard_(\d+)\.weight"


def eighths(folder, out, dotted, scale_of):
    """Write the folder with a table in FP8, as sums of powers of two, and as plain floats."""
    tensors = load_torch(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"ple_embedding_dtype": "float8_e4m3fn"}
    plain, packed = dict(tensors), dict(tensors)
    for name in [name for name in tensors if re.fullmatch(SHARDS, name)]:
        module, number = re.fullmatch(SHARDS, name).groups()
        codes = (tensors[name] * 64).to(torch.float8_e4m3fn)
        plain[name] = codes.float() * 2.0**-6
        part = f"{module}.shards.{number}" if dotted else f"{module}.shard_{number}"
        del packed[name]
        packed[f"{part}.weight"] = codes
        packed[f"{scale_of(module, part)}.weight_scale"] = torch.tensor([2.0**-6])
    for path, made in ((out / "plain", plain), (out / "fp8", packed)):
        path.mkdir()
        save_file(made, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(config))
    return out / "plain", out / "fp8"


@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_parts_of_a_table_in_fp8_are_the_numbers_that_they_stand_for(tmp_path, dotted, shared):
    case = QWEN4_EXP.case("wide")
    case.options.update(ple_embed_dim=128)  # rows of a part in blocks of 32
    written = write(case, tmp_path / "written")
    folders = eighths(
        written.folder, tmp_path, dotted, lambda module, part: module if shared else part
    )
    one, two = (logits_of(open_checkpoint(folder), written.tokens) for folder in folders)
    assert (one == two).all()
    assert distance(one, written.logits) > 1e-3
