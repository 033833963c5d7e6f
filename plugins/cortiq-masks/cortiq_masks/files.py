"""Files of masks: one safetensors file, named `NAME.mask`, and the masks of a CMF file.

Tensors are `neurons.LAYER`, `heads.LAYER` and `means.LAYER`, float32, and `closed`, int32; the
metadata say `cortiq.mask: 1` and the `name`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cortiq.errors import FormatError, RequestError, UnsupportedError, shown
from cortiq.formats.cmf.masks import TaskMask
from cortiq.formats.cmf.reader import open_cmf
from cortiq.formats.safetensors import SafetensorsHeader, read_header
from cortiq.formats.safetensors_writer import write_safetensors
from cortiq.numerics.contract import F32, Floats, snap
from cortiq_masks.mask import ActivationMask

SUFFIX = ".mask"
VERSION = "1"
_KEY = "cortiq.mask"
_VECTOR = re.compile(r"(neurons|heads|means)\.(0|[1-9]\d{0,5})", re.ASCII)


def write_mask(path: Path, mask: ActivationMask) -> None:
    """Write a mask; the same mask gives the same bytes."""
    arrays = {
        f"{kind}.{layer}": vector.astype(F32)
        for kind in ("neurons", "heads", "means")
        for layer, vector in getattr(mask, kind).items()
    }
    closed = np.array(sorted(mask.closed), np.int32)
    write_safetensors(path, {**arrays, "closed": closed}, {_KEY: VERSION, "name": mask.name})


def read_mask(path: Path) -> ActivationMask:
    """Read a mask.

    Raises
    ------
    FormatError : it is none, or a number of it is not finite or too large.
    """
    header = read_header(path)
    if header.metadata.get(_KEY) != VERSION:
        what = f"is no mask of version {VERSION}: {_KEY} is {shown(header.metadata.get(_KEY))}"
        raise FormatError(what, where=str(path))
    found: dict[str, dict[int, Floats]] = {"neurons": {}, "heads": {}, "means": {}}
    for name, tensor in header.tensors.items():
        matched = _VECTOR.fullmatch(name)
        if name == "closed" and tensor.type == "I32" and len(tensor.shape) == 1:
            continue
        if matched is None or tensor.type != "F32" or len(tensor.shape) != 1:
            raise FormatError(f"holds {shown(name)}, which no mask has", where=str(path))
        found[matched[1]][int(matched[2])] = _vector(header, name)
    closed = _numbers(header)
    return ActivationMask(header.metadata.get("name", path.stem), closed=closed, **found)


def _bytes(header: SafetensorsHeader, name: str, kind: str) -> np.ndarray:
    tensor = header.tensors[name]
    return np.frombuffer(header.buffer, kind, tensor.nbytes // 4, tensor.offset)


def _vector(header: SafetensorsHeader, name: str) -> Floats:
    values = _bytes(header, name, "<f4").astype(F32)
    if not np.isfinite(values).all() or (np.abs(values) >= 2.0**50).any():
        what = f"{name} holds a number that is not finite, or too large"
        raise FormatError(what, where=str(header.path))
    return snap(values)


def _numbers(header: SafetensorsHeader) -> frozenset[int]:
    if "closed" not in header.tensors:
        return frozenset()
    values = _bytes(header, "closed", "<i4")
    if len(values) and values.min() < 0:
        raise FormatError(f"closes layer {values.min()}", where=str(header.path))
    return frozenset(int(v) for v in values)


def cmf_masks(path: Path) -> Mapping[str, ActivationMask]:
    """Return the masks of a CMF file, by task.

    Raises
    ------
    UnsupportedError : one restricts experts, or closes other neurons in each pass of a loop.
    """
    with open_cmf(path) as file:
        arch = file.header.arch
        experts = arch.moe.num_experts if arch.moe else 0
        sizes = arch.num_layers, arch.intermediate_size, arch.num_attention_heads, experts
        masks = {one.record.name: _of_bits(one, sizes, str(path)) for one in file.masks.masks}
    if not masks:
        raise RequestError("holds no masks", where=str(path))
    return masks


def _of_bits(task: TaskMask, sizes: tuple[int, int, int, int], where: str) -> ActivationMask:
    """Return a mask of rows of bits."""
    layers, width, heads, experts = sizes
    inside = f"{where}, {shown(task.record.name)}"
    if task.experts is not None and not all(_factors(r, experts).all() for r in task.experts):
        raise UnsupportedError("restricts experts, which no overlay does", where=inside)
    rows = task.neurons.reshape(-1, layers, task.neurons.shape[-1])
    if (rows != rows[0]).any():
        raise UnsupportedError("differs from pass to pass of a loop", where=inside)
    return ActivationMask(
        task.record.name,
        {i: row for i in range(layers) if not (row := _factors(rows[0, i], width)).all()},
        {i: row for i in range(layers) if not (row := _factors(task.heads[i], heads)).all()},
        frozenset(i for i in range(layers) if not task.is_active(i)),
    )


def _factors(row: np.ndarray, count: int) -> Floats:
    return np.unpackbits(row, bitorder="little")[:count].astype(F32)
