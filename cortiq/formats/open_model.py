"""An open model: what its files say, and its tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError
from cortiq.formats.cmf.model import left_unread
from cortiq.formats.cmf.reader import CMFFile
from cortiq.formats.digest import file_sha256, files_sha256
from cortiq.formats.file_types import file_type_name
from cortiq.formats.gguf import GGUFMetadata
from cortiq.formats.mapped import MappedTensors, TensorInfo
from cortiq.formats.own_layout import OwnFolder, OwnTensor
from cortiq.formats.packed_tensors import PackedTensor
from cortiq.formats.quantisation import OPT_FILE, Quantisation
from cortiq.formats.raw_tensor import RawTensor, stored_tensor
from cortiq.formats.recommended import Sampling
from cortiq.formats.sentence_settings import SentenceSettings
from cortiq.formats.strict_json import read_optional
from cortiq.formats.text_model import (
    AddedTensors,
    RenamedTensors,
    ReorderedTensors,
    renamed,
    within,
)
from cortiq.formats.tokenizer_files import TokenizerFiles


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
    whole : config.json of a folder with several models; empty for others.
    image_rules : of the processing of images, where no file of the folder says them.
    generation, sound_rules : what generation_config.json and preprocessor_config.json would say,
        where there is none.
    sentence : what a folder says of embeddings; None for files, which say it of their own.
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
    whole: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _all: MappedTensors | None = field(default=None, repr=False)
    image_rules: Mapping[str, Any] | None = field(default=None, repr=False)
    generation: Mapping[str, Any] | None = field(default=None, repr=False)
    sound_rules: Mapping[str, Any] | None = field(default=None, repr=False)
    sentence: SentenceSettings | None = field(default=None, repr=False)

    def part(self, prefixes: Mapping[str, str]) -> Checkpoint:
        """Return another model of the same folder: what its tensors' names begin with, and what
        that becomes. It is closed with this one.
        """
        assert self._all is not None
        names = renamed(self._all.tensors, prefixes)
        tensors, name = RenamedTensors(self._all, names), str(self.whole.get("model_type"))
        return replace(
            self, kind="huggingface", config=self.whole, architecture=name, _tensors=tensors
        )

    def reordered(self, orders: Mapping[str, npt.NDArray[np.int64]]) -> Checkpoint:
        """Return the model with rows of some tensors in another order: that of every so many rows,
        by a regular expression of names.
        """
        return replace(self, _tensors=ReorderedTensors(self._tensors, orders))

    def with_computed(self, made: Mapping[str, npt.NDArray[np.float32]]) -> Checkpoint:
        """Return the model with tensors that were computed of its own."""
        return replace(self, _tensors=AddedTensors(self._tensors, made))

    def image_processor(self) -> dict[str, Any]:
        """Return what the folder says of the processing of images; empty where it says nothing."""
        if self.image_rules is not None:
            return dict(self.image_rules)
        own = read_optional(self.path / "processor_config.json").get("image_processor")
        given = read_optional(self.path / "preprocessor_config.json")
        return given | (own if isinstance(own, dict) else {})

    def sound_processor(self) -> dict[str, Any]:
        """Return what the folder says of the features of sound; empty where it says nothing."""
        if self.sound_rules is not None:
            return dict(self.sound_rules)
        whole = read_optional(self.path / "processor_config.json")
        own = whole.get("feature_extractor", whole.get("audio_processor"))
        given = read_optional(self.path / "preprocessor_config.json")
        return given | (own if isinstance(own, dict) else {})

    def generation_settings(self) -> dict[str, Any]:
        """Return the folder's generation_config.json; empty where there is none."""
        if self.generation is not None:
            return dict(self.generation)
        return read_optional(self.path / "generation_config.json")

    @property
    def mapped(self) -> MappedTensors:
        """The tensors as they lie in the files."""
        return self._tensors

    @property
    def own(self) -> OwnFolder | None:
        """The tensors, if the folder is of our own layout."""
        found = (t for t in (self._tensors, self._all) if isinstance(t, OwnFolder))
        return next(found, None)

    def name_in_folder(self, name: str) -> str:
        """Return a tensor's name in the folder, which that of a text-only model may differ from."""
        return within(self._tensors, name)

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

        One GGUF, CMF or GGML file: of the file. Otherwise: of the lines `name NUL sha256 LF`,
        sorted by name, of the parts, or of config.json and the safetensors files.
        """
        if self._hash is None:
            one = len(self.files) == 1 and (self.kind != "huggingface" or self.path.is_file())
            self._hash = file_sha256(self.files[0]) if one else files_sha256(self.files)
        return self._hash

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that determine the model's bits."""
        paths = [*self._tensors.paths, *self._beside]
        if self.kind == "huggingface" and not self.path.is_file() and not self._beside:
            paths.append(self.path / "config.json")
            paths += [self.path / name for name in self.sentence.files] if self.sentence else []
            if self.quantisation.where.endswith(OPT_FILE):
                paths.append(self.path / OPT_FILE)
        return tuple(paths)

    def close(self) -> None:
        """Release the files; views of tensors stay valid."""
        self._tensors.close()
