"""Qwen3-VL and Qwen 3.5: learned positions beside RoPE, rows for the first layers of the text.

The tower's table of positions is a grid that is interpolated to the image's. Qwen3-VL also makes
rows of some layers' outputs, which the first layers of the text model add to theirs (deepstack).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.encoders import ROWS, square_of
from cortiq.ir.images import AXES, DEEP
from cortiq.ir.layers import MLP, LayerNorm
from cortiq.models.names import Names
from cortiq.models.parts import activation, named
from cortiq.vision import qwen
from cortiq.vision.positions import bilinear_places
from cortiq.vision.qwen import EPS, Arrangement, QwenConfig
from cortiq.vision.tower import HIDDEN, PLACES, TAPS, Tower

ARCHITECTURES = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp")
KEYS = qwen.KEYS
NAMES = Names(fused=(qwen.QKV,))
PREFIXES: Mapping[str, str] = {
    **qwen.PREFIXES,
    "model.visual.pos_embed.": "vision.pos_embed.", "visual.pos_embed.": "vision.pos_embed.",
    "model.visual.deepstack_merger_list.": "deep.", "visual.deepstack_merger_list.": "deep.",
}  # fmt: skip
FEED_FORWARD: Mapping[str, str] = {
    "up": "linear_fc1.weight", "up_bias": "linear_fc1.bias",
    "down": "linear_fc2.weight", "down_bias": "linear_fc2.bias",
}  # fmt: skip
MERGER = ("norm", "linear_fc1", "linear_fc2")
"""Tensors of a merger: its norm's and its matrices'."""
CORNERS = 4
"""Rows of the table around a patch."""
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "qwen3_vl": {"deepstack_visual_indexes": (8, 16, 24), "sections": (24, 20, 20)},
    "qwen3_5": {"sections": (11, 11, 10), "image_token": 248056},
    "qwen4_exp": {"sections": (11, 11, 10), "image_token": 248056},
}
"""Values that a folder's config.json may leave out, by the beginning of its `model_type`."""


@dataclass(frozen=True, kw_only=True)
class Config(QwenConfig):
    """Fields of `Qwen3VLVisionConfig`."""

    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    patch_size: int = 16
    hidden_act: str = "gelu_pytorch_tanh"
    num_position_embeddings: int = 2304
    deepstack_visual_indexes: tuple[int, ...] = ()

    @property
    def deep(self) -> int:
        """Layers of the text model that rows of an image are added to."""
        return len(self.deepstack_visual_indexes)

    @property
    def table_side(self) -> int:
        """Positions of the table along an edge."""
        return math.isqrt(self.num_position_embeddings)


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    kind = str(whole["model_type"]).removesuffix("_moe")
    given = whole if "image_token_id" in whole else {**whole, "image_token_id": None}
    found = qwen.values(given, {"out_hidden_size": ""})
    return {**DEFAULTS[kind], **{key: value for key, value in found.items() if value is not None}}


def build(config: Config, most: int, merger: Sequence[str] = MERGER) -> Program:
    """Build tower and projector, for images of at most so many patches.

    Parameters
    ----------
    merger : names of the tensors of a merger.
    """
    deep, layers = config.deepstack_visual_indexes, config.num_hidden_layers
    if list(deep) != sorted(set(deep)) or not all(0 <= n < layers for n in deep):
        what = f"deepstack_visual_indexes {list(deep)} are no ascending ones of {layers} layers"
        raise FormatError(what, where="config")
    if config.table_side**2 != config.num_position_embeddings:
        what = f"num_position_embeddings {config.num_position_embeddings} is no square"
        raise FormatError(what, where="config")
    tower, width = Tower(config, most, "qwen3_vl"), config.hidden_size
    axes = tower.builder.input(AXES, (2,))
    x, norm = tower.patches("vision.patch_embed.proj", biased=True), LayerNorm(width, EPS)
    table = "vision.pos_embed.weight"
    x = tower.interpolated(x, config.table_side**2, table, CORNERS)
    mlp = MLP(width, config.intermediate_size, activation(config.hidden_act), biased=True)
    op = qwen.rotated(config)
    for n in range(layers):
        here, file = f"layers.{n}", f"model.layers.{n}"
        x = qwen.attend(tower, x, n, op, norm, axes)
        x = tower.branch(
            x, mlp, f"{here}.mlp", (norm, f"{file}.norm2"),
            named(mlp, f"{file}.mlp", FEED_FORWARD), f"{here}.out",
        )  # fmt: skip
    tower.apply(norm, x, HIDDEN, f"projector.{merger[0]}")
    tower.finish(*(f"layers.{n}.out" for n in deep))
    _project(tower, config, merger)
    return tower.program(*(DEEP.format(n) for n in range(config.deep)))


def _project(tower: Tower, config: Config, merger: Sequence[str]) -> None:
    """Write the mergers: of normed patches, and of layers' outputs, normed as a square."""
    inner = config.hidden_size * config.spatial_merge_size**2
    squares = [tower.builder.input(square_of(n), (inner,), "f32") for n in range(config.deep + 1)]
    start, *ends = merger
    qwen.merged(tower, config, squares[0], ROWS, (f"projector.{ends[0]}", f"projector.{ends[1]}"))
    for n, square in enumerate(squares[1:]):
        name, file = DEEP.format(n), f"deep.{n}"
        y = tower.apply(LayerNorm(inner, EPS), square, f"{name}.norm", f"{file}.{start}")
        qwen.merged(tower, config, y, name, (f"{file}.{ends[0]}", f"{file}.{ends[1]}"))


class Processor(qwen.Processor):
    """One tile of the image's own form; each patch has the table's rows around it."""

    interleaved = True

    def arranged(self, down: int, across: int) -> Arrangement:
        """Return patches row by row, with their places in the table."""
        places, weights = bilinear_places(down, across, self.config.table_side)
        taps = {PLACES.format(n): column for n, column in enumerate(places.T)}
        plain = super().arranged(down, across)
        return replace(plain, inputs={**taps, TAPS: weights})
