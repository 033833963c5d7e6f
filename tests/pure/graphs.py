"""Random small programs: every layer, option, router, slot and weight layout of the catalogue."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import log2, prod
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from cortiq.ir import Builder, Program, primitives_of, verify
from cortiq.ir.graph import Value
from cortiq.ir.layers import (
    Attention,
    Embedding,
    GatedMLP,
    LatentAttention,
    LayerNorm,
    Linear,
    MoE,
    QKNorm,
    Residual,
    RMSNorm,
    ShortConv,
)
from cortiq.ir.op import Op
from cortiq.ir.ops import SoftCap
from cortiq.numerics.dequantise import dequantise_codes
from cortiq.numerics.layouts import LAYOUTS, Weight, decode, floats
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.route import ROUTER_KINDS, Router
from cortiq.numerics.scalar import ACTIVATIONS
from cortiq.numerics.synthetic import synthetic_vector, synthetic_weight

VOCABULARY, CONTEXT, EPS = 61, 2048, 1e-6
PALETTE = ("w16", "w8", "w8b256", "f32", "Q4_1", "Q8_0", "Q4_K")
"""Layouts of matrices; one whose blocks don't fit a matrix's width is passed over for w16."""
TABLES = (None, RopeTable(1e4, 8), RopeTable(5e5, 4))
"""Rotary tables; they are shared, so that each is computed once."""
WINDOWS = (None, None, 1, 3, 17, 63, 64, 65, 100)
ACTIVATION_NAMES = tuple(ACTIVATIONS)
HEADS = ((1, 1), (4, 2), (3, 1), (2, 2), (6, 3))

MORE = int(os.environ.get("CORTIQ_TEST_EXAMPLES", "0"))
"""How many times the usual number of examples to draw; the usual ones are always the same."""


def examples(count: int) -> settings:
    """Settings of a property test that draws `count` examples; failures are shrunk on demand."""
    return settings(
        max_examples=count * max(MORE, 1),
        derandomize=not MORE,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if MORE else [])],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@dataclass(frozen=True)
class Bound:
    """A program with its weights, and what it was drawn from."""

    program: Program
    weights: Mapping[str, Weight]
    label: str

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.label)


class Writer:
    """Writes a trunk block by block; weights and slots are named after their node."""

    def __init__(self, width: int, norm: Callable[[int, float], Op]) -> None:
        self.b = Builder(context=CONTEXT, facts={"vocab_size": VOCABULARY})
        self.width, self.norm = width, norm
        self.token, self.position = self.b.input("token"), self.b.input("position")
        self.cached: list[tuple[Attention, str]] = []

    def start(self, multiplier: float) -> Value:
        """The embedding."""
        op = Embedding(VOCABULARY, self.width, multiplier)
        return self.b.add(op, self.token, name="embed", weights={"table": "embed"})

    def normed(self, x: Value, name: str, weights: str | None = None) -> Value:
        """A norm of the program's kind."""
        op = self.norm(self.width, EPS)
        return self.b.add(op, x, name=name, weights=named(op, weights or name))

    def branch(self, x: Value, op: Op, name: str, like: str | None = None, slot: str = "") -> Value:
        """x + op(norm(x)); `like` names a block whose weights it takes."""
        y = self.normed(x, f"{name}.norm", f"{like or name}.norm")
        inputs = (y, self.position) if isinstance(op, Attention | LatentAttention) else (y,)
        slots = {role: slot or f"{name}.{role}" for role in op.slot_kinds()}
        weights = named(op, like or name)
        y = self.b.add(op, *inputs, name=name, weights=weights, slots=slots)
        return self.b.add(Residual(), x, y, name=f"{name}_out")

    def finish(self, x: Value, tied: bool, cap: float | None) -> Program:
        """Norm and head."""
        hidden = self.normed(x, "hidden", "final")
        table = {"weight": "embed" if tied else "head"}
        name = "logits" if cap is None else "raw"
        y = self.b.add(Linear(self.width, VOCABULARY), hidden, name=name, weights=table)
        if cap is not None:
            self.b.add(SoftCap(cap), y, name="logits")
        return self.b.program(outputs=("hidden", "logits"))


def named(op: Op, prefix: str) -> dict[str, str]:
    """Names of an operator's weights below a prefix."""
    return {role: f"{prefix}.{role}" for role in op.weight_shapes()}


@st.composite
def attentions(draw: st.DrawFn, width: int) -> Attention:
    """Grouped-query attention with any of its options."""
    heads, kv_heads = draw(st.sampled_from(HEADS))
    head_dim = draw(st.sampled_from((8, 12, 16)))
    return Attention(
        width, heads, kv_heads, head_dim,
        value_dim=draw(st.sampled_from((None, 4, 8))),
        scale=draw(st.sampled_from((None, 0.3))),
        rope=draw(st.sampled_from(TABLES)),
        pairing=draw(st.sampled_from(("half", "interleaved"))),
        window=draw(st.sampled_from(WINDOWS)),
        soft_cap=draw(st.sampled_from((None, 5.0, 50.0))),
        sinks=draw(st.booleans()),
        qk_norm=draw(st.sampled_from((None, QKNorm(EPS), QKNorm(EPS, offset=1.0)))),
        biased=draw(st.booleans()),
        output_biased=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def latent_attentions(draw: st.DrawFn, width: int) -> LatentAttention:
    """Latent attention, with and without a compressed query."""
    rope = draw(st.sampled_from((None, TABLES[2])))
    compressed = draw(st.sampled_from((0, 12)))
    return LatentAttention(
        width, 3, latent=16, nope_dim=8, rope_dim=4, value_dim=6, eps=EPS, scale=12**-0.5,
        rope=rope, query_latent=compressed,
    )  # fmt: skip


@st.composite
def experts(draw: st.DrawFn, width: int) -> MoE:
    """A mixture of experts with any router."""
    count, top = draw(st.sampled_from(((2, 1), (4, 2), (5, 5), (6, 3))))
    renormalise = draw(st.booleans())
    router = Router(
        top, draw(st.sampled_from(ROUTER_KINDS[:4])), renormalise,
        denominator_floor=1e-6 if renormalise else 0.0,
        routed_scaling=draw(st.sampled_from((1.0, 1.5))),
    )  # fmt: skip
    return MoE(
        width, 16, count, router, draw(st.sampled_from(ACTIVATION_NAMES)),
        selection_bias=draw(st.booleans()), shared_inner=draw(st.sampled_from((0, 24))),
    )  # fmt: skip


@st.composite
def mlps(draw: st.DrawFn, width: int) -> GatedMLP:
    """A gated MLP; 288 columns are a whole block of 256 and a shorter one."""
    inner = draw(st.sampled_from((48, 256, 288)))
    return GatedMLP(width, inner, draw(st.sampled_from(ACTIVATION_NAMES)), draw(st.booleans()))


@st.composite
def convolutions(draw: st.DrawFn, width: int) -> ShortConv:
    """A short convolution of one to four taps."""
    return ShortConv(width, draw(st.integers(1, 4)), draw(st.booleans()))


def _block(draw: st.DrawFn, writer: Writer, x: Value, name: str) -> Value:
    """A mixer and a feed-forward layer; now and then a mixer that reads another's rows, or both
    again with the same weights and slots of their own."""
    width = writer.width
    mixers = (attentions(width), attentions(width), latent_attentions(width), convolutions(width))
    mixer: Any = draw(st.one_of(*mixers))
    slot = ""
    if writer.cached and isinstance(mixer, Attention) and draw(st.integers(0, 2)) == 0:
        owner, slot = draw(st.sampled_from(writer.cached))
        mixer = replace(
            owner, shares_kv=True, window=mixer.window, sinks=mixer.sinks,
            soft_cap=mixer.soft_cap, heads=owner.kv_heads * draw(st.integers(1, 3)),
        )  # fmt: skip
    x = writer.branch(x, mixer, f"{name}.mixer", slot=slot)
    if isinstance(mixer, Attention) and not mixer.shares_kv:
        writer.cached.append((mixer, f"{name}.mixer.kv"))
    feed_forward = draw(st.one_of(st.none(), mlps(width), experts(width)))
    if feed_forward is not None:
        x = writer.branch(x, feed_forward, f"{name}.ffn")
    if not slot and draw(st.integers(0, 3)) == 0:
        x = writer.branch(x, mixer, f"{name}.again", like=f"{name}.mixer")
    return x


@st.composite
def programs(draw: st.DrawFn, blocks: tuple[int, int] = (1, 3)) -> Bound:
    """A random program, verified, with synthetic weights in random layouts."""
    norm = draw(st.sampled_from((RMSNorm, RMSNorm, LayerNorm)))
    writer = Writer(draw(st.sampled_from((32, 64, 256, 288))), norm)
    x = writer.start(draw(st.sampled_from((1.0, 1.7))))
    for n in range(draw(st.integers(*blocks))):
        x = _block(draw, writer, x, f"layers.{n}")
    program = writer.finish(x, draw(st.booleans()), draw(st.sampled_from((None, 3.0))))
    palette = draw(st.lists(st.sampled_from(PALETTE), min_size=1, max_size=3, unique=True))
    return bind(program, palette, draw(st.integers(0, 2**20)))


def bind(program: Program, palette: list[str], seed: int) -> Bound:
    """Give a program synthetic weights, whose layouts go round the palette."""
    kinds = _kinds(program)
    weights, layouts = {}, {}
    for turn, (name, spec) in enumerate(program.weights.items()):
        size = (prod(spec.shape[:-1]), spec.shape[-1])
        if "Mat" in kinds[name] or "Embed" in kinds[name]:
            layout = _fitting(palette[turn % len(palette)], size[1])
            gain = round(log2(size[1]) / 2) if "Embed" in kinds[name] else 0
            weights[name] = synthetic_weight(layout, name, seed, size, gain=gain)
        else:
            layout, weights[name] = "f32", _vectors(name, seed, size, kinds[name])
        layouts[name] = layout
    bound = program.with_layouts(layouts)
    verify(primitives_of(bound))
    verify(bound)
    ops = [n.op.describe() for n in bound.trunk.nodes if n.slots or "M" in n.op.kind]
    return Bound(bound, weights, f"seed {seed}, {palette}: {'; '.join(ops)}")


def _kinds(program: Program) -> dict[str, str]:
    """Kinds of the primitives that use each weight."""
    kinds: dict[str, str] = {}
    for node in primitives_of(program).trunk.nodes:
        for name in node.weights.values():
            kinds[name] = kinds.get(name, "") + node.op.kind
    return kinds


def _fitting(layout: str, columns: int) -> str:
    whole = LAYOUTS[layout].kind != "blocks" or columns % LAYOUTS[layout].block == 0
    return layout if whole else "w16"


def _vectors(name: str, seed: int, size: tuple[int, int], kinds: str) -> Weight:
    if "Conv" in kinds and size[0] > 1:
        return synthetic_weight("f32", name, seed, size)
    norm = "Norm" in kinds and not name.endswith("bias")
    values = synthetic_vector(name, seed, size[1], 1.0 if norm else 0.0)
    return Weight.from_floats((values * np.float32(8 if "Attend" in kinds else 1))[None])


def overflowing(bound: Bound, value: str) -> np.ndarray:
    """A row for a value below 2⁵⁰ whose product with the first matrix that takes it is above."""
    nodes = primitives_of(bound.program).trunk.nodes
    taken = {value, *(o for n in nodes if value in n.inputs for o in n.outputs)}
    matmul = next(n for n in nodes if n.op.kind == "MatMul" and n.inputs[0] in taken)
    first = bound.weights[matmul.weights["weight"]].rows(0, 1)
    known = floats(first) if first.layout.kind == "float" else dequantise_codes(decode(first))
    return np.where(known[0] < 0, -1, 1).astype(np.float32) * np.float32(1.99 * 2.0**49)


def ids(count: int | st.SearchStrategy[int], vocabulary: int = VOCABULARY) -> st.SearchStrategy:
    """Random token ids, some of them repeated: (seed, count) to a list."""
    counts = st.just(count) if isinstance(count, int) else count
    return st.builds(random_ids, counts, st.integers(0, 2**20), st.just(vocabulary))


def random_ids(count: int, seed: int, vocabulary: int = VOCABULARY) -> list[int]:
    """Ids from a seeded generator."""
    return np.random.default_rng(seed).integers(0, vocabulary, count).tolist()
