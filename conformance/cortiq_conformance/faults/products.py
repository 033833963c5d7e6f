"""Products and attention whose blocks, tiles and runs are added in another order."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from cortiq.backend.walk import Call
from cortiq.ir import Op, ops
from cortiq.numerics import attention
from cortiq.numerics.attention import ChosenBlocks, PartialAttention, ScoreConstants, merge
from cortiq.numerics.contract import F32, RUN_BLOCKS, Flags, Floats, Ints, exp2_int, round_to_f32
from cortiq.numerics.layouts import decode
from cortiq.numerics.matmul import block_dot, block_offset_dot, block_term, finish
from cortiq.numerics.quantise import Quantised
from cortiq.numerics.unpacked_weights import Codes
from cortiq_conformance.faults.folds import Fold, ReplacedFunction, in_order, with_replaced
from cortiq_conformance.faults.kernels import Kernel, Wrong
from cortiq_reference import attention as of_reference
from cortiq_reference.kernels import KERNELS
from cortiq_reference.matrix import TiledMatrix

MULTIPLY, SUMS = TiledMatrix.multiply, of_reference.PartialSums


def _multiplying(kind: type[Op], total: Any) -> Kernel:
    """Return the kernel of a product; `total` sums a row's integers and codes over blocks."""

    def wrong(self: TiledMatrix, x: Quantised | Floats, faults: Flags) -> Floats:
        if not isinstance(x, Quantised):
            return MULTIPLY(self, x, faults)
        weight = self.weight.rows(self.rows.start, self.rows.stop)
        return finish(total(x.q, decode(weight, self.name))[None], x.e, faults)

    return with_replaced(KERNELS[kind], ReplacedFunction(TiledMatrix, "multiply", wrong))


def product(kind: type[Op], blocks: Fold = in_order, runs: Fold = in_order) -> Kernel:
    """Return a product that adds blocks of a run, or runs, in another order."""

    def total(q: Ints, codes: Codes) -> Floats:
        terms = [block_term(q, codes, b) for b in range(codes.scale.shape[1])]
        parts = [terms[i : i + RUN_BLOCKS] for i in range(0, len(terms), RUN_BLOCKS)]
        return runs(np.add, [blocks(np.add, part) for part in parts])

    return _multiplying(kind, total)


def _without_runs(q: Ints, codes: Codes) -> Floats:
    """Add every block to the sum of all before it."""
    return reduce(np.add, [block_term(q, codes, b) for b in range(codes.scale.shape[1])])


def _minima_last(q: Ints, codes: Codes) -> Floats:
    """Add a run's scaled sums first, and then its minima."""
    total = np.zeros((len(q), len(codes.codes)), F32)
    for start in range(0, codes.scale.shape[1], RUN_BLOCKS):
        run = range(start, min(start + RUN_BLOCKS, codes.scale.shape[1]))
        terms = [round_to_f32(block_dot(q, codes, b)) * codes.scale[:, b] for b in run]
        if codes.minimum is not None:
            low = codes.minimum
            terms += [round_to_f32(block_offset_dot(q, codes, b)) * low[:, b] for b in run]
        total = total + reduce(np.add, terms)
    return total


class _Collected(SUMS):  # type: ignore[misc,valid-type]
    """Sums that collect their terms, and add them when the total is asked for."""

    tiles: Fold = staticmethod(in_order)
    runs: Fold = staticmethod(in_order)
    flat = False

    def __init__(self, shape: tuple[int, int], value_dim: int) -> None:
        self.shape, self.value_dim = shape, value_dim
        self.parts: list[Any] = []
        self.fold = self.tiles

    def add(self, mass: Floats, m: Ints, o: Floats, n: Ints) -> None:
        """Keep a tile."""
        sums = SUMS(self.shape, self.value_dim)
        sums.add(mass, m, o, n)
        self.parts.append(sums)

    def merge(self, other: Any) -> None:
        """Keep a run, or its tiles."""
        self.fold = self.runs
        if self.flat:
            self.parts += other.parts
        else:
            self.add(other.mass, other.m, other.o, other.n)

    def __getattr__(self, name: str) -> Any:
        if name not in ("mass", "m", "o", "n"):
            raise AttributeError(name)
        total = self.fold(_merged, self.parts)
        self.mass, self.m, self.o, self.n = total.mass, total.m, total.o, total.n
        return getattr(total, name)


def _merged(a: Any, b: Any) -> Any:
    total = SUMS(a.m.shape, a.o.shape[-1])
    total.merge(a)
    total.merge(b)
    return total


def attend(tiles: Fold = in_order, runs: Fold = in_order, flat: bool = False) -> Kernel:
    """Return attention that adds tiles of a run, or runs, in another order, or without runs."""
    parts = {"tiles": staticmethod(tiles), "runs": staticmethod(runs), "flat": flat}
    wrong = type("Collected", (_Collected,), parts)
    return with_replaced(KERNELS[ops.Attend], ReplacedFunction(of_reference, "PartialSums", wrong))


def _runs(
    q: Quantised,
    keys: Quantised,
    values: Quantised,
    position: int,
    constants: ScoreConstants,
    window: int = 0,
    blocks: ChosenBlocks | None = None,
    own: int | None = None,
    steep: Floats | None = None,
) -> list[PartialAttention]:
    """Compute `attend_keys` with a partial sum for every run."""
    found = []
    for run in attention.visible_tiles(position, window, own):
        parts = [
            attention.tile(q, _rows(keys, cut), _rows(values, cut), constants)
            for cut in (slice(*span) for span in run)
        ]
        found.append(reduce(merge, parts))
    return found


def _rows(rows: Quantised, cut: slice) -> Quantised:
    return Quantised(rows.q[cut], rows.e[cut])


def _from_the_sink(runs: list[PartialAttention], sinks: Floats) -> PartialAttention:
    """Compute `add_sinks` with runs added to the sink instead of the sink to them."""
    s = np.clip(sinks * attention.LOG2_E_F32, -attention.SCORE_LIMIT, attention.SCORE_LIMIT)
    gain, peak = attention.split_score(s)
    nothing = runs[0]._replace(
        total=gain * exp2_int(attention.TOTAL_BITS), peak=peak, output=runs[0].output * F32(0)
    )
    return reduce(merge, runs, nothing)


def _sinks_first(call: Call, q: Quantised, position: Ints, *chosen: Ints) -> Floats:
    """Compute attention that begins with the sink, where all keys are visible."""
    op = call.op
    if not op.sinks or op.window or op.slopes or chosen:
        return KERNELS[ops.Attend](call, q, position, *chosen)
    parts = (
        ReplacedFunction(attention, "attend_keys", _runs),
        ReplacedFunction(attention, "add_sinks", _from_the_sink),
    )
    return with_replaced(_by_definition, *parts)(call, q, position)


def _by_definition(call: Call, q: Quantised, position: Ints) -> Floats:
    out = []
    for segment in call.segments:
        cut, store = segment.cut, segment.state.stores[call.slots["kv"]]
        keys, values = store.read()
        out.append(
            attention.attend(
                _rows(q, cut), keys, values, position[cut], call.op.scale,
                window=call.op.window or 0, soft_cap=call.op.soft_cap,
                sinks=call.weights["sinks"], faults=call.faults[cut],
            )
        )  # fmt: skip
    return np.concatenate(out)


WRONG_PRODUCTS: dict[str, Wrong] = {
    "blocks added without runs": {ops.MatMul: _multiplying(ops.MatMul, _without_runs)},
    "minima added behind all blocks": {ops.MatMul: _multiplying(ops.MatMul, _minima_last)},
    "tiles added without runs": {ops.Attend: attend(flat=True)},
    "a sink before the keys": {ops.Attend: _sinks_first},
}
"""Wrong kernels by fault."""
