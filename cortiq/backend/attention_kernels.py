"""Kernels that read keys and values, over any library with `ExactProducts`.

Each sequence of a batch meets its own rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cortiq.backend.array_attention import AttentionGeometry, ExactProducts, attend
from cortiq.backend.array_routing import first
from cortiq.backend.kernel_walk import KernelCall
from cortiq.backend.plan import Kernels
from cortiq.ir import ops
from cortiq.numerics import key_blocks
from cortiq.numerics.attention import scoring

LOWEST = -(2.0**126)
"""Below the score of every key."""
SMALLEST, LARGEST = float(key_blocks.SMALLEST_SCORE), float(key_blocks.LARGEST_SCORE)
SCORES = 1 << 21
"""Scores of queries against keys held at a time, about."""
_constants = cache(scoring)


def choose_blocks(
    library: ExactProducts, q: Any, keys: Any, positions: Any, last: int, op: Any
) -> Any:
    """Return the last blocks and those with the largest scores, ascending: int32 [rows, H, top].

    See `cortiq.numerics.key_blocks.choose_blocks`; `last` is the highest position.
    """
    rows, heads, _ = q.q.shape
    seen, blocks = last + 1, last // op.block + 1
    keys = type(keys)(*(part[:seen] for part in keys))
    exponents = q.e[..., None] + library.cast(keys.e[:, 0], "i32")
    scores = library.block_scores(q, keys) * library.exp2_int(exponents)
    scores = library.where(library.counted(seen) > positions[:, None, None], LOWEST, scores)
    scores = library.padded(scores, 0, blocks * op.block - seen, 2, LOWEST)
    best = library.highest(scores.reshape(rows, heads, blocks, op.block))[..., 0]
    best = library.padded(best, 0, op.top, 2, LOWEST)  # the list may go on past them
    index = library.counted(blocks + op.top)
    behind = (positions // op.block + 1)[:, None, None]
    late = library.where(index >= behind, 2, library.where(index >= behind - op.local, 0, 1))
    late = library.spread(late, best.shape)
    return first(library, library.descending(best), op.top, late)


def choose_keys(
    library: ExactProducts,
    q: Any,
    keys: Any,
    weights: Any,
    positions: Any,
    last: int,
    top: int,
    every: int = 1,
) -> Any:
    """Return the keys with the largest weighted scores, ascending: int32 [rows, 1, top].

    See `cortiq.numerics.key_blocks.choose_keys`; `last` is the highest position.
    """
    seen = (last + 1) // every
    keys = type(keys)(*(part[every - 1 : last + 1 : every] for part in keys))
    exponents = q.e[..., None] + library.cast(keys.e[:, 0], "i32")
    s = library.block_scores(q, keys) * library.exp2_int(exponents)
    bounded = library.where(s > LARGEST, LARGEST, s)
    terms = weights[..., None] * library.where(s >= SMALLEST, bounded, 0.0)
    while terms.shape[1] > 1:  # of at most 256 heads: lanes of the canonical sum
        half = 1 << (terms.shape[1] - 1).bit_length() - 1
        terms = library.padded(terms, 0, 2 * half - terms.shape[1], 1)
        low, high = library.split(terms, [half] * 2, axis=1)
        terms = low + high
    scores = terms[:, 0] + 0.0  # no -0
    there = ((positions + 1) // every)[:, None]
    scores = library.where(library.counted(seen) >= there, LOWEST, scores)
    scores = library.padded(scores, 0, top, 1, LOWEST)  # the list may go on past them
    entry = first(library, library.descending(scores), top)
    beyond = positions[:, None] + 1 + entry - there
    return library.where(entry < there, (entry + 1) * every - 1, beyond)[:, None]


def attend_kernel(call: KernelCall, q: Any, position: Any, chosen: Any = None) -> Any:
    """Attend to each sequence's rows, with so many queries at a time that scores stay bounded."""
    op, library, out = call.op, call.library, []
    sinks = call.weights.get("sinks")
    how = AttentionGeometry(
        _constants(op.scale, op.soft_cap), op.window, sinks, op.block, op.mass, op.slopes
    )
    for segment in call.segments:
        store = segment.state.stores[call.slots["kv"]]
        keys, values = store.read()
        step = max(1, SCORES // (op.heads * (segment.positions[-1] + 1)))
        for start in range(segment.start, segment.stop, step):
            cut = slice(start, min(start + step, segment.stop))
            own = at = segment.positions[cut.start - segment.start : cut.stop - segment.start]
            if op.until:  # an input of the batch: nothing that is under way has to be computed
                at = library.host(position[cut]).tolist()
            whole = len(at) == len(q.e)
            part = q if whole else type(q)(q.q[cut], q.e[cut])
            blocks = chosen if chosen is None or whole else chosen[cut]
            given = (part, keys, values, at, how, call.shared, blocks, store.base, own)
            out.append(attend(library, *given))
    parts = [y for y, _ in out]
    y = library.snap(parts[0] if len(out) == 1 else library.concatenate(parts), call.faults)
    return (y, library.concatenate([mass for _, mass in out])) if op.mass else y


def choose_kernel(call: KernelCall, q: Any, position: Any) -> Any:
    """Choose the blocks that each sequence's rows attend to."""
    found = []
    for segment in call.segments:
        cut = segment.cut
        keys, _ = segment.state.stores[call.slots["kv"]].read()
        part = type(q)(q.q[cut], q.e[cut])
        last = segment.positions[-1]
        found.append(choose_blocks(call.library, part, keys, position[cut], last, call.op))
    return call.library.concatenate(found)


def choose_keys_kernel(call: KernelCall, q: Any, position: Any, weights: Any) -> Any:
    """Choose the keys that rows attend to, with so many rows at a time that scores stay bounded."""
    found, op = [], call.op
    for segment in call.segments:
        keys, _ = segment.state.stores[call.slots["kv"]].read()
        step = max(1, SCORES // (op.heads * (segment.positions[-1] + 1)))
        for start in range(segment.start, segment.stop, step):
            cut = slice(start, min(start + step, segment.stop))
            last = segment.positions[cut.stop - 1 - segment.start]
            part = type(q)(q.q[cut], q.e[cut])
            given = (part, keys, weights[cut], position[cut], last, op.top, op.every)
            found.append(choose_keys(call.library, *given))
    return call.library.concatenate(found)


def recall_kernel(call: KernelCall, position: Any) -> Any:
    """Return key rows as floats; rows past the last one are supplied by their rows."""
    library, parts = call.library, []
    for segment in call.segments:
        keys, _ = segment.state.stores[call.slots["kv"]].read()
        there = [place for place in segment.positions if place < len(keys.e)]
        if there:
            parts.append(library.recalled(keys, there))
        missing = len(segment.positions) - len(there)
        if missing:
            parts.append(library.full((missing, call.op.heads, call.op.dim), "f32"))
    return library.snap(library.concatenate(parts), call.faults)


ATTENTION_KERNELS: Kernels = {
    ops.Attend: attend_kernel,
    ops.ChooseBlocks: choose_kernel,
    ops.ChooseKeys: choose_keys_kernel,
    ops.Recall: recall_kernel,
    ops.OwnBlock: lambda call, position: (position // call.op.block)[:, None, None],
}
"""By primitive."""
ATTENTION_OPTIONS = frozenset({"blocks", "until", "mass", "every", "slopes"})
"""Options that they know."""
