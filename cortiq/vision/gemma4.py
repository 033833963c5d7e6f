"""Gemma 4: a tower of Gemma's own layers over an image's own form, squares of patches averaged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.ir import Op, Program, Value
from cortiq.ir.encoders import LAST, ROWS, SHARES, SQUARE
from cortiq.ir.images import AXES, ImageRows
from cortiq.ir.layers import Attention, Embedding, GatedMLP, QKNorm, Residual, RMSNorm
from cortiq.ir.ops import CombineExperts, EmbedRows, Gain, Scale
from cortiq.models.clipped import Bounds, bounds_of
from cortiq.models.config import Amount, Keys
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MLP, activation, named
from cortiq.models.sense_values import table_token
from cortiq.numerics.pixels import Pixels, grouped, patches, resize
from cortiq.numerics.rope import RopeTable, Sections
from cortiq.numerics.rope_scaling import Axial
from cortiq.vision import clipped
from cortiq.vision.config import TEXT, VisionConfig, sight_values
from cortiq.vision.image import STANDARD, ImageProcessor, PixelRules, PreparedImage, Tile
from cortiq.vision.tower import HIDDEN, PLACES, Tower

ARCHITECTURES = ("gemma4",)
KEYS = Keys(
    aliases={"hidden_activation": "hidden_act"},
    harmless=frozenset({"default_output_length"}),
    only={"attention_bias": False},
)
NAMES = Names(unread=clipped.UNREAD)
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}": mine
    for start in ("", "model.")
    for theirs, mine in (("vision_tower.", "vision."), ("embed_vision.", "projector."))
}  # fmt: skip
IMAGE, BEGIN, END = "<|image|>", "<|image>", "<image|>"
MATRICES = (
    *(f"self_attn.{role}_proj" for role in "qkvo"),
    *(f"mlp.{role}_proj" for role in ("gate", "up", "down")),
)
"""Matrices of a layer."""
LAYER = "vision.encoder.layers.{}"
MOST_ROWS = 1 << 12
"""Rows of an image at most."""


@dataclass(frozen=True, kw_only=True)
class Config(VisionConfig):
    """Fields of `Gemma4VisionConfig`, and what the text model does with an image's rows.

    Attributes
    ----------
    together : rows of an image see one another in layers with windows, of so many rows.
    token : id of an image's rows in the table of per-layer inputs; None where there is none.
    bounds : of clipped matrices, from the tensors.
    """

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 16
    num_attention_heads: int = 12
    head_dim: int | None = 64
    image_size: int = 0
    patch_size: int = 16
    hidden_act: str = "gelu_pytorch_tanh"
    rms_norm_eps: float = 1e-6
    theta: float = 100.0
    pooling_kernel_size: int = 3
    position_embedding_size: int = 10240
    standardize: bool = False
    together: bool = False
    window: int = 512
    use_clipped_linears: bool = False
    token: Amount | None = None
    bounds: Bounds = field(default_factory=dict)


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    found = {"image_token": 258880} | sight_values(whole, image_token="image_token_id")
    text, rope = whole.get(TEXT), found.pop("rope_parameters", None)
    text = text if isinstance(text, Mapping) else {}
    token = table_token(text)
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else None
    together = text.get("use_bidirectional_attention") == "vision"
    window = text.get("sliding_window", 512)
    own = {"theta": theta or 100.0, "together": together, "window": window, "token": token}
    return {**found, **own}


def with_tensors(config: Config, checkpoint: Checkpoint) -> Config:
    """Return the configuration with what the tensors say: the bounds of clipped matrices."""
    if not config.use_clipped_linears:
        return config
    layers = range(config.num_hidden_layers)
    names = [f"{LAYER.format(n)}.{matrix}" for n in layers for matrix in MATRICES]
    return replace(config, bounds=bounds_of(checkpoint, names))


def head_order(config: Config) -> np.ndarray:
    """Return the order of a head's values in which pairs of both axes lie half a head apart.

    The file turns the first half of a head by the column and the second half by the row.
    """
    quarters = np.arange(config.head_width).reshape(4, -1)
    return quarters[[0, 2, 1, 3]].reshape(-1)


def ORDERS(config: Config) -> Mapping[str, np.ndarray]:
    """Return the order of rows of tensors, by a regular expression of their names."""
    return {r"vision\.encoder\.layers\.\d+\.self_attn\.[qk]_(proj\.linear|norm)\.weight":
            head_order(config)}  # fmt: skip


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for images of at most so many patches."""
    if config.head_width % 4 or config.pooling_kernel_size < 1:
        what = f"heads of {config.head_width}, squares of {config.pooling_kernel_size}²"
        raise FormatError(what, where="config")
    tower, width = Tower(config, most, "gemma4"), config.hidden_size
    axes = tower.builder.input(AXES, (2,))
    x = _placed(tower, config)
    norm: Op = RMSNorm(width, config.rms_norm_eps)
    quarter = config.head_width // 4
    op = Attention(
        width, config.num_attention_heads, config.kv_heads, config.head_width, scale=1.0,
        rope=RopeTable(config.theta, config.head_width, Axial(2)), until=True,
        sections=Sections((quarter, quarter)), qk_norm=QKNorm(config.rms_norm_eps),
        value_norm=config.rms_norm_eps,
    )  # fmt: skip
    mlp = GatedMLP(width, config.intermediate_size, activation(config.hidden_act))
    layers = clipped.ClippedLayers(tower, config.bounds) if config.use_clipped_linears else None
    for n in range(config.num_hidden_layers):
        here, file = f"layers.{n}", LAYER.format(n)
        y = tower.apply(norm, x, f"{here}.attention_norm", f"{file}.input_layernorm")
        name, place = f"{here}.attention", f"{file}.self_attn"
        if layers:
            y = layers.attend(y, op, name, place, axes)
        else:
            weights = named(op, place, _within(ATTENTION))
            slots = {role: f"{name}.{role}" for role in op.slot_kinds()}
            given = (tower.position, tower.last, axes)
            y = tower.builder.add(op, y, *given, name=name, weights=weights, slots=slots)
        x = _added(tower, x, y, norm, f"{here}.middle", f"{file}.post_attention_layernorm")
        y = tower.apply(norm, x, f"{here}.mlp_norm", f"{file}.pre_feedforward_layernorm")
        if layers:
            y = layers.feed_forward(y, mlp, f"{here}.mlp", f"{file}.mlp")
        else:
            weights = named(mlp, f"{file}.mlp", _within(MLP))
            y = tower.builder.add(mlp, y, name=f"{here}.mlp", weights=weights)
        last = HIDDEN if n + 1 == config.num_hidden_layers else f"{here}.out"
        x = _added(tower, x, y, norm, last, f"{file}.post_feedforward_layernorm")
    tower.finish()
    _project(tower, config)
    return tower.program()


def _within(names: Mapping[str, str]) -> dict[str, str]:
    """Return tensors' names where a matrix lies in a module of its own."""
    return {role: name.replace("_proj.", "_proj.linear.") for role, name in names.items()}


def _placed(tower: Tower, config: Config) -> Value:
    """Write patches and the sum of the rows of both tables of learned positions."""
    b, size = tower.builder, 2 * config.position_embedding_size
    x = tower.patches("vision.patch_embedder.input_proj", biased=False)
    table = Embedding(size, config.hidden_size)
    weights = {"table": "vision.patch_embedder.position_embedding_table"}
    column, row = (
        b.add(table, b.input(PLACES.format(n)), name=f"place.row.{n}", weights=weights)
        for n in range(2)
    )
    return b.add(Residual(), x, b.add(Residual(), column, row, name="place"), name="placed")


def _added(tower: Tower, x: Value, y: Value, norm: Op, out: str, tensor: str) -> Value:
    """Write x and the normed output of a branch."""
    y = tower.apply(norm, y, f"{out}.after_norm", tensor)
    return tower.builder.add(Residual(), x, y, name=out)


def _project(tower: Tower, config: Config) -> None:
    """Write the mean of a square, scaled, a norm without weights and a matrix."""
    b, width, count = tower.builder, config.hidden_size, config.pooling_kernel_size**2
    square, shares = b.input(SQUARE, (count, width), "f32"), b.input(SHARES, (count,), "f32")
    x = b.add(CombineExperts(), shares, square, name="mean")
    x = b.add(Scale(math.sqrt(width)), x, name="scaled")
    if config.standardize:  # (x − bias)·scale
        table, zero = EmbedRows(1, width), b.input("token")
        bias = b.add(table, zero, name="bias.row", weights={"table": "vision.std_bias"})
        bias = b.add(Scale(-1.0), bias, name="bias.negated")
        x = b.add(Residual(), x, bias, name="centred")
        x = b.add(Gain(width), x, name="standard", weights={"weight": "vision.std_scale"})
    x = b.add(RMSNorm(width, config.rms_norm_eps, weighted=False), x, name="normed")
    sizes = (width, config.text_width)
    tower.linear(x, ROWS, "projector.embedding_projection", sizes, biased=False)


class Processor(ImageProcessor):
    """One tile of the image's own form, in whole squares, of at most so many of them."""

    marker = IMAGE

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token, where = config, config.image_token, "preprocessor_config.json"
        self.rows = ImageRows(last=LAST if config.together else "", token=config.token)
        own = {key: value for key, value in given.items() if key not in LEFT_OUT}
        self.rules = PixelRules.of(own, PixelRules("bicubic", STANDARD, STANDARD))
        count = self.config.pooling_kernel_size
        if any(given.get(key, n) != n for key, n in
               (("patch_size", config.patch_size), ("pooling_kernel_size", count))):  # fmt: skip
            raise UnsupportedError("patches or squares of other sizes", where=where)
        self.largest = given.get("max_soft_tokens", 280)
        if type(self.largest) is not int or not 0 < self.largest <= MOST_ROWS:
            raise FormatError(f"max_soft_tokens {self.largest!r}", where=where)
        if config.together and config.window < self.largest:
            what = f"images of {self.largest} rows in windows of {config.window}"
            raise UnsupportedError(what, where="config")
        self.most = self.largest * count**2
        if config.position_embedding_size < self.largest * count:
            what = f"{config.position_embedding_size} positions along an edge"
            raise FormatError(what, where="config")

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Resize to the most squares that the limit allows in the image's form."""
        config, side = self.config, self.config.patch_size
        size = self.fitted_size(*pixels.shape[:2])
        fitted = self.rules.values(resize(pixels, *size, self.rules.filter))
        cut = patches(fitted, side, by_pixel=True)
        down, across = (n // side for n in size)
        row, column = np.divmod(np.arange(len(cut), dtype=np.int32), np.int32(across))
        inputs = {
            AXES: np.stack([column, row], axis=1), PLACES.format(0): column,
            PLACES.format(1): row + np.int32(config.position_embedding_size),
        }  # fmt: skip
        tile = Tile(cut, inputs, grouped(down, across, config.pooling_kernel_size))
        return PreparedImage((tile,), f"{BEGIN}{IMAGE * len(tile.squares)}{END}")

    def fitted_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the largest size in whole squares that keeps the form and the limit of rows."""
        square = self.config.pooling_kernel_size * self.config.patch_size
        grow = math.sqrt(self.most * self.config.patch_size**2 / (height * width))
        down, across = (math.floor(grow * n / square) * square for n in (height, width))
        longest = self.largest * square
        if down == 0:
            return square, min(width // height * square, longest)
        if across == 0:
            return min(height // width * square, longest), square
        return down, across


LEFT_OUT = ("do_normalize", "image_mean", "image_std", "size")
"""Rules of the processor's file that hold of values before the tower's own 2·(p − ½)."""
