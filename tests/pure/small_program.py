"""A small program by hand, with every kind of layer and slot, and random weights."""

from __future__ import annotations

import numpy as np

from cortiq.ir import Builder, Program, ops
from cortiq.ir.graph import Value
from cortiq.ir.layers import (
    Attention,
    Embedding,
    GatedMLP,
    Linear,
    MoE,
    QKNorm,
    Residual,
    RMSNorm,
    ShortConv,
)
from cortiq.numerics.layouts import W8, Weight
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.route import Router

WIDTH, VOCABULARY, CONTEXT, KERNEL = 32, 50, 256, 3
ROPE = RopeTable(10000.0, 8)


def small_program(
    *, convolution: bool = True, recurrence: bool = True, head: bool = False
) -> Program:
    """Two attention layers (one reads the other's slot), a mixture; a convolution and a delta rule
    if asked for; `head` adds a second entry graph that turns `hidden` and a token into `logits`."""
    b = Builder(context=CONTEXT, facts={"vocab_size": VOCABULARY})
    token, position = b.input("token"), b.input("position")
    x = b.add(Embedding(VOCABULARY, WIDTH), token, name="embed", weights={"table": "embed"})
    x = _attend(b, x, position, "layers.0", slot="kv.0", qk_norm=QKNorm(1e-6), sinks=True)
    x = _branch(b, x, "layers.0.mlp", GatedMLP(WIDTH, 48))
    if convolution:
        x = _branch(b, x, "layers.1.conv", ShortConv(WIDTH, KERNEL), {"ring": "ring.1"})
    x = _branch(b, x, "layers.1.moe", MoE(WIDTH, 16, 4, Router(2)))
    if recurrence:
        x = delta(b, x, "layers.1.delta", "state.1")
    x = _attend(b, x, position, "layers.2", slot="kv.2", window=5)
    x = _attend(b, x, position, "layers.3", slot="kv.2", shares_kv=True)
    hidden = b.add(RMSNorm(WIDTH, 1e-6), x, name="hidden", weights={"weight": "norm"})
    b.add(Linear(WIDTH, VOCABULARY), hidden, name="logits", weights={"weight": "embed"})
    b.graph("trunk", ("hidden", "logits"))
    if head:
        _draft_head(b)
    return b.program()


def _draft_head(b: Builder) -> None:
    token, position = b.input("token"), b.input("position")
    hidden = b.input("hidden", (WIDTH,), "f32")
    x = b.add(Embedding(VOCABULARY, WIDTH), token, name="draft.embed", weights={"table": "embed"})
    x = b.add(Residual(), hidden, x, name="draft.joined")
    x = _attend(b, x, position, "draft.layer", slot="draft.kv")
    b.add(Linear(WIDTH, VOCABULARY), x, name="logits", weights={"weight": "embed"})
    b.graph("draft", ("logits",))


def _attend(b: Builder, x: Value, position: Value, name: str, *, slot: str, **options) -> Value:
    op = Attention(WIDTH, 4, 2, 8, rope=ROPE, **options)
    y = _normed(b, x, f"{name}.attention")
    weights = {role: f"{name}.attention.{role}" for role in op.weight_shapes()}
    y = b.add(op, y, position, name=f"{name}.attention", weights=weights, slots={"kv": slot})
    return b.add(Residual(), x, y, name=f"{name}.attended")


def _branch(b: Builder, x: Value, name: str, op, slots=None) -> Value:
    y = _normed(b, x, name)
    weights = {role: f"{name}.{role}" for role in op.weight_shapes()}
    y = b.add(op, y, name=name, weights=weights, slots=slots)
    return b.add(Residual(), x, y, name=f"{name}_added")


def delta(b: Builder, x: Value, name: str, slot: str, heads: int = 2) -> Value:
    """Heads of 8 by 8 on one key head, whose five inputs are slices of one product."""
    ends = [8, 16, 16 + 8 * heads, 16 + 9 * heads, 16 + 10 * heads]
    y = _normed(b, x, name)
    y = b.add(Linear(WIDTH, ends[-1]), y, name=f"{name}.in", weights={"weight": f"{name}.in"})
    q, k, v, alpha, beta = (
        b.add(ops.Slice(start, stop), y, name=f"{name}.{part}")
        for part, start, stop in zip("qkvab", [0, *ends[:-1]], ends, strict=True)
    )
    q, k = (b.add(ops.Reshape((1, 8)), part, name=f"{part.name}.heads") for part in (q, k))
    q, k = (b.add(ops.L2Norm(8, 1e-6), part, name=f"{part.name}.unit") for part in (q, k))
    v = b.add(ops.Reshape((heads, 8)), v, name=f"{name}.v.heads")
    alpha, beta = (
        b.add(ops.Activation("sigmoid"), part, name=f"{part.name}.sigmoid")
        for part in (alpha, beta)
    )
    rule, slots = ops.DeltaRule(heads, 8, 8, 1), {"state": slot}
    y = b.add(rule, q, k, v, alpha, beta, name=name, slots=slots)
    y = b.add(ops.Reshape((8 * heads,)), y, name=f"{name}.flat")
    y = b.add(Linear(8 * heads, WIDTH), y, name=f"{name}.out", weights={"weight": f"{name}.out"})
    return b.add(Residual(), x, y, name=f"{name}_added")


def _normed(b: Builder, x: Value, name: str) -> Value:
    weights = {"weight": f"{name}.norm"}
    return b.add(RMSNorm(WIDTH, 1e-6), x, name=f"{name}.norm", weights=weights)


def bound(program: Program, seed: int = 0) -> tuple[Program, dict[str, Weight]]:
    """The program with layouts, and random weights: matrices in w8, vectors and taps in f32."""
    rng = np.random.default_rng(seed)
    weights, layouts = {}, {}
    for name, spec in program.weights.items():
        flat = len(spec.shape) == 1 or spec.shape[-1] == KERNEL
        shape = (int(np.prod(spec.shape[:-1])), spec.shape[-1])
        weights[name] = _floats(rng, shape) if flat else _codes(rng, shape)
        layouts[name] = "f32" if flat else "w8"
    return program.with_layouts(layouts), weights


def _floats(rng: np.random.Generator, shape: tuple[int, int]) -> Weight:
    return Weight.from_floats((1 + 0.2 * rng.standard_normal(shape)).astype(np.float32))


def _codes(rng: np.random.Generator, shape: tuple[int, int]) -> Weight:
    codes = rng.integers(-127, 128, shape).astype(np.int8)
    scale = np.full((shape[0], 1), 0.6 / 73 / np.sqrt(shape[1]), np.float32)
    return Weight(W8, shape, {"codes": codes, "scale": scale * np.float32(2)})
