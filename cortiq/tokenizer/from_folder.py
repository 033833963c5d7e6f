"""Tokenizers from a Hugging Face folder: tokenizer.json, run by the `tokenizers` library.

Beside it, tokenizer_config.json and special_tokens_map.json name BOS, EOS and the chat template,
generation_config.json and config.json further end tokens; chat_template.jinja wins over the
template in tokenizer_config.json.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from cortiq.errors import FormatError, NoTokenizerError, TokenizerError, UnsupportedError
from cortiq.formats.strict_json import read_optional, read_text
from cortiq.tokenizer.byte_level import (
    encoded,
    library_errors,
    missing_bytes,
    piece_bytes,
    refuse_missing_bytes,
)
from cortiq.tokenizer.score_merge import SPACE
from cortiq.tokenizer.special import SpecialTokens, find_end_tokens

if TYPE_CHECKING:
    import tokenizers

__all__ = ["load_folder"]

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_BYTE_LEVEL_STEPS = {"ByteLevel"}
_SPACE_MARK_STEPS = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


class _FolderVocabulary:
    """The engine of tokenizer.json, with decoding by bytes instead of by text."""

    def __init__(self, engine: tokenizers.Tokenizer, where: str) -> None:
        self._engine = engine
        self._lock = Lock()
        vocabulary = engine.get_vocab(with_added_tokens=True)
        self.size = max(vocabulary.values(), default=-1) + 1
        self.added = engine.get_added_tokens_decoder()
        steps = list(_decoder_steps(engine))
        kinds = {step["type"] for step in steps}
        if not kinds <= _BYTE_LEVEL_STEPS and not kinds <= _SPACE_MARK_STEPS:
            raise UnsupportedError(
                f"decoder {' + '.join(sorted(kinds))} is not supported",
                where=where,
                hint="Supported: ByteLevel, and Metaspace or Replace with ByteFallback.",
            )
        self.leading_space = any(map(_strips_space, steps))
        self._byte_level = kinds == _BYTE_LEVEL_STEPS
        self._space_mark = bool(kinds & _SPACE_MARK_STEPS)
        has_unknown = getattr(engine.model, "unk_token", None) is not None
        check = self._byte_level and not has_unknown
        self._missing = missing_bytes(vocabulary) if check else frozenset()

    def encode(self, text: str, parse_special: bool) -> list[int]:
        refuse_missing_bytes(text, self._missing)
        # The switch is a property of the engine.
        with self._lock, library_errors("the text cannot be encoded"):
            self._engine.encode_special_tokens = not parse_special
            return list(encoded(self._engine, text))

    def piece_bytes(self, token_id: int) -> bytes:
        if token_id in self.added:
            return self.added[token_id].content.encode("utf-8")
        piece = self._engine.id_to_token(token_id)
        if piece is None:
            return b""  # a hole in the numbering
        if self._byte_level:
            return piece_bytes(piece)
        byte = _BYTE_TOKEN.fullmatch(piece)
        if self._space_mark and byte:
            return bytes([int(byte[1], 16)])
        return (piece.replace(SPACE, " ") if self._space_mark else piece).encode("utf-8")

    def find(self, text: str) -> int | None:
        return self._engine.token_to_id(text)

    def begins_with(self, token_id: int) -> bool:
        """Whether the post-processor puts this token in front of a text."""
        with library_errors("the post-processor fails"):
            return self._engine.encode("", add_special_tokens=True).ids[:1] == [token_id]


def load_folder(path: Path) -> tuple[_FolderVocabulary, SpecialTokens, dict[str, str]]:
    """Vocabulary, special tokens and chat templates of a model folder."""
    file = path / "tokenizer.json"
    vocabulary = _FolderVocabulary(_open_engine(file), str(file))
    settings = {**_json(path / "special_tokens_map.json"), **_json(path / "tokenizer_config.json")}
    return vocabulary, _special_tokens(path, vocabulary, settings), _templates(path, settings)


def _open_engine(file: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer

    if not file.is_file():
        raise NoTokenizerError(
            "the folder has no tokenizer.json: give token ids instead of text",
            where=str(file.parent),
            hint="On the command line with --ids. Or save one with transformers: "
            "AutoTokenizer.from_pretrained(...).save_pretrained().",
        )
    with library_errors("not a tokenizer", str(file)):
        engine = Tokenizer.from_file(str(file))
    if getattr(engine.model, "dropout", None):
        message = "the tokenizer drops merges at random (dropout): a text has no definite ids"
        raise UnsupportedError(message, where=str(file), hint="set model.dropout to null")
    engine.no_truncation()
    engine.no_padding()
    return engine


def _special_tokens(
    path: Path, vocabulary: _FolderVocabulary, settings: Mapping[str, Any]
) -> SpecialTokens:
    control = {token.content: i for i, token in vocabulary.added.items() if token.special}
    bos, eos, unknown = (
        vocabulary.find(_content(settings.get(f"{name}_token"))) for name in ("bos", "eos", "unk")
    )
    ends = [
        *_ids(_json(path / "generation_config.json").get("eos_token_id")),
        *_ids(_json(path / "config.json").get("eos_token_id")),
    ]
    hidden = {*control.values(), *(token for token in (bos, eos, unknown) if token is not None)}
    return SpecialTokens(
        bos_id=bos,
        eos_id=eos,
        eos_ids=find_end_tokens([eos, *ends], control),
        unknown_id=unknown,
        hidden_ids=frozenset(hidden),
        # Like transformers, which reads `add_bos_token` only when it builds tokenizer.json itself.
        add_bos=bos is not None and vocabulary.begins_with(bos),
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
    return named


def _decoder_steps(engine: tokenizers.Tokenizer) -> Iterator[dict[str, Any]]:
    """The decoder's steps, flattened; the library gives its parts as JSON only through pickling."""
    if engine.decoder is None:
        return
    pending = [json.loads(engine.decoder.__getstate__())]
    while pending:
        step = pending.pop(0)
        if step["type"] == "Sequence":
            pending = [*step["decoders"], *pending]
        else:
            yield step


def _strips_space(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Strip":
        return step.get("content") == " " and step.get("start", 0) >= 1
    return step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never"


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
