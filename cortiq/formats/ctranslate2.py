"""Whisper in CTranslate2's form, as faster-whisper's folders have it: `model.bin`, mapped.

Layout, little-endian: u32 version, the name of the specification and its u32 revision, u32 number
of tensors; for each its name, u8 axes, u32 sizes, u8 type, u32 bytes, and the bytes; then aliases.
A name is its u16 length, NUL included, and its letters. Source: CTranslate2's `model_spec.py`
(MIT). Tensors get the names of Hugging Face folders; a joint matrix is several of them, one below
the other.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.mapped import MappedTensors, TensorInfo, map_file

FILE, SPECIFICATION = "model.bin", "WhisperSpec"
VERSIONS = range(3, 7)
TYPES: Mapping[int, tuple[str, int]] = {
    0: ("F32", 4), 1: ("I8", 1), 2: ("I16", 2), 3: ("I32", 4), 4: ("F16", 2), 5: ("BF16", 2),
}  # fmt: skip
"""Type and bytes of an element, by CTranslate2's number."""
FLOATS = ("F32", "F16", "BF16")
MOST_TENSORS, MOST_AXES = 1 << 14, 4
LAYER = re.compile(r"(encoder|decoder)/layer_(\d{1,4})/(.+)/(weight|bias|gamma|beta)")
PLAIN: Mapping[str, str] = {
    "encoder/conv1/weight": "encoder.conv1.weight", "encoder/conv1/bias": "encoder.conv1.bias",
    "encoder/conv2/weight": "encoder.conv2.weight", "encoder/conv2/bias": "encoder.conv2.bias",
    "decoder/embeddings/weight": "decoder.embed_tokens.weight",
    **{f"{side}/position_encodings/encodings": f"{side}.embed_positions.weight"
       for side in ("encoder", "decoder")},
    **{f"{side}/layer_norm/{theirs}": f"{side}.layer_norm.{ours}"
       for side in ("encoder", "decoder")
       for theirs, ours in (("gamma", "weight"), ("beta", "bias"))},
}  # fmt: skip
PARTS: Mapping[str, tuple[str, ...]] = {
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/layer_norm": ("final_layer_norm",), "ffn/linear_0": ("fc1",), "ffn/linear_1": ("fc2",),
}  # fmt: skip
"""Tensors of a layer, and those of a folder that each holds."""
ROLES = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


@dataclass
class _TensorReader:
    """Reads numbers and names from a file; its end is an error."""

    path: Path
    buffer: mmap.mmap
    at: int = 0

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
        if self.at + size > len(self.buffer):
            fail(self.path, "is cut off")
        (value,) = struct.unpack_from("<" + form, self.buffer, self.at)
        self.at += size
        return int(value)

    def name(self) -> str:
        size = self.number("H")
        text = self.buffer[self.at : self.at + size]
        self.at += size
        return text.rstrip(b"\0").decode("utf-8", "replace")

    def tensor(self) -> TensorInfo:
        name, axes = self.name(), self.number("B")
        if axes > MOST_AXES:
            fail(self.path, f"tensor {name!r} has {axes} axes")
        shape = tuple(self.number("I") for _ in range(axes))
        kind, nbytes = self.number("B"), self.number("I")
        if kind not in TYPES:
            fail(self.path, f"tensor {name!r} has the type {kind}")
        type_, item = TYPES[kind]
        if prod(shape) * item != nbytes or self.at + nbytes > len(self.buffer):
            fail(self.path, f"tensor {name!r} of {list(shape)} has {nbytes} bytes, or is cut off")
        row = item * (shape[-1] if shape else 1)
        found = TensorInfo(name, shape, type_, 0, self.at, nbytes, row)
        self.at += nbytes
        return found


def fail(path: Path, what: str) -> NoReturn:
    """Raise FormatError about a file."""
    raise FormatError(what, where=str(path))


def is_ctranslate2(folder: Path) -> bool:
    """Return whether a folder holds a Whisper model in this form."""
    try:
        with (folder / FILE).open("rb") as file:
            head = file.read(6 + len(SPECIFICATION))
    except OSError:
        return False
    return head[:4] in [struct.pack("<I", n) for n in VERSIONS] and head.endswith(
        SPECIFICATION.encode()
    )


def open_ctranslate2(folder: Path) -> tuple[MappedTensors, dict[str, int]]:
    """Open a folder's tensors, by the names of Hugging Face folders, and its scalars.

    Raises
    ------
    FormatError : the file is damaged.
    UnsupportedError : its matrices are quantised.
    """
    path = folder / FILE
    reader = _TensorReader(path, map_file(path))
    reader.at = 4
    reader.name()
    reader.number("I")
    count = reader.number("I")
    if count > MOST_TENSORS:
        fail(path, f"has {count} tensors")
    found = [reader.tensor() for _ in range(count)]
    tensors: dict[str, TensorInfo] = {}
    for info in found:
        if info.shape and info.name.endswith("weight") and info.type not in FLOATS:
            hint = "take one of float16, bfloat16 or float32"
            what = f"{info.name} is {info.type}: quantised models of CTranslate2 are not read"
            raise UnsupportedError(what, where=str(path), hint=hint)
        for part in _parts(path, info):
            tensors[part.name] = part
    made = MappedTensors(folder, [path], tensors, [reader.buffer])
    for name in [name for name in tensors if name.endswith("k_proj.bias")]:
        if made.raw(name).any():
            fail(path, f"{name} is not zero, as Whisper's is")
        del tensors[name]
    scalars = {info.name: _scalar(reader.buffer, info) for info in found if not info.shape}
    return made, scalars


def _parts(path: Path, info: TensorInfo) -> Iterator[TensorInfo]:
    """Yield the tensors of a Hugging Face folder that a tensor holds."""
    if info.name in PLAIN:
        yield replace(info, name=f"model.{PLAIN[info.name]}")
    layer = LAYER.fullmatch(info.name)
    if layer is None or layer[3] not in PARTS:
        return
    names: Sequence[str] = PARTS[layer[3]]
    rows, rest = divmod(info.shape[0], len(names))
    if rest or not rows:
        fail(path, f"tensor {info.name!r} of {list(info.shape)} holds {len(names)} matrices")
    size = info.nbytes // len(names)
    shape = (rows, *info.shape[1:])
    row = info.row_bytes if len(shape) > 1 else size
    for number, name in enumerate(names):
        whole = f"model.{layer[1]}.layers.{layer[2]}.{name}.{ROLES[layer[4]]}"
        yield TensorInfo(whole, shape, info.type, 0, info.offset + number * size, size, row)


def _scalar(buffer: mmap.mmap, info: TensorInfo) -> int:
    form = {"F32": "<f4", "F16": "<f2", "I8": "i1", "I16": "<i2", "I32": "<i4"}.get(info.type)
    return 0 if form is None else int(np.frombuffer(buffer, form, 1, info.offset)[0])


def whisper_config(tensors: MappedTensors, scalars: Mapping[str, int]) -> dict[str, Any]:
    """Return what config.json of a Hugging Face folder would say of these tensors."""
    names = tensors.tensors

    def size(name: str, axis: int) -> int:
        info = names.get(f"model.{name}")
        if info is None or len(info.shape) <= axis:
            fail(tensors.path / FILE, f"has no {name}")
        return info.shape[axis]

    found: dict[str, Any] = {"model_type": "whisper", "is_encoder_decoder": True}
    found |= {
        "d_model": size("encoder.conv1.weight", 0),
        "num_mel_bins": size("encoder.conv1.weight", 1),
    }
    found |= {"vocab_size": size("decoder.embed_tokens.weight", 0)}
    sides = (("encoder", "max_source_positions"), ("decoder", "max_target_positions"))
    for side, places in sides:
        numbers = [re.match(rf"model\.{side}\.layers\.(\d+)\.", name) for name in names]
        found[f"{side}_layers"] = 1 + max((int(n[1]) for n in numbers if n), default=-1)
        found[f"{side}_attention_heads"] = scalars.get(f"{side}/num_heads", 0)
        found[f"{side}_ffn_dim"] = size(f"{side}.layers.0.fc1.weight", 0)
        found[places] = size(f"{side}.embed_positions.weight", 0)
    return found


ENGLISH_ONLY = 51864
"""Ids of the models that know English only; others have a token more."""


def whisper_settings(
    config: Mapping[str, Any], tokenizer: Mapping[str, Any], vocabulary: int
) -> dict[str, Any]:
    """Return what generation_config.json would say: the end, what is never drawn, and languages.

    Parameters
    ----------
    config : the folder's config.json, of CTranslate2. tokenizer : its tokenizer.json.
    """
    added = tokenizer.get("added_tokens")
    listed = [one for one in added if isinstance(one, dict)] if isinstance(added, list) else []
    ids = {one.get("content"): one.get("id") for one in listed}
    languages = config.get("lang_ids") if vocabulary > ENGLISH_ONLY else []
    known = set(languages if isinstance(languages, list) else [])
    return {
        "eos_token_id": ids.get("<|endoftext|>"),
        "suppress_tokens": config.get("suppress_ids"),
        "begin_suppress_tokens": config.get("suppress_ids_begin"),
        "lang_to_id": {name: token for name, token in ids.items() if token in known},
    }
