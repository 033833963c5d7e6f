"""The definition of `NystromAttend`: one row after the other, in float32 and a written order.

A head sees the keys of its group; σ is RN(scale). Scores are
s = snap(RN(canonical_sum(RN(q·k))·σ)). Powers are E(x) = snap(exp(x)) of x ≤ 0, so that what is
below 2⁻⁴⁰ is exactly 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from cortiq.numerics.contract import F32, Flags, Floats, snap
from cortiq.numerics.scalar import exp
from cortiq.numerics.sums import canonical_sum
from cortiq_bounded.landmarks import middle, segment_means
from cortiq_bounded.ops import NystromAttend, Shapes

NO_PEAK = F32(-(2.0**40))
"""The largest score of a landmark that no row has met."""
SMALLEST = F32(2.0**-40)
MASS_BITS = 32
NYSTROM_TYPICAL_ERROR = 2e-5
"""Error of rows beyond the seal for normal q, k, v, relative to the largest output; that of a row
whose far field's sum is close to 0 can be larger."""

Parts = Mapping[str, Floats]


def parts(state: Floats, shapes: Shapes) -> dict[str, Floats]:
    """Return views of a flat state, in the order of these shapes."""
    found, start = {}, 0
    for name, shape in shapes.items():
        found[name] = state[start : start + prod(shape)].reshape(shape)
        start += prod(shape)
    return found


def step(
    op: NystromAttend,
    state: Floats,
    q: Floats,
    k: Floats,
    v: Floats,
    position: np.int32,
    faults: Flags | None = None,
) -> tuple[Floats, Floats]:
    """Compute one row: (state', out), out float32 [heads, value_dim].

    Before the seal the row joins the others and sees all of them. The row `seal` − 1 seals the
    state behind it. Later the row of the window that it pushes out joins the far field first, then
    it takes that row's place, and sees what is kept, the window in the order of places, and the
    far field.
    """
    at = int(position)
    state = state.copy()
    if at < op.seal:
        held = parts(state, op.collected_shapes())
        held["keys"][at], held["values"][at] = k, v
        if at % op.stride == 0:
            held["queries"][at // op.stride] = q
        rows = held["keys"][: at + 1], held["values"][: at + 1]
        out = attended(op, q, *rows, None, faults)
        return (sealed(op, state, faults) if at == op.seal - 1 else state), out
    held = parts(state, op.sealed_shapes())
    place = (at - op.sinks) % op.window
    leaving = held["window_keys"][place].copy(), held["window_values"][place].copy()
    absorb(op, held, *leaving, faults)
    held["window_keys"][place], held["window_values"][place] = k, v
    keys = np.concatenate([held["kept_keys"], held["window_keys"]])
    values = np.concatenate([held["kept_values"], held["window_values"]])
    out = attended(op, q, keys, values, held, faults)
    if op.reseal:
        archive(op, held, at - op.seal, q, *leaving, faults)
    return state, out


def scores(op: NystromAttend, q: Floats, keys: Floats, faults: Flags | None) -> Floats:
    """Return scores float32 [heads, n, m] of q [heads, n, dim] and keys [kv_heads, m, dim]."""
    each = op.heads // op.kv_heads
    grouped = q.reshape(op.kv_heads, each, q.shape[1], 1, op.dim)
    found = canonical_sum(grouped * keys[:, None, None]) * F32(op.scale)
    return snapped(found.reshape(op.heads, q.shape[1], -1), faults)


def snapped(y: Floats, faults: Flags | None) -> Floats:
    """Snap the values of one row."""
    return snap(y[None], faults)[0]


def power(x: Floats) -> Floats:
    """Return E(x)."""
    return snap(exp(x))


def attended(
    op: NystromAttend,
    q: Floats,
    keys: Floats,
    values: Floats,
    far: Parts | None,
    faults: Flags | None,
) -> Floats:
    """Return what a row sees of near rows [n, kv_heads, …] and of the far field, if there is one.

    s = scores of near rows, c their largest. With a far field: h[a] = scores of the landmark keys,
    f their largest; u[b] = snap(canonical_sum_a(RN(E(RN(h[a] − f))·M[a, b]))), with `fm` not below
    0; t[b] = RN(RN(f − L) + peak[b]); C = the largest of c and t; g[b] = snap(RN(u[b]·E(RN(t[b] −
    C)))); D = snap(canonical_sum_b(RN(g[b]·mass[b]))). Where D < 0 the far field is left out:
    C = c, g = 0, D = 0. p = E(RN(s − C)); den = max(RN(D + canonical_sum(p)), 2⁻⁴⁰);
    num = RN(canonical_sum_b(RN(g[b]·sum[b])) + canonical_sum_n(RN(p·v))); out = snap(RN(num/den)).
    """
    s = scores(op, q[:, None], keys.transpose(1, 0, 2), faults)[:, 0]
    top = s.max(axis=-1)
    total, mixed = np.zeros(op.heads, F32), np.zeros((op.heads, op.value_dim), F32)
    if far is not None:
        g, total, top = far_weights(op, q, far, top, faults)
        mixed = canonical_sum(g[:, :, None] * far["sums"], axis=-2)
    p = power(s - top[:, None])
    each = op.heads // op.kv_heads
    v = np.repeat(values.transpose(1, 0, 2), each, axis=0)
    total = np.maximum(total + canonical_sum(p), SMALLEST)
    mixed = mixed + canonical_sum(p[:, :, None] * v, axis=-2)
    return snapped(mixed / total[:, None], faults)


def far_weights(
    op: NystromAttend, q: Floats, far: Parts, top: Floats, faults: Flags | None
) -> tuple[Floats, Floats, Floats]:
    """Return g [heads, n], D [heads] and C [heads] of a row; see `attended`."""
    h = scores(op, q[:, None], far["landmark_keys"], faults)[:, 0]
    f = h.max(axis=-1)
    weights = power(h - f[:, None])
    u = snapped(canonical_sum(weights[:, :, None] * far["middle"], axis=-2), faults)
    if op.rectifier == "fm":
        u = np.maximum(u, F32(0))
    t = (f - far["shift"])[:, None] + far["peaks"]
    joint = np.maximum(top, t.max(axis=-1))
    g = snapped(u * power(t - joint[:, None]), faults)
    d = snapped(canonical_sum(g * far["masses"]), faults)
    kept = d >= 0
    none = F32(0)
    return (
        np.where(kept[:, None], g, none), np.where(kept, d, none), np.where(kept, joint, top),
    )  # fmt: skip


def absorb(op: NystromAttend, far: Parts, k: Floats, v: Floats, faults: Flags | None) -> None:
    """Add a row to the far field of every head, in place.

    For each landmark: s = its score; peak' = max(peak, s); r = E(RN(peak − peak')) where it grew,
    else 1; e = E(RN(s − peak')); mass = snap(RN(RN(mass·r) + e)); sum = snap(RN(RN(sum·r) +
    RN(e·v))).
    """
    s = scores(op, far["landmark_queries"], k[:, None], faults)[:, :, 0]
    peaks = np.maximum(far["peaks"], s)
    shrink = np.where(s > far["peaks"], power(far["peaks"] - peaks), F32(1))
    e = power(s - peaks)
    own = np.repeat(v, op.heads // op.kv_heads, axis=0)[:, None]
    far["masses"][...] = snapped(far["masses"] * shrink + e, faults)
    grown = far["sums"] * shrink[:, :, None] + e[:, :, None] * own
    far["sums"][...] = snapped(grown, faults)
    far["peaks"][...] = peaks


def sealed(op: NystromAttend, state: Floats, faults: Flags | None) -> Floats:
    """Return the sealed state of the rows collected: landmarks of all, far rows in their order."""
    held = parts(state, op.collected_shapes())
    keys, values = held["keys"], held["values"]
    after = np.zeros_like(state)
    new = parts(after, op.sealed_shapes())
    set_landmarks(op, new, keys, held["queries"])
    kept = [*range(op.sinks), *chosen_rows(op, new, keys, faults)]
    new["kept_keys"][...], new["kept_values"][...] = keys[kept], values[kept]
    first = op.seal - op.window
    for row in range(op.sinks, first):
        if row not in kept:
            absorb(op, new, keys[row], values[row], faults)
    for row in range(first, op.seal):
        place = (row - op.sinks) % op.window
        new["window_keys"][place], new["window_values"][place] = keys[row], values[row]
    return after


def set_landmarks(op: NystromAttend, new: Parts, keys: Floats, queries: Floats) -> None:
    """Make landmarks of these rows, and empty the far field."""
    new["landmark_keys"][...] = segment_means(keys, op.used)
    new["landmark_queries"][...] = segment_means(queries, op.used)
    grouped = np.repeat(new["landmark_keys"], op.heads // op.kv_heads, axis=0)
    new["middle"][...], new["shift"][...] = middle(new["landmark_queries"], grouped, op.scale)
    new["sums"][...], new["masses"][...], new["peaks"][...] = 0, 0, NO_PEAK


def chosen_rows(op: NystromAttend, new: Parts, keys: Floats, faults: Flags | None) -> list[int]:
    """Return the rows that stay exact, ascending: those that landmark queries look at most.

    Of each landmark query p = RN(E(RN(s − c))/canonical_sum(E)) over all rows; a row's mass is the
    sum over heads and landmarks of ⌊p·2³²⌋, an integer; ties go to the lower row. Sinks and rows of
    the window are no candidates.
    """
    if not op.exact:
        return []
    s = scores(op, new["landmark_queries"], keys.transpose(1, 0, 2), faults)
    e = power(s - s.max(axis=-1, keepdims=True))
    p = e / canonical_sum(e)[..., None]
    mass = np.floor(p.astype(np.float64) * 2.0**MASS_BITS).astype(np.int64).sum(axis=(0, 1))
    candidates = mass[op.sinks : op.seal - op.window]
    order = np.argsort(-candidates, kind="stable")[: op.exact]
    return sorted((order + op.sinks).tolist())


def archive(
    op: NystromAttend,
    held: Parts,
    past: int,
    q: Floats,
    k: Floats,
    v: Floats,
    faults: Flags | None,
) -> None:
    """Keep a row that left the window; behind the last that there is room for, make landmarks anew.

    They are means of the archived keys and of the queries of the same steps. The far field is then
    that of the archived rows, in their order.
    """
    place = past % op.reseal
    held["archive_keys"][place], held["archive_values"][place] = k, v
    held["archive_queries"][place] = q
    if place != op.reseal - 1:
        return
    set_landmarks(op, held, held["archive_keys"], held["archive_queries"])
    for row in range(op.reseal):
        absorb(op, held, held["archive_keys"][row], held["archive_values"][row], faults)
