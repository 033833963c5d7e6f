"""One interface for every model on disk: configuration, tensors, tokenizer, chat template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cortiq.errors import FormatError, ModelNotFoundError
from cortiq.formats.checkpoint_fields import folder_template, text_field, token_ids
from cortiq.formats.cmf.model import container_of, is_cmf, left_unread, open_model
from cortiq.formats.cmf.reader import CMFFile
from cortiq.formats.digest import file_sha256, files_sha256
from cortiq.formats.file_types import file_type_name
from cortiq.formats.gguf import GGUFFile, GGUFMetadata, open_gguf
from cortiq.formats.gguf_header import read_header
from cortiq.formats.mapped import MappedTensors, TensorInfo
from cortiq.formats.own_layout import GGUF_HEADER, OwnFolder, OwnTensor, read_description
from cortiq.formats.packed_gguf import read_packed_gguf
from cortiq.formats.packed_tensors import PackedTensor
from cortiq.formats.quantisation import KEYS as QUANTISATION_KEYS
from cortiq.formats.quantisation import OPT_FILE, Quantisation
from cortiq.formats.quantisation_config import read_quantisation
from cortiq.formats.quantised import read_quantised
from cortiq.formats.raw_tensor import RawTensor, stored_tensor
from cortiq.formats.recommended import Sampling, of_generation_config, of_gguf
from cortiq.formats.safetensors import (
    PICKLED_SUFFIXES,
    SafetensorsFolder,
    open_safetensors,
    refuse_pickled,
)
from cortiq.formats.strict_json import read_object, read_optional
from cortiq.formats.text_model import (
    has_text_model,
    is_nested,
    text_config,
    text_tensors,
    with_tie,
    with_usual_prefix,
)
from cortiq.formats.tokenizer_files import TokenizerFiles

_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")


@dataclass
class Checkpoint:
    """A model on disk.

    Attributes
    ----------
    path : the file or folder.
    kind : "gguf", "huggingface" or "cmf".
    config : GGUF metadata, or the object in config.json; of several models, the text model's.
    architecture : `general.architecture`, or `model_type` of the configuration.
    eos_token_ids : ids that end a text, as the files declare them, ascending.
    tokenizer_source : GGUF metadata, the folder with tokenizer.json, or that in the file.
    chat_template : Jinja source, or None when the model has none.
    quantisation : what a Hugging Face folder says about quantised matrices.
    sampling : options of sampling that the files recommend. container : the file, of CMF.
    """

    path: Path
    kind: Literal["gguf", "huggingface", "cmf"]
    config: Mapping[str, Any]
    architecture: str
    eos_token_ids: tuple[int, ...]
    tokenizer_source: GGUFMetadata | TokenizerFiles | Path
    chat_template: str | None
    _tensors: MappedTensors = field(repr=False)
    quantisation: Quantisation = field(default_factory=Quantisation)
    _hash: str | None = field(default=None, repr=False)
    sampling: Sampling = field(default_factory=dict)
    _beside: tuple[Path, ...] = field(default=(), repr=False)
    container: CMFFile | None = field(default=None, repr=False)

    @property
    def own(self) -> OwnFolder | None:
        """The tensors, if the folder is of our own layout."""
        return self._tensors if isinstance(self._tensors, OwnFolder) else None

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

    def tensor(self, name: str) -> RawTensor | PackedTensor | OwnTensor:
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
        return stored_tensor(name, info.shape, info.type, self._tensors.raw(name), str(self.path))

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines about what the files ask for and is not done, or is done to their numbers."""
        found = list(left_unread(self.container))
        if self.quantisation.notes:
            asked = " and ".join(self.quantisation.notes)
            found.append(f"the checkpoint asks for {asked}: only weights are quantised")
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

        One GGUF or CMF file: of the file. Otherwise: of the lines `name NUL sha256 LF`, sorted by
        name, of the parts, or of config.json and the safetensors files.
        """
        if self._hash is None:
            one = self.kind in ("gguf", "cmf") and len(self.files) == 1
            self._hash = file_sha256(self.files[0]) if one else files_sha256(self.files)
        return self._hash

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that determine the model's bits."""
        paths = [*self._tensors.paths, *self._beside]
        if self.kind == "huggingface":
            paths.append(self.path / "config.json")
            if self.quantisation.where.endswith(OPT_FILE):
                paths.append(self.path / OPT_FILE)
        return tuple(paths)

    def close(self) -> None:
        """Release the files; views of tensors stay valid."""
        self._tensors.close()


def open_checkpoint(path: str | Path, strict: bool = True) -> Checkpoint:
    """Open a GGUF or CMF file, a folder with one such model, or a Hugging Face folder.

    Parameters
    ----------
    strict : of CMF, check everything that a file says; otherwise what the original engine checks.

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
        return _open_folder(path, strict)
    if not exists:
        raise ModelNotFoundError("no such file or folder", where=str(path))
    if path.suffix in PICKLED_SUFFIXES:
        refuse_pickled(path)
    if path.suffix == ".safetensors":
        hint = f"open the folder instead: {path.parent}"
        raise FormatError("is one file of a Hugging Face folder", where=str(path), hint=hint)
    if is_cmf(path):
        return _from_cmf(path, strict)
    return _from_gguf(open_gguf(path))


def _from_cmf(path: Path, strict: bool) -> Checkpoint:
    model = open_model(path, strict)
    return Checkpoint(
        path=path,
        kind="cmf",
        config=model.config,
        architecture=model.architecture,
        eos_token_ids=token_ids(list(model.tokenizer.eos_ids), str(path)),
        tokenizer_source=model.tokenizer,
        chat_template=model.tokenizer.chat_template,
        _tensors=model.tensors,
        container=model.file,
    )


def _open_folder(folder: Path, strict: bool) -> Checkpoint:
    files = sorted(folder.glob("*.gguf"))
    if (folder / "config.json").is_file() and (not files or any(folder.glob("*.safetensors"))):
        return _from_huggingface(folder)
    if (folder / GGUF_HEADER).is_file():
        return _from_own(folder)
    models = {_PART.sub("", file.name): file for file in reversed(files)}
    if len(models) == 1:
        return _from_gguf(open_gguf(files[0]))
    if not models and (container := container_of(folder)):
        return _from_cmf(container, strict)
    if models:
        listed = ", ".join(sorted(file.name for file in models.values()))
        hint = f"name one of them: {listed}"
        raise FormatError("holds several GGUF models", where=str(folder), hint=hint)
    message = "holds no model: neither config.json nor a *.gguf file"
    raise FormatError(message, where=str(folder))


def _from_gguf(file: GGUFFile) -> Checkpoint:
    return _of_gguf(file.path, file.metadata, read_packed_gguf(file))


def _from_own(folder: Path) -> Checkpoint:
    """Open a folder of our own that was made from a GGUF file."""
    tensors = _own_or_plain(open_safetensors(folder))
    header = read_header(folder / GGUF_HEADER)
    return _of_gguf(folder, header.metadata, tensors, (folder / GGUF_HEADER,))


def _own_or_plain(tensors: SafetensorsFolder) -> MappedTensors:
    """Return the tensors of a folder of our own in their layouts; those of others as they are."""
    description = read_description(tensors)
    return tensors if description is None else OwnFolder(tensors, description)


def _of_gguf(
    path: Path, metadata: GGUFMetadata, tensors: MappedTensors, beside: tuple[Path, ...] = ()
) -> Checkpoint:
    where = str(path)
    architecture = text_field(metadata, "general.architecture", where)
    if architecture is None:
        raise FormatError("has no general.architecture", where=where)
    names = ("eos", "eot", "eom")
    ids = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names]
    return Checkpoint(
        path=path,
        kind="gguf",
        config=metadata,
        architecture=architecture,
        eos_token_ids=token_ids(ids, where),
        tokenizer_source=metadata,
        chat_template=text_field(metadata, "tokenizer.chat_template", where),
        _tensors=tensors,
        sampling=of_gguf(metadata, where),
        _beside=beside,
    )


def _from_huggingface(folder: Path) -> Checkpoint:
    where = str(folder / "config.json")
    whole = config = read_object(folder / "config.json")
    if has_text_model(whole):
        config = text_config(whole)
    architecture = text_field(config, "model_type", where)
    if architecture is None:  # draft heads of speculators
        architecture = text_field(config, "speculators_model_type", where)
    if architecture is None:
        raise FormatError("has no model_type", where=where)
    tensors = _own_or_plain(open_safetensors(folder))
    quantisation = read_quantisation(config, folder)
    if not isinstance(tensors, OwnFolder):
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
        eos_token_ids=token_ids(ids, where),
        tokenizer_source=folder,
        chat_template=folder_template(folder),
        _tensors=tensors,
        quantisation=quantisation,
        sampling=of_generation_config(generation, str(folder / "generation_config.json")),
    )
