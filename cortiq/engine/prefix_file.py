"""A prefix in a file: a sequence in the canonical layout, good for any backend.

A safetensors file. Metadata: `format`, `contract`, `model` (the model's fingerprint), `lengths`
(JSON, rows by entry graph) and `sha256`, of everything else: of the JSON of the other metadata and
of every tensor's type and shape, then of the tensors' bytes in the order of their names. Tensors:
`tokens` (I32), for each `KVRows` slot `NAME/key_high` … `NAME/value_exponent` (I8), for any other
slot `NAME` (F32). Slots that are seen through windows may lack their first rows
(`cortiq.backend.KVPlanes`): there a prefix cannot be cut. Nothing in it is run: names, types,
shapes and values are those of this model or the file is refused. That they are what the model
computes of the tokens is believed; `first_difference` compares with what was computed again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cortiq.atomic import write_atomically
from cortiq.backend import ExportedState, KVPlanes, check_exported
from cortiq.errors import FormatError, RequestError, shown
from cortiq.formats.safetensors import SafetensorsHeader, read_header
from cortiq.formats.strict_json import parse_object
from cortiq.ir import KVRows, Program
from cortiq.ir.encoded import most_rows
from cortiq.numerics.contract import CONTRACT_VERSION

FORMAT = "cortiq prefix 3"
EARLIER = ("cortiq prefix 1", "cortiq prefix 2")
"""Formats that are read too: their hash is of the tensors' bytes alone, and in the first no rows
were ever given up.
"""
TYPES = {"int8": "I8", "int32": "I32", "float32": "F32"}
DTYPES = {name: np.dtype(dtype) for dtype, name in TYPES.items()}
PLANES = tuple(field.name for field in dataclasses.fields(KVPlanes))
Arrays = Mapping[str, np.ndarray]


def write_prefix(path: str | Path, exported: ExportedState, model_hash: str) -> None:
    """Write a sequence to a file, whole or not at all.

    Raises
    ------
    RequestError : the file cannot be written.
    """
    arrays = _arrays(exported)
    metadata = {
        "format": FORMAT, "contract": str(CONTRACT_VERSION), "model": model_hash,
        "lengths": json.dumps(dict(exported.lengths), sort_keys=True),
    }  # fmt: skip
    metadata["sha256"] = _hash(arrays, metadata)
    table: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, array in arrays.items():
        offsets = [at, at + array.nbytes]
        dtype = TYPES[array.dtype.name]
        table[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        at += array.nbytes
    header = json.dumps(table, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    head = struct.pack("<Q", len(header)) + header
    try:
        write_atomically(path, [head, *(array.tobytes() for array in arrays.values())])
    except OSError as error:
        raise RequestError(f"cannot be written: {error.strerror}", where=str(path)) from None


def _arrays(exported: ExportedState) -> dict[str, np.ndarray]:
    """Return all arrays of a sequence, little-endian, by name in order."""
    found: dict[str, np.ndarray] = {"tokens": np.asarray(exported.tokens, "<i4")}
    for name, rows in exported.slots.items():
        if isinstance(rows, KVPlanes):
            found |= {f"{name}/{plane}": getattr(rows, plane) for plane in PLANES}
        else:
            found[name] = np.asarray(rows, "<f4")
    return {name: np.ascontiguousarray(found[name]) for name in sorted(found)}


def _hash(arrays: Arrays, metadata: Mapping[str, str]) -> str:
    """Return the hash of a file of this format, or of the earlier one that the metadata name."""
    digest = hashlib.sha256()
    if metadata["format"] not in EARLIER:
        said = {key: value for key, value in metadata.items() if key != "sha256"}
        shapes = {name: [TYPES[a.dtype.name], *a.shape] for name, a in arrays.items()}
        told = json.dumps([said, shapes], sort_keys=True, separators=(",", ":"))
        digest.update(told.encode() + b"\n")
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def read_prefix(path: str | Path, program: Program, model_hash: str) -> ExportedState:
    """Read the sequence in a file, and check that it is one of this model's.

    Raises
    ------
    FormatError : no such file, or it is damaged.
    RequestError : it is of another model, another contract, or no sequence that this model can be.
    """
    header = read_header(Path(path))
    metadata, where = header.metadata, str(path)
    if metadata.get("format") not in (FORMAT, *EARLIER):
        raise FormatError("is no prefix that cortiq saved", where=where)
    if metadata.get("contract") != str(CONTRACT_VERSION):
        told = shown(metadata.get("contract"))
        what = f"was made under contract {told}, this is contract {CONTRACT_VERSION}"
        raise RequestError(what, where=where, hint="save the prefix again")
    if metadata.get("model") != model_hash:
        raise RequestError("is of another model file", where=where, hint="save the prefix again")
    arrays = {name: _read(header, name) for name in header.tensors}
    if metadata.get("sha256") != _hash(arrays, metadata):
        raise FormatError("is damaged: its bytes have another hash", where=where)
    exported = _exported(arrays, metadata, program, where)
    try:
        check_exported(exported, program, most_rows(program))
    except RequestError as error:
        raise RequestError(error.what, where=f"{where}, {error.where}") from None
    return exported


def _read(header: SafetensorsHeader, name: str) -> np.ndarray:
    tensor = header.tensors[name]
    if tensor.type not in DTYPES:
        raise FormatError(f"{name!r} has type {tensor.type}", where=str(header.path))
    dtype = DTYPES[tensor.type]
    count = tensor.nbytes // dtype.itemsize
    data = np.frombuffer(header.buffer, dtype.newbyteorder("<"), count, tensor.offset)
    return data.astype(dtype).reshape(tensor.shape)


def _exported(
    arrays: Arrays, metadata: Mapping[str, str], program: Program, where: str
) -> ExportedState:
    """Return the arrays as a sequence of the program's slots; none may be missing or left over."""
    names = {"tokens"}
    for name, slot in program.slots.items():
        names |= {f"{name}/{p}" for p in PLANES} if isinstance(slot, KVRows) else {name}
    if names != set(arrays):
        absent, over = sorted(names - set(arrays)), sorted(set(arrays) - names)
        what = f"lacks {absent[0]!r} of" if absent else f"holds {over[0]!r}, which is none of"
        hint = "load the model with the heads it was saved with, or save the prefix again"
        raise RequestError(f"{what} this model's slots", where=where, hint=hint)
    lengths = parse_object(metadata.get("lengths", "").encode(), f"{where}, lengths")
    slots: dict[str, KVPlanes | np.ndarray] = {}
    for name, slot in program.slots.items():
        kv = isinstance(slot, KVRows)
        slots[name] = KVPlanes(*(arrays[f"{name}/{p}"] for p in PLANES)) if kv else arrays[name]
    return ExportedState(lengths, arrays["tokens"], slots)


def first_difference(given: ExportedState, computed: ExportedState) -> str:
    """Return the name of the first part that is not as computed; empty if all is equal.

    Of slots that are seen through windows, the rows that both have are compared.
    """
    if dict(given.lengths) != dict(computed.lengths):
        return "lengths"
    ours, theirs = _arrays(computed), _arrays(given)
    for name, array in theirs.items():
        rows = min(len(array), len(ours[name])) if "/" in name else len(array)
        if array[len(array) - rows :].tobytes() != ours[name][len(ours[name]) - rows :].tobytes():
            return name
    return ""
