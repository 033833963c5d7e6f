"""Lower bounds of each op's cost, which a profile sets beside its time.

Matrix products read their packed weights once a batch and multiply each by every row. Attention
reads the keys and values that its rows see once a batch, and multiplies each by every query; both
factors have 16 bits, which takes two multiply-adds of the dot product instruction. Experts are
matrices that are read if a row of the batch chose them. A recurrence reads and writes its state
once a sequence, however many rows go through it, and has some float operations for each of its
values and rows; a convolution does so with the rows that it keeps. What all other ops do is small
beside moving what they read and write. Rows are in a cache more often than weights and keys are:
an op that only moves rows can be faster than memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from cortiq.backend.fuse import FusedAttention, QKVPrologue
from cortiq.backend.lower import LoweredStep
from cortiq.ir import Node, ops
from cortiq.numerics.contract import TILE
from cortiq_cpu.binder import FLOAT_BYTES, OpBinder, fields, row_bytes
from cortiq_cpu.profile import OpCost, OpLabel, moving
from cortiq_cpu.recurrent_states import RecurrentLayout
from cortiq_cpu.row_arrays import RowArrays

MATRIX_PRODUCTS = (ops.MatMul, ops.HeadMatMul)
RECURRENCES = (ops.DeltaRule, ops.DiagonalDeltaRule, ops.StateSpace)
SNAP = 4
"""Operations of a snap: the magnitude, two comparisons, and the choice."""
STEP = 5 + SNAP
"""Operations a row on a value of a recurrent state: S·α + k·d and its snap, and + S·q."""
RECALL = 2
"""And of a delta rule, which takes + S·k first; a diagonal one's − β·m is two more."""
INSTRUCTIONS = 2
"""Multiply-adds of a 16-bit by an 8-bit number that one of two 16-bit numbers takes."""


def op_label(binder: OpBinder, step: LoweredStep) -> OpLabel:
    """Return the step's name and cost for a profile."""
    if isinstance(step.op, MATRIX_PRODUCTS):
        return OpLabel(step.label, _products(binder, step))
    if isinstance(step.op, ops.ExpertMatMul):
        return OpLabel(step.label, _experts(binder, step), looks=True)
    if isinstance(step.op, FusedAttention):
        return OpLabel(step.label, _attention(binder, step), looks=fields(step.op.node).until)
    if isinstance(step.op, ops.ChooseBlocks | ops.ChooseKeys):
        return OpLabel(step.label, _choice(binder, step))
    moved = sum(row_bytes(binder.lowered.types[n]) for n in (*step.inputs, *step.outputs))
    if isinstance(step.op, RECURRENCES):
        layout = binder.layout.recurrences[step.nodes[0].slots["state"]]
        assert isinstance(layout, RecurrentLayout)
        return OpLabel(step.label, partial(recurred, binder.rows, layout, moved))
    if isinstance(step.op, ops.CausalConv):
        return OpLabel(step.label, partial(convolved, binder.rows, step.op, moved))
    if isinstance(step.op, QKVPrologue) and step.op.store is not None:
        moved += _stored_bytes(binder, step.op.store)
    return OpLabel(step.label, moving(moved))


def _products(binder: OpBinder, step: LoweredStep) -> Callable[[int], OpCost]:
    names = [node.weights["weight"] for node in step.nodes]
    nbytes = sum(map(binder.weights.nbytes, names))
    products = sum(map(binder.weights.elements, names))
    return lambda rows: OpCost(nbytes, products * rows)


def _experts(binder: OpBinder, step: LoweredStep) -> Callable[[int], OpCost]:
    """Return a cost that reads the choice in the op's own input: it holds right after the op."""
    name = step.nodes[0].weights["weight"]
    experts, (count,) = step.op.experts, binder.shape(step.inputs[1])
    nbytes, products = binder.weights.nbytes(name), binder.weights.elements(name)
    choice = (ctypes.c_int32 * (binder.rows.capacity * count)).from_address(
        binder.at(step.inputs[1])
    )
    return partial(chosen, np.asarray(choice), count, nbytes // experts, products // experts)


def chosen(choice: np.ndarray, count: int, nbytes: int, products: int, rows: int) -> OpCost:
    """Return the cost of products with the experts that `rows` rows chose, `count` each.

    Parameters
    ----------
    choice : int32, the first rows · count are read.
    nbytes, products : of one expert's matrix: its bytes, its weights.
    """
    taken = choice[: rows * count]
    return OpCost(nbytes * len(np.unique(taken)), products * len(taken))


def recurred(rows: RowArrays, layout: RecurrentLayout, moved: int, count: int) -> OpCost:
    """Return the cost of a recurrence for the set's `count` rows, `moved` bytes of values each."""
    values = prod(layout.slot.shape)
    state = 2 * FLOAT_BYTES * values * int(rows.segment_count[0])
    each = STEP + RECALL * (layout.delta + layout.diagonal)
    return OpCost(state + moved * count, floats=each * values * count)


def convolved(rows: RowArrays, op: ops.CausalConv, moved: int, count: int) -> OpCost:
    """Return the cost of a convolution for the set's `count` rows, `moved` bytes of values each.

    Taps are read once; a sequence reads the rows before its first one, and keeps as many of its own
    if it has them.
    """
    row = FLOAT_BYTES * op.width
    segments = rows.segments[: int(rows.segment_count[0])]
    before = op.kernel - 1
    own = np.minimum(segments["stop"] - segments["start"], before)
    kept = row * int((before + own).sum())
    each = 2 * op.kernel + SNAP
    return OpCost(op.kernel * row + kept + moved * count, floats=each * op.width * count)


def _stored_bytes(binder: OpBinder, node: Node) -> int:
    """Count the bytes of one position's keys and values."""
    layout = binder.layout.rows[node.slots["kv"]]
    return layout.slot.heads * layout.block_bytes // TILE


def _attention(binder: OpBinder, step: LoweredStep) -> Callable[[int], OpCost]:
    """Bound chosen blocks by a window of their size: a row sees no more keys than that."""
    node = step.op.node
    op: ops.Attend = fields(node)
    products = INSTRUCTIONS * op.heads * (op.key_dim + op.value_dim)
    window = op.window
    if op.block:
        chosen = op.block * binder.shape(step.inputs[2])[1]
        window = min(window or chosen, chosen)
    cost = partial(attended, binder.rows, window, _stored_bytes(binder, node), products)
    if not op.until:
        return cost
    last = (ctypes.c_int32 * binder.rows.capacity).from_address(binder.at(step.inputs[1]))
    return partial(cost, last=np.asarray(last))


def _choice(binder: OpBinder, step: LoweredStep) -> Callable[[int], OpCost]:
    op: ops.ChooseBlocks | ops.ChooseKeys = step.op
    nbytes = _stored_bytes(binder, step.nodes[0])
    return partial(attended, binder.rows, None, nbytes, INSTRUCTIONS * op.heads * op.key_dim)


def attended(
    rows: RowArrays,
    window: int | None,
    nbytes: int,
    products: int,
    count: int,
    last: np.ndarray | None = None,
) -> OpCost:
    """Return the cost of attention for the set's `count` rows.

    Parameters
    ----------
    window : positions that a row sees; None: all up to its own.
    nbytes : of one position's keys and values. products : of a row with one position.
    last : the last position that each row sees, int32; None: its own.
    """
    segments = rows.segments[: int(rows.segment_count[0])]
    positions = rows.positions[:count].astype(np.int64)
    stops = 1 + (positions if last is None else last[:count].astype(np.int64))
    first = np.maximum(0, positions - window + 1) if window else np.zeros_like(positions)
    read = stops[segments["stop"] - 1] - first[segments["start"]]
    return OpCost(nbytes * int(read.sum()), products * int((stops - first).sum()))
