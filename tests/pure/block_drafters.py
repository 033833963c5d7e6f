"""A block drafter's folder with random weights, and its formula in float64."""

from __future__ import annotations

import json

import numpy as np
import safetensors.numpy
from heads_float64 import rms, turned

HEADS, GROUPS, DIM, INNER, LAYERS, EPS = 4, 2, 16, 96, 2, 1e-5
BASE, BLOCK, MASK, TAPS = 1e4, 8, 319, (0, 2)


def write_drafter(folder, width=64, vocabulary=320, seed=1, **changes):
    """A drafter for a trunk of this width."""
    rng = np.random.default_rng(seed)
    tensors = {}

    def matrix(name, rows, columns):
        tensors[f"{name}.weight"] = rng.standard_normal((rows, columns)) / columns**0.5

    def norm(name, size):
        tensors[f"{name}.weight"] = 1 + 0.2 * rng.standard_normal(size)

    matrix("fc", width, width * len(TAPS))
    for name in ("hidden_norm", "norm"):
        norm(name, width)
    for n in range(LAYERS):
        layer = f"layers.{n}"
        norm(f"{layer}.input_layernorm", width)
        norm(f"{layer}.post_attention_layernorm", width)
        for role, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
            matrix(f"{layer}.self_attn.{role}_proj", heads * DIM, width)
        matrix(f"{layer}.self_attn.o_proj", width, HEADS * DIM)
        norm(f"{layer}.self_attn.q_norm", DIM)
        norm(f"{layer}.self_attn.k_norm", DIM)
        matrix(f"{layer}.mlp.gate_proj", INNER, width)
        matrix(f"{layer}.mlp.up_proj", INNER, width)
        matrix(f"{layer}.mlp.down_proj", width, INNER)
    tensors = {name: array.astype(np.float32) for name, array in tensors.items()}
    config = {
        "model_type": "qwen3", "architectures": ["DFlashDraftModel"], "vocab_size": vocabulary,
        "hidden_size": width, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": DIM,
        "max_position_embeddings": 4096, "rms_norm_eps": EPS, "tie_word_embeddings": False,
        "block_size": BLOCK, "rope_theta": BASE,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(TAPS)},
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | changes))
    return tensors


class Turn:
    base, turned = BASE, DIM


def block_logits(tensors, taps, tip, count, table, head):
    """Logits of the masked rows behind `taps` [positions, layers·width], in float64."""
    w = {name: array.astype(np.float64) for name, array in tensors.items()}

    def norm(x, name):
        return rms(x, w[f"{name}.weight"], EPS)

    context = norm(taps @ w["fc.weight"].T, "hidden_norm")
    h = table[[tip, *[MASK] * count]]
    before, rows = len(context), count + 1
    positions = np.arange(before + rows)
    for n in range(LAYERS):
        layer = f"layers.{n}"
        x = norm(h, f"{layer}.input_layernorm")
        source = np.concatenate([context, x])

        def heads(y, role, count_, layer=layer):
            return (y @ w[f"{layer}.self_attn.{role}_proj.weight"].T).reshape(len(y), count_, DIM)

        q = norm(heads(x, "q", HEADS), f"{layer}.self_attn.q_norm")
        k = norm(heads(source, "k", GROUPS), f"{layer}.self_attn.k_norm")
        v = heads(source, "v", GROUPS)
        q, k = turned(q, positions[before:], Turn), turned(k, positions, Turn)
        k, v = (np.repeat(y, HEADS // GROUPS, axis=1) for y in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        o = np.einsum("hqk,khd->qhd", weights, v).reshape(rows, -1)
        h = h + o @ w[f"{layer}.self_attn.o_proj.weight"].T
        x = norm(h, f"{layer}.post_attention_layernorm")
        gate = x @ w[f"{layer}.mlp.gate_proj.weight"].T
        up = x @ w[f"{layer}.mlp.up_proj.weight"].T
        h = h + (gate / (1 + np.exp(-gate)) * up) @ w[f"{layer}.mlp.down_proj.weight"].T
    return norm(h, "norm")[1:] @ head.T
