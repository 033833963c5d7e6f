"""The tokenizer and chat bundle of a CMF file, from a folder's files or from GGUF metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from cortiq.errors import UnsupportedError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.formats.strict_json import read_bytes, read_optional
from cortiq.formats.tokenizer_files import TokenizerFiles
from cortiq.tokenizer.description import BYTE_LEVEL, begins_with, special_tokens
from cortiq.tokenizer.pretokenizers import (
    CHARACTER_LEVEL,
    PreTokenizer,
    plain_pattern,
    pre_tokenizer,
)
from cortiq.tokenizer.special_tokens import TokenType

PREFIX = "tokenizer.ggml."
ADDED = (TokenType.CONTROL, TokenType.USER_DEFINED)


def bundle_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the chat bundle: template, and ids of special tokens."""
    found: dict[str, Any] = {"eos_token_ids": list(checkpoint.eos_token_ids)}
    if checkpoint.chat_template is not None:
        found["chat_template"] = checkpoint.chat_template
    for name in ("bos", "pad"):
        token = _special_id(checkpoint, name)
        if token is not None:
            found[f"{name}_token_id"] = token
    return found


def _special_id(checkpoint: Checkpoint, name: str) -> int | None:
    source = checkpoint.tokenizer_source
    if isinstance(source, TokenizerFiles):
        return getattr(source, f"{name}_id")
    if isinstance(source, Path):
        given = read_optional(source / "generation_config.json").get(f"{name}_token_id")
        given = checkpoint.config.get(f"{name}_token_id") if given is None else given
    else:
        key = {"pad": "padding"}.get(name, name)
        given = source.get(f"{PREFIX}{key}_token_id")
    return given if type(given) is int and given >= 0 else None


def tokenizer_json(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of tokenizer.json; none where a folder has none.

    Raises
    ------
    UnsupportedError : a GGUF file's tokenizer is of a kind that is not written as one.
    """
    source = checkpoint.tokenizer_source
    if isinstance(source, TokenizerFiles):
        return source.data
    if isinstance(source, Path):
        file = source / "tokenizer.json"
        return read_bytes(file) if file.is_file() else b""
    model, pre = (source.get(PREFIX + name) for name in ("model", "pre"))
    if model is None:
        return b""
    if model != "gpt2" or pre in CHARACTER_LEVEL:
        hint = "convert the model's Hugging Face folder instead"
        kind = pre if model == "gpt2" else model
        what = f"its tokenizer is of the kind {kind!r}, which is not written as tokenizer.json"
        raise UnsupportedError(what, where=str(checkpoint.path), hint=hint)
    return json.dumps(_byte_level(source), ensure_ascii=False).encode()


def _byte_level(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return tokenizer.json of a byte-level vocabulary."""
    texts = [_text(token) for token in metadata[PREFIX + "tokens"]]
    kinds = [int(kind) for kind in metadata.get(PREFIX + "token_type", [1] * len(texts))]
    pre = pre_tokenizer(str(metadata.get(PREFIX + "pre")))
    added = [
        entry
        for kind in ADDED
        for entry in special_tokens(
            {n: texts[n] for n, own in enumerate(kinds) if own == kind}, kind == TokenType.CONTROL
        )
    ]
    added.sort(key=itemgetter("id"))
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": _words(pre),
        "post_processor": _beginning(metadata, texts, pre),
        "decoder": dict(BYTE_LEVEL),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": pre.ignore_merges,
            "vocab": {text: token for token, text in enumerate(texts)},
            "merges": [_text(merge) for merge in metadata[PREFIX + "merges"]],
        },
    }  # fmt: skip


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _words(pre: PreTokenizer) -> dict[str, Any]:
    """Return the stages that split a text into words, and its bytes into letters."""
    stages: list[Mapping[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": plain_pattern(stage)}, "behavior": "Isolated",
         "invert": False}
        for stage in pre.stages
    ]  # fmt: skip
    return {"type": "Sequence", "pretokenizers": [*stages, dict(BYTE_LEVEL)]}


def _beginning(
    metadata: Mapping[str, Any], texts: list[str], pre: PreTokenizer
) -> dict[str, Any] | None:
    """Return the post-processor that puts BOS before a text, where the file asks for it."""
    token = metadata.get(PREFIX + "bos_token_id")
    if not metadata.get(PREFIX + "add_bos_token", pre.add_bos) or token is None:
        return None
    return begins_with(texts[int(token)], int(token))
