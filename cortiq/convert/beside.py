"""Files that lie beside converted weights: configuration, tokenizer and template of the source."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from cortiq.convert.senses import sense_prefixes
from cortiq.errors import UnsupportedError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.formats.gguf_metadata import GGUFMetadata
from cortiq.formats.own_layout import GGUF_HEADER
from cortiq.formats.quantisation import KEYS as QUANTISATION_KEYS
from cortiq.formats.sentence_settings import MODULE_CONFIG, MODULES, PROMPTS
from cortiq.formats.text_model import text_section
from cortiq.formats.tokenizer_files import TokenizerFiles
from cortiq.ir import Program
from cortiq.tokenizer.rank_files import tokenizer_bytes

COPIED = (
    "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "tekken.json", "tiktoken.model", "qwen.tiktoken", "hy.tiktoken", "rwkv_vocab_v20230424.txt",
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
    UnsupportedError : a file of the source is larger than any configuration or tokenizer.
    """
    source = checkpoint.tokenizer_source
    if isinstance(source, GGUFMetadata):
        return {GGUF_HEADER: gguf_head(source, {}, 0)}
    config = _configuration(checkpoint, program)
    if checkpoint.eos_token_ids:
        config["eos_token_id"] = list(checkpoint.eos_token_ids)
    found = {"config.json": json.dumps(config, ensure_ascii=False, indent=2).encode()}
    if checkpoint.generation is not None:
        found["generation_config.json"] = json.dumps(checkpoint.generation).encode()
    if checkpoint.sound_rules is not None:
        found["preprocessor_config.json"] = json.dumps(checkpoint.sound_rules).encode()
    if isinstance(source, TokenizerFiles):
        return found | _unpacked(source)
    for path in (source / name for name in COPIED):
        if path.is_file():
            found[path.name] = _content(path)
    named = checkpoint.sentence.folders if checkpoint.sentence else []
    for name in (MODULES, PROMPTS, *(f"{folder}/{MODULE_CONFIG}" for folder in named)):
        if (source / name).is_file():
            found[name] = _content(source / name)
    return found


def _configuration(checkpoint: Checkpoint, program: Program) -> dict[str, Any]:
    """Return config.json: of the whole model where what sees or hears is kept, else of its text."""
    if not checkpoint.whole or not sense_prefixes(checkpoint, program):
        return dict(checkpoint.config)
    config: dict[str, Any] = copy.deepcopy(dict(checkpoint.whole))
    for part in (config, text_section(config)):
        for key in QUANTISATION_KEYS:
            part.pop(key, None)
    return config


def _unpacked(source: TokenizerFiles) -> dict[str, bytes]:
    """Return the files of a folder that hold what a file holds of a tokenizer."""
    data = tokenizer_bytes(source)
    found = {"tokenizer.json": data} if data else {}
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
