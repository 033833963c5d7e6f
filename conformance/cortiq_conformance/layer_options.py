"""Level 1: layers with options that the drawn geometries lack, a few at a time."""

from __future__ import annotations

from dataclasses import replace

from cortiq.ir import Op
from cortiq.ir.layers import (
    KDA,
    MLP,
    RGLRU,
    AltUpAdd,
    AltUpCorrect,
    AltUpEntry,
    AltUpExit,
    AltUpPredict,
    Approach,
    Attention,
    AttentionGate,
    AttentionResidual,
    Blend,
    CentredNorm,
    CompressedAttention,
    DifferentialAttention,
    Entries,
    EntryIndexer,
    GatedDeltaNet,
    GatedMLP,
    GatedStreamRead,
    GatedStreamWrite,
    Gating,
    Indexer,
    KeyIndexer,
    LatentAttention,
    LightningAttention,
    ListedBlocks,
    Mamba1,
    Mamba2,
    MoE,
    PerLayerGate,
    PerLayerInputs,
    QKNorm,
    RouterNorm,
    RWKV7ChannelMix,
    RWKV7TimeMix,
    StreamMean,
    StreamNGrams,
    StreamRead,
    StreamWrite,
    UnitAttention,
    UnitMLP,
    WindowIndexer,
    XieluMLP,
)
from cortiq.ir.ops import HashNGrams
from cortiq.numerics.rope import RopeTable, Sections
from cortiq.numerics.rope_scaling import Axial, Growth, Proportional
from cortiq.numerics.route import Router

EPS = 1e-6
TABLE = RopeTable(10000.0, 16)
GROWN = Growth(Proportional(0.0), 0.1, 20, 1)
CLAMPED = Gating(limit=1.5, steepness=1.702, up_shift=1.0)
LATE = Gating(limit=0.4, late=True)
CAPPED = Gating(gate_cap=2.0, up_cap=3.0)

ATTENTION = Attention(width=64, heads=4, kv_heads=2, head_dim=16, rope=TABLE)
LATENT = LatentAttention(
    width=64, heads=4, latent=32, nope_dim=16, rope_dim=8, value_dim=16, eps=EPS, scale=0.2
)
SHARP = replace(LATENT, gated=True, gate_each=True, sinks=True)
EXPERTS = MoE(width=64, inner=32, experts=8, router=Router(3, renormalise=True))
NET = GatedDeltaNet(64, heads=4, key_heads=2, key_dim=16, value_dim=32, kernel=4, eps=EPS)
KIMI = KDA(64, heads=2, key_dim=16, value_dim=32, kernel=4, eps=EPS, decay_rank=32)
SPACE = Mamba2(64, heads=4, head_dim=16, state_dim=16, groups=2, kernel=4, eps=EPS)
KEYS = KeyIndexer(64, 32, heads=4, dim=32, top=9, eps=EPS, key_eps=EPS, rope=TABLE)

COMPRESSED = CompressedAttention(
    width=64, heads=4, dim=32, query_latent=32, groups=2, group_dim=32, window=9, eps=EPS,
    scale=0.2, rope=TABLE, entries=Entries(2, 5, True, EntryIndexer(3, 32)),
)  # fmt: skip

DIFFERENTIAL = DifferentialAttention(64, heads=8, kv_heads=4, head_dim=16, eps=EPS, factor=0.8)
UNIT = UnitAttention(
    64, 4, 2, 16, scale=0.25, eps=EPS, query_factor=9.0, gate_factor=4.0, rope=TABLE
)
AS_NEIGHBOURS = DifferentialAttention(
    64, 4, 2, 16, eps=EPS, factor=0.5, pairs="neighbours", window=5, biased=True,
    output_biased=True, weighted=True,
)  # fmt: skip

OPTIONS: tuple[Op, ...] = (
    replace(ATTENTION, qk_norm=QKNorm(EPS, after_rope=True)),
    replace(ATTENTION, qk_norm=QKNorm(EPS, 1.0, full_width=True), biased=True),
    replace(ATTENTION, biased=("q", "v"), scale=0.5),
    replace(ATTENTION, value_norm=EPS, value_scale=0.7, value_dim=8),
    replace(ATTENTION, output_gate=True, qk_norm=QKNorm(EPS), biased=("q",)),
    replace(ATTENTION, gate=AttentionGate(), output_gate=True, window=5),
    replace(ATTENTION, gate=AttentionGate("sigmoid"), value_dim=8, rope=None),
    replace(ATTENTION, gate=AttentionGate("softplus", per_head=True)),
    replace(ATTENTION, value_input=True, sections=Sections((4, 2, 2))),
    replace(ATTENTION, indexer=Indexer(2, 16, 8, 3, 1, EPS, 1.0)),
    replace(ATTENTION, indexer=Indexer(4, 16, 16, 2, 0, EPS), rope=None, window=40),
    LATENT,
    replace(LATENT, rope=RopeTable(10000.0, 8), pairing="half", query_latent=32, biased=True),
    replace(LATENT, query_latent=32, output_biased=True),
    MLP(64, 96, "relu2"),
    MLP(256, 512, "gelu", True),
    GatedMLP(64, 96, CLAMPED, interleaved=True, biased=True),
    GatedMLP(64, 96, CAPPED),
    replace(EXPERTS, activation=CLAMPED, interleaved=True, biased=True, router_biased=True),
    replace(EXPERTS, gated=False, activation="relu2", latent=32, latent_biased=True),
    replace(EXPERTS, gated=False, activation="relu2", shared_inner=32, biased=True),
    replace(EXPERTS, shared_inner=32, shared_factor=True, shared_biased=True, masked=True),
    replace(EXPERTS, expert_scale=True, router_norm=RouterNorm(EPS, 0.125), router_input=True),
    replace(EXPERTS, router_cap=2.0, router_norm=RouterNorm(EPS, weighted=False)),
    replace(NET, grouped=("qkvz", "ba"), activation="gelu_tanh"),
    replace(NET, grouped=("ba",), decay_form="plain"),
    replace(NET, tiled=True),
    replace(KIMI, decay_per="value", decay_bound=-5.0, gate_rank=32),
    replace(KIMI, decay_per="channel", decay_form="plain"),
    replace(SPACE, groups=1, norm_groups=4, biased=True, step_low=0.1, step_high=1.0),
    replace(SPACE, decay_form="plain"),
    PerLayerInputs(40, 64, layers=3, dim=32, eps=EPS),
    PerLayerGate(64, layers=3, dim=32, layer=1),
    Blend(0.3),
    COMPRESSED,
    replace(COMPRESSED, entries=Entries(4, 40)),
    replace(COMPRESSED, entries=None),
    Blend(0.8),
    XieluMLP(256, 320),
    replace(LATENT, query_latent=32, chosen=True),
    replace(LATENT, chosen=True, rope=RopeTable(10000.0, 8), pairing="half"),
    KEYS,
    replace(KEYS, heads=3, top=70, rope=None, biased=True),
    replace(ATTENTION, chunk=9, qk_norm=QKNorm(EPS, after_rope=True, weighted=False)),
    replace(ATTENTION, chunk=70, rope=None, query_rope=RopeTable(10000.0, 16, GROWN)),
    replace(ATTENTION, joint=True, biased=True),
    replace(ATTENTION, joint=True, kv_heads=1, output_biased=True),
    replace(EXPERTS, weighs_gate=True, shared_inner=32, router=Router(2, "sigmoid")),
    replace(SPACE, normed=False, scales=(0.3, 0.5, 1.0, 2.0, 0.7), output_biased=True),
    replace(SPACE, gates_last=True, norm_groups=2),
    Mamba1(64, inner=96, state_dim=8, rank=5, kernel=4),
    Mamba1(64, 64, 16, 8, 3, biased=True, conv_biased=False, inner_norm=EPS, decay_form="plain"),
    Mamba1(64, 64, 16, 8, 3, inner_norm=EPS, weighted=False),
    replace(ATTENTION, rope=RopeTable(10000.0, 16, Axial(2)), sections=Sections((4, 4))),
    replace(ATTENTION, listed=ListedBlocks(4, 7)),
    GatedMLP(64, 96, above=0.8),
    AltUpEntry(3, 64),
    AltUpPredict(3, 64, active=1, eps=EPS),
    AltUpCorrect(3, 64, active=1, eps=EPS),
    AltUpCorrect(4, 64, active=0, eps=EPS, scaled=False),
    AltUpAdd(3, 64),
    AltUpExit(3, 64),
    replace(ATTENTION, rope=None, slopes=(0.5, 0.25, 0.1, 0.0)),
    replace(ATTENTION, clip=0.7, biased=("q",), qk_norm=QKNorm(EPS, full_width=True)),
    LightningAttention(64, heads=6, head_dim=12, eps=EPS, slope=0.4, ratio=0.5),
    LightningAttention(64, 1, 32, EPS, 0.01, 0.25, activation="gelu"),
    replace(KIMI, decay_rank=0, decay_bound=-5.0),
    replace(LATENT, gated=True, query_latent=32),
    CentredNorm(60, 1e-5),
    GatedMLP(64, 96, LATE),
    replace(EXPERTS, activation=LATE, shared_inner=32, shared_activation=CLAMPED),
    RWKV7TimeMix(64, 3, 16, 8, 12, 24, value_rank=0, eps=EPS, key_eps=EPS),
    RWKV7TimeMix(64, 4, 16, 32, 16, 32, value_rank=16, eps=EPS, key_eps=EPS),
    RWKV7ChannelMix(64, 96),
    DIFFERENTIAL,
    replace(DIFFERENTIAL, rope=TABLE),
    AS_NEIGHBOURS,
    Mamba1(64, inner=96, state_dim=8, rank=5, kernel=4, ungated=True),
    replace(NET, rate=2.0),
    UNIT,
    replace(UNIT, kv_heads=4, window=7, biased=True),
    UnitMLP(64, 96, factor=8.0, eps=EPS),
    UnitMLP(64, 80, factor=-3.0, eps=EPS, activation="gelu", biased=True),
    Approach(64, factor=0.6),
    replace(NET, gate="sigmoid"),
    GatedStreamRead(3, 64, rank=32, eps=EPS),
    GatedStreamRead(2, 96, rank=32, eps=EPS, last=True),
    GatedStreamWrite(3, 64),
    StreamNGrams(3, 64, HashNGrams(0, (2**57 + 1, 99, 5), (11, 13, 17, 19)), 64, 32, 7, EPS),
    StreamNGrams(2, 32, HashNGrams(1, (3, 5), (40,)), 40, 64, 4, EPS),
    WindowIndexer(64, heads=4, dim=32, every=4, top=5, eps=EPS, rope=TABLE),
    WindowIndexer(64, heads=3, dim=16, every=3, top=40, eps=EPS, offset=1.0),
    AttentionResidual(5, 64, EPS),
    AttentionResidual(3, 96, EPS, weighted=False),
    replace(LATENT, gated=True, gate_each=True, rope=None),
    replace(EXPERTS, latent=32, latent_norm=EPS, activation=CAPPED, shared_inner=32),
    replace(KIMI, decay_bound=-5.0, decay_form="plain"),
    LightningAttention(64, 4, 16, EPS, 1.1, 0.5, None, True, EPS, TABLE, 0.25, norm_groups=2),
    replace(ATTENTION, output_norm=EPS, value_dim=8),
    GatedMLP(64, 96, "relu2", inner_norm=EPS),
    RGLRU(64, inner=96, heads=3, kernel=4),
    RGLRU(64, inner=64, heads=1, kernel=3, activation="silu"),
    replace(SHARP, query_latent=32, chosen=True, rope=RopeTable(10000.0, 8), pairing="half"),
    replace(SHARP, chosen=True, scalable=True),
    replace(LATENT, nope_dim=24, rope_dim=0, scalable=True),
    replace(KEYS, turns_last=True),
    replace(KEYS, query_latent=0, scalable=True, pairing="interleaved"),
    StreamRead(3, 64, EPS, 0.01, identity=True, magnitude=1.5),
    StreamWrite(3, 64, identity=True),
    replace(LATENT, rope_dim=0, nope_rope=RopeTable(10000.0, 16)),
    replace(LATENT, rope_dim=0, query_latent=32, chosen=True, block=4),
    replace(KEYS, top=5, rope=None, every=4),
    replace(KEYS, heads=3, top=40, rope=None, biased=True, every=3),
    StreamMean(3, 64),
    StreamMean(2, 96),
    WindowIndexer(
        64, heads=4, dim=32, every=4, top=5, eps=EPS, rope=TABLE, sections=Sections((4, 2, 2), True)
    ),
    replace(ATTENTION, qk_norm=QKNorm(EPS, centred=True)),
    replace(ATTENTION, qk_norm=QKNorm(EPS, centred=True, by_head=True)),
    replace(ATTENTION, qk_norm=QKNorm(EPS, after_rope=True, by_head=True)),
)
"""Each option at least once, over a layout that fits."""
