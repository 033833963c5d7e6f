"""Values and sequences cut for ranks, and put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from cortiq.backend import ExportedState, KVPlanes
from cortiq.ranks.families import Key
from cortiq.ranks.local_program import PART
from cortiq.ranks.shares import EXPERTS, Split


def with_parts(
    inputs: Mapping[str, Any], entry: str, splits: Mapping[Key, Split], rank: int, lead: int = 0
) -> Mapping[str, Any]:
    """Add this rank's parts of the values that a row supplies, or a run of rows: `lead` 1."""
    parts = {}
    for name, value in inputs.items():
        split = splits.get((entry, name))
        if split is not None and isinstance(value, np.ndarray) and value.ndim > split.axis + lead:
            whole = split.axis == EXPERTS
            parts[name + PART] = value if whole else _part(value, split, rank, lead)
    return {**inputs, **parts} if parts else inputs


def _part(array: Any, split: Split, rank: int, lead: int = 0) -> Any:
    """Return a rank's part of an array that is cut along an axis, behind some `lead` axes."""
    before = (slice(None),) * (split.axis + lead)
    parts = [array[(*before, slice(start, stop))] for start, stop in split.pieces(rank)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, split.axis + lead)


def _whole(parts: Sequence[Any], split: Split) -> Any:
    """Return an array of every rank's part of it."""
    before = (slice(None),) * split.axis
    shape = parts[0].shape
    whole = np.empty((*shape[: split.axis], split.length, *shape[split.axis + 1 :]), parts[0].dtype)
    for rank, part in enumerate(parts):
        for at, (start, stop) in split.owned(rank):
            whole[(*before, slice(start, stop))] = part[(*before, slice(at, at + stop - start))]
    return whole


def share_of(exported: ExportedState, splits: Mapping[Key, Split], rank: int) -> ExportedState:
    """Return a rank's share of an exported sequence: its heads, and its channels of what recurs."""
    slots: dict[str, Any] = dict(exported.slots)
    for name, given in exported.slots.items():
        split = splits.get(("", name))
        if split is not None and isinstance(given, KVPlanes):
            slots[name] = KVPlanes(*(_part(plane, split, rank) for plane in _planes(given)))
        elif split is not None:
            slots[name] = _part(given, split, rank)
    return replace(exported, slots=slots)


def put_together(shares: Sequence[ExportedState], splits: Mapping[Key, Split]) -> ExportedState:
    """Return the whole exported sequence from the share of each rank."""
    slots: dict[str, Any] = dict(shares[0].slots)
    for name in slots:
        split = splits.get(("", name))
        if split is None:
            continue
        own: list[Any] = [share.slots[name] for share in shares]
        if isinstance(own[0], KVPlanes):
            each = zip(*map(_planes, own), strict=True)
            slots[name] = KVPlanes(*(_whole(planes, split) for planes in each))
        else:
            slots[name] = _whole(own, split)
    return replace(shares[0], slots=slots)


def _planes(given: KVPlanes) -> list[Any]:
    return [getattr(given, field.name) for field in fields(KVPlanes)]
