"""SentencePiece's BPE without a merge list: adjacent pieces merge in order of token score."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from cortiq.errors import TokenizerError

__all__ = ["SPACE", "ScoreEncoder"]

SPACE = "\u2581"
"""The character that stands for a space inside pieces (LOWER ONE EIGHTH BLOCK)."""

_CACHE_LIMIT = 1 << 16
_CACHED_LENGTH = 64


class ScoreEncoder:
    """Text to ids by merging the best-scored adjacent pair until none is in the vocabulary.

    A text starts as its characters. Of all adjacent pairs whose concatenation is a token, the one
    with the highest score merges first, the leftmost on ties. Characters that are no token become
    their UTF-8 bytes' tokens, or the unknown token where those are missing.

    Parameters
    ----------
    ids : piece -> id, of the tokens that text may become.
    scores : score of each id.
    byte_ids : byte -> id of its `<0xXX>` token.
    unknown_id : the token for characters with neither.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Sequence[float],
        byte_ids: Mapping[int, int],
        unknown_id: int | None,
    ) -> None:
        self._ids = ids
        self._scores = scores
        self._byte_ids = byte_ids
        self._unknown_id = unknown_id
        self._words: dict[str, list[int]] = {}
        self._boundary = _word_boundary(ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, in which spaces are already written as `SPACE`."""
        ids: list[int] = []
        for word in self._boundary.split(text):
            ids += self._encode_word(word)
        return ids

    def _encode_word(self, word: str) -> list[int]:
        ids = self._words.get(word)
        if ids is None:
            ids = [token for piece in self._merge(word) for token in self._piece_ids(piece)]
            if len(self._words) >= _CACHE_LIMIT:
                self._words.clear()
            if len(word) <= _CACHED_LENGTH:  # long runs seldom repeat
                self._words[word] = ids
        return ids

    def _merge(self, word: str) -> list[str]:
        """Return the pieces of `word` after all merges: a linked list and a heap of candidates."""
        count = len(word)
        ends = list(range(1, count + 1))  # the span at i is word[i:ends[i]]; 0 marks a merged one
        previous = list(range(-1, count - 1))
        ids, scores = self._ids, self._scores
        heap: list[tuple[float, int, int, int]] = []
        for left in range(count - 1):
            token = ids.get(word[left : left + 2])
            if token is not None:
                heap.append((-scores[token], left, left + 1, left + 2))
        heapify(heap)
        while heap:
            _, left, right, end = heappop(heap)
            if ends[left] != right or ends[right] != end:
                continue  # one of the two has merged since
            ends[left], ends[right] = end, 0
            if end < count:
                previous[end] = left
                self._push(heap, word, left, end, ends[end])
            if left > 0:
                self._push(heap, word, previous[left], left, end)
        return [word[start:end] for start, end in enumerate(ends) if end]

    def _push(
        self, heap: list[tuple[float, int, int, int]], word: str, left: int, right: int, end: int
    ) -> None:
        token = self._ids.get(word[left:end])
        if token is not None:
            heappush(heap, (-self._scores[token], left, right, end))

    def _piece_ids(self, piece: str) -> list[int]:
        token = self._ids.get(piece)
        if token is not None:
            return [token]
        try:
            return [self._byte_ids[byte] for byte in piece.encode("utf-8")]
        except KeyError:
            if self._unknown_id is None:
                raise TokenizerError(
                    f"the vocabulary has no token for {piece!r}, no byte tokens for it, "
                    "and no unknown token"
                ) from None
            return [self._unknown_id]


def _word_boundary(pieces: Mapping[str, object]) -> re.Pattern[str]:
    """Return a pattern of the places before a space that no merge crosses.

    The text is cut there so that words can be remembered; the ids are the same without cutting.
    """
    joined = "\0".join(pieces)
    spanning = {pair[0] for pair in re.findall(f"(?s)[^{SPACE}\0]{SPACE}", joined)}
    exceptions = "".join(re.escape(character) for character in sorted(spanning))
    return re.compile(f"(?s)(?<=[^{SPACE}{exceptions}])(?={SPACE})")
