"""An EAGLE-3 head's files with random weights, and its formula in float64, which shares no code."""

from __future__ import annotations

import json

import numpy as np
import safetensors.numpy
from heads_float64 import rms, turned

HEADS, GROUPS, DIM, INNER, EPS = 4, 2, 16, 96, 1e-5
BASE, SCORED, TAPS = 1e4, 200, (1, 2, 3)
CONFIG = {
    "hidden_size": 64, "intermediate_size": INNER, "num_hidden_layers": 1, "vocab_size": 320,
    "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": DIM,
    "max_position_embeddings": 4096, "rms_norm_eps": EPS, "rope_theta": BASE, "model_type": "llama",
}  # fmt: skip
GGUF = {
    "fc": "fc", "norm": "output_norm", "lm_head": "output", "embed_tokens": "token_embd",
    "midlayer.input_layernorm": "blk.0.attn_norm", "midlayer.hidden_norm": "blk.0.attn_norm_2",
    "midlayer.post_attention_layernorm": "blk.0.ffn_norm",
    "midlayer.self_attn.o_proj": "blk.0.attn_output",
    **{f"midlayer.self_attn.{role}_proj": f"blk.0.attn_{role}" for role in "qkv"},
    **{f"midlayer.mlp.{role}_proj": f"blk.0.ffn_{role}" for role in ("gate", "up", "down")},
}  # fmt: skip


class Turn:
    base, turned = BASE, DIM


def head_tensors(seed=1, scored=SCORED, table=False, width=64, vocabulary=320):
    """Tensors as EAGLE's authors name them."""
    rng = np.random.default_rng(seed)
    shapes = {
        "fc": (width, 3 * width), "lm_head": (scored, width), "midlayer.mlp.down_proj":
        (width, INNER), "midlayer.self_attn.o_proj": (width, HEADS * DIM),
        **{f"midlayer.self_attn.{r}_proj": (n * DIM, 2 * width)
           for r, n in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))},
        **{f"midlayer.mlp.{r}_proj": (INNER, width) for r in ("gate", "up")},
    }  # fmt: skip
    shapes |= {"embed_tokens": (vocabulary, width)} if table else {}
    tensors = {f"{n}.weight": rng.standard_normal(s) / s[1] ** 0.5 for n, s in shapes.items()}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    for name in ("norm", *(f"midlayer.{n}" for n in norms)):
        tensors[f"{name}.weight"] = 1 + 0.2 * rng.standard_normal(width)
    tensors = {name: array.astype(np.float32) for name, array in tensors.items()}
    if scored < vocabulary:
        tokens = np.sort(rng.permutation(vocabulary)[:scored])
        tensors["d2t"] = tokens - np.arange(scored)
        tensors["t2d"] = np.isin(np.arange(vocabulary), tokens)
    return tensors


def write_head(path, tensors, form="authors", **changes):
    """Write a head as EAGLE's authors, as speculators, or as llama.cpp's converter does."""
    before = {"norm_before_residual": changes.pop("norm_before_residual", False)}
    more = {"eagle_aux_hidden_state_layer_ids": list(TAPS), "draft_vocab_size": SCORED, **before}
    if form == "gguf":
        return write_gguf(path.with_suffix(".gguf"), tensors, before["norm_before_residual"])
    path.mkdir(exist_ok=True)
    config = CONFIG | {"architectures": ["LlamaForCausalLMEagle3"]} | more | changes
    if form == "speculators":
        tensors = {n.replace("midlayer.", "layers.0."): t for n, t in tensors.items()}
        config = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
                  "speculators_config": {"algorithm": "eagle3"}, "target_hidden_size": None,
                  "transformer_layer_config": CONFIG, **more, **changes}  # fmt: skip
    safetensors.numpy.save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path


def write_gguf(path, tensors, before):
    import gguf

    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_context_length(4096)
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_key_length(DIM)
    writer.add_value_length(DIM)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(BASE)
    writer.add_vocab_size(320)
    writer.add_array("eagle3.target_layers", list(TAPS))
    writer.add_uint32("eagle3.target_hidden_size", 64)
    writer.add_bool("eagle3.norm_before_residual", before)
    for name, array in tensors.items():
        if name == "d2t":
            array = array + np.arange(len(array))  # llama.cpp has the tokens themselves
        for role, heads in (("q", HEADS), ("k", GROUPS)):
            if f"self_attn.{role}_proj" in name:  # and turns neighbouring rows
                halves = array.reshape(heads, 2, DIM // 2, -1)
                array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        if name != "t2d":
            base, dot, end = name.rpartition(".")
            writer.add_tensor(f"{GGUF[base]}{dot}{end}" if dot else name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tokens_of(tensors):
    """The tokens that rows of the output matrix stand for."""
    rows = len(tensors["lm_head.weight"])
    return tensors.get("d2t", np.zeros(rows, int)) + np.arange(rows)


def head_rows(tensors, tokens, fused, table, before=False):
    """(outputs, scores) of rows that take these tokens and fused rows, in float64."""
    w = {name: array.astype(np.float64) for name, array in tensors.items()}

    def norm(x, name):
        return rms(x, w[f"{name}.weight"], EPS)

    table = w.get("embed_tokens.weight", table)
    g = norm(fused, "midlayer.hidden_norm")
    x = np.concatenate([norm(table[tokens], "midlayer.input_layernorm"), g], axis=-1)
    rows = len(x)

    def heads(role, count):
        return (x @ w[f"midlayer.self_attn.{role}_proj.weight"].T).reshape(rows, count, DIM)

    q, k, v = heads("q", HEADS), heads("k", GROUPS), heads("v", GROUPS)
    positions = np.arange(rows)
    q, k = turned(q, positions, Turn), turned(k, positions, Turn)
    k, v = (np.repeat(y, HEADS // GROUPS, axis=1) for y in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
    scores = np.where(positions[:, None] >= positions, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    o = np.einsum("hqk,khd->qhd", weights, v).reshape(rows, -1)
    h = (g if before else fused) + o @ w["midlayer.self_attn.o_proj.weight"].T
    x = norm(h, "midlayer.post_attention_layernorm")
    gate, up = (x @ w[f"midlayer.mlp.{r}_proj.weight"].T for r in ("gate", "up"))
    y = h + (gate / (1 + np.exp(-gate)) * up) @ w["midlayer.mlp.down_proj.weight"].T
    return y, norm(y, "norm") @ w["lm_head.weight"].T
