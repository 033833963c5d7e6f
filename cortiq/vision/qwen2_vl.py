"""Qwen2-VL: patches that RoPE turns on two axes, squares of four of them through an MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.encoders import ROWS, SQUARE
from cortiq.ir.images import AXES
from cortiq.ir.layers import LayerNorm, Residual
from cortiq.models.names import Names
from cortiq.vision import qwen
from cortiq.vision.config import SIGHT
from cortiq.vision.qwen import EPS, Processor, QwenConfig
from cortiq.vision.tower import HIDDEN, Tower

ARCHITECTURES = ("qwen2_vl",)
KEYS, PREFIXES = qwen.KEYS, qwen.PREFIXES
NAMES = Names(fused=(qwen.QKV,))
Config = QwenConfig
__all__ = ["Config", "Processor"]


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys, whose `hidden_size` is the text model's."""
    found = qwen.values(whole, {"hidden_size": ""})
    width, ratio = found.pop("embed_dim", 1280), found.pop("mlp_ratio", 4)
    if type(width) is not int or type(ratio) not in (int, float):
        raise FormatError(f"has embed_dim {width!r} and mlp_ratio {ratio!r}", where=SIGHT)
    return found | {"hidden_size": width, "intermediate_size": int(width * ratio)}


def build(config: QwenConfig, most: int) -> Program:
    """Build tower and projector, for images of at most so many patches."""
    if config.hidden_act != "quick_gelu":
        raise UnsupportedError(f"activation {config.hidden_act!r}", where="config")
    tower, width = Tower(config, most, "qwen2_vl"), config.hidden_size
    axes = tower.builder.input(AXES, (2,))
    x, norm = tower.patches("vision.patch_embed.proj", biased=False), LayerNorm(width, EPS)
    op = qwen.rotated(config)
    for n in range(config.num_hidden_layers):
        here, file = f"layers.{n}", f"model.layers.{n}"
        x = qwen.attend(tower, x, n, op, norm, axes)
        y = tower.apply(norm, x, f"{here}.mlp_norm", f"{file}.norm2")
        y = tower.quick_gelu_mlp(y, here, (f"{file}.mlp.fc1", f"{file}.mlp.fc2"))
        x = tower.builder.add(Residual(), x, y, name=f"{here}.out")
    tower.apply(norm, x, HIDDEN, "projector.ln_q")
    tower.finish()
    inner = width * config.spatial_merge_size**2
    square = tower.builder.input(SQUARE, (inner,), "f32")
    qwen.merged(tower, config, square, ROWS, ("projector.mlp.0", "projector.mlp.2"))
    return tower.program()
