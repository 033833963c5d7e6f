"""Kimi K3: MoonViT with norms of root mean squares, wider heads and no biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.encoders import ROWS, SQUARE
from cortiq.ir.layers import RMSNorm
from cortiq.numerics.pixels import Pixels
from cortiq.vision import kimi_k25, qwen
from cortiq.vision.config import SIGHT
from cortiq.vision.kimi_k25 import PAD
from cortiq.vision.positions import middle_places
from cortiq.vision.tower import HIDDEN, Tower

ARCHITECTURES = ("kimi_k3",)
KEYS = replace(
    kimi_k25.KEYS,
    aliases={
        **kimi_k25.KEYS.aliases, "activation_func": "hidden_act",
        "projector_ln_eps": "projection_layer_norm_eps",
    },
    harmless=frozenset({
        "init_pos_emb_time", "mm_hidden_size", "pos_emb_type", "text_hidden_size",
        "video_attn_type",
    }),
    only={
        "attn_bias": False, "linear_bias": False, "merge_type": "sd2_tpool", "mlp_type": "mlp2",
        "mm_projector_type": "patchmergerv2", "norm_type": "rmsnorm",
        "patch_embed_proj_bias": False, "pos_emb_interpolation_mode": "bilinear",
        "projector_hidden_act": "gelu",
    },
)  # fmt: skip
NAMES, ORDERS, PREFIXES = kimi_k25.NAMES, kimi_k25.ORDERS, kimi_k25.PREFIXES
EPS, TAP_COUNT = 2.0**-23, 4
"""What the tower's norms add: float32's ε, which PyTorch takes where none is said."""
SIZES = ("qkv_hidden_size", "vt_num_attention_heads")


@dataclass(frozen=True, kw_only=True)
class Config(kimi_k25.Config):
    """Fields of `vision_config`, of the published size.

    Attributes
    ----------
    qkv_hidden_size : width of all heads.
    """

    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_attention_heads: int = 12
    qkv_hidden_size: int = 1536


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys; FormatError where heads do not share their width."""
    given = whole.get(SIGHT)
    found = given if isinstance(given, Mapping) else {}
    width, heads = (found.get(name, getattr(Config, name.removeprefix("vt_"))) for name in SIZES)
    if not all(type(n) is int and n > 0 for n in (width, heads)) or width % heads:
        raise FormatError(f"{heads!r} heads share {width!r}", where="config.json")
    return kimi_k25.values(whole) | {"head_dim": width // heads}


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for images of at most so many patches."""
    tower, width = Tower(config, most, "kimi_k3"), config.hidden_size
    x, norm = kimi_k25.encoded(tower, config, RMSNorm(width, EPS), TAP_COUNT, biased=False)
    tower.apply(norm, x, HIDDEN, "vision.final_layernorm")
    tower.finish()
    square = tower.builder.input(SQUARE, (width * config.spatial_merge_size**2,), "f32")
    names = "projector.proj.0", "projector.proj.2"
    x = qwen.merged(tower, config, square, "merged", names, biased=False)
    after = RMSNorm(config.text_width, config.projection_layer_norm_eps)
    tower.apply(after, x, ROWS, "projector.post_norm")
    return tower.program()


class Processor(kimi_k25.Processor):
    """As Kimi K2.5's; around the rows of an image stand marks, and its own size."""

    places = staticmethod(middle_places)

    def text_of(self, pixels: Pixels, rows: int) -> str:
        """Return what stands for an image in the text."""
        height, width, _ = pixels.shape
        start = f"<|media_begin|>image {width}x{height}<|media_content|>"
        return f"{start}{PAD * rows}<|media_end|>"
