"""The CPU backend's choice of keys: 0 bits of difference to cortiq.numerics.

On every instruction set of this machine; cache bytes that no row was written to are garbage.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from kv_cache import Cache
from native_ops import PATHS, address, args, run_ops, write_records
from test_cpu_blocks import joined, quantised, spans_of, whole

from cortiq.numerics.contract import F32
from cortiq.numerics.key_blocks import choose_keys
from cortiq.numerics.quantise import no_values


class Choice(NamedTuple):
    """Sequences as (first position, rows), and how keys are chosen from them."""

    sequences: tuple[tuple[int, int], ...]
    heads: int = 4
    dim: int = 32
    top: int = 9
    rows: object = quantised
    weights: float = 1.0
    every: int = 1


CHOICES = {
    "as many as are kept": Choice(((0, 9),)),
    "decode over parts of tiles": Choice(((2100, 1),), heads=5, top=300),
    "prefill": Choice(((0, 150),), heads=3),
    "one head": Choice(((130, 20),), heads=1, top=1),
    "more heads than a block of queries": Choice(((90, 9),), heads=37, top=70),
    "all the heads there may be": Choice(((90, 3),), heads=256, dim=8),
    "equal scores": Choice(((300, 40),), dim=8, top=50, rows=whole),
    "weights that cancel": Choice(((90, 40),), heads=7, weights=2.0**30),
    "wide rows": Choice(((90, 9),), heads=2, dim=576),
    "odd width": Choice(((90, 40),), heads=2, dim=5),
    "every third key": Choice(((290, 40), (0, 20)), heads=3, top=70, every=3),
    "batch": Choice(((0, 1), (700, 1), (63, 40), (400, 3)), top=60),
}


@cache
def chosen_from(case):
    """Queries and keys of every sequence, weights, and the contract's choices."""
    rng = np.random.default_rng(case.heads + case.dim)
    parts, exact = [], []
    for first, rows in case.sequences:
        q = case.rows(rng, (rows, case.heads, case.dim))
        keys = case.rows(rng, (first + rows, 1, case.dim))
        weights = rng.integers(-1, 2, q.e.shape) * F32(case.weights)
        weights = np.where(weights == 0, rng.standard_normal(q.e.shape), weights).astype(F32)
        parts.append((q, keys, weights))
        positions = np.arange(first, first + rows)
        exact.append(choose_keys(q, keys, weights, positions, case.top, case.every))
    return parts, np.concatenate(exact)


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("path", PATHS)
def test_choices(path, name):
    case = CHOICES[name]
    parts, exact = chosen_from(case)
    store = Cache(len(parts), max(len(k.q) for _, k, _ in parts), 1, case.dim, 0, page_tiles=2)
    for i, (_, keys, _) in enumerate(parts):
        store.write(i, 0, keys, no_values(len(keys.q), 1))
    listed, count = spans_of(case.sequences)
    records, out = write_records(joined([q for q, _, _ in parts])), np.full_like(exact, -7)
    weights = np.concatenate([w for _, _, w in parts])
    struct = args.ChooseKeysArgs(
        store.struct(listed, count), address(records), address(weights), address(out), case.heads,
        case.top, case.every,
    )  # fmt: skip
    faults = run_ops(path, len(out), (Kind.CHOOSE_KEYS, struct))
    assert np.array_equal(out, exact)
    assert not faults.any()


Kind = args.OpKind
