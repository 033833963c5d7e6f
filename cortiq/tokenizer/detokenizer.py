"""Text out of a stream of ids: whole characters only, and stop strings matched on text."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from cortiq.errors import RequestError
from cortiq.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "StopMatcher"]


class Detokenizer:
    """Turns ids into text one by one; bytes of an incomplete character wait for the rest.

    The concatenation of every `add` and of `finish` equals `tokenizer.decode(ids)` with the same
    options.

    Parameters
    ----------
    tokenizer : whose ids these are.
    skip_special, continuation : as in `Tokenizer.decode`; a generated answer is a continuation.
    shown : control tokens that are not skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        continuation: bool = False,
        shown: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special, self._shown = skip_special, shown
        self._stream = tokenizer.stream(continuation=continuation)

    def add(self, token_id: int) -> str:
        """Return the characters that `token_id` completes, possibly none."""
        tokenizer = self._tokenizer
        hidden = self._skip_special and tokenizer.is_special(token_id)
        if not tokenizer.has_piece(token_id) or (hidden and token_id not in self._shown):
            return ""
        return self._stream.add(token_id)

    def finish(self) -> str:
        """Return the rest: U+FFFD for an incomplete character, usually nothing."""
        return self._stream.finish()


class StopMatcher:
    """Cuts a text before the first stop string in it, whatever pieces the text arrives in.

    Text that may be the beginning of a stop string is held back until that is decided. Of several
    stop strings the one that is complete first wins, the longest where they end together: what is
    emitted does not depend on how the text was cut into pieces.

    Parameters
    ----------
    stops : the stop strings, none of them empty.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise RequestError("a stop string is empty")
        self._prefixes = {stop[:length] for stop in self._stops for length in range(1, len(stop))}
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def add(self, piece: str) -> tuple[str, bool]:
        """Take `piece`; return the text that is certainly not part of a stop string, and whether
        one was found. Nothing is emitted after that.
        """
        if not self._stops:
            return piece, False
        if self.matched is not None:
            return "", True
        text = self._held + piece
        found = self._first_match(text)
        if found is not None:
            start, self.matched = found
            self._held = ""
            return text[:start], True
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def finish(self) -> str:
        """Return the text still held back when the stream ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        hits = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not hits:
            return None
        _, start, stop = min(hits)
        return start, stop

    def _undecided(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if text[len(text) - length :] in self._prefixes:
                return length
        return 0
