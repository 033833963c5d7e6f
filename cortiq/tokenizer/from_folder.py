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
    UnsupportedError,
    shown,
)
from cortiq.formats.strict_json import parse_object, read_bytes, read_optional, read_text
from cortiq.formats.tokenizer_files import TokenizerFiles
from cortiq.tokenizer.byte_level import missing_bytes, refuse_missing_bytes
from cortiq.tokenizer.decode_base import MIDDLE, TextEdges
from cortiq.tokenizer.decoders import DecoderChain, PieceStream, decoder_steps
from cortiq.tokenizer.encoders import TextEncoder, open_encoder
from cortiq.tokenizer.encoding_cost import flattened
from cortiq.tokenizer.folder_files import find_tokenizer
from cortiq.tokenizer.frames import frames_of
from cortiq.tokenizer.from_gguf import load_gguf
from cortiq.tokenizer.longest_match import world_file, world_metadata
from cortiq.tokenizer.mistral_template import template_of_tekken
from cortiq.tokenizer.rank_files import tokenizer_bytes
from cortiq.tokenizer.special_tokens import SpecialTokens, find_end_tokens
from cortiq.tokenizer.vocabulary import Vocabulary

__all__ = ["load_folder"]

LARGEST_ID = 1 << 22
"""Ids from here on are refused: no model has so many, and tables would be as long."""


class _FolderVocabulary:
    """Pieces of tokenizer.json, and its engine."""

    def __init__(self, engine: TextEncoder, where: str) -> None:
        described = engine.description
        self._engine = engine
        self._ids: dict[str, int] = described["ids"]
        self._pieces = {token: piece for piece, token in self._ids.items()}
        self._pieces |= dict(described["pieces"])
        self._bytes: dict[int, bytes] = {}
        self.size = max(self._pieces, default=-1) + 1
        if self.size > LARGEST_ID:
            raise UnsupportedError(f"token id {self.size - 1} is too large", where=where)
        self.control = {text: token for token, text, special in described["added"] if special}
        self._steps = decoder_steps(described["decoder"], where)
        self._first = leading_id(described["post_processor"], where)
        self.frames = frames_of(described["post_processor"], where)
        byte_level = all(step["type"] == "ByteLevel" for step in self._steps)
        check = byte_level and not described["has_unknown"]
        self._missing = missing_bytes(self._ids) if check else frozenset()

    def encode(self, text: str, parse_special: bool) -> list[int]:
        refuse_missing_bytes(text, self._missing)
        return self._engine.encode(text, parse_special)

    def stream(self, continuation: bool) -> PieceStream:
        """Open a stream that decodes ids; a gap in the numbering is no token."""
        chain = DecoderChain(self._steps, TextEdges(first=not continuation))
        return PieceStream(self._pieces.get, chain)

    def piece_bytes(self, token_id: int) -> bytes:
        known = self._bytes.get(token_id)
        if known is None:
            chain = DecoderChain(self._steps, MIDDLE, "surrogateescape")
            piece = self._pieces.get(token_id)
            text = "" if piece is None else chain.add(piece) + chain.finish()
            known = self._bytes[token_id] = text.encode("utf-8", "surrogateescape")
        return known

    def own_text(self, token_id: int) -> str:
        return self._pieces.get(token_id, "")

    def find(self, text: str) -> int | None:
        return self._ids.get(text)

    @property
    def first_id(self) -> int | None:
        """The token that the post-processor puts in front of a text."""
        return self._first

    def begins_with(self, token_id: int) -> bool:
        """Return whether the post-processor puts this token in front of a text."""
        return self._first == token_id


def load_folder(path: Path) -> tuple[Vocabulary, SpecialTokens, dict[str, str]]:
    """Load vocabulary, special tokens and chat templates of a model folder."""
    settings = {**_json(path / "special_tokens_map.json"), **_json(path / "tokenizer_config.json")}
    if (file := world_file(path)) is not None:
        return _world(path, file, settings)
    with _as_tokenizer_errors():
        found = find_tokenizer(path, settings)
        vocabulary = _FolderVocabulary(_engine_of(found.data, found.where), found.where)
    settings = {**found.names, **settings}
    return vocabulary, _special_tokens(path, vocabulary, settings), _templates(path, settings)


def load_files(
    files: TokenizerFiles,
) -> tuple[_FolderVocabulary, SpecialTokens, dict[str, str]]:
    """Load vocabulary, special tokens and chat template of a tokenizer that lies in a file."""
    with _as_tokenizer_errors():
        data = tokenizer_bytes(files)
    if not data:
        raise NoTokenizerError(
            "the file holds no tokenizer: give token ids instead of text", where=files.where,
            hint="On the command line with --ids. Or put its tokenizer.json beside it.",
        )  # fmt: skip
    with _as_tokenizer_errors():
        vocabulary = _FolderVocabulary(_engine_of(data, files.where), files.where)
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


def _engine_of(data: bytes, where: str) -> TextEncoder:
    """Open the engine that the bytes of a tokenizer.json describe."""
    described = parse_object(data, where)
    model = described.get("model")
    if isinstance(model, dict) and model.get("dropout"):
        message = "the tokenizer drops merges at random (dropout): a text has no definite ids"
        raise UnsupportedError(message, where=where, hint="set model.dropout to null")
    return open_encoder(data.decode(), described, where)


def _special_tokens(
    path: Path, vocabulary: _FolderVocabulary, settings: Mapping[str, Any]
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


def leading_id(processor: Mapping[str, Any] | None, where: str) -> int | None:
    """Return the id that a post-processor puts in front of every text.

    Raises
    ------
    UnsupportedError : it repeats the text or leaves it out.
    """
    first: int | None = None
    for step in flattened(processor, "processors"):
        if step["type"] == "TemplateProcessing":
            pieces = step["single"]
            texts = [piece["Sequence"]["id"] for piece in pieces if "Sequence" in piece]
            if texts != ["A"]:
                what = f"the post-processor's template has the text {len(texts)} times, not once"
                raise UnsupportedError(what, where=where)
            ids = _ids_before_text(step, where)
        else:
            ids = [step["cls"][1]] if "cls" in step else []
        first = ids[0] if ids else first  # a later step puts it in front of an earlier one's
    return first


def _ids_before_text(template: Mapping[str, Any], where: str) -> list[int]:
    """Return the ids of the first token with ids that a template puts before the text."""
    for piece in template["single"]:
        name = piece.get("SpecialToken", {}).get("id")
        if name is None:
            break
        if name not in template["special_tokens"]:
            what = f"the post-processor's template has no ids for {shown(name)}"
            raise TokenizerError(what, where=where)
        if ids := template["special_tokens"][name]["ids"]:
            return list(ids)
    return []


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
