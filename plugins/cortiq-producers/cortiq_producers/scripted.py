"""A producer that replays given rows: for testing loops, with no model behind it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cortiq.errors import RequestError
from cortiq.numerics.contract import F32, Floats


class ScriptedProducer:
    """`LogitProducer` and `ChunkedPrefillRunner` from a list of rows, each used once.

    Whatever is fed takes the next row, a chunk like a token; `reset` begins again.

    Raises
    ------
    RequestError : a row's length is not the vocabulary, or there is no further row.
    """

    def __init__(self, rows: Sequence[Floats], vocabulary: int) -> None:
        for number, row in enumerate(rows):
            if len(row) != vocabulary:
                what = f"row {number} has {len(row)} logits, the vocabulary {vocabulary}"
                raise RequestError(what)
        self.rows, self.vocabulary = [np.asarray(row, F32) for row in rows], vocabulary
        self.used = 0

    def reset(self) -> None:
        """Begin with the first row again."""
        self.used = 0

    def try_reuse_prefix(self, prompt: Sequence[int]) -> int:
        """Return 0: no state is held."""
        return 0

    def session_slot_evicted(self) -> bool:
        """Return False: no state is held."""
        return False

    def produce(self, token: int, position: int) -> Floats:
        """Return the next row."""
        if self.used == len(self.rows):
            raise RequestError(f"the script has {len(self.rows)} rows, and one more was asked for")
        self.used += 1
        return self.rows[self.used - 1]

    def produce_prefill(self, token: int, position: int) -> None:
        """Use up the next row."""
        self.produce(token, position)

    def prefill_chunk(self, tokens: Sequence[int], start: int) -> Floats:
        """Return the next row, whatever the chunk's length."""
        if not tokens:
            raise RequestError("an empty chunk of tokens")
        return self.produce(tokens[-1], start + len(tokens) - 1)

    def prefill_chunk_with_status(
        self, tokens: Sequence[int], start: int, *, is_final_prompt_chunk: bool
    ) -> Floats | None:
        """Return the next row if the prompt ends here; it is used up in any case."""
        row = self.prefill_chunk(tokens, start)
        return row if is_final_prompt_chunk else None
