"""MobileNet V5's blocks, as the tensors of a tower say them.

The tower is timm's `mobilenetv5_300m_enc`: a convolution (the stem), a stage of edge residuals, and
stages of universal inverted bottlenecks and multi-query attention. The first block of a stage
halves the map; attention whose keys have a convolution halves the map of keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cortiq.errors import FormatError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.hearing.conformer import doubles_of
from cortiq.numerics.contract import Floats
from cortiq.vision.windows import Window

EDGE, INVERTED, ATTENTION = "edge", "inverted", "attention"
STEM, FUSION = "vision.conv_stem", "vision.msfa"
STAGES = 4
STEM_KERNEL, STEM_BLOCK, EDGE_BLOCK, KEYS_BLOCK = 3, 4, 2, 2
"""Kernel of the stem, and pixels along the side of a block that a row holds: of the stem's map, of
the one half as wide, and where keys are those of a map half as wide."""
SHRINK = 32
"""Pixels of the image along the side of one of the last map."""
LARGEST_KERNEL = 15
CONVOLUTIONS = ("conv_exp", "dw_start.conv", "dw_mid.conv", "attn.key.down_conv",
                "attn.value.down_conv")  # fmt: skip
"""Convolutions whose windows are gathered; the others multiply pixels one by one."""
KERNELS = r"vision\.blocks\.\d+\.\d+\.(conv_exp|dw_(start|mid)\.conv|attn\.(key|value)\.down_conv)"


@dataclass(frozen=True)
class Block:
    """A block of the tower.

    Attributes
    ----------
    stage, number : place. kind : edge residual, inverted bottleneck or attention.
    inner : channels between both matrices. out : channels.
    start, middle : kernels before and between the matrices, 0 for none; an edge residual's is
        `middle`, that of attention's keys `start`.
    heads, key, value : of attention. scaled : the branch has gains.
    """

    stage: int
    number: int
    kind: str
    out: int
    inner: int = 0
    start: int = 0
    middle: int = 0
    heads: int = 0
    key: int = 0
    value: int = 0
    scaled: bool = False

    @property
    def file(self) -> str:
        """Beginning of the names of its tensors."""
        return f"vision.blocks.{self.stage}.{self.number}"

    @property
    def name(self) -> str:
        """Beginning of the names of its nodes."""
        return f"blocks.{self.stage}.{self.number}"

    @property
    def strides(self) -> tuple[int, int]:
        """Strides of the windows `start` and `middle`."""
        if self.kind == ATTENTION:
            return 2, 1
        halves = 2 if self.number == 0 else 1
        return (1, halves) if self.middle else (halves, 1)


def read_blocks(checkpoint: Checkpoint) -> tuple[Block, ...]:
    """Return the blocks that a tower's tensors are of.

    Raises
    ------
    FormatError : they are none of a MobileNet V5.
    """
    names, found = set(checkpoint.tensor_names), []
    for stage in range(STAGES):
        number = 0
        while block := _block_of(checkpoint, names, stage, number):
            found.append(block)
            number += 1
    sizes = [sum(block.stage == stage for block in found) for stage in range(STAGES)]
    if not all(sizes):
        what = f"stages of {sizes} blocks: a MobileNet V5 has {STAGES} stages"
        raise FormatError(what, where="vision_tower")
    for block in found:
        _check(block)
    return tuple(found)


def _block_of(checkpoint: Checkpoint, names: set[str], stage: int, number: int) -> Block | None:
    file = f"vision.blocks.{stage}.{number}"

    def size(end: str, axis: int) -> int:
        name = f"{file}.{end}.weight"
        if name not in names:
            return 0
        shape = checkpoint.info(name).shape
        if len(shape) != 4:
            raise FormatError(f"is {list(shape)}: a kernel has four axes", where=name)
        return shape[axis]

    scaled = f"{file}.layer_scale.gamma" in names
    if inner := size("conv_exp", 0):
        middle = size("conv_exp", 2)
        return Block(stage, number, EDGE, size("conv_pwl", 0), inner, middle=middle)
    if inner := size("pw_exp.conv", 0):
        kernels = size("dw_start.conv", 2), size("dw_mid.conv", 2)
        out = size("pw_proj.conv", 0)
        return Block(stage, number, INVERTED, out, inner, *kernels, scaled=scaled)
    if key := size("attn.key.proj", 0):
        heads, odd = divmod(size("attn.query.proj", 0), key)
        if odd or not heads:
            raise FormatError(f"heads of {key} share no such queries", where=file)
        down = size("attn.key.down_conv", 2)
        out, value = size("attn.output.proj", 0), size("attn.value.proj", 0)
        return Block(stage, number, ATTENTION, out, 0, down, 0, heads, key, value, scaled)
    return None


def _check(block: Block) -> None:
    """Raise FormatError for a block that is none of a MobileNet V5."""
    kernels = [k for k in (block.start, block.middle) if k]
    first, kind = block.number == 0, block.kind
    what = ""
    if any(k % 2 == 0 or not 3 <= k <= LARGEST_KERNEL for k in kernels):
        what = f"kernels of {kernels}"
    elif (kind == EDGE) != (block.stage == 0):
        what = f"a block of kind {kind!r}"
    elif first and (kind == ATTENTION or not kernels):
        what = "a first block that does not halve the map"
    elif kind == INVERTED and block.middle and not first:
        what = "a kernel between the matrices of a block that is not the first"
    elif kind == ATTENTION and block.start and block.stage + 1 == STAGES:
        what = "keys of a map half as wide in the last stage"
    elif not block.out or (kind == ATTENTION and not block.value):
        what = "a block without its last matrix"
    if what:
        raise FormatError(f"{what} of stage {block.stage} is not read", where=block.file)


def windows_of(blocks: Sequence[Block]) -> Iterator[tuple[Block, Window]]:
    """Yield the windows in the order of their entries, each with its block."""
    below = STEM_BLOCK
    for block in blocks:
        for kernel, stride in zip((block.start, block.middle), block.strides, strict=True):
            if not kernel:
                continue
            wide = block.kind == EDGE or (block.stage, block.number, stride) == (1, 0, 1)
            yield block, Window(kernel, stride, below, EDGE_BLOCK if wide else 1)
            below = EDGE_BLOCK if wide else 1
            if block.kind == ATTENTION:  # a row is that of a key, and holds the queries' pixels
                below = KEYS_BLOCK


def computed_kernels(checkpoint: Checkpoint, blocks: Sequence[Block]) -> dict[str, Floats]:
    """Return the kernels of windows with the channels of a tap side by side, by tensors' names."""
    made: dict[str, Floats] = {}
    before = checkpoint.info(f"{STEM}.conv.weight").shape[0]
    for block in blocks:
        for end in CONVOLUTIONS:
            name = f"{block.file}.{end}.weight"
            if name not in checkpoint:
                continue
            taps = max(block.middle if "mid" in end or "exp" in end else block.start, 1) ** 2
            whole = end == "conv_exp"
            channels = block.inner if "mid" in end else before
            rows = block.inner if whole else 1
            kernel = doubles_of(checkpoint, name, (rows * channels, taps))
            turned = kernel.reshape(rows, channels, taps).swapaxes(1, 2).astype(np.float32)
            shape = (rows, taps * channels) if whole else (taps * channels,)
            made[f"{block.file}.{end}.taps.weight"] = turned.reshape(shape)
        before = block.out
    return made
