"""Attention over one sequence's rows: integers within a tile, powers of two between tiles.

Everything is written for all heads, queries and tiles at once. Tiles of all runs are added up side
by side, 16 steps in all, then runs follow in order. See `cortiq.numerics.attention` for what each
step is. How integers are multiplied and added up exactly is the library's (`ExactProducts`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cortiq.backend.arithmetic import Arithmetic
from cortiq.backend.visible_keys import admitted_keys, distance_bias, visible_keys
from cortiq.numerics import attention as contract
from cortiq.numerics.contract import RUN_TILES, TILE
from cortiq.numerics.scalar import EXP2_POLYNOMIAL

NONE = -(1 << 20)
"""Exponent of an empty sum: far below every real one."""
LOG2_E = float(contract.LOG2_E_F32)
LIMIT = float(contract.SCORE_LIMIT)
SMALLEST = 2.0**-40
"""Masses nearer to 0 are 0, as `snap` has it."""


@dataclass(frozen=True)
class AttentionGeometry:
    """Constants of a layer: of the scores, window, sinks [heads] or None, block size, slopes."""

    constants: contract.ScoreConstants
    window: int | None
    sinks: Any
    block: int = 0
    mass: bool = False
    slopes: tuple[float, ...] = ()


@dataclass(frozen=True)
class TileSums:
    """Numerator `output`·2^`top` and denominator `total`·2^`peak`, the tiles along the first axis.

    total, peak, top : [..., groups, queries]. output : [..., groups, queries, dim].
    """

    total: Any
    peak: Any
    output: Any
    top: Any


class ExactProducts(Arithmetic):
    """An array library that multiplies and adds up the integers of attention exactly.

    Rows of a cache are what `read` makes of them: a named tuple of q and exponents e [n, heads].
    """

    @abstractmethod
    def by_group(self, q: Any, groups: int) -> Any:
        """Return [rows, heads, dim] as queries: a pair whose e is [groups, rows · heads/groups]."""

    @abstractmethod
    def tiles(self, rows: Any, tiles: range) -> Any:
        """Return rows of a cache as tiles, zero past the end: a pair whose e is [tiles, 64, heads].

        Parameters
        ----------
        tiles : which, counted from the first row.
        """

    @abstractmethod
    def scores(self, queries: Any, keys: Any) -> Any:
        """Return RN of the queries' products with keys: float32 [tiles, groups, queries, 64]."""

    @abstractmethod
    def weighted(self, weights: Any, values: Any) -> Any:
        """Return RN of Σ weight·value, weights int32: float32 [tiles, groups, queries, dim]."""

    @abstractmethod
    def total(self, mass: Any) -> Any:
        """Return RN of the sum of int32 [..., 64]: float32."""

    @abstractmethod
    def running_highest(self, n: Any) -> Any:
        """Return the largest integer so far along the first axis."""

    @abstractmethod
    def block_scores(self, q: Any, keys: Any) -> Any:
        """Return RN of q [rows, heads, dim] by keys of one head: float32 [rows, heads, keys]."""

    @abstractmethod
    def recalled(self, keys: Any, at: Sequence[int]) -> Any:
        """Return key rows as floats, q·2^e: float32 [len(at), heads, dim]."""

    def own_tiles(
        self, q: Any, k: Any, v: Any, visible: Any, how: AttentionGeometry
    ) -> TileSums | None:
        """Return what each tile contributes, where a kernel of the library's own computes it."""
        return None


def power(library: Arithmetic, n: Any, lowest: int = contract.FORGET) -> Any:
    """Return 2ⁿ, or 0 below `lowest`."""
    bound = library.constant(lowest, n)
    factor = library.exp2_int(library.clamp(n, lowest, None))
    return library.where(n < bound, library.constant(0.0, factor), factor)


def merged(library: ExactProducts, values: Any, exponents: Any) -> tuple[Any, Any]:
    """Return the values of the first axis added up in order, each at the largest exponent so far.

    An empty part (0 at `NONE`) changes nothing. What a sum is multiplied by before each step is
    known beforehand, since the exponents are integers: two operations a step remain.
    """
    if len(values) == 1:
        return values[0], exponents[0]
    top = library.running_highest(exponents)
    kept, gained = power(library, top[:-1] - top[1:]), power(library, exponents - top)
    if values.ndim > exponents.ndim:
        kept, gained = kept[..., None], gained[..., None]
    total, *parts = library.split(values * gained, [1] * len(values), axis=0)
    for part, factor in zip(parts, library.split(kept, [1] * len(kept), axis=0), strict=True):
        total = total * factor + part
    return total[0], top[-1]


def attend(
    library: ExactProducts,
    q: Any,
    keys: Any,
    values: Any,
    positions: Sequence[int],
    how: AttentionGeometry,
    shared: dict[object, Any],
    chosen: Any = None,
    base: int = 0,
    own: Sequence[int] | None = None,
) -> Any:
    """Return one sequence's attention, not snapped, and its mass, [rows, heads, 1], snapped.

    Parameters
    ----------
    positions : the last key that each row sees.
    shared : what layers of a batch have in common, by whatever it depends on.
    chosen : the blocks that each set of heads sees, int32 [rows, sets, n]; None for all.
    base : position of the first key and value, where a tile begins; no window reaches behind it.
    own : the rows' positions, that windows count back from, where they are not their last keys.
    """
    rows, heads, _ = q.q.shape
    groups = keys.e.shape[1]
    own = positions if own is None else own
    each = heads // groups
    first_key = 0 if how.window is None else max(0, min(own) - how.window + 1)
    tiles = range(first_key // TILE, max(*positions, 0) // TILE + 1)  # one even if no key is seen
    key = (*positions, own[0], tiles, how.window, each)
    if key not in shared:
        shared[key] = library.array(visible_keys(positions, own, tiles, how.window, each))
    visible = shared[key]
    if chosen is not None:
        where = library.counted(tiles.stop * TILE)[tiles.start * TILE :]
        visible = visible & admitted_keys(library, chosen, heads, groups, where, how.block)
    there = range(tiles.start - base // TILE, tiles.stop - base // TILE)
    k, v = library.tiles(keys, there), library.tiles(values, there)
    queries = library.by_group(q, groups)
    parts = None if how.slopes else library.own_tiles(queries, k, v, visible, how)
    if parts is None:
        bias = library.array(distance_bias(own, tiles, how.slopes, groups)) if how.slopes else None
        parts = _tiles_of(library, queries, k, v, visible, how, bias)
    y, mass = _normalised(library, _whole(library, parts, tiles), how, rows, each)

    def by_head(x: Any) -> Any:
        return x.reshape(groups, rows, each, -1).swapaxes(0, 1).reshape(rows, heads, -1)

    return by_head(y), by_head(mass) if how.mass else None


def _tiles_of(
    library: ExactProducts,
    q: Any,
    k: Any,
    v: Any,
    visible: Any,
    how: AttentionGeometry,
    bias: Any = None,
) -> TileSums:
    """Compute each tile's contribution, by integers only; a tile without visible keys is empty."""
    scores = _scores(library, q, k, how, bias)
    whole = library.rounded(scores)
    gain = library.horner(scores - whole, EXP2_POLYNOMIAL)
    exponents = library.cast(whole, "i32")
    none = library.constant(NONE, exponents)
    kappa = library.where(visible, exponents, none)
    weighted = library.where(visible, exponents + v.e.swapaxes(1, 2)[:, :, None], none)
    peak, top = library.highest(kappa), library.highest(weighted)
    mass = _integers(library, gain, kappa - (peak - library.constant(contract.TOTAL_BITS, peak)))
    shift = weighted - (top - library.constant(contract.WEIGHT_BITS, top))
    output = library.weighted(_integers(library, gain, shift), v)
    return TileSums(library.total(mass), peak[..., 0], output, top[..., 0])


def _scores(library: ExactProducts, q: Any, k: Any, how: AttentionGeometry, bias: Any) -> Any:
    """Compute base-2 logarithms of the weights: [tiles, groups, queries, 64]."""
    dots, constants = library.scores(q, k), how.constants
    shift = q.e[:, :, None] + k.e.swapaxes(1, 2)[:, :, None]
    factor = library.constant(float(constants.factor), dots)
    scores = (dots * factor) * library.exp2_int(shift)
    if constants.cap:
        capped = library.tanh(scores * float(constants.inverse_cap)) * float(constants.cap)
        scores = capped * LOG2_E
    if bias is not None:
        scores = scores + bias
    return library.clamp(scores, -LIMIT, LIMIT)


def _integers(library: Arithmetic, gain: Any, exponent: Any) -> Any:
    """Compute rint(gain·2^exponent): int32. It is 0 below 2⁻⁶⁰, and where a key is not visible."""
    powers = library.exp2_int(library.clamp(exponent, -64, None))
    return library.cast(library.rounded(gain * powers), "i32")


def _whole(library: ExactProducts, parts: TileSums, tiles: range) -> TileSums:
    """Add tiles to runs, and runs to the whole."""
    runs = range(tiles.start // RUN_TILES, (tiles.stop - 1) // RUN_TILES + 1)
    before = tiles.start - runs.start * RUN_TILES
    after = runs.stop * RUN_TILES - tiles.stop

    def in_runs(x: Any, fill: float) -> Any:
        """Reshape [tiles, …] to [16, runs, …], filled up with empty tiles."""
        padded = library.padded(x, before, after, 0, fill)
        return padded.reshape(-1, RUN_TILES, *x.shape[1:]).swapaxes(0, 1)

    found: list[Any] = []
    for values, exponents in ((parts.total, parts.peak), (parts.output, parts.top)):
        if len(runs) > 1:
            values, exponents = merged(library, in_runs(values, 0.0), in_runs(exponents, NONE))
        found += merged(library, values, exponents)
    return TileSums(*found)


def _normalised(
    library: ExactProducts, sums: TileSums, how: AttentionGeometry, rows: int, each: int
) -> tuple[Any, Any]:
    """Return the outputs, and the logarithm of their denominators if it is wanted."""
    total, peak = sums.total, sums.peak
    if how.sinks is not None:
        sinks = library.repeat(how.sinks.reshape(-1, 1, each), rows, axis=1).reshape(total.shape)
        score = library.clamp(sinks * LOG2_E, -LIMIT, LIMIT)
        whole = library.rounded(score)
        gain = library.horner(score - whole, EXP2_POLYNOMIAL) * 2.0**contract.TOTAL_BITS
        exponents = library.stack([peak, library.cast(whole, "i32")])
        total, peak = merged(library, library.stack([total, gain]), exponents)
    shift = sums.top - peak
    shift = shift + library.constant(contract.TOTAL_BITS - contract.WEIGHT_BITS, shift)
    if how.block == 0:  # a row sees itself
        inverse = library.inverse(total)[..., None]
        y = (sums.output * inverse) * power(library, shift, -126)[..., None]
        return y, _log_mass(library, total, peak) if how.mass else None
    empty = sums.top == NONE  # no block that was chosen holds a visible key
    scale = power(library, library.where(empty, 0, shift), lowest=-126)[..., None]
    inverse = library.inverse(library.where(empty, 1.0, total))[..., None]
    y = library.where(empty[..., None], 0.0, (sums.output * inverse) * scale)
    if not how.mass:
        return y, None
    mass = _log_mass(library, library.where(empty, 1.0, total), library.where(empty, 0, peak))
    return y, library.where(empty, float(contract.NO_MASS), mass)


def _log_mass(library: Arithmetic, total: Any, peak: Any) -> Any:
    """Return the logarithm of total·2^(peak − 21)."""
    exponent = library.cast(peak - library.constant(contract.TOTAL_BITS, peak), "f32")
    mass = library.log(total) + exponent * float(contract.LN_2_F32)
    small = (mass < SMALLEST) & (mass > -SMALLEST)
    return library.where(small, 0.0, mass)
