"""The decoders of tokenizer.json as one chain of steps that takes pieces one at a time.

A text and a stream go through the same chain, so they cannot differ. Between the steps run tokens,
as in the `tokenizers` library, but a token may come in several parts: `Fuse` makes one token of the
whole text, and its beginning must not wait for its end.

One rule differs from the library: bytes that are no UTF-8 become U+FFFD as Unicode recommends, one
for each part that could have begun a character, so that a valid character can be shown before the
next byte is known. `ByteFallback` there shows U+FFFD for every byte of such a run.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cortiq.errors import UnsupportedError
from cortiq.tokenizer.decode_base import WHOLE, StepPosition, TextCollector, TextEdges, literal_of
from cortiq.tokenizer.decode_steps import MAKERS
from cortiq.tokenizer.encoding_cost import MOST_GROWTH, MOST_STEPS, flattened, growth_of

__all__ = ["ByteStream", "DecoderChain", "PieceStream", "decoder_steps"]


class DecoderChain:
    """Decodes pieces one by one.

    Parameters
    ----------
    steps : of `decoder_steps`.
    edges : the part of the text that the pieces form; a continuation is no beginning.
    errors : of Python's UTF-8 decoder, for bytes that are no characters.
    """

    def __init__(
        self, steps: Sequence[Mapping[str, Any]], edges: TextEdges = WHOLE, errors: str = "replace"
    ) -> None:
        made, joined = [], False
        for step in steps:
            made.append(MAKERS[step["type"]](step, StepPosition(edges, joined, errors)))
            joined = joined or step["type"] in ("Fuse", "ByteLevel")
        self._sink = TextCollector()
        for before, after in zip(made, [*made[1:], self._sink], strict=True):
            before.after = after
        self._head = made[0] if made else self._sink

    def add(self, piece: str) -> str:
        """Take a piece; return the text that is certain now."""
        self._head.part(piece)
        self._head.end()
        return self._taken()

    def finish(self) -> str:
        """Return the rest of the text."""
        self._head.close()
        return self._taken()

    def _taken(self) -> str:
        parts = self._sink.parts
        text = parts[0] if len(parts) == 1 else "".join(parts)
        parts.clear()
        return text


class PieceStream:
    """Decodes ids one by one.

    Parameters
    ----------
    piece_of : the piece of an id, None for an id without one, which leaves no trace.
    chain : new.
    """

    def __init__(self, piece_of: Callable[[int], str | None], chain: DecoderChain) -> None:
        self._piece_of, self._chain = piece_of, chain
        self.finish = chain.finish

    def add(self, token_id: int) -> str:
        """Return the text that is final after this id."""
        piece = self._piece_of(token_id)
        return "" if piece is None else self._chain.add(piece)


class ByteStream:
    """Decodes ids whose pieces are bytes, which together are UTF-8.

    Parameters
    ----------
    bytes_of : the bytes of an id.
    leading_space : take a space away from the beginning of the first piece.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], leading_space: bool = False) -> None:
        self._bytes_of, self._strips = bytes_of, leading_space
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int) -> str:
        """Return the characters that this id completes, possibly none."""
        piece = self._bytes_of(token_id)
        if self._strips:
            piece, self._strips = piece.removeprefix(b" "), False
        return self._characters.decode(piece)

    def finish(self) -> str:
        """Return U+FFFD for a character that never became complete, else nothing."""
        return self._characters.decode(b"", final=True)


def decoder_steps(decoder: Mapping[str, Any] | None, where: str) -> list[Mapping[str, Any]]:
    """Return the steps of a decoder as the library writes it, sequences flattened.

    Raises
    ------
    UnsupportedError : a step is of an unknown type, or replaces what is no plain text.
    """
    if decoder is None:
        return [{"type": "Spaced"}]
    steps: list[Mapping[str, Any]] = []
    growth = 1.0
    for step in flattened(decoder, "decoders"):
        if step["type"] not in MAKERS:
            raise UnsupportedError(f"decoder {step['type']} is not supported", where=where)
        replaces = step["type"] == "Replace"
        sought = literal_of(step["pattern"]) if replaces else step.get("suffix", "none")
        if not sought:
            what = (
                f"the decoder {step['type']} replaces a pattern that is not plain text, or is empty"
            )
            raise UnsupportedError(what, where=where, hint="only plain text patterns are supported")
        growth *= growth_of(step) or 1 if replaces else 1
        steps.append(step)
    if len(steps) > MOST_STEPS or growth > MOST_GROWTH:
        what = f"{len(steps)} decoders make {growth:.3g} bytes of one"
        raise UnsupportedError(
            what, where=where, hint=f"{MOST_STEPS} and {MOST_GROWTH} are allowed"
        )
    return steps
