"""Kimi K2.5: MoonViT over an image's own form, learned positions beside RoPE on two axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Op, Program, Value
from cortiq.ir.encoders import ROWS, SQUARE
from cortiq.ir.images import AXES, ImageRows
from cortiq.ir.layers import MLP, LayerNorm
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.parts import activation, named
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.pixels import Pixels, grouped, patches, resize
from cortiq.vision import qwen
from cortiq.vision.config import sight_values
from cortiq.vision.image import STANDARD, ImageProcessor, PixelRules, PreparedImage, Tile
from cortiq.vision.positions import bicubic_places
from cortiq.vision.qwen import QwenConfig
from cortiq.vision.tower import HIDDEN, PLACES, TAPS, Tower

ARCHITECTURES = ("kimi_k25",)
SAME = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
KEYS = Keys(
    aliases={f"vt_{name}": name for name in SAME}
    | {f"init_pos_emb_{edge}": f"pos_emb_{edge}" for edge in ("height", "width")},
    harmless=frozenset({
        "init_pos_emb_time", "merge_type", "mm_hidden_size", "mm_projector_type", "pos_emb_time",
        "pos_emb_type", "projector_hidden_act", "projector_ln_eps", "text_hidden_size",
        "video_attn_type",
    }),
)  # fmt: skip
NAMES = Names(fused=(FusedTensor("wqkv", ("attn.q", "attn.k", "attn.v")),))
PREFIXES: Mapping[str, str] = {
    "vision_tower.encoder.blocks.": "model.layers.", "vision_tower.encoder.": "vision.",
    "vision_tower.patch_embed.": "vision.patch_embed.", "mm_projector.": "projector.",
}  # fmt: skip
ATTENTION: Mapping[str, str] = {
    **{role: f"attn.{name}" for role, name in qwen.ATTENTION.items()},
    "o": "wo.weight", "o_bias": "wo.bias",
}  # fmt: skip
FEED_FORWARD: Mapping[str, str] = {
    "up": "fc0.weight", "up_bias": "fc0.bias", "down": "fc1.weight", "down_bias": "fc1.bias",
}  # fmt: skip
PAD = "<|media_pad|>"
EPS, TAP_COUNT = 1e-5, 16
MOST_PATCHES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Config(QwenConfig):
    """Fields of `Kimi_K25VisionConfig`, and of the projector."""

    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    hidden_act: str = "gelu_pytorch_tanh"
    temporal_patch_size: int = 1
    pos_emb_height: int = 64
    pos_emb_width: int = 64
    merge_kernel_size: tuple[int, ...] = (2, 2)
    projection_layer_norm_eps: float = EPS


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    found = {"image_token": 163605} | sight_values(
        whole, "projection_layer_norm_eps", image_token="image_token_id,media_placeholder_token_id"
    )
    rope = found.pop("rope_parameters", None)
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else None
    return found | {"theta": theta or 10000.0}


def ORDERS(config: Config) -> Mapping[str, np.ndarray]:
    """Return the order of rows of tensors, by a regular expression of their names.

    Neighbouring values of a head are a pair, of which the first turns by the column, the next by
    the row, and so on; here all pairs of rows come first, and a pair lies half a head apart.
    """
    fours = np.arange(config.head_width).reshape(-1, 4).T
    head = fours[[2, 0, 3, 1]].reshape(-1)
    heads = np.arange(2 * config.num_attention_heads)[:, None] * config.head_width + head
    order = np.arange(3 * config.num_attention_heads * config.head_width)
    order[: heads.size] = heads.reshape(-1)
    return {r"model\.layers\.\d+\.wqkv\.(weight|bias)": order}


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for images of at most so many patches."""
    tower, width = Tower(config, most, "kimi_k25"), config.hidden_size
    x, norm = encoded(tower, config, LayerNorm(width, EPS), TAP_COUNT, biased=True)
    x = tower.apply(norm, x, "normed", "vision.final_layernorm")
    before: Op = LayerNorm(width, config.projection_layer_norm_eps)
    tower.apply(before, x, HIDDEN, "projector.pre_norm")
    tower.finish()
    square = tower.builder.input(SQUARE, (width * config.spatial_merge_size**2,), "f32")
    qwen.merged(tower, config, square, ROWS, ("projector.proj.0", "projector.proj.2"))
    return tower.program()


def encoded(tower: Tower, config: Config, norm: Op, taps: int, biased: bool) -> tuple[Value, Op]:
    """Write patches, their positions by so many taps, and all layers; return the norm, too."""
    side = config.pos_emb_height
    if side != config.pos_emb_width or config.head_width % 4:
        what = f"positions of {side} × {config.pos_emb_width}, heads of {config.head_width}"
        raise UnsupportedError(what, where="config")
    axes, inner = tower.builder.input(AXES, (2,)), config.intermediate_size
    x = tower.patches("vision.patch_embed.proj", biased)
    x = tower.interpolated(x, side**2, "vision.patch_embed.pos_emb.weight", taps)
    op = qwen.rotated(config, biased)
    mlp = MLP(config.hidden_size, inner, activation(config.hidden_act), biased=biased)
    for n in range(config.num_hidden_layers):
        here, file = f"layers.{n}", f"model.layers.{n}"
        x = tower.branch(
            x, op, f"{here}.attention", (norm, f"{file}.norm0"), named(op, file, ATTENTION),
            f"{here}.middle", (tower.position, tower.last, axes),
        )  # fmt: skip
        x = tower.branch(
            x, mlp, f"{here}.mlp", (norm, f"{file}.norm1"),
            named(mlp, f"{file}.mlp", FEED_FORWARD), f"{here}.out",
        )  # fmt: skip
    return x, norm


class Processor(ImageProcessor):
    """One tile of the image's own size, shrunk where it is too large, black beside and below it."""

    marker = PAD
    rows = ImageRows()
    places = staticmethod(bicubic_places)

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token, where = config, config.image_token, "preprocessor_config.json"
        own = given.get("media_proc_cfg")
        given = {**own, **given} if isinstance(own, Mapping) else given
        size = given.get("size")
        edge = size.get("max_height") if isinstance(size, Mapping) else None
        rules = {key: value for key, value in given.items() if key != "size"}
        self.rules = PixelRules.of(rules, PixelRules("bicubic", STANDARD, STANDARD))
        self.edge = edge or given.get("patch_limit_on_one_side", 512)
        self.most = given.get("max_patches", given.get("in_patch_limit", 1 << 14))
        if not all(type(n) is int and 0 < n <= MOST_PATCHES for n in (self.edge, self.most)):
            raise FormatError(f"{self.most!r} patches, {self.edge!r} an edge", where=where)
        if tuple(config.merge_kernel_size) != (config.spatial_merge_size,) * 2:
            what = f"squares of {list(config.merge_kernel_size)} patches"
            raise UnsupportedError(what, where="config")
        self.square = config.patch_size * config.spatial_merge_size
        self.within, merge = self.most, config.spatial_merge_size
        self.most = 4 * self.within + 2 * merge * self.edge + merge**2  # with what edges are filled

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Shrink to the limits of patches, and add black to whole squares."""
        config, side = self.config, self.config.patch_size
        fitted = resize(pixels, *self.fitted_size(*pixels.shape[:2]), self.rules.filter)
        down, across = (-(-n // self.square) * self.square for n in fitted.shape[:2])
        more = [(0, down - fitted.shape[0]), (0, across - fitted.shape[1]), (0, 0)]
        cut = patches(self.rules.values(np.pad(fitted, more)), side)
        down, across = down // side, across // side
        near, shares = self.places(down, across, config.pos_emb_height)
        axes = np.stack(np.divmod(np.arange(len(cut)), across), axis=1).astype(np.int32)
        places = {PLACES.format(n): near[:, n] for n in range(near.shape[1])}
        squares = grouped(down, across, config.spatial_merge_size)
        tile = Tile(cut, {AXES: axes, TAPS: shares, **places}, squares)
        return PreparedImage((tile,), self.text_of(pixels, len(squares)))

    def text_of(self, pixels: Pixels, rows: int) -> str:
        """Return what stands for an image in the text."""
        return PAD * rows

    def fitted_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size within the limits of patches, never larger than the image's."""
        side = self.config.patch_size
        count = max(1, height // side) * max(1, width // side)
        longest = self.edge * side
        scale = min(1.0, math.sqrt(self.within / count), longest / height, longest / width)
        down, across = (min(max(1, int(n * scale)), longest) for n in (height, width))
        return down, across
