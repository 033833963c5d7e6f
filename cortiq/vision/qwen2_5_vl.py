"""Qwen2.5-VL: Qwen2-VL's tower with gated MLPs, most of whose layers see windows of the image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.encoders import ROWS, SQUARE
from cortiq.ir.images import AXES
from cortiq.ir.layers import GatedMLP, ListedBlocks, RMSNorm
from cortiq.models.names import Names
from cortiq.models.parts import MLP, activation, named
from cortiq.numerics.pixels import grouped
from cortiq.vision import qwen
from cortiq.vision.qwen import EPS, Arrangement, QwenConfig
from cortiq.vision.tower import HIDDEN, Tower

ARCHITECTURES = ("qwen2_5_vl",)
KEYS, PREFIXES = qwen.KEYS, qwen.PREFIXES
NAMES = Names(fused=(qwen.QKV,))
LISTED = "listed"
"""Input: the squares of a patch's window, in the order of the window's rows."""


@dataclass(frozen=True, kw_only=True)
class Config(QwenConfig):
    """Fields of `Qwen2_5_VLVisionConfig`."""

    hidden_size: int = 3584
    intermediate_size: int = 3420
    hidden_act: str = "silu"
    window_size: int = 112
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)

    @property
    def window(self) -> int:
        """Squares along an edge of a window."""
        return self.window_size // self.spatial_merge_size // self.patch_size


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    return qwen.values(whole, {"out_hidden_size": "", "tokens_per_second": ""})


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for images of at most so many patches."""
    if config.window < 1:
        what = f"window_size {config.window_size} is less than a square of patches"
        raise FormatError(what, where="config")
    blocks = ListedBlocks(config.spatial_merge_size**2, config.window**2)
    most += blocks.count  # lists go on after the last block
    tower, width = Tower(config, most, "qwen2_5_vl"), config.hidden_size
    axes, listed = (
        tower.builder.input(AXES, (2,)), tower.builder.input(LISTED, blocks.type.shape),
    )  # fmt: skip
    x, norm = tower.patches("vision.patch_embed.proj", biased=False), RMSNorm(width, EPS)
    mlp = GatedMLP(width, config.intermediate_size, activation(config.hidden_act), biased=True)
    whole, windowed = qwen.rotated(config), qwen.rotated(config, listed=blocks)
    for n in range(config.num_hidden_layers):
        here, file = f"layers.{n}", f"model.layers.{n}"
        if n in config.fullatt_block_indexes:
            x = qwen.attend(tower, x, n, whole, norm, axes)
        else:
            x = qwen.attend(tower, x, n, windowed, norm, axes, listed)
        x = tower.branch(
            x, mlp, f"{here}.mlp", (norm, f"{file}.norm2"), named(mlp, f"{file}.mlp", MLP),
            f"{here}.out",
        )  # fmt: skip
    tower.apply(norm, x, HIDDEN, "projector.ln_q")
    tower.finish()
    inner = width * config.spatial_merge_size**2
    square = tower.builder.input(SQUARE, (inner,), "f32")
    qwen.merged(tower, config, square, ROWS, ("projector.mlp.0", "projector.mlp.2"))
    return tower.program()


class Processor(qwen.Processor):
    """One tile of the image's own form; its patches are window by window."""

    def arranged(self, down: int, across: int) -> Arrangement:
        """Return patches by window, in it by square; each lists the squares of its window.

        Windows are numbered row by row from the upper left corner; the last ones may be smaller.
        """
        merge, side = self.config.spatial_merge_size, self.config.window
        squares = grouped(down, across, merge)
        count, wide = len(squares), across // merge
        y, x = np.divmod(np.arange(count), wide)
        window = (y // side) * -(-wide // side) + x // side
        order = np.argsort(window, kind="stable")
        sizes = np.bincount(window)
        first = np.repeat(np.cumsum(sizes) - sizes, sizes)[:, None]
        size, offset = np.repeat(sizes, sizes)[:, None], np.arange(side * side)
        listed = np.where(offset < size, first + offset, count + offset - size)
        listed = listed.astype(np.int32).repeat(merge**2, axis=0)[:, None]
        places = np.arange(count * merge**2).reshape(count, -1)[np.argsort(order)]
        return Arrangement(squares[order].reshape(-1), {LISTED: listed}, places)
