"""Decoder layers of one row in one launch (`cuda/layers.cu`): its arguments and its memory."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from ctypes import c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from cortiq.numerics.contract import F32
from cortiq_triton import compiled, nvrtc
from cortiq_triton.attend import factors_of
from cortiq_triton.call import LaunchCall
from cortiq_triton.language import INTERPRETED, shared_memory
from cortiq_triton.weights import Packed

THREADS, SLOTS, STAGE = 544, 2048, 16384
"""Threads of a block; its parts of dots, of 8 bytes; bytes of a stage of weights, at least."""
FLIGHT, WIDTHS = 3, 4
"""Stages on their way at once; times 256 columns of a row that a warp has."""
BESIDE, FEWEST_STAGES, FIRST_CAPABILITY = 1088 + 272 + 48, 8, (9, 0)
MOST_TILES = 64
"""Tiles of keys up to which it is the faster way."""
GRID_COUNTERS = 32
"""Counters that are the grid's; those of attention follow."""


@dataclass(frozen=True)
class Geometry:
    """Sizes that are compiled into the kernel: widths of rows, query heads, heads of keys and their
    width, gates.
    """

    hidden: int
    heads: int
    groups: int
    dim: int
    wide: int

    @property
    def stage(self) -> int:
        """Bytes of a stage: whole rows of each product, and pairs of them of gates."""
        return max(STAGE, self.wide, 4 * self.hidden, self.heads * self.dim)

    @property
    def stages(self) -> int:
        """Stages that shared memory has room for."""
        return (shared_memory() - 8 * SLOTS - BESIDE - 512) // self.stage

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self.stage * self.stages + 8 * SLOTS + BESIDE + 16 * self.stages

    @property
    def constants(self) -> dict[str, int]:
        """Names of the sizes in the source."""
        return {
            "HIDDEN": self.hidden, "HEADS": self.heads, "GROUPS": self.groups, "DIM": self.dim,
            "WIDE": self.wide, "STAGE": self.stage, "STAGES": self.stages, "SLOTS": SLOTS,
            "FLIGHT": FLIGHT, "WIDTHS": WIDTHS,
        }  # fmt: skip

    def fits(self) -> bool:
        """Whether the kernel can be compiled for it."""
        each = self.heads // max(1, self.groups)
        widths = (self.hidden, self.heads * self.dim, self.wide)
        return (
            self.dim in (64, 128)
            and each * self.groups == self.heads
            and each <= 4
            and all(width % 64 == 0 and width <= 32768 for width in widths)
            and self.hidden <= 4 * SLOTS
            and self.wide <= 8 * SLOTS
            and self.stages >= FEWEST_STAGES
        )


@cache
def available() -> bool:
    """Whether the device has bulk copies, with barriers that count them, and NVRTC is there."""
    if INTERPRETED or not torch.cuda.is_available():
        return False
    if torch.cuda.get_device_capability() < FIRST_CAPABILITY:
        return False
    try:
        return bool(nvrtc.library())
    except nvrtc.NotCompiledError:
        return False


@cache
def function_of(geometry: Geometry) -> nvrtc.Function | None:
    """The kernel for a geometry on the device; None, with a warning, if it cannot be had."""
    major, minor = torch.cuda.get_device_capability()
    try:
        code = nvrtc.binary("layers.cu", geometry.constants, f"sm_{major}{minor}")
        return nvrtc.Function(code, "layers", THREADS, geometry.shared)
    except RuntimeError as error:
        what = f"layers of one row are launched kernel by kernel: {error}"
        warnings.warn(what, RuntimeWarning, stacklevel=2)
        return None


@dataclass(frozen=True)
class MatrixRows:
    """Some rows of a weight of one scale a row, from `first` on."""

    weight: Packed
    first: int = 0

    @property
    def places(self) -> tuple[int, int]:
        """Return where their codes and scales lie."""
        codes, scale = self.weight.codes, self.weight.scale
        return codes[self.first].data_ptr(), scale[self.first].data_ptr()


@dataclass(frozen=True)
class LayerWeights:
    """A decoder layer's weights.

    Attributes
    ----------
    norms : weight and eps of both. rows : of queries, keys and values, output, gates, what they
        gate, down. slot : name of its keys and values. scale : of its scores.
    """

    norms: tuple[tuple[torch.Tensor, float], tuple[torch.Tensor, float]]
    rows: tuple[MatrixRows, ...]
    slot: str
    scale: float


@dataclass(frozen=True)
class Head:
    """A last norm and product: the norm's weight and eps, and the matrix."""

    norm: torch.Tensor
    eps: float
    weight: Packed


class LayerWords(ctypes.Structure):
    """`Layer` of the source."""

    _fields_ = (
        ("norms", c_void_p * 2), ("codes", c_void_p * 6), ("scales", c_void_p * 6),
        ("slot", c_int64), ("eps", c_float * 2), ("factor", c_float), ("unused", c_float),
    )  # fmt: skip


class KeyWords(ctypes.Structure):
    """`Keys` of the source."""

    _fields_ = (
        ("angles", c_void_p * 2), ("positions", c_void_p), ("owners", c_void_p),
        ("table", c_void_p), ("sums", c_void_p), ("numbers", c_void_p), ("counters", c_void_p),
        ("pages", c_int), ("most", c_int),
    )  # fmt: skip


class Arguments(ctypes.Structure):
    """`Arguments` of the source."""

    _fields_ = (
        ("layers", c_void_p), ("x", c_void_p), ("norm", c_void_p), ("head_scale", c_void_p),
        ("head", c_void_p), ("out", c_void_p), ("between", c_void_p * 4), ("logits", c_void_p),
        ("largest", c_void_p * 2), ("faults", c_void_p), ("counters", c_void_p),
        ("keys", KeyWords), ("count", c_int), ("vocabulary", c_int), ("eps", c_float),
        ("one_over_n", c_float),
    )  # fmt: skip


@dataclass(eq=False)
class Layers:
    """Layers that are launched together.

    Attributes
    ----------
    turn : the rotation of queries and keys. head : what follows the last layer, if it is computed.
    """

    geometry: Geometry
    layers: Sequence[LayerWeights]
    turn: Any
    head: Head | None
    _table: list[torch.Tensor] = field(default_factory=list)

    def table(self, call: LaunchCall) -> torch.Tensor:
        """The layers' words on the device."""
        if not self._table:
            words = (LayerWords * len(self.layers))()
            for there, layer in zip(words, self.layers, strict=True):
                for at, (weight, eps) in enumerate(layer.norms):
                    there.norms[at], there.eps[at] = weight.data_ptr(), float(F32(eps))
                for at, rows in enumerate(layer.rows):
                    there.codes[at], there.scales[at] = rows.places
                there.slot = call.shared.layout.offsets[layer.slot]
                there.factor = factors_of(layer.scale, None)[0]
            host = torch.frombuffer(bytearray(words), dtype=torch.uint8)
            self._table.append(host.to(call.faults.device))
        return self._table[0]

    def __call__(self, call: LaunchCall, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Compute the row that leaves the layers, or its logits."""
        function, g = function_of(self.geometry), self.geometry
        assert function is not None
        most = call.rows.most_tiles(0)
        out = torch.empty((1, g.hidden), device=x.device)
        height = self.head.weight.height if self.head else 0
        logits = torch.empty((1, height), device=x.device)
        floats = (g.hidden, (g.heads + 2 * g.groups) * g.dim, g.heads * g.dim, g.wide)
        integers = (g.heads, function.blocks)
        states = (2 * most * g.heads * g.dim, 8 * most * g.heads)
        memory, room = _split(x.device, (*floats, *integers, *states))
        counters = call.shared.counters.of(GRID_COUNTERS + g.groups * (most // 16 + 2))
        cos, sin, _ = call.shared.angles.of(self.turn)
        rows, head = call.rows, self.head
        keys = KeyWords(
            (c_void_p * 2)(cos.data_ptr(), sin.data_ptr()), position.data_ptr(),
            rows.owners.data_ptr(), rows.table.data_ptr(), room[6], room[7],
            counters[GRID_COUNTERS:].data_ptr(), rows.pages, most,
        )  # fmt: skip
        given = Arguments(
            self.table(call).data_ptr(), x.data_ptr(), *_places(head), out.data_ptr(),
            (c_void_p * 4)(*room[:4]), logits.data_ptr(), (c_void_p * 2)(*room[4:6]),
            call.faults.data_ptr(), counters.data_ptr(), keys, len(self.layers), height,
            float(F32(head.eps)) if head else 0.0, float(F32(1) / F32(g.hidden)),
        )  # fmt: skip
        if not compiled.is_collecting():
            function.launch(given)
        del memory
        return logits if self.head else out


def _places(head: Head | None) -> tuple[int, int, int]:
    """Return where a head's norm, scales and codes lie; nowhere if there is none."""
    if head is None:
        return 0, 0, 0
    return head.norm.data_ptr(), head.weight.scale.data_ptr(), head.weight.codes.data_ptr()


def _split(device: torch.device, counts: Sequence[int]) -> tuple[torch.Tensor, list[int]]:
    """Memory for so many words each, and where each begins, a line apart."""
    sizes = [-(-count // 32) * 32 for count in counts]
    memory = torch.empty(sum(sizes), dtype=torch.int32, device=device)
    return memory, [memory.data_ptr() + 4 * sum(sizes[:at]) for at in range(len(sizes))]
