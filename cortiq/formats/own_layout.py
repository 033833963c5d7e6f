"""Folders of our own: one safetensors file whose metadata says in what layout each tensor is.

`model.safetensors` has an entry `cortiq` among its metadata, a JSON object:

    version   of this description. contract: of the numerics. source: hash of the converted model
    rule      the recipe, the patterns, and the calibration, if there was one
    tensors   name -> {"layout", "shape", "sha256": {name in the file: hash of its bytes}}
    files     name of every other file -> hash

Blocks are U8 [..., bytes of a row] under the tensor's name. `w8`, `w8b256` and `w16` are I8 codes
under it, `NAME.low` (w16's low plane) and `NAME.scale`, F32. Floats are floats. Beside it lie the
configuration and the tokenizer as the source had them: files of a folder, or a GGUF file's metadata
as `metadata.gguf-header`, a GGUF header without tensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, UnsupportedError, shown
from cortiq.formats.digest import file_sha256
from cortiq.formats.gguf_header import GGML_TYPES
from cortiq.formats.mapped import MappedTensors, TensorInfo
from cortiq.formats.safetensors import SafetensorsFolder
from cortiq.formats.strict_json import parse_object

KEY, VERSION = "cortiq", 1
WEIGHTS_FILE, GGUF_HEADER = "model.safetensors", "metadata.gguf-header"
FLOATS = ("F32", "F16", "BF16")
BLOCKS: Mapping[str, tuple[int, int]] = {
    **{name: (n, size) for name, n, size in GGML_TYPES.values() if name not in FLOATS},
    "i4b32": (32, 20), "i4b32m": (32, 24), "i8b32": (32, 36), "i8b32m": (32, 40),
    "e2m1b16": (16, 12), "e4m3b32": (32, 36), "nf4b32": (32, 20), "fp4b32": (32, 20),
}  # fmt: skip
"""Elements and bytes of a block, by layout."""
ROWS: Mapping[str, int] = {"w8": 0, "w8b256": 256, "w16": 0}
"""Columns under one scale, 0 for the row, by layout whose codes and scales lie apart."""
ENDS = {"codes": "", "hi": "", "lo": ".low", "scale": ".scale"}
"""What is put behind a tensor's name, by part of its weight."""
PLACEHOLDER = "0" * 64
MAX_AXES = 8


def stored_parts(layout: str, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the type and shape in the file of each part of a tensor; "raw" is that of one part.

    Raises
    ------
    FormatError : rows are no whole blocks.
    """
    if layout in FLOATS:
        return {"raw": (layout, shape)}
    if layout in BLOCKS:
        elements, size = BLOCKS[layout]
        if shape[-1] % elements:
            raise FormatError(f"rows of {shape[-1]} columns are no whole blocks of {layout}")
        return {"raw": ("U8", (*shape[:-1], shape[-1] // elements * size))}
    names = ("hi", "lo") if layout == "w16" else ("codes",)
    parts: dict[str, tuple[str, tuple[int, ...]]] = dict.fromkeys(names, ("I8", shape))
    return {**parts, "scale": ("F32", (*shape[:-1], -(-shape[-1] // (ROWS[layout] or shape[-1]))))}


def name_in_file(name: str, part: str) -> str:
    """Return what a part of a tensor is called in the file."""
    return name + ENDS.get(part, "")


@dataclass(frozen=True)
class OwnTensor:
    """A tensor in codes of our own, mapped.

    Attributes
    ----------
    shape : elements, outermost axis first. type : its layout.
    stored : the parts of its weight, rows in order. note : nothing, as of any exact tensor.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    stored: Mapping[str, npt.NDArray[Any]]
    note: str = ""

    @property
    def raw(self) -> npt.NDArray[np.uint8]:
        """The bytes of its codes."""
        return next(iter(self.stored.values())).view(np.uint8)


@dataclass
class OwnLayout:
    """The description of a folder of our own.

    Attributes
    ----------
    contract, source, rule : of the conversion.
    layouts : layout and shape of each tensor. hashes : of each tensor in the file.
    files : hashes of the other files.
    """

    where: str
    contract: int
    source: str
    rule: Mapping[str, Any]
    layouts: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def read_description(folder: SafetensorsFolder) -> OwnLayout | None:
    """Return what the file's metadata says of our layout; None for other folders.

    Raises
    ------
    FormatError : the description is none, or does not fit the file's tensors.
    UnsupportedError : it is of a later version.
    """
    text = folder.metadata.get(KEY)
    if text is None:
        return None
    where = str(folder.paths[0])
    said = parse_object(text.encode(), f"{where}, metadata {KEY!r}")
    version, contract = said.get("version"), said.get("contract")
    if version != VERSION or type(contract) is not int:
        what = f"is a folder of cortiq's of version {shown(version)}"
        hint = f"version {VERSION} is read; convert the model again"
        raise UnsupportedError(what, where=where, hint=hint)
    source, rule = said.get("source"), said.get("rule")
    tensors, files = said.get("tensors"), said.get("files")
    if not isinstance(source, str) or not isinstance(rule, dict):
        _fail(where, "does not say what it was converted from, and how")
    if not isinstance(tensors, dict) or not isinstance(files, dict) or not _is_hashes(files):
        _fail(where, "lists neither tensors nor files")
    found = OwnLayout(where, contract, source, rule, files=files)
    for name, entry in tensors.items():
        _add(found, name, entry, folder)
    beyond = folder.tensors.keys() - found.hashes.keys()
    if beyond:
        _fail(where, f"holds {shown(min(beyond))}, which its description does not have")
    return found


def _fail(where: str, what: str) -> NoReturn:
    raise FormatError(what, where=where)


def _is_hashes(value: Any) -> bool:
    """Return whether a value maps names of files to hexadecimal hashes."""
    if not isinstance(value, dict):
        return False
    pairs = value.items()
    return all(isinstance(h, str) and len(h) == 64 and _is_within(n) for n, h in pairs)


def _is_within(name: str) -> bool:
    """Return whether a name is that of a file in the folder, or in one directly within it."""
    parts = Path(name).parts
    return "/".join(parts) == name and 0 < len(parts) <= 2 and ".." not in parts


def _add(found: OwnLayout, name: str, entry: Any, folder: SafetensorsFolder) -> None:
    """Check a tensor's description against the file, and take it."""
    if not isinstance(entry, dict) or entry.keys() != {"layout", "shape", "sha256"}:
        _fail(found.where, f"describes {shown(name)} as {shown(entry)}")
    layout = entry["layout"]
    if not isinstance(layout, str) or layout not in {*FLOATS, *BLOCKS, *ROWS}:
        hint = f"layouts: {', '.join((*FLOATS, *BLOCKS, *ROWS))}"
        what = f"{shown(name)} is in {shown(layout)}"
        raise UnsupportedError(what, where=found.where, hint=hint)
    shape = entry["shape"]
    least = 0 if layout in FLOATS else 1
    fits = isinstance(shape, list) and least <= len(shape) <= MAX_AXES
    if not fits or not all(type(n) is int and 0 < n < 1 << 40 for n in shape):
        _fail(found.where, f"gives {shown(name)} the shape {shown(shape)}")
    parts = stored_parts(layout, tuple(shape))
    names = {name_in_file(name, part): wanted for part, wanted in parts.items()}
    if not _is_hashes(entry["sha256"]) or entry["sha256"].keys() != names.keys():
        _fail(found.where, f"has no hash for each part of {shown(name)}")
    for own, wanted in names.items():
        there = folder.tensors.get(own)
        if there is None or (there.type, there.shape) != wanted or own in found.hashes:
            have = "missing" if there is None else f"{there.type} {list(there.shape)}"
            _fail(found.where, f"{own!r} is {have}, should be {wanted[0]} {list(wanted[1])}")
    found.layouts[name] = (layout, tuple(shape))
    found.hashes |= entry["sha256"]


class OwnFolder(MappedTensors):
    """The tensors of a folder of our own, in their layouts."""

    def __init__(self, inner: SafetensorsFolder, description: OwnLayout) -> None:
        self.inner, self.description = inner, description
        tensors = {name: self._info(name) for name in description.layouts}
        super().__init__(inner.path, inner.paths, tensors, inner._buffers)

    def _info(self, name: str) -> TensorInfo:
        layout, shape = self.description.layouts[name]
        first = self.inner.tensors[name]
        names = [name_in_file(name, part) for part in stored_parts(layout, shape)]
        total = sum(self.inner.tensors[own].nbytes for own in names)
        row = first.nbytes // max(1, prod(shape[:-1]))
        return TensorInfo(name, shape, layout, first.part, first.offset, total, row)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor of one part, rows in order."""
        data = MappedTensors.raw(self.inner, name)
        shape = self.tensors[name].shape
        return data.reshape(*shape[:-1], -1)

    def joined(self, name: str) -> OwnTensor | None:
        """Return a tensor of several parts, or None for one of floats or blocks."""
        layout, shape = self.description.layouts[name]
        if layout not in ROWS:
            return None
        stored = {}
        for part, (kind, there) in stored_parts(layout, shape).items():
            data = MappedTensors.raw(self.inner, name_in_file(name, part))
            stored[part] = data.view("<f4" if kind == "F32" else "i1").reshape(there)
        return OwnTensor(name, shape, layout, stored)

    def close(self) -> None:
        """Release the files."""
        super().close()
        self.inner.close()

    def damaged(self) -> Iterator[str]:
        """Yield what of the folder does not have the hash that it was written with; reads all."""
        for name, expected in self.description.hashes.items():
            data = memoryview(MappedTensors.raw(self.inner, name).reshape(-1).data)
            if hashlib.sha256(data).hexdigest() != expected:
                yield f"tensor {name!r}"
        for name, expected in self.description.files.items():
            path = self.path / name
            if not path.is_file() or file_sha256(path) != expected:
                yield f"file {name!r}"


def described(text: Mapping[str, Any]) -> str:
    """Return a description as it is put among the metadata."""
    return json.dumps(text, ensure_ascii=False, separators=(",", ":"))
