"""Model sources: files on disk, or a formula; either way a program and a tokenizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from cortiq.engine.request import vocabulary_size
from cortiq.errors import ModelNotFoundError, NoTokenizerError, RequestError, shown
from cortiq.formats.adapter import Adapter, open_adapter, split_scale
from cortiq.formats.cache import Progress
from cortiq.formats.checkpoint import Checkpoint, open_checkpoint
from cortiq.formats.fetch import resolve
from cortiq.formats.sentence_settings import SentenceSettings, pooling_in_gguf
from cortiq.formats.tokenizer_files import TokenizerFiles
from cortiq.hearing.load import LoadedHearing, load_hearing
from cortiq.ir import Program
from cortiq.model.default_sampling import CORTIQ_SAMPLING, DefaultSampling, usual_sampling
from cortiq.model.own_adapters import OwnAdapter, open_media_adapters
from cortiq.models import load_program
from cortiq.models.bind import LoadedProgram
from cortiq.models.head_names import split_heads_option
from cortiq.models.overlay_banks import Overlay
from cortiq.models.overlay_kinds import kind_of
from cortiq.models.overlays import read_overlay
from cortiq.models.registry import family_for
from cortiq.models.rewriting import rewritten
from cortiq.models.synthetic import PREFIX, open_synthetic
from cortiq.numerics.layouts import Weight
from cortiq.options import LoadOptions
from cortiq.plugins import default_plugins
from cortiq.tokenizer.missing import MissingTokenizer
from cortiq.tokenizer.tokenizer import Tokenizer, byte_tokenizer
from cortiq.vision.asked import asked_senses
from cortiq.vision.load import LoadedVision, load_vision


@dataclass
class ModelSource:
    """An opened model, not yet compiled.

    Attributes
    ----------
    program, weights : what a backend compiles.
    tokenizer : text to ids and back.
    eos_ids : end tokens that the model's files name.
    model_hash : gives the SHA-256 of what the model is made of, in hex; may take a while.
    close : lets go of the files.
    longest : the longest context the model can be loaded with; 0 for the one it has.
    usual : how it is sampled from where the caller says nothing.
    notes : what its files ask for and is not done, a line each.
    file_type : the quantisation that its files name, such as Q4_K_M; empty where they name none.
    files : all that its weights follow from, read by code of ours; else none.
    where : the file or folder. hashed : whether its files hold their own hashes.
    damaged : gives what of them differs from those; reads everything.
    senses : what it sees images with, where that was asked for, and hears sounds in prompts with.
    hearing : what it hears sounds with, if it does.
    sentence : how its files say that a text becomes a vector.
    loaded : the program as its files were read, for adapters; None where it takes none.
    media_adapters : adapters of its own, by the medium whose prompts take them.
    """

    program: Program
    weights: Mapping[str, Weight]
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    model_hash: Callable[[], str]
    close: Callable[[], None] = lambda: None
    longest: int = 0
    usual: DefaultSampling = CORTIQ_SAMPLING
    notes: tuple[str, ...] = ()
    file_type: str = ""
    files: tuple[Path, ...] = ()
    where: str = ""
    hashed: bool = False
    damaged: Callable[[], Iterator[str]] = lambda: iter(())
    sentence: SentenceSettings = field(default_factory=SentenceSettings)
    senses: tuple[LoadedVision, ...] = ()
    hearing: LoadedHearing | None = None
    loaded: LoadedProgram | None = None
    media_adapters: Mapping[str, OwnAdapter] = field(default_factory=dict)


def model_name(name: object) -> str:
    """Return a model's name; a path object becomes a path, never a known name.

    Raises
    ------
    RequestError : it is neither a text nor a path.
    """
    if isinstance(name, str):
        return name
    path = os.fspath(name) if isinstance(name, os.PathLike) else None
    if not isinstance(path, str):
        raise RequestError(f"a model is given by its name or path, not as {shown(name)}")
    return os.path.abspath(path)


def open_source(
    name: str, options: LoadOptions, progress: Progress | None = None, media: bool = False
) -> ModelSource:
    """Open a model by name, fetching it if it is known and not there; see `cortiq.load`. With
    `media` it reads what prompts have beside text, be that images or sounds.
    """
    if name.startswith(PREFIX):
        checkpoint: Any = open_synthetic(name)
    else:
        checkpoint = open_checkpoint(resolve(name, progress=progress), not options.lenient)
    plugins = default_plugins()
    with ExitStack() as opened:
        opened.callback(checkpoint.close)
        heads, drafters = open_drafters(options.heads, progress)
        for drafter in drafters.values():
            opened.callback(drafter.close)
        if (sidecar := open_sidecar(checkpoint, heads, not options.lenient)) is not None:
            opened.callback(sidecar.close)
        adapters = open_loras(options.lora, opened, progress)
        checkpoint, found = asked_senses(checkpoint, options.images, options.sounds, media)
        loaded = load_program(
            checkpoint,
            sidecar=sidecar, drafters=drafters,
            context=options.context, weight_format=options.weight_format,
            families=plugins.families,
            heads=heads, adapters=adapters, draft_vocabulary=options.draft_vocabulary,
            ignored_keys=options.ignore_unknown_config,
            images=found[0].processor.rows if found else None,
        )  # fmt: skip
        made = rewritten(loaded.program, loaded.weights, options.rewrite, plugins.rewrites)
        senses = tuple(load_vision(checkpoint, one, options.weight_format) for one in found)
        hearing = load_hearing(checkpoint, loaded.config, options.weight_format)
        own = open_media_adapters(checkpoint, found, opened)
        alone = not drafters and sidecar is None and not adapters and not options.rewrite
        files = _files_of(checkpoint, plugins.families) if alone else ()
        notes = (*loaded.notes, *adapter_notes(adapters, loaded.checkpoint), *made.notes)
        tokenizer = open_tokenizer(checkpoint.tokenizer_source, made.program)
        close = opened.pop_all().close
    kept = getattr(checkpoint, "own", None)
    return ModelSource(
        made.program,
        made.weights,
        tokenizer,
        checkpoint.eos_token_ids,
        checkpoint.model_hash,
        close,
        getattr(loaded.config, "max_position_embeddings", 0),
        usual_sampling(name, getattr(checkpoint, "sampling", {})),
        (*getattr(checkpoint, "notes", ()), *own.notes, *notes),
        getattr(checkpoint, "file_type", ""),
        files,
        str(getattr(checkpoint, "path", name)),
        kept is not None,
        (lambda: iter(())) if kept is None else kept.damaged,
        _sentence(checkpoint),
        senses,
        hearing,
        None if options.rewrite else loaded,
        own.adapters,
    )


def _sentence(checkpoint: Any) -> SentenceSettings:
    if getattr(checkpoint, "kind", "") == "gguf":
        where = str(checkpoint.path)
        pooling = pooling_in_gguf(checkpoint.config, checkpoint.architecture, where)
        return SentenceSettings(pooling)
    return getattr(checkpoint, "sentence", None) or SentenceSettings()


def _files_of(checkpoint: Any, extra: Sequence[ModuleType]) -> tuple[Path, ...]:
    """Return a checkpoint's files, if a family of ours reads them.

    Code of other packages may change and leave no trace in what identifies kept weights.
    """
    if not isinstance(checkpoint, Checkpoint):
        return ()
    ours = family_for(checkpoint, extra).__name__.startswith("cortiq.models.")
    return checkpoint.files if ours else ()


def open_lora(text: str, progress: Progress | None = None) -> Adapter:
    """Open the adapter of an option `lora`: `PATH[:SCALE]`, or a name of the hub in its place."""
    path, scale = split_scale(text)
    return open_adapter(_adapter_path(path, progress), scale)


def open_loras(texts: Sequence[str], opened: ExitStack, progress: Progress | None) -> list[Adapter]:
    """Open the adapters of an option `lora`, to be closed with `opened`."""
    found: list[Adapter] = []
    for text in texts:
        found.append(open_lora(text, progress))
        opened.callback(found[-1].close)
    return found


def _adapter_path(name: str, progress: Progress | None) -> Path:
    """Return the files of an adapter; the error for none speaks of adapters, not of models."""
    try:
        return resolve(name, progress=progress)
    except ModelNotFoundError:
        hint = "a PEFT folder, a GGUF adapter, hf:ORGANISATION/NAME, or a file of a plugin's kind"
        raise ModelNotFoundError("no such adapter", where=name, hint=hint) from None


class ReadOverlay(NamedTuple):
    """An overlay as it was read, the path of its files, and what whoever loads it is told."""

    overlay: Overlay
    path: Path
    notice: str = ""


def open_overlay(
    text: str, loaded: LoadedProgram, program: Program, progress: Progress | None = None
) -> ReadOverlay:
    """Read what an option `adapters` names for a program: an adapter, or a file of a plugin's kind.

    Raises
    ------
    FormatError, UnsupportedError : it is neither, or none of this model.
    """
    named, scale = split_scale(text)
    path = _adapter_path(named, progress)
    kind = kind_of(path, default_plugins().overlays)
    if kind is not None:
        return ReadOverlay(kind.read(path, scale, loaded, program), path, kind.notice)
    adapter = open_adapter(path, scale)
    try:
        return ReadOverlay(read_overlay(adapter, loaded, program), adapter.path)
    finally:
        adapter.close()


def adapter_notes(adapters: Sequence[Adapter], checkpoint: Any) -> list[str]:
    """Return a line about merged adapters: how many tensors they change, and what becomes of codes
    that these had in the file.
    """
    if not adapters:
        return []
    merged = getattr(checkpoint, "merged", ())
    named = ", ".join(f"{adapter.path.name} (times {adapter.scale:g})" for adapter in adapters)
    return [f"merged into {len(merged)} tensors, which are then converted as floats are: {named}"]


def open_drafters(heads: str, progress: Progress | None = None) -> tuple[str, dict[str, Any]]:
    """Return the option `heads` without drafters in files of their own, and those files, opened."""
    head, paths = split_heads_option(heads)
    for name, path in paths.items():
        if not path:
            what = f"the folder of the drafter {name} is missing"
            raise RequestError(what, where="heads", hint=f"heads='{name}:PATH'")
    return head, {name: open_checkpoint(resolve(p, progress=progress)) for name, p in paths.items()}


def open_sidecar(checkpoint: Any, heads: str, strict: bool = True) -> Any:
    """Open the file beside a model's that holds its draft head, if it is wanted and there.

    Beside a folder `NAME` it is the folder `NAME.mtp`, beside `NAME.gguf` the file `NAME.mtp.gguf`.
    """
    path = getattr(checkpoint, "path", None)
    if heads == "off" or not isinstance(path, Path):
        return None
    path = path.resolve()
    suffix = path.suffix if path.is_file() else ""
    beside = path.with_name(f"{path.name.removesuffix(suffix)}.mtp{suffix}")
    return open_checkpoint(beside, strict) if os.path.lexists(beside) else None


def open_tokenizer(
    source: Mapping[str, Any] | TokenizerFiles | Path | str, program: Program
) -> Tokenizer:
    """Make the tokenizer that a checkpoint's `tokenizer_source` describes.

    Parameters
    ----------
    source : GGUF metadata, a folder with tokenizer.json, what a file holds of one, or "bytes" for
        synthetic models. One that has no tokenizer at all gives an `MissingTokenizer`.
    """
    if source == "bytes":
        return byte_tokenizer(vocabulary_size(program))
    try:
        if isinstance(source, TokenizerFiles):
            from cortiq.tokenizer.from_folder import load_files

            return Tokenizer(*load_files(source))
        if isinstance(source, Path):
            return Tokenizer.from_folder(source)
        return Tokenizer.from_gguf(source)  # type: ignore[arg-type]
    except NoTokenizerError as reason:
        return MissingTokenizer(reason)
