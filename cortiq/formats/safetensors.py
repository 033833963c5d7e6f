"""Tensors of a Hugging Face folder: safetensors files, memory-mapped, without torch.

Layout: u64 bytes of the header (little-endian), a JSON object
`name -> {"dtype", "shape", "data_offsets": [first, end]}` with offsets counted from the header's
end, then the tensors without a gap. Source: the README of the safetensors project. Pickled weights
are refused: reading them runs whatever code they contain.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, UnsupportedError, shown
from cortiq.formats.mapped import MappedTensors, TensorInfo, map_file
from cortiq.formats.raw_tensor import INTEGERS
from cortiq.formats.strict_json import parse_object, read_object

WEIGHT_TYPES = ("F32", "F16", "BF16")
"""Types that weights may have; tensors of other types may be present but not be read."""

ITEM_BYTES: dict[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
    "C64": 8,
}
"""Bytes of an element by the header's name of its type."""

INDEX_NAME = "model.safetensors.index.json"
PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

MAX_HEADER = 16 << 20
"""Bytes of the longest header that is read."""
_MAX_TENSORS = 1 << 17
_MAX_AXES = 8
_SHARD_NAME = re.compile(r"\w[\w.+-]{,199}", re.ASCII)
_KEYS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """One file's tensor table, its memory map, and its writer's `metadata`."""

    path: Path
    buffer: mmap.mmap
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]


class SafetensorsFolder(MappedTensors):
    """The tensors of a Hugging Face folder; `metadata` is what the writer of a single file says."""

    metadata: Mapping[str, str] = MappingProxyType({})

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return a tensor's bytes; raise UnsupportedError for a type that weights cannot have."""
        tensor = self.tensors.get(name)
        if tensor is not None and tensor.type not in (*WEIGHT_TYPES, *INTEGERS):
            message = f"tensor {name!r} has type {tensor.type}"
            hint = f"supported: {', '.join(WEIGHT_TYPES)}"
            raise UnsupportedError(message, where=str(self.paths[tensor.part]), hint=hint)
        return super().raw(name)


def open_safetensors(folder: str | Path) -> SafetensorsFolder:
    """Open the weights of a folder: one safetensors file, or the shards that its index names.

    Tensors that are in a shard but not in the index are not the model's and are left out.

    Raises
    ------
    FormatError : no weights, a missing shard, a tensor the index promises, a corrupt header.
    UnsupportedError : only pickled weights, or an unknown element type.
    """
    folder = Path(folder)
    path = _weights_file(folder)
    if path.name == INDEX_NAME:
        return _open_shards(folder, _weight_map(path))
    header = read_header(path)
    found = SafetensorsFolder(folder, [header.path], header.tensors, [header.buffer])
    found.metadata = header.metadata
    return found


def read_header(path: Path, part: int = 0) -> SafetensorsHeader:
    """Map one safetensors file and check its header whole; `part` goes into each TensorInfo."""
    buffer = map_file(path)
    end = _header_end(path, buffer)
    table = parse_object(buffer[8:end], f"{path}, header")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _fail(path, "__metadata__ is not a mapping of strings")
    tensors = {name: _tensor(path, name, entry, end, part) for name, entry in table.items()}
    _check_cover(path, list(tensors.values()), end, len(buffer))
    return SafetensorsHeader(path, buffer, tensors, metadata)


def _fail(path: Path, what: str) -> NoReturn:
    raise FormatError(what, where=str(path))


def _header_end(path: Path, buffer: mmap.mmap) -> int:
    """Return the first byte after the header, which is parsed only if its size is plausible."""
    if len(buffer) < 8:
        _fail(path, f"truncated: {len(buffer)} bytes are no safetensors file")
    length = struct.unpack_from("<Q", buffer)[0]
    if length > len(buffer) - 8:
        _fail(path, f"truncated or corrupt: the header has {length} bytes of {len(buffer)}")
    if length > MAX_HEADER:
        _fail(path, f"the header has {length} bytes, more than {MAX_HEADER}")
    header = buffer[8 : 8 + length]
    if not header.startswith(b"{"):
        _fail(path, "not a safetensors file: the header is no JSON object")
    # A tensor is three brackets; this bounds the objects that parsing can create.
    if header.count(b"[") + header.count(b"{") > 3 * _MAX_TENSORS:
        _fail(path, f"the header has more than {_MAX_TENSORS} tensors")
    return 8 + length


def _tensor(path: Path, name: str, entry: Any, base: int, part: int) -> TensorInfo:
    what = f"tensor {name!r}"
    if not isinstance(entry, dict) or entry.keys() != _KEYS:
        _fail(path, f"{what} is not described by {', '.join(sorted(_KEYS))}")
    shape, offsets, type_name = entry["shape"], entry["data_offsets"], entry["dtype"]
    if not _is_counts(shape):
        _fail(path, f"{what} has the shape {shown(shape)}")
    if not _is_counts(offsets) or len(offsets) != 2:
        _fail(path, f"{what} has the offsets {shown(offsets)}")
    if not isinstance(type_name, str) or type_name not in ITEM_BYTES:
        hint = f"supported: {', '.join(WEIGHT_TYPES)}"
        message = f"{what} has type {shown(type_name)}"
        raise UnsupportedError(message, where=str(path), hint=hint)
    item = ITEM_BYTES[type_name]
    nbytes, row_bytes = item * prod(shape), item * (shape[-1] if shape else 1)
    if offsets[1] - offsets[0] != nbytes:
        _fail(path, f"{what} has {shown(shape)} {type_name}, but offsets {shown(offsets)}")
    start = base + offsets[0]
    return TensorInfo(name, tuple(shape), type_name, part, start, nbytes, row_bytes)


def _is_counts(values: Any) -> bool:
    """Return whether a value is a short list of sizes; a long or huge one makes products slow."""
    if not isinstance(values, list) or len(values) > _MAX_AXES:
        return False
    return all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _check_cover(path: Path, tensors: list[TensorInfo], start: int, end: int) -> None:
    """Check that every byte after the header belongs to exactly one tensor."""
    position = start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != position:
            how = "overlaps what is" if tensor.offset < position else "leaves a gap"
            _fail(path, f"tensor {tensor.name!r} {how} before it, at byte {position}")
        position += tensor.nbytes
    if position != end:
        _fail(path, f"truncated or corrupt: tensors end at byte {position} of {end}")


def _weights_file(folder: Path) -> Path:
    """Return the file to open: model.safetensors, the index, or else the only safetensors file."""
    for name in ("model.safetensors", INDEX_NAME):
        if (folder / name).is_file():
            return folder / name
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if files:
        _fail(folder, f"holds {len(files)} safetensors files and no {INDEX_NAME}")
    for file in sorted(folder.iterdir()):
        if file.suffix in PICKLED_SUFFIXES:
            refuse_pickled(file)
    _fail(folder, "holds no *.safetensors file")


def refuse_pickled(path: Path) -> NoReturn:
    """Raise UnsupportedError for pickled weights."""
    message = "pickled weights are refused: reading a pickle runs the code in it"
    raise UnsupportedError(message, where=str(path), hint="convert them to safetensors")


def _weight_map(index: Path) -> dict[str, str]:
    weights = read_object(index).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        _fail(index, "has no weight_map")
    for name, file in weights.items():
        # A name with a folder in it could point anywhere on the machine.
        if not isinstance(file, str) or not _SHARD_NAME.fullmatch(file):
            _fail(index, f"tensor {name!r} is in {shown(file)}, which is not a plain file name")
        if file.endswith(PICKLED_SUFFIXES):
            refuse_pickled(index.parent / file)
        if not file.endswith(".safetensors"):
            _fail(index, f"tensor {name!r} is in {file}, which is not a safetensors file")
    return weights


def _open_shards(folder: Path, weights: dict[str, str]) -> SafetensorsFolder:
    names = sorted(set(weights.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        listed = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        _fail(folder, f"{len(missing)} of {len(names)} shards are missing: {listed}")
    headers = {name: read_header(folder / name, part) for part, name in enumerate(names)}
    tensors: dict[str, TensorInfo] = {}
    for name, file in weights.items():
        if name not in headers[file].tensors:
            _fail(folder / file, f"has no tensor {name!r}, though {INDEX_NAME} says so")
        tensors[name] = headers[file].tensors[name]
    paths = [header.path for header in headers.values()]
    return SafetensorsFolder(folder, paths, tensors, [h.buffer for h in headers.values()])
