"""Tokenizers from a Hugging Face folder: tokenizer.json, run by the `tokenizers` library.

Of other files that hold one (`folder_files`) a tokenizer.json is made.

Beside it, tokenizer_config.json and special_tokens_map.json name BOS, EOS and the chat template,
generation_config.json and config.json further end tokens; chat_template.jinja wins over the
template in tokenizer_config.json.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from cortiq.errors import (
    FormatError,
    NoTokenizerError,
    TokenizerError,
)
from cortiq.formats.strict_json import read_bytes, read_optional, read_text
from cortiq.formats.tokenizer_files import TokenizerFiles
from cortiq.tokenizer.folder_files import find_tokenizer
from cortiq.tokenizer.from_gguf import load_gguf
from cortiq.tokenizer.library_vocabulary import LibraryVocabulary, engine_of
from cortiq.tokenizer.longest_match import world_file, world_metadata
from cortiq.tokenizer.mistral_template import template_of_tekken
from cortiq.tokenizer.rank_files import tokenizer_bytes
from cortiq.tokenizer.special_tokens import SpecialTokens, find_end_tokens
from cortiq.tokenizer.vocabulary import Vocabulary

__all__ = ["load_folder"]


def load_folder(path: Path) -> tuple[Vocabulary, SpecialTokens, dict[str, str]]:
    """Load vocabulary, special tokens and chat templates of a model folder."""
    settings = {**_json(path / "special_tokens_map.json"), **_json(path / "tokenizer_config.json")}
    if (file := world_file(path)) is not None:
        return _world(path, file, settings)
    with _as_tokenizer_errors():
        found = find_tokenizer(path, settings)
        vocabulary = LibraryVocabulary(engine_of(found.data, found.where), found.where)
    settings = {**found.names, **settings}
    return vocabulary, _special_tokens(path, vocabulary, settings), _templates(path, settings)


def load_files(
    files: TokenizerFiles,
) -> tuple[LibraryVocabulary, SpecialTokens, dict[str, str]]:
    """Load vocabulary, special tokens and chat template of a tokenizer that lies in a file."""
    with _as_tokenizer_errors():
        data = tokenizer_bytes(files)
    if not data:
        raise NoTokenizerError(
            "the file holds no tokenizer: give token ids instead of text", where=files.where,
            hint="On the command line with --ids. Or put its tokenizer.json beside it.",
        )  # fmt: skip
    with _as_tokenizer_errors():
        vocabulary = LibraryVocabulary(engine_of(data, files.where), files.where)
    first = vocabulary.first_id
    bos = files.bos_id if first is None else first
    hidden = {*vocabulary.control.values(), *(() if bos is None else (bos,))}
    special = SpecialTokens(
        bos_id=bos,
        eos_id=files.eos_ids[0] if files.eos_ids else None,
        eos_ids=find_end_tokens([*files.eos_ids], vocabulary.control),
        unknown_id=None,
        hidden_ids=frozenset(hidden),
        add_bos=bos is not None and (files.add_bos or bos == first),
    )
    template = files.chat_template
    return vocabulary, special, {} if template is None else {"default": template}


def _world(
    path: Path, file: Path, settings: Mapping[str, Any]
) -> tuple[Vocabulary, SpecialTokens, dict[str, str]]:
    """Load RWKV's vocabulary file as a GGUF file holds it."""
    with _as_tokenizer_errors():
        data = read_bytes(file)
    vocabulary, special, _ = load_gguf(world_metadata(data, settings, str(file)))
    ends = find_end_tokens([*special.eos_ids, *_declared_ends(path)], {})
    return vocabulary, replace(special, eos_ids=ends), _templates(path, settings)


def _declared_ends(path: Path) -> list[int]:
    """Return the end tokens that the model's configurations name."""
    files = ("generation_config.json", "config.json")
    return [token for name in files for token in _ids(_json(path / name).get("eos_token_id"))]


def _special_tokens(
    path: Path, vocabulary: LibraryVocabulary, settings: Mapping[str, Any]
) -> SpecialTokens:
    control = vocabulary.control
    bos, eos, unknown = (
        vocabulary.find(_content(settings.get(f"{name}_token"))) for name in ("bos", "eos", "unk")
    )
    hidden = {*control.values(), *(token for token in (bos, eos, unknown) if token is not None)}
    return SpecialTokens(
        bos_id=bos,
        eos_id=eos,
        eos_ids=find_end_tokens([eos, *_declared_ends(path)], control),
        unknown_id=unknown,
        hidden_ids=frozenset(hidden),
        # Like transformers, which reads `add_bos_token` only when it builds tokenizer.json itself.
        add_bos=bos is not None and vocabulary.begins_with(bos),
        frames=vocabulary.frames,
    )


def _templates(path: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    file = path / "chat_template.jinja"
    declared = settings.get("chat_template")
    if isinstance(declared, str):
        declared = [{"name": "default", "template": declared}]
    named = {}
    for item in declared if isinstance(declared, list) else []:
        if not isinstance(item, dict) or not {"name", "template"} <= item.keys():
            where = str(path / "tokenizer_config.json")
            raise TokenizerError("a chat template has no name or no template", where=where)
        named[str(item["name"])] = str(item["template"])
    if os.path.lexists(file):
        with _as_tokenizer_errors():
            named["default"] = read_text(file)
    if not named:
        with _as_tokenizer_errors():
            made = template_of_tekken(path)
        named |= {} if made is None else {"default": made}
    return named


def _content(token: object) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _ids(value: Any) -> list[int]:
    return [token for token in (value if isinstance(value, list) else [value]) if token is not None]


def _json(file: Path) -> dict[str, Any]:
    with _as_tokenizer_errors():
        return read_optional(file)


@contextmanager
def _as_tokenizer_errors() -> Iterator[None]:
    try:
        yield
    except FormatError as error:
        raise TokenizerError(error.what, where=error.where) from None
