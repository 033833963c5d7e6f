"""Faults of tails and of sequences' state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Self
from unittest.mock import patch

import numpy as np

from cortiq.backend import Argmax, Draw, ExportedState, KVPlanes, Top
from cortiq.backend.answers import ON_HOST
from cortiq.backend.stored import StoredState
from cortiq.backend.stores import KVStore
from cortiq.numerics import sampling
from cortiq.numerics.contract import TILE, Floats
from cortiq.numerics.masks import allowed_ids
from cortiq.numerics.quantise import Quantised


def _last_argmax(want: Argmax, run: Any, at: int) -> int:
    logits = run.row_of(want.name, at)
    return int(len(logits) - 1 - np.argmax(logits[::-1]))


def _fixed_key(want: Draw, run: Any, at: int) -> int:
    logits, history = run.row_of("logits", at), run.history(at)
    return sampling.draw(logits, want.sampling, history, 0, want.choice, mask=want.mask)


def _biased_mask(want: Draw, run: Any, at: int) -> int:
    """Subtract a large constant, which is not enough for a larger logit."""
    position, history = run.rows[at].position + 1, run.history(at)
    logits = run.row_of("logits", at)
    banned = np.setdiff1d(np.arange(logits.size), allowed_ids(want.mask, logits.size))
    bias = {**want.sampling.logit_bias, **dict.fromkeys(banned.tolist(), -100.0)}
    chain = replace(want.sampling, logit_bias=bias)
    return sampling.draw(logits, chain, history, position, want.choice)


def _next_position(want: Draw, run: Any, at: int) -> int:
    """Draw as if every row were the trunk's."""
    return ON_HOST[Draw](replace(want, ahead=1, history=None), run, at)


def _bias_last(want: Draw, run: Any, at: int) -> int:
    """Apply penalties before the bias."""
    plain = replace(want.sampling, logit_bias={})
    history = run.history(at) if want.history is None else want.history
    penalised = sampling.adjusted(run.row_of(want.name, at), plain, history, mask=want.mask)
    position = run.rows[at].position + want.ahead
    chain = replace(
        want.sampling, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0
    )
    return sampling.draw(penalised, chain, (), position, want.choice, mask=want.mask)


def _share_of_all(want: Draw, run: Any, at: int) -> int:
    """Take top_p as a share of everything, whatever top_k keeps."""

    def wrong(distance: Floats, chain: sampling.Sampling) -> Any:
        share = right(distance, replace(chain, top_k=0))
        return share[: chain.top_k or None]

    right = sampling.kept_ids
    with patch.object(sampling, "kept_ids", wrong):
        return ON_HOST[Draw](want, run, at)


def _with_kept(wrong: Callable[..., Any]) -> Callable[[Draw, Any, int], int]:
    """Return the draw with another prefix."""

    def draw(want: Draw, run: Any, at: int) -> int:
        with patch.object(sampling, "kept_ids", partial(wrong, sampling.kept_ids)):
            return ON_HOST[Draw](want, run, at)

    return draw


def _last_tie(right: Callable[..., Any], distance: Floats, chain: sampling.Sampling) -> Any:
    """Keep the highest ids of those that are equal where the prefix ends."""
    return len(distance) - 1 - right(distance[::-1], chain)


def _before_the_crossing(
    right: Callable[..., Any], distance: Floats, chain: sampling.Sampling
) -> Any:
    """Leave out the id with which top_p is reached."""
    kept, all_of_it = right(distance, chain), right(distance, replace(chain, top_p=1.0))
    return kept[: max(1, len(kept) - (len(kept) < len(all_of_it)))]


def _counted_twice(want: Draw, run: Any, at: int) -> int:
    """Count the ids before the row's own twice."""
    history = run.history(at) if want.history is None else list(want.history)
    return ON_HOST[Draw](replace(want, history=(*history[:-1], *history)), run, at)


def _last_top(want: Top, run: Any, at: int) -> tuple:
    logits = run.row_of("logits", at)
    ids, values = sampling.top(logits[::-1], want.count)
    return len(logits) - 1 - ids, values, sampling.log_sum_exp(logits)


WRONG_ANSWERS: dict[str, dict[type, Callable[[Any, Any, int], Any]]] = {
    "tie to the highest index": {Argmax: _last_argmax},
    "a position-independent random key": {Draw: _fixed_key},
    "wrong tie-break in top-k": {Top: _last_top},
    "a mask that is a bias": {Draw: _biased_mask},
    "penalties before the bias": {Draw: _bias_last},
    "top-p before top-k": {Draw: _share_of_all},
    "a tie at the cut to the highest id": {Draw: _with_kept(_last_tie)},
    "top-p without the id that crosses": {Draw: _with_kept(_before_the_crossing)},
    "a penalty that counts the prompt twice": {Draw: _counted_twice},
    "a draft drawn for the next position": {Draw: _next_position},
}
"""Wrong answers by fault."""


class _StaleStore(KVStore):
    """The first row written after a rewind is lost: the forgotten one stays."""

    def append(self, keys: Quantised, values: Quantised) -> None:
        """Write rows, and put the stale one back."""
        at = self.length
        before = [part.data[at].copy() for part in self.arrays]
        super().append(keys, values)
        for part, row in zip(self.arrays, before, strict=True):
            part.data[at] = row
        self.__class__ = KVStore  # type: ignore[assignment]


class StaleState(StoredState):
    """A stale row after rewind."""

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget rows, except one."""
        ahead = self.lengths[entry] > length
        reached = super().rewind(length, entry)
        for store in self.stores.values():
            if ahead and isinstance(store, KVStore):
                store.__class__ = _StaleStore
        return reached


class StaleHistory(StoredState):
    """Ids that a rewind leaves in the history, where the rows after it are fed."""

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget rows, but not their ids."""
        before = list(self.tokens)
        reached = super().rewind(length, entry)
        self._stale = before[reached:] if entry == "trunk" else []
        return reached

    def advance(self, entry: str, tokens: list[int]) -> None:
        """Count rows under the ids that were there before."""
        super().advance(entry, tokens)
        stale = getattr(self, "_stale", [])
        if entry == "trunk" and stale:
            start = len(self.tokens) - len(tokens)
            kept = stale[: len(tokens)]
            self.tokens[start : start + len(kept)] = kept
            self._stale = stale[len(kept) :]


class SharedState(StoredState):
    """A fork that shares its parent's tail."""

    def fork(self, length: int | None = None) -> Self:
        """Return a second sequence over the same memory."""
        other = super().fork(length)
        shared = {n: s for n, s in self.stores.items() if isinstance(s, KVStore)}
        for name, store in shared.items():
            mine = copy.copy(store)
            mine.length = other.stores[name].length
            other.stores[name] = mine
        return other


class SharedSnapshot(StoredState):
    """A snapshot that shares the sequence's memory: later writes appear in it."""

    def snapshot(self) -> Any:
        """Return the current lengths over live memory."""
        stores, tokens, lengths = super().snapshot()
        shared = {n: s for n, s in self.stores.items() if isinstance(s, KVStore)}
        return {**stores, **shared}, tokens, lengths


class FlatExport(StoredState):
    """An export whose rows have only their high planes."""

    def export(self) -> ExportedState:
        """Export the sequence without low planes."""
        exported = super().export()
        flat = {
            name: replace(slot, key_low=slot.key_low * 0, value_low=slot.value_low * 0)
            if isinstance(slot, KVPlanes)
            else slot
            for name, slot in exported.slots.items()
        }
        return replace(exported, slots=flat)


class HastyState(StoredState):
    """Rows behind a window that are freed a tile too early, which a rewind reveals."""

    def advance(self, entry: str, tokens: list[int]) -> None:
        """Count rows, and spoil the oldest tile that is kept."""
        super().advance(entry, tokens)
        for store in self.stores.values():
            if isinstance(store, KVStore) and store.base:
                at = store.base - store.start
                store.arrays[0].data[at : at + TILE] = 0


WRONG_STATES: dict[str, type[StoredState]] = {
    "a stale row after rewind": StaleState,
    "a history that a rewind leaves": StaleHistory,
    "a fork that shares its parent's tail": SharedState,
    "a snapshot that goes on with its sequence": SharedSnapshot,
    "an export without low planes": FlatExport,
    "a tile given up too early": HastyState,
}
"""Wrong states by fault."""
