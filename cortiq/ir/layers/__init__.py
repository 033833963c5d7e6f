"""The layers: what model families are written in, each with its decomposition.

A layer's weights and slots are named by role. `Linear` and everything built from it works over any
weight layout: integer codes multiply quantised rows, an `f32` weight the float row itself.
"""

from __future__ import annotations

from cortiq.ir.layers.altup import (
    AltUpAdd,
    AltUpCorrect,
    AltUpEntry,
    AltUpExit,
    AltUpPredict,
)
from cortiq.ir.layers.attention import Attention, AttentionGate, ListedBlocks, QKNorm
from cortiq.ir.layers.attention_residual import AttentionResidual
from cortiq.ir.layers.basic import Blend, Embedding, Layer, Linear, Residual
from cortiq.ir.layers.compressed import CompressedAttention, Entries, EntryIndexer
from cortiq.ir.layers.delta import KDA, GatedDeltaNet
from cortiq.ir.layers.differential import DifferentialAttention
from cortiq.ir.layers.experts import MoE, RouterNorm
from cortiq.ir.layers.gated_streams import GatedStreamRead, GatedStreamWrite, StreamNGrams
from cortiq.ir.layers.griffin import RGLRU
from cortiq.ir.layers.indexer import Indexer
from cortiq.ir.layers.key_indexer import KeyIndexer
from cortiq.ir.layers.latent import LatentAttention
from cortiq.ir.layers.lightning import LightningAttention
from cortiq.ir.layers.mamba1 import Mamba1
from cortiq.ir.layers.mixers import ShortConv
from cortiq.ir.layers.mlp import MLP, GatedMLP, Gating, XieluMLP
from cortiq.ir.layers.moments import TINY, CentredNorm
from cortiq.ir.layers.per_layer import PerLayerGate, PerLayerInputs
from cortiq.ir.layers.rwkv7 import RWKV7ChannelMix, RWKV7TimeMix
from cortiq.ir.layers.state_space import Mamba2
from cortiq.ir.layers.streams import StreamEntry, StreamMean, StreamRead, StreamWrite
from cortiq.ir.layers.unit_rows import Approach, UnitAttention, UnitMLP
from cortiq.ir.layers.window_indexer import WindowIndexer
from cortiq.ir.op import Op
from cortiq.ir.ops import LayerNorm, RMSNorm, Rope

LAYERS: tuple[type[Op], ...] = (
    Embedding, Linear, RMSNorm, LayerNorm, Rope, Attention, LatentAttention, ShortConv,
    GatedDeltaNet, KDA, Mamba1, Mamba2, GatedMLP, MLP, XieluMLP, MoE, PerLayerInputs, PerLayerGate,
    Residual, Blend, KeyIndexer, CompressedAttention, StreamEntry, StreamRead, StreamWrite,
    AltUpEntry, AltUpPredict, AltUpCorrect, AltUpAdd, AltUpExit, LightningAttention,
    CentredNorm,
    RWKV7TimeMix, RWKV7ChannelMix, DifferentialAttention, UnitAttention, UnitMLP, Approach,
    GatedStreamRead, GatedStreamWrite, StreamNGrams, WindowIndexer,
    AttentionResidual, RGLRU, StreamMean,
)  # fmt: skip
"""Every layer of the catalogue."""

__all__ = [
    "KDA",
    "LAYERS",
    "MLP",
    "RGLRU",
    "AltUpAdd",
    "AltUpCorrect",
    "AltUpEntry",
    "AltUpExit",
    "AltUpPredict",
    "Approach",
    "Attention",
    "AttentionGate",
    "AttentionResidual",
    "Blend",
    "CentredNorm",
    "CompressedAttention",
    "DifferentialAttention",
    "Embedding",
    "Entries",
    "EntryIndexer",
    "GatedDeltaNet",
    "GatedMLP",
    "Gating",
    "Indexer",
    "KeyIndexer",
    "LatentAttention",
    "LightningAttention",
    "ListedBlocks",
    "Layer",
    "LayerNorm",
    "Linear",
    "Mamba1",
    "Mamba2",
    "MoE",
    "PerLayerGate",
    "PerLayerInputs",
    "QKNorm",
    "RMSNorm",
    "RWKV7ChannelMix",
    "RWKV7TimeMix",
    "Residual",
    "Rope",
    "RouterNorm",
    "ShortConv",
    "StreamEntry",
    "StreamMean",
    "StreamRead",
    "StreamWrite",
    "TINY",
    "UnitAttention",
    "UnitMLP",
    "XieluMLP",
]
