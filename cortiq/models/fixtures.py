"""Programs that no family describes, and the weight formula of the small test models.

`mimo` bends every option of attention in four layers; `llama_with_mtp` has a second entry graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from cortiq.ir import Builder, Program, Value
from cortiq.ir.layers import Attention, Embedding, GatedMLP, Linear, MoE, Residual, RMSNorm
from cortiq.ir.ops import Concat
from cortiq.models import llama
from cortiq.models.fixture_heads import (
    MIMO_PREFIX,
    MTP_PREFIX,
    mimo_head_values,
    mtp_head_values,
)
from cortiq.models.mixtral import EXPERTS
from cortiq.models.parts import ATTENTION, HEAD, MLP, TABLE, named
from cortiq.models.patterns import pattern
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.layouts import Weight
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.route import Router
from cortiq.numerics.weights import convert

CONTEXT = 4096
WIDTH, VOCABULARY, HEADS, EPS = 16, 64, 4, 1e-6
KV_HEADS = (1, 2, 2, 1)
WINDOWS = (None, 3, 3, None)
SINKS: Mapping[int, tuple[float, ...]] = {1: (0.5, -1.0, 1.5, 0.0), 2: (-0.25, 2.0, 0.75, -1.5)}
ROUTER_BIAS = (0.02, -0.03, 0.01, 0.0)
TABLES = {None: RopeTable(1e7, 4), 3: RopeTable(1e4, 4)}
"""Rotary tables of layers without and with a window; four of a head's eight values turn."""


def mimo(context: int) -> Program:
    """Build four layers: KV heads 1, 2, 2, 1, values half as wide as keys, windows, sinks, MoE."""
    b = Builder(context=context, facts={"family": "mimo fixture", "vocab_size": VOCABULARY})
    token, position = b.input("token"), b.input("position")
    x = b.add(Embedding(VOCABULARY, WIDTH), token, name="embed", weights={"table": TABLE})
    for n in range(len(KV_HEADS)):
        x = _mimo_layer(b, x, position, n)
    x = _norm(b, x, "hidden", "model.norm.weight")
    b.add(Linear(WIDTH, VOCABULARY), x, name="logits", weights={"weight": HEAD})
    return b.program(outputs=("hidden", "logits"))


def _norm(b: Builder, x: Value, name: str, weight: str) -> Value:
    return b.add(RMSNorm(x.type.shape[-1], EPS), x, name=name, weights={"weight": weight})


def _mimo_layer(b: Builder, x: Value, position: Value, n: int) -> Value:
    file, here = f"model.layers.{n}", f"layers.{n}"
    window = WINDOWS[n]
    mixer = Attention(
        WIDTH, HEADS, KV_HEADS[n], head_dim=8, value_dim=4, rope=TABLES[window], window=window,
        sinks=n in SINKS,
    )  # fmt: skip
    y = _norm(b, x, f"{here}.attention_norm", f"{file}.input_layernorm.weight")
    weights = named(mixer, f"{file}.self_attn", ATTENTION)
    slots = {"kv": f"{here}.kv"}
    y = b.add(mixer, y, position, name=f"{here}.attention", weights=weights, slots=slots)
    x = b.add(Residual(), x, y, name=f"{here}.middle")
    y = _norm(b, x, f"{here}.mlp_norm", f"{file}.post_attention_layernorm.weight")
    if n == 0:
        mlp: GatedMLP | MoE = GatedMLP(WIDTH, 24)
        weights = named(mlp, f"{file}.mlp", MLP)
    else:
        router = Router(2, "sigmoid", renormalise=True, denominator_floor=1e-6)
        mlp = MoE(WIDTH, 8, 4, router, selection_bias=True)
        weights = named(mlp, f"{file}.block_sparse_moe", {**EXPERTS, "bias": "gate.bias"})
    y = b.add(mlp, y, name=f"{here}.mlp", weights=weights)
    return b.add(Residual(), x, y, name=f"{here}.out")


def _mimo_values(name: str, shape: tuple[int, ...]) -> Floats:
    """Return a tensor of `mimo`, by its salts; norms are 1."""
    if name.startswith(MIMO_PREFIX):
        return mimo_head_values(name, shape)
    flat, parts = prod(shape), name.split(".")
    layer = int(parts[2]) if parts[1] == "layers" else 0
    tensor = name.removeprefix(f"model.layers.{layer}.")
    if tensor == "block_sparse_moe.gate.bias":
        return np.array(ROUTER_BIAS, F32)
    if tensor == "self_attn.sinks":
        return np.array(SINKS[layer], F32)
    if tensor in EXPERT_SALTS:
        first = 70 + 10 * layer + EXPERT_SALTS[tensor]
        return np.concatenate([pattern(flat // shape[0], first + 3 * e) for e in range(shape[0])])
    if tensor in SALTS:
        salt, step = SALTS[tensor]
        return pattern(flat, salt + step * layer)
    return np.ones(flat, F32)


SALTS: Mapping[str, tuple[int, int]] = {
    TABLE: (100, 0),
    HEAD: (200, 0),
    "self_attn.q_proj.weight": (1, 10),
    "self_attn.k_proj.weight": (2, 10),
    "self_attn.v_proj.weight": (3, 10),
    "self_attn.o_proj.weight": (4, 10),
    "mlp.gate_proj.weight": (50, 0),
    "mlp.up_proj.weight": (51, 0),
    "mlp.down_proj.weight": (52, 0),
    "block_sparse_moe.gate.weight": (60, 1),
}
"""Salt of a tensor, and what each layer adds to it."""
EXPERT_SALTS: Mapping[str, int] = {
    f"block_sparse_moe.experts.{w}.weight": i for i, w in enumerate(("w1", "w3", "w2"))
}
"""Offset from 70 + 10·layer + 3·expert."""


def mimo_weight(name: str, shape: tuple[int, ...], layout: str) -> Weight:
    """Return a weight of `mimo` in a layout, converted from the float32 formula like a file's."""
    rows = 1 if len(shape) == 1 else prod(shape[:-1])
    values = Weight.from_floats(_mimo_values(name, shape).reshape(rows, shape[-1]))
    return values if layout == "f32" else convert(values, layout, name)


TIES_CONFIG = llama.Config(
    vocab_size=260, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=4, max_position_embeddings=CONTEXT,
    tie_word_embeddings=False,
)  # fmt: skip
TIES_SALTS = {name: 1 + i for i, name in enumerate((
    "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
    "self_attn.o_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
    "mlp.down_proj.weight",
))}  # fmt: skip


def ties(context: int) -> Program:
    """Build a Llama whose table and head repeat rows: ids 97 apart always have equal logits."""
    return llama.build(TIES_CONFIG, context)


def ties_weight(name: str, shape: tuple[int, ...], layout: str) -> Weight:
    """Return a weight of `ties`: the pattern of size 0.2 with its salt; norms are 1."""
    flat, parts = prod(shape), name.split(".")
    salts = {TABLE: 100, HEAD: 200}
    if parts[1] == "layers" and parts[0] == "model":
        salts = {k: v + 10 * int(parts[2]) for k, v in TIES_SALTS.items()}
        name = ".".join(parts[3:])
    drawn = pattern(flat, salts[name], size=0.2) if name in salts else np.ones(flat, F32)
    if name.startswith(MTP_PREFIX):
        drawn = mtp_head_values(name, shape).reshape(-1)
    rows = 1 if len(shape) == 1 else prod(shape[:-1])
    values = Weight.from_floats(drawn.reshape(rows, shape[-1]))
    return values if layout == "f32" else convert(values, layout, name)


WEIGHTS: Mapping[str, Callable[[str, tuple[int, ...], str], Weight]] = {
    "tiny-mimo": mimo_weight,
    "tiny-ties": ties_weight,
}
"""Fixtures with a formula of their own; the others follow `numerics.synthetic`."""

MTP_CONFIG = llama.Config(
    vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=CONTEXT,
    tie_word_embeddings=False,
)  # fmt: skip


def llama_with_mtp(context: int) -> Program:
    """Build a tiny Llama and, as entry `mtp`, one multi-token-prediction layer."""
    trunk = llama.build(MTP_CONFIG, context)
    b = Builder(context=context, facts={**trunk.facts, "family": "llama with a draft head"})
    b.weights.update(trunk.weights)
    b.slots.update(trunk.slots)
    b.graphs.update(trunk.graphs)
    add_mtp(b, MTP_CONFIG)
    return b.program()


def add_mtp(b: Builder, config: llama.Config) -> None:
    """Add the entry `mtp`: token p+1 and the trunk's hidden state at p give logits for p+2.

    x = eh_proj·[norm(embed(token)) ; norm(hidden)], one block of the trunk's shape over its own KV
    rows, the layer's norm, the trunk's head.
    """
    token, position = b.input("token"), b.input("position")
    width, vocab = config.hidden_size, config.vocab_size
    hidden = b.input("hidden", (width,), "f32")
    x = b.add(Embedding(vocab, width), token, name="mtp.embed", weights={"table": TABLE})
    x = _norm(b, x, "mtp.embed_norm", "mtp.enorm.weight")
    y = _norm(b, hidden, "mtp.hidden_norm", "mtp.hnorm.weight")
    x = b.add(Concat(), x, y, name="mtp.joined")
    projection = {"weight": "mtp.eh_proj.weight"}
    x = b.add(Linear(2 * width, width), x, name="mtp.input", weights=projection)
    mixer, mlp = llama.attention(config, b.context), GatedMLP(width, config.intermediate_size)
    y = _norm(b, x, "mtp.attention_norm", "mtp.input_layernorm.weight")
    weights = named(mixer, "mtp.self_attn", ATTENTION)
    slots = {"kv": "mtp.kv"}
    y = b.add(mixer, y, position, name="mtp.attention", weights=weights, slots=slots)
    x = b.add(Residual(), x, y, name="mtp.middle")
    y = _norm(b, x, "mtp.mlp_norm", "mtp.post_attention_layernorm.weight")
    y = b.add(mlp, y, name="mtp.mlp", weights=named(mlp, "mtp.mlp", MLP))
    x = b.add(Residual(), x, y, name="mtp.out")
    x = _norm(b, x, "mtp.hidden", "mtp.norm.weight")
    b.add(Linear(width, vocab), x, name="logits", weights={"weight": HEAD})
    b.graph("mtp", ("mtp.hidden", "logits"))
