"""The vocabulary of a tokenizer.json, which the `tokenizers` library runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.errors import TokenizerError, UnsupportedError, shown
from cortiq.formats.strict_json import parse_object
from cortiq.tokenizer.byte_level import missing_bytes, refuse_missing_bytes
from cortiq.tokenizer.decode_base import MIDDLE, TextEdges
from cortiq.tokenizer.decoders import DecoderChain, PieceStream, decoder_steps
from cortiq.tokenizer.encoders import TextEncoder, open_encoder
from cortiq.tokenizer.encoding_cost import flattened
from cortiq.tokenizer.frames import frames_of

__all__ = ["LARGEST_ID", "LibraryVocabulary", "engine_of", "leading_id"]

LARGEST_ID = 1 << 22
"""Ids from here on are refused: no model has so many, and tables would be as long."""


class LibraryVocabulary:
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
        """Return the ids of a text, without those around it."""
        refuse_missing_bytes(text, self._missing)
        return self._engine.encode(text, parse_special)

    def stream(self, continuation: bool) -> PieceStream:
        """Open a stream that decodes ids; a gap in the numbering is no token."""
        chain = DecoderChain(self._steps, TextEdges(first=not continuation))
        return PieceStream(self._pieces.get, chain)

    def piece_bytes(self, token_id: int) -> bytes:
        """Return the bytes of an id inside a text."""
        known = self._bytes.get(token_id)
        if known is None:
            chain = DecoderChain(self._steps, MIDDLE, "surrogateescape")
            piece = self._pieces.get(token_id)
            text = "" if piece is None else chain.add(piece) + chain.finish()
            known = self._bytes[token_id] = text.encode("utf-8", "surrogateescape")
        return known

    def own_text(self, token_id: int) -> str:
        """Return the text by which `find` finds a token."""
        return self._pieces.get(token_id, "")

    def find(self, text: str) -> int | None:
        """Return the id of a piece, or None."""
        return self._ids.get(text)

    @property
    def first_id(self) -> int | None:
        """The token that the post-processor puts in front of a text."""
        return self._first

    def begins_with(self, token_id: int) -> bool:
        """Return whether the post-processor puts this token in front of a text."""
        return self._first == token_id


def engine_of(data: bytes, where: str) -> TextEncoder:
    """Open the engine that the bytes of a tokenizer.json describe."""
    described = parse_object(data, where)
    model = described.get("model")
    if isinstance(model, dict) and model.get("dropout"):
        message = "the tokenizer drops merges at random (dropout): a text has no definite ids"
        raise UnsupportedError(message, where=where, hint="set model.dropout to null")
    return open_encoder(data.decode(), described, where)


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
