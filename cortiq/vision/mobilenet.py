"""MobileNet V5's tower: convolutions whose windows are gathered between entries.

An entry ends where a convolution needs pixels of other rows: the rows of the next one are given the
windows of the rows of the one before, and pixels outside the map weigh 0. Where a row holds a block
of pixels, its values are [pixels, channels].
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from cortiq.errors import FormatError
from cortiq.ir import Op, Value
from cortiq.ir.encoders import LAST, SQUARE, STAGE, square_of
from cortiq.ir.layers import Attention, Linear, Residual, RMSNorm
from cortiq.ir.ops import (
    Activation,
    Attend,
    CombineExperts,
    Concat,
    Gain,
    Quantise,
    Reshape,
    ScaleRows,
    Slice,
    StoreKV,
)
from cortiq.models.parts import named
from cortiq.vision.mobilenet_blocks import (
    ATTENTION,
    EDGE,
    FUSION,
    KEYS_BLOCK,
    STAGES,
    STEM,
    STEM_BLOCK,
    STEM_KERNEL,
    Block,
    windows_of,
)
from cortiq.vision.tower import HIDDEN, PATCH, Tower
from cortiq.vision.windows import Window

THERE, BELOW = "there", "below"
"""Input: 1 for each pixel of a row's windows that is inside the map, 0 for others. Output: pixels
of the last stage but one, for the fusion."""
EPS = 1e-6
"""Of all norms."""
QKVO = {
    "q": "attn.query.proj.weight", "k": "attn.key.proj.weight",
    "v": "attn.value.proj.weight", "o": "attn.output.proj.weight",
}  # fmt: skip


class MobileNetWriter:
    """Writes the entries up to the projector.

    Attributes
    ----------
    finished : entries that are finished. side : of the block of pixels that a row holds.
    carried : pixels that entries hand on to the fusion, all in one.
    """

    _last: Value | None

    def __init__(self, tower: Tower, blocks: Sequence[Block]) -> None:
        self.tower, self.b, self.blocks = tower, tower.builder, blocks
        self.finished, self.side = 0, STEM_BLOCK
        self.carried: Value | None = None
        self._carries, self._last = False, None
        self._windows = windows_of(blocks)

    def write(self, channels: int, stem: int, fused: tuple[int, int]) -> None:
        """Write everything.

        Parameters
        ----------
        channels : of the image. stem : channels of the first map. fused : those between the
            fusion's matrices, and those that it makes.

        Raises FormatError where a block does not read the map that there is.
        """
        patch = self.b.input(PATCH, (STEM_BLOCK**2, channels * STEM_KERNEL**2), "f32")
        x = self._apply(Linear(patch.type.shape[-1], stem, biased=True), patch, f"{STEM}.conv")
        x = self._activated(self._norm(x, f"{STEM}.bn"), "stem")
        write = {EDGE: self._edge, ATTENTION: self._attention}
        for block in self.blocks:
            self._carries = (block.stage, block.number) == (STAGES - 1, 0)
            x = write.get(block.kind, self._inverted)(x, block)
        self._finish(self._fused(x, *fused))

    def _apply(self, op: Op, x: Value, file: str) -> Value:
        return self.tower.apply(op, x, file.removeprefix("vision."), file)

    def _linear(self, x: Value, file: str, out: int) -> Value:
        return self._apply(Linear(x.type.shape[-1], out), x, file)

    def _norm(self, x: Value, file: str) -> Value:
        return self._apply(RMSNorm(x.type.shape[-1], EPS), x, file)

    def _activated(self, x: Value, name: str) -> Value:
        return self.b.add(Activation("gelu_tanh"), x, name=f"{name}.activation")

    def _shaped(self, x: Value, name: str, *shape: int) -> Value:
        return x if x.type.shape == shape else self.b.add(Reshape(shape), x, name=name)

    def _joined(self, parts: Sequence[Value], name: str) -> Value:
        return self.b.add(Concat(), *parts, name=name) if len(parts) > 1 else parts[0]

    def _of_block(self, channels: int) -> tuple[int, ...]:
        """Return the shape of a row's values of so many channels."""
        return (channels,) if self.side == 1 else (self.side**2, channels)

    def _finish(self, x: Value) -> None:
        """Finish an entry, which makes `x` and what is carried."""
        self.b.add(Reshape((_size(x),)), x, name=HIDDEN)
        outputs: tuple[str, ...] = (HIDDEN,)
        if self.carried is not None:
            self.b.add(Reshape(self.carried.type.shape), self.carried, name=BELOW)
            outputs += (BELOW,)
        if self.finished:
            self.b.graph(STAGE.format(self.finished - 1), outputs)
            self.tower.position = self.b.input("position")
        else:
            self.tower.finish(*outputs[1:])
        self.finished, self._last = self.finished + 1, None

    def _last_key(self) -> Value:
        """Return the entry's last key, which all rows see."""
        self._last = self._last or self.b.input(LAST)
        return self._last

    def _window(self, x: Value, name: str) -> tuple[Value, Value, Window]:
        """Begin the next entry; return its windows of `x`, what of them is inside the map, and
        their form.
        """
        channels, carried = x.type.shape[-1], self.carried
        self._finish(x)
        *_, window = next(self._windows)
        self.side = window.own
        count = window.own**2 * window.taps
        square = self.b.input(SQUARE, (count * channels,), "f32")
        there = self.b.input(THERE, (count,), "f32")
        if carried is not None:
            size = _size(carried)
            below = self.b.input(square_of(1), (window.taps * size,), "f32")
            self.carried = self._centre(below, f"{name}.below", window, size)
        elif self._carries:
            self.carried = self._centre(square, f"{name}.below", window, channels)
        return square, there, window

    def _centre(self, square: Value, name: str, window: Window, channels: int) -> Value:
        """Write the pixels in the middle of each window."""
        step = window.taps * channels
        starts = [n * step + tap * channels for n in range(window.own**2) for tap in window.centres]
        parts = [
            self.b.add(Slice(start, start + channels), square, name=f"{name}.{n}")
            for n, start in enumerate(starts)
        ]
        return self._joined(parts, name)

    def _depthwise(
        self, square: Value, there: Value, name: str, file: str, window: Window
    ) -> Value:
        """Write a convolution of each channel: the sum of its window times the kernel."""
        b, size = self.b, _size(square) // window.own**2
        channels, sums = size // window.taps, []
        for n in range(window.own**2):
            here, own, mask = f"{name}.{n}", square, there
            if window.own > 1:
                own = b.add(Slice(n * size, (n + 1) * size), square, name=f"{here}.window")
                cut = Slice(n * window.taps, (n + 1) * window.taps)
                mask = b.add(cut, there, name=f"{here}.there")
            own = b.add(Gain(size), own, name=f"{here}.products", weights={"weight": file})
            own = self._shaped(own, f"{here}.taps", window.taps, channels)
            sums.append(b.add(CombineExperts(), mask, own, name=f"{here}.sum"))
        x = self._joined(sums, f"{name}.sums")
        return self._shaped(x, name, *self._of_block(channels))

    def _edge(self, x: Value, block: Block) -> Value:
        """Write an edge residual: a whole convolution, a matrix, and the pixel itself."""
        b, file, name, channels = self.b, block.file, block.name, x.type.shape[-1]
        square, there, window = self._window(x, name)
        count = there.type.shape[0]
        taps = self._shaped(square, f"{name}.taps", count, channels)
        mask = self._shaped(there, f"{name}.mask", count, 1)
        taps = b.add(ScaleRows(), taps, mask, name=f"{name}.inside")
        taps = self._shaped(taps, f"{name}.windows", *self._of_block(window.taps * channels))
        y = self._linear(taps, f"{file}.conv_exp.taps", block.inner)
        y = self._activated(self._norm(y, f"{file}.bn1"), name)
        y = self._norm(self._linear(y, f"{file}.conv_pwl", block.out), f"{file}.bn2")
        if window.stride > 1 or channels != block.out:
            return y
        x = self._centre(square, f"{name}.own", window, channels)
        x = self._shaped(x, f"{name}.x", *self._of_block(channels))
        return b.add(Residual(), x, y, name=f"{name}.out")

    def _inverted(self, x: Value, block: Block) -> Value:
        """Write a universal inverted bottleneck."""
        file, name, channels = block.file, block.name, x.type.shape[-1]
        y = x
        if block.start:
            square, there, window = self._window(x, name)
            x = self._centre(square, f"{name}.own", window, channels)
            taps = f"{file}.dw_start.conv.taps.weight"
            y = self._depthwise(square, there, f"{name}.start", taps, window)
            y = self._norm(y, f"{file}.dw_start.bn")
        y = self._norm(self._linear(y, f"{file}.pw_exp.conv", block.inner), f"{file}.pw_exp.bn")
        y = self._activated(y, name)
        if block.middle:
            square, there, window = self._window(y, f"{name}.inner")
            taps = f"{file}.dw_mid.conv.taps.weight"
            y = self._depthwise(square, there, f"{name}.middle", taps, window)
            y = self._activated(self._norm(y, f"{file}.dw_mid.bn"), f"{name}.inner")
        y = self._norm(self._linear(y, f"{file}.pw_proj.conv", block.out), f"{file}.pw_proj.bn")
        return self._added(x, y, block, channels)

    def _added(self, x: Value, y: Value, block: Block, channels: int) -> Value:
        """Write the gains of a branch, and its sum with `x` where the map stays as it is."""
        name, file = block.name, block.file
        if block.scaled:
            weights = {"weight": f"{file}.layer_scale.gamma"}
            y = self.b.add(Gain(block.out), y, name=f"{name}.scaled", weights=weights)
        if block.number == 0 or channels != block.out:
            return y
        x = self._shaped(x, f"{name}.x", *self._of_block(channels))
        return self.b.add(Residual(), x, y, name=f"{name}.out")

    def _attention(self, x: Value, block: Block) -> Value:
        """Write multi-query attention."""
        file, name, channels = block.file, block.name, x.type.shape[-1]
        if block.out != channels:
            what = f"attention makes {block.out} channels of {channels}"
            raise FormatError(what, where=file)
        if block.start:
            return self._attention_to_fewer(x, block)
        if self.side > 1:
            raise FormatError("keys of a map half as wide come before whole ones", where=file)
        y = self._norm(x, f"{file}.norm")
        op = Attention(channels, block.heads, 1, block.key, value_dim=block.value, until=True)
        y = self.b.add(
            op, y, self.tower.position, self._last_key(), name=f"{name}.attention",
            weights=named(op, file, QKVO), slots={"kv": f"{name}.kv"},
        )  # fmt: skip
        return self._added(x, y, block, channels)

    def _attention_to_fewer(self, x: Value, block: Block) -> Value:
        """Write attention whose keys are those of a map half as wide: one for the pixels of a row,
        each of which has its own queries.
        """
        b, file, name, channels = self.b, block.file, block.name, x.type.shape[-1]
        square, there, window = self._window(x, name)
        taps = self._shaped(square, f"{name}.taps", window.taps, channels)
        flat = self._shaped(self._norm(taps, f"{file}.norm"), f"{name}.normed", _size(square))
        x = self._centre(square, f"{name}.own", window, channels)
        y = self._centre(flat, f"{name}.queries", window, channels)
        queries = len(window.centres)
        y = self._shaped(y, f"{name}.queries.pixels", queries, channels)
        q = self._linear(y, f"{file}.attn.query.proj", block.heads * block.key)
        heads = queries * block.heads
        q = self._shaped(q, f"{name}.q", heads, block.key)
        q = b.add(Quantise(), q, name=f"{name}.q.quantised")
        rows = [self._keys(flat, there, block, role, window) for role in ("key", "value")]
        slots, sizes = {"kv": f"{name}.kv"}, (1, block.key, block.value)
        b.add_node(StoreKV(*sizes), *rows, name=f"{name}.store", slots=slots)
        op = Attend(heads, *sizes, block.key**-0.5, until=True)
        y = b.add(op, q, self._last_key(), name=f"{name}.attend", slots=slots)
        y = self._shaped(y, f"{name}.heads", queries, block.heads * block.value)
        y = self._linear(y, f"{file}.attn.output.proj", channels)
        self.side = KEYS_BLOCK
        return self._added(x, y, block, channels)

    def _keys(self, flat: Value, there: Value, block: Block, role: str, window: Window) -> Value:
        """Write the key or the value of a row, quantised, of the convolution of its window."""
        b, name, file = self.b, f"{block.name}.{role}", f"{block.file}.attn.{role}"
        size = block.key if role == "key" else block.value
        y = self._depthwise(flat, there, f"{name}.down", f"{file}.down_conv.taps.weight", window)
        y = self._linear(self._norm(y, f"{file}.norm"), f"{file}.proj", size)
        y = self._shaped(y, f"{name}.head", 1, size)
        return b.add(Quantise(), y, name=f"{name}.quantised")

    def _fused(self, x: Value, inner: int, out: int) -> Value:
        """Write the fusion of the last two stages, for each pixel of the wider map."""
        count = KEYS_BLOCK**2
        if self.carried is None or self.side > 1 or _size(self.carried) % count:
            raise FormatError("the last stage does not halve the map", where=FUSION)
        below = self._shaped(self.carried, "below.pixels", count, _size(self.carried) // count)
        above = self._joined([x] * count, "above.each")
        above = self._shaped(above, "above.pixels", count, _size(x))
        self.carried, file = None, f"{FUSION}.ffn"
        y = self.b.add(Concat(), below, above, name="fusion")
        y = self._norm(self._linear(y, f"{file}.pw_exp.conv", inner), f"{file}.pw_exp.bn")
        y = self._activated(y, "fusion")
        return self._norm(self._linear(y, f"{file}.pw_proj.conv", out), f"{file}.pw_proj.bn")


def _size(x: Value) -> int:
    """Return the elements of a row."""
    return prod(x.type.shape)
