"""One interface for every model on disk: configuration, tensors, tokenizer, chat template."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, ModelNotFoundError
from cortiq.formats.digest import file_sha256
from cortiq.formats.file_types import file_type_name
from cortiq.formats.gguf import GGUFFile, GGUFMetadata, open_gguf
from cortiq.formats.mapped import MappedTensors, TensorInfo
from cortiq.formats.packed_gguf import read_packed_gguf
from cortiq.formats.packed_tensors import PackedTensor
from cortiq.formats.quantisation import KEYS as QUANTISATION_KEYS
from cortiq.formats.quantisation import OPT_FILE, Quantisation
from cortiq.formats.quantisation_config import read_quantisation
from cortiq.formats.quantised import read_quantised
from cortiq.formats.recommended import Sampling, of_generation_config, of_gguf
from cortiq.formats.safetensors import PICKLED_SUFFIXES, open_safetensors, refuse_pickled
from cortiq.formats.strict_json import read_object, read_optional, read_text
from cortiq.formats.text_model import (
    has_text_model,
    is_nested,
    text_config,
    text_tensors,
    with_tie,
    with_usual_prefix,
)

_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor in the file's own codes.

    Attributes
    ----------
    name : name in the file.
    shape : elements, outermost axis first.
    type : storage type as GGUF names them: "F32", "BF16", "Q4_K", ...
    raw : uint8 [rows..., bytes of a row], read-only, mapped; a vector has shape [bytes].
    """

    name: str
    shape: tuple[int, ...]
    type: str
    raw: npt.NDArray[np.uint8]


@dataclass
class Checkpoint:
    """A model on disk.

    Attributes
    ----------
    path : the file or folder.
    kind : "gguf" or "huggingface".
    config : GGUF metadata, or the object in config.json; of several models, the text model's.
    architecture : `general.architecture`, or `model_type` of the configuration.
    eos_token_ids : ids that end a text, as the files declare them, ascending.
    tokenizer_source : GGUF metadata, or the folder with tokenizer.json.
    chat_template : Jinja source, or None when the model has none.
    quantisation : what a Hugging Face folder says about quantised matrices.
    sampling : options of sampling that the files recommend.
    """

    path: Path
    kind: Literal["gguf", "huggingface"]
    config: Mapping[str, Any]
    architecture: str
    eos_token_ids: tuple[int, ...]
    tokenizer_source: GGUFMetadata | Path
    chat_template: str | None
    _tensors: MappedTensors = field(repr=False)
    quantisation: Quantisation = field(default_factory=Quantisation)
    _hash: str | None = field(default=None, repr=False)
    sampling: Sampling = field(default_factory=dict)

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """All names, in the order of the file."""
        return tuple(self._tensors.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors.tensors

    def info(self, name: str) -> TensorInfo:
        """Return a tensor's shape, type and location; raise FormatError if there is none of this
        name.
        """
        if name not in self:
            raise FormatError(f"has no tensor {name!r}", where=str(self.path))
        return self._tensors.tensors[name]

    def tensor(self, name: str) -> RawTensor | PackedTensor:
        """Return a view of a tensor; no byte is read before it is accessed.

        Raises
        ------
        FormatError : there is no tensor of this name.
        UnsupportedError : its type cannot be a weight.
        """
        info = self.info(name)
        joined = getattr(self._tensors, "joined", lambda name: None)(name)
        if joined is not None:
            return joined
        return RawTensor(name, info.shape, info.type, self._tensors.raw(name))

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines about what the files ask for and is not done, or is done to their numbers."""
        found = []
        if self.quantisation.notes:
            asked = " and ".join(self.quantisation.notes)
            found.append(
                f"the checkpoint asks for {asked}: not applied, only weights are quantised"
            )
        joined = getattr(self._tensors, "joined", lambda name: None)
        made = [tensor for name in self._tensors.tensors if (tensor := joined(name)) is not None]
        for what, count in Counter(tensor.note for tensor in made if tensor.note).items():
            found.append(f"{count} matrices have {what}: they are converted as floats are")
        return tuple(found)

    @property
    def file_type(self) -> str:
        """Name of the quantisation that a GGUF file says it has, such as Q4_K_M; else empty."""
        return file_type_name(self.config.get("general.file_type") if self.kind == "gguf" else None)

    def model_hash(self) -> str:
        """Return the SHA-256, in hex, of the files that determine the model's bits; computed once.

        One GGUF file: of the file. Otherwise: of the lines `name NUL sha256 LF`, sorted by name, of
        the GGUF parts, or of config.json and the safetensors files.
        """
        if self._hash is None:
            self._hash = self._compute_hash()
        return self._hash

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that determine the model's bits."""
        paths = list(self._tensors.paths)
        if self.kind == "huggingface":
            paths.append(self.path / "config.json")
            if self.quantisation.where.endswith(OPT_FILE):
                paths.append(self.path / OPT_FILE)
        return tuple(paths)

    def _compute_hash(self) -> str:
        paths = list(self.files)
        if self.kind == "gguf" and len(paths) == 1:
            return file_sha256(paths[0])
        lines = (f"{path.name}\0{file_sha256(path)}\n" for path in sorted(paths))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def close(self) -> None:
        """Release the files; views of tensors stay valid."""
        self._tensors.close()


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file, a folder with one GGUF model, or a Hugging Face folder.

    Raises
    ------
    ModelNotFoundError : there is nothing at `path`.
    FormatError : it is no model, a corrupt one, or a folder with several.
    UnsupportedError : pickled or quantised Hugging Face weights, a GGUF type without layout.
    """
    path = Path(path)
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:
        raise ModelNotFoundError(f"cannot be opened: {error}", where=str(path)) from None
    if is_folder:
        return _open_folder(path)
    if not exists:
        raise ModelNotFoundError("no such file or folder", where=str(path))
    if path.suffix in PICKLED_SUFFIXES:
        refuse_pickled(path)
    if path.suffix == ".safetensors":
        hint = f"open the folder instead: {path.parent}"
        raise FormatError("is one file of a Hugging Face folder", where=str(path), hint=hint)
    return _from_gguf(open_gguf(path))


def _open_folder(folder: Path) -> Checkpoint:
    files = sorted(folder.glob("*.gguf"))
    if (folder / "config.json").is_file() and (not files or any(folder.glob("*.safetensors"))):
        return _from_huggingface(folder)
    models = {_PART.sub("", file.name): file for file in reversed(files)}
    if len(models) == 1:
        return _from_gguf(open_gguf(files[0]))
    if models:
        listed = ", ".join(sorted(file.name for file in models.values()))
        hint = f"name one of them: {listed}"
        raise FormatError("holds several GGUF models", where=str(folder), hint=hint)
    message = "holds no model: neither config.json nor a *.gguf file"
    raise FormatError(message, where=str(folder))


def _from_gguf(file: GGUFFile) -> Checkpoint:
    metadata, where = file.metadata, str(file.path)
    architecture = _text(metadata, "general.architecture", where)
    if architecture is None:
        raise FormatError("has no general.architecture", where=where)
    names = ("eos", "eot", "eom")
    ids = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names]
    return Checkpoint(
        path=file.path,
        kind="gguf",
        config=metadata,
        architecture=architecture,
        eos_token_ids=_ids(ids, where),
        tokenizer_source=metadata,
        chat_template=_text(metadata, "tokenizer.chat_template", where),
        _tensors=read_packed_gguf(file),
        sampling=of_gguf(metadata, where),
    )


def _from_huggingface(folder: Path) -> Checkpoint:
    where = str(folder / "config.json")
    whole = config = read_object(folder / "config.json")
    if has_text_model(whole):
        config = text_config(whole)
    architecture = _text(config, "model_type", where)
    if architecture is None:
        raise FormatError("has no model_type", where=where)
    tensors: MappedTensors = open_safetensors(folder)
    quantisation = read_quantisation(config, folder)
    tensors = read_quantised(tensors, quantisation)
    config = {key: value for key, value in config.items() if key not in QUANTISATION_KEYS}
    if has_text_model(whole) or is_nested(tensors):
        tensors = text_tensors(tensors)
    tensors = with_usual_prefix(tensors)
    if has_text_model(whole):
        config = with_tie(config, tensors)
    generation = read_optional(folder / "generation_config.json")
    ids = [source.get("eos_token_id") for source in (whole, config, generation)]
    return Checkpoint(
        path=folder,
        kind="huggingface",
        config=config,
        architecture=architecture,
        eos_token_ids=_ids(ids, where),
        tokenizer_source=folder,
        chat_template=_folder_template(folder),
        _tensors=tensors,
        quantisation=quantisation,
        sampling=of_generation_config(generation, str(folder / "generation_config.json")),
    )


def _text(mapping: Mapping[str, Any], key: str, where: str) -> str | None:
    value = mapping.get(key)
    if value is None or isinstance(value, str):
        return value
    raise FormatError(f"{key} is not a string", where=where)


def _ids(values: list[Any], where: str) -> tuple[int, ...]:
    """Flatten ids and lists of ids, None left out, ascending and each once."""
    flat = [i for value in values for i in (value if isinstance(value, list) else [value])]
    found = [value for value in flat if value is not None]
    if any(type(value) is not int or value < 0 for value in found):
        raise FormatError("eos_token_id is neither an id nor a list of ids", where=where)
    return tuple(sorted(set(found)))


def _folder_template(folder: Path) -> str | None:
    """Return chat_template.jinja, else the one in tokenizer_config.json; of several, "default"."""
    if os.path.lexists(folder / "chat_template.jinja"):
        return read_text(folder / "chat_template.jinja")
    path = folder / "tokenizer_config.json"
    config = read_optional(path)
    template = config.get("chat_template")
    if not isinstance(template, list):
        return _text(config, "chat_template", str(path))
    named = [entry for entry in template if isinstance(entry, dict)]
    default = next((entry for entry in named if entry.get("name") == "default"), {})
    return _text(default, "template", str(path))
