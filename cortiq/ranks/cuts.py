"""Rules by which operators' outputs are cut as their inputs are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from cortiq.ir import Graph, KVRows, Node, Op, Program, Type, ops
from cortiq.ir.overlays import OVERLAY, is_bank, makes_outputs
from cortiq.ranks.families import Families, Key, settled
from cortiq.ranks.shares import EXPERTS, Split

LAST_AXIS = (ops.RMSNorm, ops.LayerNorm, ops.L2Norm, ops.Softmax, ops.Quantise, ops.Rope)
"""Computed over the last axis of each head."""
ALIKE = (ops.Activation, ops.Scale, ops.SoftCap, ops.Shift, ops.Clamp, ops.Bias)
"""Computed value by value."""


def splits_of(program: Program, ranks: int, by_expert: bool = False) -> dict[Key, Split]:
    """Return how each value and slot that is cut is cut.

    Parameters
    ----------
    program : of primitives. by_expert : divide experts, not each one's columns.
    """
    families = Families(by_expert)
    for graph in program.graphs.values():
        for node in graph.nodes:
            _join(families, graph, node, program)
    return settled(families, ranks)


def _join(families: Families, graph: Graph, node: Node, program: Program) -> None:
    """Let a node's outputs and slots be cut, where its operator allows it."""
    way = CUTS.get(type(node.op))
    site = Site(families, graph, node)
    if (way is None or not way(site)) and node.slots:
        for slot in node.slots.values():
            kind = program.slots[slot]
            families.add(("", slot), 1, kind.heads if isinstance(kind, KVRows) else 1)
            families.keep_whole(("", slot))


@dataclass(frozen=True)
class Site:
    """A node, and what is known of its inputs."""

    families: Families
    graph: Graph
    node: Node

    def axis(self, which: int) -> int | None:
        """Return the axis along which an input is cut; None if it is whole."""
        return self.families.axes.get((self.graph.name, self.node.inputs[which]))

    def type(self, which: int) -> Type:
        """Return an input's type."""
        return self.graph.values[self.node.inputs[which]]

    def cut(self, axis: int, *inputs: int) -> bool:
        """Let the outputs be cut along an axis, like these inputs."""
        keys = [self.key(which) for which in inputs]
        for name in self.node.outputs:
            length = self.graph.values[name].shape[axis]
            if axis == EXPERTS:
                op: Any = self.node.op
                length = self.families.lengths[keys[0]] if keys else op.experts
            self.families.add((self.graph.name, name), axis, length, *keys)
        return True

    def key(self, which: int) -> Key:
        """Return an input's key."""
        return self.graph.name, self.node.inputs[which]

    def slot(self) -> tuple[Key, KVRows]:
        """Return the slot's key and geometry."""
        kind = self.node.op.slot_kinds()["kv"]
        assert isinstance(kind, KVRows)
        return ("", self.node.slots["kv"]), kind

    def only_slot(self) -> Key:
        """Return the key of the only slot."""
        (name,) = self.node.slots.values()
        return "", name


def _matmul(site: Site) -> bool:
    shape = site.type(0).shape
    if len(shape) == 1:
        return site.cut(0)
    if len(shape) == 2 and site.axis(0) == 0:
        return site.cut(0, 0)
    return False


def _heads(site: Site) -> bool:
    return site.axis(0) == 0 and site.cut(0, 0)


def _experts(site: Site) -> bool:
    if is_bank(site.node.weights["weight"]):
        # the first factor is small: every rank computes it
        return makes_outputs(site.node) and site.cut(1)
    if not site.families.by_expert:
        return site.cut(1)
    return site.cut(EXPERTS, *([0] if site.axis(0) == EXPERTS else []))


def _first(site: Site) -> bool:
    axis = site.axis(0)
    return axis is not None and site.cut(axis, 0)


def _by_head(site: Site) -> bool:
    if site.axis(0) == EXPERTS:
        return site.cut(EXPERTS, 0)
    return site.axis(0) == 0 and len(site.type(0).shape) > 1 and site.cut(0, 0)


def _pairwise(site: Site) -> bool:
    axis = site.axis(0)
    return axis is not None and axis == site.axis(1) and site.cut(axis, 0, 1)


def _sum(site: Site) -> bool:
    """Cut sums of rows where one of them is cut: of one that is whole, each rank takes its part."""
    axes, alike = (site.axis(0), site.axis(1)), site.type(0).shape == site.type(1).shape
    if None in axes and 0 in axes and alike and len(site.type(0).shape) == 1:
        return site.cut(0, axes.index(0))
    return _pairwise(site)


def _gain(site: Site) -> bool:
    op = site.node.op
    assert isinstance(op, ops.Gain)
    flat = op.per != "head" or len(site.type(0).shape) == 2
    return flat and (op.per == "value" or site.axis(0) != EXPERTS) and _first(site)


def _scale_rows(site: Site) -> bool:
    by_head = site.axis(0) == site.axis(1) == 0 and len(site.type(0).shape) > 1
    return by_head and site.cut(0, 0, 1)


def _expert_bias(site: Site) -> bool:
    axes = (1,) if is_bank(site.node.weights["bias"]) else (1, EXPERTS)
    return site.axis(0) in axes and _first(site)


def _expert_gain(site: Site) -> bool:
    return site.axis(0) == EXPERTS and _first(site)


def _combine(site: Site) -> bool:
    return site.axis(1) == 1 and site.cut(0, 1)


def _concat(site: Site) -> bool:
    every = range(len(site.node.inputs))
    axes, last = {site.axis(which) for which in every}, len(site.type(0).shape) - 1
    if axes == {0} and last > 0:
        return site.cut(0, *every)
    if axes != {last}:
        return False
    site.cut(last)
    out, start = (site.graph.name, site.node.outputs[0]), 0
    for which in every:
        stop = start + site.type(which).shape[-1]
        site.families.link(out, (start, stop), site.key(which))
        start = stop
    return True


def _vectors(site: Site) -> bool:
    """Cut the vectors of overlays, which multiply values that are cut."""
    return site.node.inputs == (OVERLAY,) and site.cut(0)


def _reshape(site: Site) -> bool:
    before, after = site.type(0).shape, site.graph.values[site.node.outputs[0]].shape
    if before == (1, *after) and site.axis(0) == 1:
        return site.cut(0, 0)
    flat = sorted((len(before), len(after))) == [1, 2] and prod(before) == prod(after)
    return (flat or before == after) and site.axis(0) == 0 and site.cut(0, 0)


def _slice(site: Site) -> bool:
    op, shape, axis = site.node.op, site.type(0).shape, site.axis(0)
    assert isinstance(op, ops.Slice)
    if axis is None:
        return False
    if axis < len(shape) - 1:
        return site.cut(axis, 0)
    if op.step == 1:
        site.cut(axis)
        out = site.graph.name, site.node.outputs[0]
        site.families.link(out, (0, op.stop - op.start), site.key(0), (op.start, op.stop))
        return True
    interleaved = op.start < op.step and op.stop > shape[-1] - op.step
    return interleaved and shape[-1] % op.step == 0 and site.cut(axis, 0)


def _store(site: Site) -> bool:
    if any(site.axis(which) != 0 for which in range(len(site.node.inputs))):
        return False
    key, kind = site.slot()
    rows = ((site.graph.name, name) for name in site.node.inputs)
    site.families.add(key, 1, kind.heads, *rows)
    return True


def _attend(site: Site) -> bool:
    key, kind = site.slot()
    chosen_by_head = len(site.node.inputs) > 2 and site.type(2).shape[0] > 1
    if site.axis(0) != 0 or chosen_by_head:
        return False
    site.families.axes.setdefault(key, 1)
    site.families.lengths.setdefault(key, kind.heads)
    queries = (site.graph.name, site.node.inputs[0])
    site.families.heads.append((queries, key))
    return site.cut(0, 0)


def _conv(site: Site) -> bool:
    """Cut channels: each has taps of its own, and the ring its rows."""
    if site.axis(0) != 0:
        return False
    site.families.add(site.only_slot(), 1, site.type(0).shape[0], site.key(0))
    return site.cut(0, 0)


def _recurrence(site: Site, heads: tuple[int, ...], shared: tuple[int, ...], groups: int) -> bool:
    """Cut the heads of a recurrence: each has a state of its own.

    Parameters
    ----------
    heads : inputs with something for each head. shared : those with something for each of `groups`
        that several heads share.
    """
    if any(site.axis(which) != 0 for which in (*heads, *(shared if groups > 1 else ()))):
        return False
    count = site.type(heads[0]).shape[0]
    families, queries = site.families, site.key(heads[0])
    families.add(site.only_slot(), 0, count, queries)
    if groups == count:
        heads = (*heads, *shared)
    elif groups > 1:
        for which in shared:
            families.link(site.key(which), (0, groups), site.key(shared[0]))
        families.heads.append((queries, site.key(shared[0])))
    return site.cut(0, *heads)


def _delta_rule(site: Site) -> bool:
    op = site.node.op
    assert isinstance(op, ops.DeltaRule)
    return _recurrence(site, (2, 3, 4), (0, 1), op.groups)


def _diagonal_delta_rule(site: Site) -> bool:
    return _recurrence(site, (0, 1, 2, 3, 4, 5), (), 1)


def _state_space(site: Site) -> bool:
    op = site.node.op
    assert isinstance(op, ops.StateSpace)
    return _recurrence(site, (0, 3, 4), (1, 2), op.groups)


CUTS: Mapping[type[Op], Callable[[Site], bool]] = {
    ops.MatMul: _matmul, ops.HeadMatMul: _heads, ops.ExpertMatMul: _experts,
    ops.EmbedRows: _vectors,
    ops.Reshape: _reshape, ops.Slice: _slice, ops.StoreKV: _store, ops.Attend: _attend,
    ops.CombineExperts: _combine, ops.Gain: _gain, ops.ScaleRows: _scale_rows,
    ops.ExpertBias: _expert_bias, ops.ExpertGain: _expert_gain, ops.Concat: _concat,
    ops.CausalConv: _conv, ops.DeltaRule: _delta_rule, ops.StateSpace: _state_space,
    ops.DiagonalDeltaRule: _diagonal_delta_rule,
    ops.Add: _sum, ops.Multiply: _pairwise,
    **dict.fromkeys(ALIKE, _first), **dict.fromkeys(LAST_AXIS, _by_head),
}  # fmt: skip
"""Rules that cut an operator's outputs like its inputs, and say whether they did."""
