"""Values and sequences cut for ranks, and put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from cortiq.backend import ExportedState, KVPlanes
from cortiq.ranks.families import Key
from cortiq.ranks.local_program import PART
from cortiq.ranks.shares import Split


def with_parts(
    inputs: Mapping[str, Any], entry: str, splits: Mapping[Key, Split], rank: int
) -> Mapping[str, Any]:
    """Add this rank's parts of the values that a row supplies."""
    parts = {}
    for name, value in inputs.items():
        split = splits.get((entry, name))
        if split is not None and isinstance(value, np.ndarray) and value.ndim > split.axis:
            start, stop = split.ranges[rank] if split.axis >= 0 else (0, len(value))
            parts[name + PART] = value[(slice(None),) * split.axis + (slice(start, stop),)]
    return {**inputs, **parts} if parts else inputs


def share_of(exported: ExportedState, splits: Mapping[Key, Split], rank: int) -> ExportedState:
    """Return a rank's share of an exported sequence: its heads of key and value rows.

    What is not as an exported sequence should be stays as it is, for the check on each rank.
    """
    slots: dict[str, Any] = dict(exported.slots)
    for name, planes in exported.slots.items():
        split = splits.get(("", name))
        if split is not None and isinstance(planes, KVPlanes):
            start, stop = split.ranges[rank]
            slots[name] = KVPlanes(
                *(getattr(planes, f.name)[:, start:stop] for f in fields(planes))
            )
    return replace(exported, slots=slots)


def put_together(shares: Sequence[ExportedState], splits: Mapping[Key, Split]) -> ExportedState:
    """Return the whole exported sequence from the share of each rank."""
    slots: dict[str, Any] = dict(shares[0].slots)
    for name in slots:
        split = splits.get(("", name))
        if split is not None:
            own = [share.slots[name] for share in shares]
            counts = [stop - start for start, stop in split.owned]
            slots[name] = KVPlanes(
                *(
                    np.concatenate(
                        [getattr(p, f.name)[:, :n] for p, n in zip(own, counts, strict=True)], 1
                    )
                    for f in fields(KVPlanes)
                )
            )
    return replace(shares[0], slots=slots)
