"""Character-level BPE: merges by rank over the characters of a line, bytes for what has no token.

What GGUF files call `gemma4`: spaces are written ▁, words are not cut, and a run of newlines that
is a token stays whole. Source: llama.cpp's pre-tokenizer of that name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cortiq.errors import TokenizerError
from cortiq.tokenizer.byte_level import encoded, library_errors
from cortiq.tokenizer.score_merge import SPACE

__all__ = ["CharLevelEncoder"]

_RUNS = re.compile(r"\n+|[^\n]+")


class CharLevelEncoder:
    """Text to ids; the merging is done by the `tokenizers` library.

    Parameters
    ----------
    vocabulary : piece -> id, of the tokens that text may become, `<0x00>` to `<0xFF>` among them.
    merges : pairs of pieces, first merged first.

    Raises
    ------
    TokenizerError : a merge names a piece that the vocabulary lacks, or a byte has no token.
    """

    def __init__(self, vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> None:
        from tokenizers import Tokenizer
        from tokenizers.models import BPE

        missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary]
        if missing:
            raise TokenizerError(f"the vocabulary has no token for byte 0x{missing[0]:02X}")
        with library_errors("vocabulary and merges do not fit"):
            model = BPE(vocab=dict(vocabulary), merges=list(merges), byte_fallback=True)
        self._engine, self._vocabulary = Tokenizer(model), vocabulary

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, from which special tokens have been cut."""
        ids: list[int] = []
        for run in _RUNS.findall(text.replace(" ", SPACE)):
            if run[0] == "\n" and run in self._vocabulary:
                ids.append(self._vocabulary[run])
                continue
            with library_errors("the text cannot be encoded"):
                ids += encoded(self._engine, run)
        return ids
