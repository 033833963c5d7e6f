"""Landmarks of attention, and the inverse between them: float64 in a written order.

Every operation is a +, −, ×, ÷ or √ of IEEE float64, rounded once, in the order that is written;
only the order between elements is free. Nothing calls a linear algebra library.

Source: Xiong et al., "Nyströmformer", 2021, for the factors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import F32, Floats, snap

Doubles = npt.NDArray[np.float64]

RIDGE = 1e-6
"""Added to the diagonal, relative to its mean."""
SMALLEST = 2.2250738585072014e-308
ATTEMPTS = 12
"""Ridges that are tried, each ten times the one before."""
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
"""ln 2 in two parts, the first of 32 bits: k·LN2_HIGH is exact."""
LOWEST = -700.0
TERMS = tuple(1.0 / divisor for divisor in (
    6227020800, 479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1
))  # fmt: skip


def exp64(x: Doubles) -> Doubles:
    """Return e^x for −700 ≤ x ≤ 1, and 0 below.

    k = rint(x·LOG2_E); r = (x − k·LN2_HIGH) − k·LN2_LOW; Horner over 1/13!, …, 1/1!, 1; times 2^k.
    """
    clamped = np.maximum(x, LOWEST)
    k = np.rint(clamped * LOG2_E)
    r = (clamped - k * LN2_HIGH) - k * LN2_LOW
    y = np.full_like(r, TERMS[0])
    for term in TERMS[1:]:
        y = y * r + term
    return np.where(x < LOWEST, 0.0, np.ldexp(y, k.astype(np.int32)))


def segment_means(rows: Floats, count: int) -> Floats:
    """Return the means of `count` neighbouring parts of rows [n, heads, dim]: [heads, count, dim].

    Part i is rows ⌊i·n/count⌋ up to ⌊(i + 1)·n/count⌋; their sum in float64 from +0, row after row,
    times RN64(1/length); then float32, and snap.
    """
    n, out = len(rows), []
    for i in range(count):
        start, stop = i * n // count, (i + 1) * n // count
        total = np.zeros(rows.shape[1:])
        for row in rows[start:stop]:
            total = total + row.astype(np.float64)
        out.append(total * (1.0 / (stop - start)))
    return snap(np.stack(out, axis=1).astype(F32))


def middle(queries: Floats, keys: Floats, scale: float) -> tuple[Floats, Floats]:
    """Return M [heads, n, n] and its shift [heads]: the inverse of the landmarks' kernel.

    l[i, j] = RN64(RN32(scale)·Σ_c q[i, c]·k[j, c]), c ascending from +0; L = RN32 of the largest;
    A = exp64(l − L); M = snap(RN32(ridge_inverse(A))). The kernel's own inverse is e^(−L)·M.

    Parameters
    ----------
    queries, keys : float32 [heads, n, dim], keys of the head's group.
    """
    q, k = queries.astype(np.float64), keys.astype(np.float64)
    logits = np.zeros((*q.shape[:2], k.shape[1]))
    for c in range(q.shape[2]):
        logits = logits + q[:, :, None, c] * k[:, None, :, c]
    logits = logits * np.float64(F32(scale))
    shift = snap(logits.max(axis=(1, 2)).astype(F32))
    kernel = exp64(logits - shift[:, None, None].astype(np.float64))
    inverse = np.stack([ridge_inverse(head) for head in kernel])
    return snap(inverse.astype(F32)), shift


def ridge_inverse(a: Doubles) -> Doubles:
    """Return (AᵀA + λI)⁻¹Aᵀ of a matrix [n, n].

    B[i, j] = Σ_k A[k, i]·A[k, j], k ascending; g = RN(Σ_i B[i, i], i ascending)/n; λ = 1e-6·max(g,
    2⁻¹⁰²²), ten times as much wherever a pivot of the Cholesky factor is not above 0, up to 12
    times; then the diagonal matrix of 1/max(g, 2⁻¹⁰²²).
    """
    n = len(a)
    b = np.zeros((n, n))
    for k in range(n):
        b = b + a[k, :, None] * a[k, None, :]
    trace = 0.0
    for i in range(n):
        trace = trace + b[i, i]
    mean = max(trace / n, SMALLEST)
    ridge = RIDGE * mean
    for _ in range(ATTEMPTS):
        factor = _cholesky(b + ridge * np.eye(n))
        if factor is not None:
            return _solved(factor, a.T.copy())
        ridge = ridge * 10.0
    return np.eye(n) * (1.0 / mean)


def _cholesky(b: Doubles) -> Doubles | None:
    """Return L of B = L·Lᵀ; s = B[i, j] less L[i, k]·L[j, k], k ascending. None without a pivot."""
    n = len(b)
    factor = np.zeros((n, n))
    for j in range(n):
        rest = b[j:, j].copy()
        for k in range(j):
            rest = rest - factor[j:, k] * factor[j, k]
        if not rest[0] > 0 or not np.isfinite(rest[0]):
            return None
        factor[j, j] = np.sqrt(rest[0])
        factor[j + 1 :, j] = rest[1:] / factor[j, j]
    return factor


def _solved(factor: Doubles, right: Doubles) -> Doubles:
    """Return (L·Lᵀ)⁻¹·R, forward and backward, terms subtracted in ascending order."""
    n = len(factor)
    y = np.zeros_like(right)
    for i in range(n):
        rest = right[i].copy()
        for k in range(i):
            rest = rest - factor[i, k] * y[k]
        y[i] = rest / factor[i, i]
    x = np.zeros_like(right)
    for i in reversed(range(n)):
        rest = y[i].copy()
        for k in range(i + 1, n):
            rest = rest - factor[k, i] * x[k]
        x[i] = rest / factor[i, i]
    return x
