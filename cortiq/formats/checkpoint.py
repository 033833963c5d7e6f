"""One interface for every model on disk: configuration, tensors, tokenizer, chat template."""

from __future__ import annotations

import re
from pathlib import Path

from cortiq.errors import FormatError, ModelNotFoundError
from cortiq.formats.checkpoint_fields import folder_template, text_field, token_ids
from cortiq.formats.cmf.model import container_of, is_cmf, open_model
from cortiq.formats.ctranslate2 import (
    is_ctranslate2,
    open_ctranslate2,
    whisper_config,
    whisper_settings,
)
from cortiq.formats.ggml_whisper import is_ggml_whisper, open_ggml_whisper
from cortiq.formats.gguf import GGUFFile, GGUFMetadata, open_gguf
from cortiq.formats.gguf_header import read_header
from cortiq.formats.joined_tensors import JoinedTensors
from cortiq.formats.mapped import MappedTensors
from cortiq.formats.mistral_folder import (
    PARAMS,
    is_mistral_folder,
    mistral_config,
    mistral_tensors,
    special_token,
)
from cortiq.formats.open_model import Checkpoint as Checkpoint
from cortiq.formats.own_layout import GGUF_HEADER, OwnFolder, read_description
from cortiq.formats.packed_gguf import read_packed_gguf
from cortiq.formats.quantisation import KEYS as QUANTISATION_KEYS
from cortiq.formats.quantisation_config import read_quantisation
from cortiq.formats.quantised import read_quantised
from cortiq.formats.recommended import of_generation_config, of_gguf
from cortiq.formats.safetensors import (
    PICKLED_SUFFIXES,
    SafetensorsFolder,
    open_safetensors,
    refuse_pickled,
)
from cortiq.formats.sentence_settings import SentenceSettings, sentence_settings
from cortiq.formats.strict_json import read_object, read_optional
from cortiq.formats.text_model import (
    TEXT,
    has_text_model,
    is_nested,
    text_config,
    text_tensors,
    with_sections,
    with_tie,
    with_usual_prefix,
)
from cortiq.formats.tokenizer_files import TokenizerFiles

TOWER = "mmproj"
"""Part of the names of files with a tower beside a GGUF model."""
_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")


def open_checkpoint(path: str | Path, strict: bool = True) -> Checkpoint:
    """Open a GGUF, CMF or GGML file, a folder with one such model, or a Hugging Face folder.

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
    if is_ggml_whisper(path):
        return _from_ggml(path)
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
    if is_ctranslate2(folder) and not any(folder.glob("*.safetensors")):
        return _from_ctranslate2(folder)
    files = sorted(file for file in folder.glob("*.gguf") if TOWER not in file.name)
    if (folder / "config.json").is_file() and (not files or any(folder.glob("*.safetensors"))):
        return _from_huggingface(folder)
    if (folder / GGUF_HEADER).is_file():
        return _from_own(folder)
    if not files and is_mistral_folder(folder):
        return _from_mistral(folder)
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


def _from_ctranslate2(folder: Path) -> Checkpoint:
    tensors, scalars = open_ctranslate2(folder)
    config = whisper_config(tensors, scalars)
    given, tokenizer = (read_optional(folder / f"{name}.json") for name in ("config", "tokenizer"))
    settings = whisper_settings(given, tokenizer, config["vocab_size"])
    return Checkpoint(
        path=folder,
        kind="huggingface",
        config=config,
        architecture=config["model_type"],
        eos_token_ids=token_ids([settings["eos_token_id"]], str(folder)),
        tokenizer_source=folder,
        chat_template=None,
        _tensors=tensors,
        _all=tensors,
        generation=settings,
    )


def _from_ggml(path: Path) -> Checkpoint:
    model = open_ggml_whisper(path)
    config, settings = model.config(), model.settings()
    ends = token_ids([settings["eos_token_id"]], str(path))
    return Checkpoint(
        path=path,
        kind="huggingface",
        config=config,
        architecture=config["model_type"],
        eos_token_ids=ends,
        tokenizer_source=TokenizerFiles(
            b"", str(path), eos_ids=ends, words=model.words, named=model.named
        ),
        chat_template=None,
        _tensors=model.tensors,
        _all=model.tensors,
        generation=settings,
        sound_rules=model.rules(),
    )


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


def _from_mistral(folder: Path) -> Checkpoint:
    where = folder / PARAMS
    whole, rules = mistral_config(folder)
    tensors = mistral_tensors(open_safetensors(folder), whole, str(where))
    text = text_tensors(tensors)
    return Checkpoint(
        path=folder,
        kind="huggingface",
        config=with_tie(text_config(whole), text),
        architecture=whole[TEXT]["model_type"],
        eos_token_ids=(special_token(folder, "</s>"),),
        tokenizer_source=folder,
        chat_template=folder_template(folder),
        _tensors=text,
        _beside=(where,),
        whole=whole,
        _all=tensors,
        sound_rules=rules,
    )


def _from_huggingface(folder: Path) -> Checkpoint:
    where = str(folder / "config.json")
    whole = config = with_sections(read_object(folder / "config.json"))
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
    everything: MappedTensors = tensors
    if has_text_model(whole) or is_nested(tensors):
        tensors = text_tensors(tensors)
    sentence = sentence_settings(folder)
    tensors = _with_modules(with_usual_prefix(tensors), folder, sentence)
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
        whole=whole if has_text_model(whole) else {},
        _all=everything,
        sentence=sentence,
    )


def _with_modules(
    tensors: MappedTensors, folder: Path, sentence: SentenceSettings
) -> MappedTensors:
    """Return a model's tensors and those of its modules' folders, unless it holds them itself."""
    names = dict.fromkeys(s.tensors.rpartition(".")[0] for s in sentence.steps if s.tensors)
    held = {name.partition(".")[0] for name in tensors.tensors}
    further = {name: open_safetensors(folder / name) for name in names if name not in held}
    return JoinedTensors(tensors, further) if further else tensors
