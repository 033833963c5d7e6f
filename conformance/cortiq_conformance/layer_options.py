"""Level 1: layers with one option each that the drawn geometries do not have."""

from __future__ import annotations

from dataclasses import replace

from cortiq.ir import Op
from cortiq.ir.layers import MLP, Attention, AttentionGate, QKNorm
from cortiq.numerics.rope import RopeTable

EPS = 1e-6
TABLE = RopeTable(10000.0, 16)

ATTENTION = Attention(width=64, heads=4, kv_heads=2, head_dim=16, rope=TABLE)

OPTIONS: tuple[Op, ...] = (
    replace(ATTENTION, qk_norm=QKNorm(EPS, after_rope=True)),
    replace(ATTENTION, qk_norm=QKNorm(EPS, 1.0, full_width=True), biased=True),
    replace(ATTENTION, biased=("q", "v"), scale=0.5),
    replace(ATTENTION, value_norm=EPS, value_scale=0.7, value_dim=8),
    replace(ATTENTION, output_gate=True, qk_norm=QKNorm(EPS), biased=("q",)),
    replace(ATTENTION, gate=AttentionGate(), output_gate=True, window=5),
    replace(ATTENTION, gate=AttentionGate("sigmoid"), value_dim=8, rope=None),
    MLP(64, 96, "relu2"),
    MLP(256, 512, "gelu_tanh", True),
)  # fmt: skip
"""Each option at least once, over a layout that fits."""
