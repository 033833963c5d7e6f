"""Where a model comes from: files on disk, or a formula; either way a program and a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cortiq.formats.cache import Progress
from cortiq.formats.checkpoint import Checkpoint, open_checkpoint
from cortiq.formats.fetch import resolve
from cortiq.ir import Program
from cortiq.numerics.layouts import Weight
from cortiq.options import LoadOptions
from cortiq.tokenizer.tokenizer import Tokenizer

SYNTHETIC = "synthetic:"


@dataclass
class Source:
    """An opened model, not yet compiled.

    Attributes
    ----------
    program, weights : what a backend compiles.
    tokenizer : text to ids and back.
    eos_ids : end tokens that the model's files name.
    model_hash : gives the SHA-256 of what the model is made of, in hex; may take a while.
    close : lets go of the files.
    """

    program: Program
    weights: Mapping[str, Weight]
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    model_hash: Callable[[], str]
    close: Callable[[], None] = field(default=lambda: None)


def open_source(name: str, options: LoadOptions, progress: Progress | None = None) -> Source:
    """Open a model by name, fetching it if it is known and not there; see `cortiq.load`."""
    if name.startswith(SYNTHETIC):
        return _open_synthetic(name, options)
    return _open_files(resolve(name, progress=progress), options)


def _open_files(path: Path, options: LoadOptions) -> Source:
    from cortiq.models.bind import load_program
    from cortiq.plugins import default_plugins

    checkpoint = open_checkpoint(path)
    try:
        loaded = load_program(
            checkpoint,
            context=options.context,
            weight_format=options.weight_format,
            families=default_plugins().families,
        )
        tokenizer = open_tokenizer(checkpoint)
    except BaseException:
        checkpoint.close()
        raise
    return Source(
        loaded.program,
        loaded.weights,
        tokenizer,
        checkpoint.eos_token_ids,
        checkpoint.model_hash,
        checkpoint.close,
    )


def open_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer that a checkpoint brings."""
    if isinstance(checkpoint.tokenizer_source, Path):
        return Tokenizer.from_folder(checkpoint.tokenizer_source)
    return Tokenizer.from_gguf(checkpoint.tokenizer_source)
