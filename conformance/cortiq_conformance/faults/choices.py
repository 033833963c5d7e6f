"""Faults of kernels that choose what attention sees."""

from __future__ import annotations

import numpy as np

from cortiq.ir import ops
from cortiq.numerics import key_blocks, route
from cortiq.numerics.contract import F32, Flags, Floats, Ints, exp2_int, round_to_f32
from cortiq.numerics.key_blocks import choose_keys, own_block
from cortiq.numerics.quantise import Quantised
from cortiq.numerics.route import stack_index
from cortiq.numerics.sums import canonical_sum
from cortiq_conformance.faults.folds import ReplacedFunction, in_pairs, with_replaced
from cortiq_conformance.faults.kernels import Wrong
from cortiq_reference import kernels
from cortiq_reference.kernels import KERNELS


def _highest_key(
    q: Quantised, keys: Quantised, weights: Floats, positions: Ints, top: int, every: int = 1
) -> Ints:
    """Choose the last of keys with equal scores."""
    out = choose_keys(q, keys, weights, positions, top, every)
    for row, position in enumerate(positions):
        there = np.arange(every - 1, position + 1, every)
        seen = Quantised(keys.q[there, 0], keys.e[there, 0])
        query = Quantised(q.q[row], q.e[row])
        scores = key_blocks.key_scores(query, seen, weights[row])
        if len(there) > top:
            out[row, 0] = np.sort(there[np.lexsort((-there, -scores))[:top]])
    return out


def _terms(q: Quantised, keys: Quantised, weights: Floats, relu: bool = True) -> Floats:
    dot = q.q.astype(np.int64) @ keys.q.astype(np.int64).T
    s = round_to_f32(dot) * exp2_int(q.e[:, None] + keys.e)
    sized = np.where(np.abs(s) >= key_blocks.SMALLEST_SCORE, s, np.float32(0))
    bounded = np.minimum(sized, key_blocks.LARGEST_SCORE)
    return weights[:, None] * (np.maximum(bounded, np.float32(0)) if relu else bounded)


def _head_after_head(q: Quantised, keys: Quantised, weights: Floats) -> Floats:
    """Add ((s0 + s1) + s2) + … over the heads."""
    return np.add.accumulate(_terms(q, keys, weights))[-1]


def _neighbours(q: Quantised, keys: Quantised, weights: Floats) -> Floats:
    """Add (s0 + s1) + (s2 + s3) …, and neighbours of those."""
    return in_pairs(np.add, list(_terms(q, keys, weights)))


def _signed(q: Quantised, keys: Quantised, weights: Floats) -> Floats:
    """Add scores that are negative, too."""
    with np.errstate(over="ignore"):
        return canonical_sum(_terms(q, keys, weights, relu=False), axis=-2)


def _with(owner: object, name: str, wrong: object) -> Wrong:
    part = ReplacedFunction(owner, name, wrong)  # type: ignore[arg-type]
    return {ops.ChooseKeys: with_replaced(KERNELS[ops.ChooseKeys], part)}


def _ahead(positions: Ints, block: int) -> Ints:
    """Count blocks from the next position on."""
    return own_block(np.asarray(positions) + 1, block)


def _with_earlier(scores: Floats, indices: Ints, admitted: Flags | None, margin: float) -> Floats:
    """Weigh each expert of a sparse mixer among the earlier ones, too."""
    m = np.take_along_axis(scores, indices, axis=-1)[..., None]
    each = np.repeat(scores[:, None], indices.shape[-1], axis=1)
    near = m - each <= F32(margin) * np.maximum(np.abs(each), m)
    near &= True if admitted is None else admitted[:, None]
    found = route.softmax(each, near)
    return np.take_along_axis(found, indices[..., None].astype(np.int64), axis=-1)[..., 0]


def _of_one_fewer(number: Ints, size: int, index: Ints | None = None) -> Ints:
    """Count stacks of one matrix fewer."""
    every = stack_index(np.zeros(1, np.int32), size)
    return stack_index(number, size - 1, every if index is None else index)


WRONG_CHOICES: dict[str, Wrong] = {
    "the last of equal keys": _with(kernels, "choose_keys", _highest_key),
    "heads added one after the other": _with(key_blocks, "key_scores", _head_after_head),
    "heads added in pairs": _with(key_blocks, "key_scores", _neighbours),
    "negative scores of heads": _with(key_blocks, "key_scores", _signed),
    "a sparse mixer with the experts before": {
        ops.Route: with_replaced(
            KERNELS[ops.Route], ReplacedFunction(route, "mixed", _with_earlier)
        )
    },
    "places in stacks of one matrix fewer": {
        ops.StackIndex: with_replaced(
            KERNELS[ops.StackIndex], ReplacedFunction(route, "stack_index", _of_one_fewer)
        )
    },
    "a chunk that ends one key early": {
        ops.OwnBlock: with_replaced(
            KERNELS[ops.OwnBlock], ReplacedFunction(kernels, "own_block", _ahead)
        )
    },
}
"""Wrong kernels by fault."""
