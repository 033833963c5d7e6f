"""RWKV-7 against an evaluation of its formulas in float64, from folders and from GGUF files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gguf_files import emit, name_map
from safetensors.numpy import save_file

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq_reference.ideal import evaluate

WIDTH, LAYERS, HEADS, INNER, VOCAB = 24, 3, 3, 40, 50
RANKS = {"w": 6, "a": 5, "v": 4, "g": 7}
CONFIG = {
    "model_type": "rwkv7", "architectures": ["RWKV7ForCausalLM"], "vocab_size": VOCAB,
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "head_dim": 8, "num_heads": None,
    "intermediate_size": INNER, "hidden_ratio": 4.0, "hidden_act": "sqrelu",
    "decay_low_rank_dim": RANKS["w"], "a_low_rank_dim": RANKS["a"], "v_low_rank_dim": RANKS["v"],
    "gate_low_rank_dim": RANKS["g"], "norm_first": True, "norm_bias": True, "norm_eps": 1e-5,
    "attn": None, "attn_mode": "chunk", "fuse_norm": False, "fuse_cross_entropy": True,
    "tie_word_embeddings": False, "value_dim": [WIDTH] * LAYERS, "max_position_embeddings": 2048,
}  # fmt: skip
TOKENS = np.random.default_rng(1).integers(0, VOCAB, 24)


def tensors(seed=3):
    """Random tensors under the names, and in the shapes, of fla's modules."""
    rng = np.random.default_rng(seed)

    def normal(*shape, scale=1.0):
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def norm(name):
        return {f"{name}.weight": 1 + normal(WIDTH, scale=0.3), f"{name}.bias": normal(WIDTH)}

    held = {"model.embeddings.weight": normal(VOCAB, WIDTH), **norm("model.norm"),
            "lm_head.weight": normal(VOCAB, WIDTH), **norm("model.layers.0.pre_norm")}  # fmt: skip
    for n in range(LAYERS):
        layer, attn = f"model.layers.{n}", f"model.layers.{n}.attn"
        held |= norm(f"{layer}.attn_norm") | norm(f"{layer}.ffn_norm") | norm(f"{attn}.g_norm")
        held |= {f"{attn}.x_{m}": normal(1, 1, WIDTH, scale=0.5) for m in "rwkvag"}
        held |= {f"{attn}.{m}_proj.weight": normal(WIDTH, WIDTH, scale=0.3) for m in "rkvo"}
        held |= {f"{attn}.{m}": normal(WIDTH) for m in ("k_k", "k_a")}
        held[f"{attn}.r_k"] = normal(HEADS, WIDTH // HEADS)
        for m, rank in RANKS.items():
            if m != "v" or n:
                held[f"{attn}.{m}_lora.lora.0.weight"] = normal(rank, WIDTH, scale=0.5)
                held[f"{attn}.{m}_lora.lora.2.weight"] = normal(WIDTH, rank, scale=0.5)
            if m != "g" and (m != "v" or n):
                held[f"{attn}.{m}_lora.lora.2.bias"] = normal(WIDTH)
        held[f"{layer}.ffn.x_k"] = normal(WIDTH, scale=0.5)
        held[f"{layer}.ffn.key.weight"] = normal(INNER, WIDTH, scale=0.3)
        held[f"{layer}.ffn.value.weight"] = normal(WIDTH, INNER, scale=0.3)
    return held


def folder(path, config=CONFIG, held=None):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(held or tensors(), path / "model.safetensors")
    return open_checkpoint(path)


def normed(x, w, name):
    centred = x - x.mean(-1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return unit * w[f"{name}.weight"] + w[f"{name}.bias"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def low_rank(x, w, name, function=lambda x: x):
    y = function(x @ w[f"{name}.lora.0.weight"].T) @ w[f"{name}.lora.2.weight"].T
    return y + w.get(f"{name}.lora.2.bias", 0)


def time_mix(x, w, p, first):
    """The recurrence over whole rows, with its transition as a matrix of a head."""
    before = np.concatenate([np.zeros((1, WIDTH)), x[:-1]])
    m = {n: x + (before - x) * w[f"{p}.x_{n}"].reshape(-1) for n in "rwkvag"}
    r, k, v = (m[n] @ w[f"{p}.{n}_proj.weight"].T for n in "rkv")
    decay = np.exp(-np.exp(-0.5) * sigmoid(low_rank(m["w"], w, f"{p}.w_lora", np.tanh)))
    a = sigmoid(low_rank(m["a"], w, f"{p}.a_lora"))
    g = sigmoid(m["g"] @ w[f"{p}.g_lora.lora.0.weight"].T) @ w[f"{p}.g_lora.lora.2.weight"].T
    if first is not None:
        v = v + (first - v) * sigmoid(low_rank(m["v"], w, f"{p}.v_lora"))
    kk = (k * w[f"{p}.k_k"]).reshape(-1, HEADS, 8)
    kk = kk / np.linalg.norm(kk, axis=-1, keepdims=True)
    k = k * (1 + (a - 1) * w[f"{p}.k_a"])
    rows = (y.reshape(-1, HEADS, 8) for y in (r, k, v, decay, a))
    state, out = np.zeros((HEADS, 8, 8)), np.zeros((len(x), HEADS, 8))
    for t, (rt, kt, vt, dt, at) in enumerate(zip(*rows, strict=True)):
        for h in range(HEADS):  # states of values by keys, as the paper has them
            transition = np.diag(dt[h]) - np.outer(kk[t, h], at[h] * kk[t, h])
            state[h] = state[h] @ transition + np.outer(vt[h], kt[h])
            out[t, h] = state[h] @ rt[h]
    centred = out - out.mean(-1, keepdims=True)
    out = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 8 * 1e-5)
    y = out.reshape(-1, WIDTH) * w[f"{p}.g_norm.weight"] + w[f"{p}.g_norm.bias"]
    bonus = ((r * k).reshape(-1, HEADS, 8) * w[f"{p}.r_k"]).sum(-1, keepdims=True)
    y = y + (bonus * v.reshape(-1, HEADS, 8)).reshape(-1, WIDTH)
    return (y * g) @ w[f"{p}.o_proj.weight"].T, v


def logits(held, tokens):
    w = {name: x.astype(np.float64) for name, x in held.items()}
    x, first = normed(w["model.embeddings.weight"][tokens], w, "model.layers.0.pre_norm"), None
    for n in range(LAYERS):
        p = f"model.layers.{n}"
        y, v = time_mix(normed(x, w, f"{p}.attn_norm"), w, f"{p}.attn", first)
        first, x = v if first is None else first, x + y
        z = normed(x, w, f"{p}.ffn_norm")
        before = np.concatenate([np.zeros((1, WIDTH)), z[:-1]])
        z = (z + (before - z) * w[f"{p}.ffn.x_k"]) @ w[f"{p}.ffn.key.weight"].T
        x = x + np.maximum(z, 0) ** 2 @ w[f"{p}.ffn.value.weight"].T
    return normed(x, w, "model.norm") @ w["lm_head.weight"].T


def ideal(checkpoint):
    loaded = load_program(checkpoint, weight_format="f32")
    return evaluate(loaded.program, loaded.weights, TOKENS, ["logits"])["logits"]


def test_logits_in_float64_are_those_of_the_formulas(tmp_path):
    found, wanted = ideal(folder(tmp_path / "a")), logits(tensors(), TOKENS)
    assert np.abs(found - wanted).max() < 1e-8 * np.abs(wanted).max()


@pytest.mark.parametrize("change", [
    {"norm_first": False}, {"norm_bias": False}, {"head_dim": None, "num_heads": 4},
    {"norm_eps": 0.1},
])  # fmt: skip
def test_what_the_config_says_reaches_the_graph(tmp_path, change):
    """Tensors that are then of no use, or missing, are refused; other changes move the logits."""
    held = tensors()
    if "norm_first" in change:
        held = {k: v for k, v in held.items() if "pre_norm" not in k}
    if "norm_bias" in change:
        held = {
            k: v for k, v in held.items() if not (k.endswith("norm.bias") and "g_norm" not in k)
        }
    if "num_heads" in change:
        held = {k: v.reshape(4, 6) if k.endswith("r_k") else v for k, v in held.items()}
    found = ideal(folder(tmp_path / "a", CONFIG | change, held))
    assert np.abs(found - logits(tensors(), TOKENS)).max() > 1e-3


def test_fused_norms_add_to_the_squares_of_keys(tmp_path):
    held = {k: v * np.float32(0.01) if k.endswith("k_k") else v for k, v in tensors().items()}
    fused = ideal(folder(tmp_path / "a", CONFIG | {"fuse_norm": True}, held))
    plain, wanted = ideal(folder(tmp_path / "b", CONFIG, held)), logits(held, TOKENS)
    assert np.abs(plain - wanted).max() < 1e-6 < 1e-5 < np.abs(fused - wanted).max()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"attn": {"layers": [1], "num_heads": 3}}, UnsupportedError, "attn"),
        ({"head_dim": 7}, FormatError, "do not share 24"),
        ({"num_heads": 2}, FormatError, "2 heads of 8"),
        ({"value_dim": [24, 24, 48]}, FormatError, "value_dim"),
        ({"hidden_act": "relu"}, UnsupportedError, "hidden_act"),
        ({"a_low_rank_dim": 6}, FormatError, "a_lora"),
    ],
)
def test_what_is_not_supported_is_refused(tmp_path, change, error, words):
    with pytest.raises(error, match=words):
        load_program(folder(tmp_path / "a", CONFIG | change))


GGUF_EPS = 8e-5
"""With it the eps of a head's norm in a folder is the one of every GGUF file."""


def gguf_values(config=CONFIG, inner=INNER):
    """Metadata as llama.cpp's converter writes them."""
    ranks = {"decay": "w", "iclr": "a", "value_residual_mix": "v", "gate": "g"}
    return {
        "context_length": 1048576, "embedding_length": WIDTH, "block_count": LAYERS,
        "attention.layer_norm_epsilon": GGUF_EPS, "wkv.head_size": config["head_dim"],
        **{f"attention.{name}_lora_rank": RANKS[m] for name, m in ranks.items()},
        "feed_forward_length": inner, "attention.head_count": 0,
    }  # fmt: skip


def gguf_tensors(held):
    """Tensors as llama.cpp's converter writes them, by the names of the `gguf` package."""
    names, made, mixed = name_map("rwkv7", LAYERS), {}, {}
    for name, x in held.items():
        for own, other in (
            ("ffn", "feed_forward"), ("attn", "attention"), ("feed_forward_norm", "ln2"),
            ("g_norm", "ln_x"), ("_lora.lora.0.weight", "1"), ("_lora.lora.2.weight", "2"),
            ("_lora.lora.2.bias", "0"),
        ):  # fmt: skip
            name = name.replace(own, other)
        if "attention.x_" in name:
            mixed.setdefault(name.split(".")[2], {})[name[-1]] = x
            continue
        x = x.squeeze()
        x = x.reshape(-1) if name.endswith("r_k") else x
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        found += "" if found.endswith((".weight", ".bias")) else ".weight"
        if found.startswith("blk.0.time_mix_a"):  # the first layer has such, and needs none
            made[found.replace("time_mix_a", "time_mix_v")] = x
        made[found] = x
    for layer, parts in mixed.items():
        made[f"blk.{layer}.time_mix_lerp_fused.weight"] = np.stack([parts[n] for n in "rwkvag"])
    return made


def test_a_gguf_file_has_the_logits_of_its_folder(tmp_path):
    held = tensors()
    emit(tmp_path / "a.gguf", "rwkv7", gguf_values(), gguf_tensors(held))
    found = ideal(open_checkpoint(tmp_path / "a.gguf"))
    wanted = ideal(folder(tmp_path / "a", CONFIG | {"norm_eps": GGUF_EPS}, held))
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()


def test_a_folder_may_hold_its_mixtures_together(tmp_path):
    """As some converters of the original files write them; the first layer's values too."""
    held = tensors()
    for n in range(LAYERS):
        parts = [held.pop(f"model.layers.{n}.attn.x_{m}") for m in "rwkvag"]
        held[f"model.layers.{n}.attn.x_x"] = np.stack(parts)
    held["model.layers.0.attn.v_lora.lora.2.bias"] = np.zeros(WIDTH, np.float32)
    found, wanted = ideal(folder(tmp_path / "a", CONFIG, held)), logits(tensors(), TOKENS)
    assert np.abs(found - wanted).max() < 1e-8 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wkv.head_size": 7}, "do not share 24"),
        ({"attention.head_count": 3}, "attention.head_count = 3"),
        ({"token_shift_count": 1}, "token_shift_count = 1"),
        ({"attention.iclr_lora_rank": 6}, "time_mix_a1"),
    ],
)
def test_metadata_of_another_model_are_refused(tmp_path, changes, words):
    emit(tmp_path / "a.gguf", "rwkv7", gguf_values() | changes, gguf_tensors(tensors()))
    with pytest.raises((FormatError, UnsupportedError), match=words):
        load_program(open_checkpoint(tmp_path / "a.gguf"))
