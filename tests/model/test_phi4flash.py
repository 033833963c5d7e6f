"""Phi-4 mini flash (SambaY) against an evaluation of its formulas in float64."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from cortiq.errors import FormatError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq_reference.ideal import evaluate

LAYERS, WIDTH, HEADS, KV, DIM, INNER, VOCAB = 8, 24, 4, 2, 6, 40, 50
SPACE, STATES, RANK, KERNEL = 2 * WIDTH, 5, 3, 4
TOKENS = np.random.default_rng(1).integers(0, VOCAB, 24)
CONFIG = {
    "model_type": "phi4flash", "architectures": ["Phi4FlashForCausalLM"], "vocab_size": VOCAB,
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV, "intermediate_size": INNER, "hidden_act": "silu",
    "layer_norm_eps": 0.02, "sliding_window": 5, "mb_per_layer": 2, "mamba_d_state": STATES,
    "mamba_dt_rank": RANK, "max_position_embeddings": 256, "tie_word_embeddings": True,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0, "rope_theta": 10000.0,
}  # fmt: skip
WIDER = {
    "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 32, "mamba_expand": 3,
    "mamba_d_conv": 2, "mamba_dt_rank": "auto", "mamba_proj_bias": True, "mamba_conv_bias": False,
    "mlp_bias": True, "lm_head_bias": True, "num_hidden_layers": 4,
}  # fmt: skip


def tensors(config, seed=3):
    """Random tensors under the names, and in the shapes, of the repository's modules."""
    rng = np.random.default_rng(seed)
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    space = config.get("mamba_expand", 2) * width
    dim = width // config["num_attention_heads"]
    rank = config["mamba_dt_rank"]
    rank = -(-width // 16) if rank == "auto" else rank
    held = {}

    def matrix(name, rows, columns, biased=False):
        held[f"{name}.weight"] = rng.standard_normal((rows, columns)) / columns**0.5
        if biased:
            held[f"{name}.bias"] = rng.standard_normal(rows) / 4

    def norm(name):
        held[f"{name}.weight"] = 1 + rng.standard_normal(width) / 4
        held[f"{name}.bias"] = rng.standard_normal(width) / 4

    matrix("model.embed_tokens", VOCAB, width)
    norm("model.final_layernorm")
    if config.get("lm_head_bias"):
        held["lm_head.bias"] = rng.standard_normal(VOCAB)
    for n in range(layers):
        p, mixer, crosses = f"model.layers.{n}", f"model.layers.{n}.attn", n > layers // 2 + 1
        norm(f"{p}.input_layernorm")
        norm(f"{p}.post_attention_layernorm")
        matrix(f"{p}.mlp.fc1", 2 * INNER, width, config.get("mlp_bias"))
        matrix(f"{p}.mlp.fc2", width, INNER, config.get("mlp_bias"))
        if n % 2:
            stored = 0 if crosses else 2 * config["num_key_value_heads"] * dim
            matrix(f"{mixer}.Wqkv", width + stored, width, True)
            matrix(f"{mixer}.out_proj", width, width, True)
            for name in ("q1", "k1", "q2", "k2"):
                held[f"{mixer}.inner_cross_attn.lambda_{name}"] = rng.standard_normal(dim) / 2
            held[f"{mixer}.inner_cross_attn.subln.weight"] = 1 + rng.standard_normal(2 * dim) / 4
            continue
        matrix(f"{mixer}.in_proj", space * (1 if crosses else 2), width,
               config.get("mamba_proj_bias"))  # fmt: skip
        matrix(f"{mixer}.out_proj", width, space, config.get("mamba_proj_bias"))
        if not crosses:
            matrix(f"{mixer}.x_proj", rank + 2 * STATES, space)
            matrix(f"{mixer}.dt_proj", space, rank, True)
            kernel = config.get("mamba_d_conv", KERNEL)
            held[f"{mixer}.conv1d.weight"] = rng.standard_normal((space, 1, kernel))
            if config.get("mamba_conv_bias", True):
                held[f"{mixer}.conv1d.bias"] = rng.standard_normal(space)
            held[f"{mixer}.A_log"] = rng.standard_normal((space, STATES)) / 2
            held[f"{mixer}.D"] = rng.standard_normal(space)
    return {name: value.astype(np.float32) for name, value in held.items()}


def silu(x):
    return x / (1 + np.exp(-x))


class Formulas:
    """The model as its paper and code have it, over whole sequences."""

    def __init__(self, config, held):
        self.config = {"mamba_d_conv": KERNEL, "mamba_expand": 2, **config}
        self.w = {name: value.astype(np.float64) for name, value in held.items()}

    def linear(self, x, name):
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0)

    def norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        unit = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config["layer_norm_eps"])
        return unit * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def mamba(self, x, p):
        """The output, and the rows before their gate."""
        x, z = np.split(self.linear(x, f"{p}.in_proj"), 2, axis=-1)
        taps = self.w[f"{p}.conv1d.weight"][:, 0]
        padded = np.concatenate([np.zeros((taps.shape[1] - 1, x.shape[1])), x])
        x = sum(padded[i : i + len(x)] * taps[:, i] for i in range(taps.shape[1]))
        x = silu(x + self.w.get(f"{p}.conv1d.bias", 0))
        own = self.linear(x, f"{p}.x_proj")
        step, b, c = np.split(own, [own.shape[1] - 2 * STATES, own.shape[1] - STATES], axis=1)
        step = np.log1p(np.exp(self.linear(step, f"{p}.dt_proj")))
        decay, state, rows = -np.exp(self.w[f"{p}.A_log"]), 0.0, []
        for t in range(len(x)):
            grown = (step[t] * x[t])[:, None] * b[t]
            state = np.exp(step[t][:, None] * decay) * state + grown
            rows.append(state @ c[t] + self.w[f"{p}.D"] * x[t])
        memory = np.array(rows)
        return self.linear(memory * silu(z), f"{p}.out_proj"), memory

    def attention(self, x, p, n, stored):
        """The output, and the keys and values that were read."""
        config, inner = self.config, f"{p}.inner_cross_attn"
        heads, kv, width = (
            config[k] for k in ("num_attention_heads", "num_key_value_heads", "hidden_size")
        )
        dim = width // heads
        rows = self.linear(x, f"{p}.Wqkv")
        q = rows[:, :width].reshape(-1, heads, dim)
        if stored is None:
            stored = np.split(rows[:, width:].reshape(-1, 2 * kv, dim), 2, axis=1)
        k, v = stored
        start = 0.8 - 0.6 * np.exp(-0.3 * n)
        products = [
            np.exp(self.w[f"{inner}.lambda_q{i}"] @ self.w[f"{inner}.lambda_k{i}"]) for i in (1, 2)
        ]
        factor = products[0] - products[1] + start
        window = config["sliding_window"] if n < config["num_hidden_layers"] // 2 else len(x)
        y = np.zeros((len(x), heads // 2, 2 * dim))
        ages = np.arange(len(x))[:, None] - np.arange(len(x))
        for h in range(heads // 2):
            g = h // (heads // kv)
            maps = []
            for i in (0, 1):
                scores = q[:, 2 * h + i] @ k[:, 2 * g + i].T / dim**0.5
                p_ = np.exp(np.where((ages >= 0) & (ages < window), scores, -np.inf))
                maps.append(p_ / p_.sum(-1, keepdims=True))
            both = np.concatenate([v[:, 2 * g], v[:, 2 * g + 1]], axis=-1)
            y[:, h] = (maps[0] - factor * maps[1]) @ both
        y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5)
        y = y * self.w[f"{inner}.subln.weight"] * (1 - start)
        return self.linear(y.reshape(len(x), width), f"{p}.out_proj"), stored

    def logits(self, tokens):
        x, middle = (
            self.w["model.embed_tokens.weight"][tokens],
            self.config["num_hidden_layers"] // 2,
        )
        memory = kept = None
        for n in range(2 * middle):
            p, crosses = f"model.layers.{n}", n > middle + 1
            row = self.norm(x, f"{p}.input_layernorm")
            if n % 2:
                y, stored = self.attention(row, f"{p}.attn", n, kept if crosses else None)
                kept = stored if n == middle + 1 else kept
            elif crosses:
                gate = silu(self.linear(row, f"{p}.attn.in_proj"))
                y = self.linear(memory * gate, f"{p}.attn.out_proj")
            else:
                y, memory = self.mamba(row, f"{p}.attn")
            x = x + y
            row = self.norm(x, f"{p}.post_attention_layernorm")
            gate, up = np.split(self.linear(row, f"{p}.mlp.fc1"), 2, axis=-1)
            x = x + self.linear(up * silu(gate), f"{p}.mlp.fc2")
        rows = self.norm(x, "model.final_layernorm")
        return rows @ self.w["model.embed_tokens.weight"].T + self.w.get("lm_head.bias", 0)


def folder(path, config, held=None):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(held or tensors(config), path / "model.safetensors")
    return open_checkpoint(path)


def ideal(checkpoint):
    loaded = load_program(checkpoint, weight_format="f32")
    return evaluate(loaded.program, loaded.weights, TOKENS, ["logits"])["logits"]


@pytest.mark.parametrize("changes", [{}, WIDER, {"sliding_window": 30, "num_hidden_layers": 12}])
def test_logits_in_float64_are_those_of_the_formulas(tmp_path, changes):
    config = CONFIG | changes
    held = tensors(config)
    found = ideal(folder(tmp_path / "a", config, held))
    wanted = Formulas(config, held).logits(TOKENS)
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("changes", [
    {"layer_norm_eps": 0.03}, {"sliding_window": 6}, {"hidden_act": "gelu"},
])  # fmt: skip
def test_what_the_config_says_reaches_the_graph(tmp_path, changes):
    checkpoint = folder(tmp_path / "a", CONFIG)
    other = folder(tmp_path / "b", CONFIG | changes, tensors(CONFIG))
    assert np.abs(ideal(checkpoint) - ideal(other)).max() > 1e-4


def test_layers_without_a_middle_are_refused(tmp_path):
    config = CONFIG | {"num_hidden_layers": 6}
    with pytest.raises(FormatError, match="6 layers, not a multiple of 4"):
        load_program(folder(tmp_path / "a", config))


def test_the_cross_decoder_stores_nothing(tmp_path):
    slots = load_program(folder(tmp_path / "a", CONFIG)).program.slots
    assert {name.split(".")[1] for name in slots} == {"0", "1", "2", "3", "4", "5"}
