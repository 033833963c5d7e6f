"""Task masks of a CMF file: bits of neurons, heads, layers and experts that a task uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, shown
from cortiq.formats.cmf.fields import read_fields
from cortiq.formats.cmf.header import Arch
from cortiq.formats.strict_json import parse_object

Bytes = npt.NDArray[np.uint8]
PRIORITIES = ("Fallback", "Normal", "Primary")


@dataclass(frozen=True)
class MaskRecord:
    """The entry of a mask; a quality of None was not measured."""

    task_id: int
    name: str
    sparsity: float
    blob_off: int
    blob_len: int
    description: str | None = None
    quality: Mapping[str, Any] | None = None
    parent: Any = None
    priority: str = "Normal"
    has_hot_pack: bool = False
    has_expert_fields: bool = False


@dataclass(frozen=True)
class _Listed:
    masks: tuple[MaskRecord, ...]
    default_task: Any = None


@dataclass(frozen=True)
class TaskMask:
    """A mask: rows of bits, bit i in byte i div 8 at i mod 8, 1 for what is used.

    Attributes
    ----------
    neurons : uint8 [passes·layers or layers, ⌈intermediate/8⌉], all layers of a pass together.
    heads : uint8 [layers, ⌈heads/8⌉]. gates : bits of the layers. experts : uint8 [layers, ⌈experts
    /8⌉], or None for no restriction.
    """

    record: MaskRecord
    neurons: Bytes
    heads: Bytes
    gates: Bytes
    experts: Bytes | None = None

    def neuron_row(self, layer: int, turn: int = 0) -> Bytes:
        """Return the neurons of a layer in a pass; files without passes have one row for all."""
        layers = len(self.heads)
        return self.neurons[layer + (turn * layers if len(self.neurons) > layers else 0)]

    def is_active(self, layer: int) -> bool:
        """Return whether a layer is used."""
        return bool(self.gates[layer // 8] >> (layer % 8) & 1)


@dataclass(frozen=True)
class MaskCatalogue:
    """The masks of a file, and the task that is taken where none is named."""

    masks: tuple[TaskMask, ...] = ()
    default_task: Any = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


def read_masks(data: Bytes, arch: Arch, where: str) -> MaskCatalogue:
    """Return the masks of a section; rows are views of it.

    Raises
    ------
    FormatError : the section is truncated, or a mask does not fit the architecture.
    """
    inside = f"{where}, masks"
    if len(data) < 8:
        raise FormatError(f"has {len(data)} bytes", where=inside)
    count, size = (int(n) for n in data[:8].view("<u4"))
    if 8 + size > len(data):
        raise FormatError(f"describes its masks in {size} bytes, and ends before", where=inside)
    given = parse_object(data[8 : 8 + size].tobytes(), inside, 32)
    listed = read_fields(_Listed, given, inside)
    if len(listed.masks) != count:
        raise FormatError(f"has {count} masks, and describes {len(listed.masks)}", where=inside)
    masks = tuple(_mask(record, data, arch, inside) for record in listed.masks)
    return MaskCatalogue(masks, listed.default_task, given)


def _mask(record: MaskRecord, data: Bytes, arch: Arch, where: str) -> TaskMask:
    layers = arch.num_layers
    inside = f"{where}, {shown(record.name)}"
    if record.priority not in PRIORITIES:
        raise FormatError(f"has the priority {shown(record.priority)}", where=inside)
    if record.has_expert_fields and arch.moe is None:
        raise FormatError("has bits of experts, and the model has none", where=inside)
    row = -(-arch.intermediate_size // 8)
    beside = layers * -(-arch.num_attention_heads // 8) + -(-layers // 8)
    experts = -(-arch.moe.num_experts // 8) if arch.moe and record.has_expert_fields else 0
    sizes = {n * row + beside + layers * experts: n for n in (layers, layers * arch.num_loops)}
    rows = sizes.get(record.blob_len)
    if rows is None or record.blob_off + record.blob_len > len(data):
        wanted = " or ".join(map(str, sorted(sizes)))
        what = f"has {record.blob_len} bytes at {record.blob_off}; its bits take {wanted}"
        raise FormatError(what, where=inside)
    blob = data[record.blob_off : record.blob_off + record.blob_len]
    ends = np.cumsum([rows * row, beside - -(-layers // 8), -(-layers // 8)])
    neurons, heads, gates, rest = np.split(blob, ends)
    return TaskMask(
        record, neurons.reshape(rows, -1), heads.reshape(layers, -1), gates,
        rest.reshape(layers, experts) if experts else None,
    )  # fmt: skip


def read_sparse_index(data: Bytes, where: str) -> int:
    """Return the entries of a sparse index, which nothing uses; `FormatError` if it is cut off."""
    inside = f"{where}, sparse index"
    if len(data) < 8:
        raise FormatError(f"has {len(data)} bytes", where=inside)
    count, at = int(data[:4].view("<u4")[0]), 8
    for number in range(count):
        if at + 16 > len(data):
            raise FormatError(f"ends before entry {number} of {count}", where=inside)
        groups, heads = (int(n) for n in data[at + 8 : at + 16].view("<u4"))
        at += 16 + -(-(2 * groups + heads) // 4) * 4
        if at > len(data):
            raise FormatError(f"ends inside entry {number} of {count}", where=inside)
    return count
