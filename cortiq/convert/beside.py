"""Files that lie beside converted weights: configuration, tokenizer and template of the source."""

from __future__ import annotations

import json
from pathlib import Path

from cortiq.errors import UnsupportedError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.formats.gguf_metadata import GGUFMetadata
from cortiq.formats.own_layout import GGUF_HEADER
from cortiq.formats.tokenizer_files import TokenizerFiles
from cortiq.ir import Program
from cortiq.ir.encoded import encoded_rows

COPIED = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "tekken.json", "tiktoken.model", "qwen.tiktoken", "hy.tiktoken",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja", "chat_template.json", "LICENSE", "LICENSE.txt", "README.md",
)  # fmt: skip
"""Files of a folder that are copied, if they are there."""
OF_PARTS = ("split.no", "split.count", "split.tensors.count")
"""GGUF metadata of one part of several."""
MAX_COPIED = 1 << 28
"""Bytes of the largest file that is copied."""


def files_beside(checkpoint: Checkpoint, program: Program) -> dict[str, bytes]:
    """Return the files that a folder of our own has beside its weights.

    Parameters
    ----------
    program : the part of the source that the folder holds.

    Raises
    ------
    UnsupportedError : a file of the source is larger than any configuration or tokenizer, or the
        program is nothing without the source's encoder.
    """
    if encoded_rows(program) is not None:
        what = "a model that hears is not converted: the new one would lack its encoder"
        hint = "load it with weight_format (--weight-format w8), which converts its matrices"
        raise UnsupportedError(what, where=str(checkpoint.path), hint=hint)
    source = checkpoint.tokenizer_source
    if isinstance(source, GGUFMetadata):
        return {GGUF_HEADER: gguf_head(source, {}, 0)}
    config = dict(checkpoint.config)
    if checkpoint.eos_token_ids:
        config["eos_token_id"] = list(checkpoint.eos_token_ids)
    found = {"config.json": json.dumps(config, ensure_ascii=False, indent=2).encode()}
    if isinstance(source, TokenizerFiles):
        return found | _unpacked(source)
    for path in (source / name for name in COPIED):
        if path.is_file():
            found[path.name] = _content(path)
    return found


def left_out(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Say what of the source a new model lacks, a line each."""
    if checkpoint.whole.get("vision_config") is None:
        return ()
    return (f"the new model reads no images: what sees them is in {checkpoint.path} alone",)


def _unpacked(source: TokenizerFiles) -> dict[str, bytes]:
    """Return the files of a folder that hold what a file holds of a tokenizer."""
    found = {"tokenizer.json": source.data} if source.data else {}
    if source.chat_template is not None:
        found["chat_template.jinja"] = source.chat_template.encode()
    return found


def _content(path: Path) -> bytes:
    if path.stat().st_size > MAX_COPIED:
        raise UnsupportedError(f"has more than {MAX_COPIED} bytes", where=str(path))
    return path.read_bytes()


def gguf_head(metadata: GGUFMetadata, instead: dict[str, bytes], tensors: int) -> bytes:
    """Return a GGUF file's first bytes: magic number, version, counts and metadata.

    Parameters
    ----------
    instead : encoded entries that replace the metadata's, or are added.
    """
    kept = [key for key in metadata if key not in (*OF_PARTS, *instead)]
    entries = [*(metadata.encoded(key) for key in kept), *instead.values()]
    head = b"GGUF" + (3).to_bytes(4, "little")
    head += tensors.to_bytes(8, "little") + len(entries).to_bytes(8, "little")
    return head + b"".join(entries)
