"""Values of a program that are cut, and where: families of values that are cut alike.

A product's outputs can be divided among ranks, since each depends on its own row of the matrix.
What follows value by value, or head by head, stays divided; where a row is needed whole, the parts
are put together. So every float is computed by one rank exactly as one device computes it, and no
sum is ever divided: that is why a split changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from cortiq.ir import Graph, KVRows, Node, Op, Program, Type, ops
from cortiq.ir.overlays import OVERLAY, OVERLAY_INDEX, makes_outputs
from cortiq.ranks.shares import EXPERTS, Range, Split, common_units, divided, refined, scaled

Key = tuple[str, str]
"""A value by (graph, name), or a slot by ("", name)."""
LAST_AXIS = (ops.RMSNorm, ops.LayerNorm, ops.L2Norm, ops.Softmax, ops.Quantise, ops.Rope)
"""Computed over the last axis of each head."""
ALIKE = (ops.Activation, ops.Scale, ops.SoftCap, ops.Shift, ops.Clamp, ops.Bias)
"""Computed value by value."""


@dataclass
class Families:
    """Values that are cut alike, found node by node.

    Attributes
    ----------
    axes : of values and slots that can be cut: the axis. lengths : its size.
    by_expert : whether experts are divided among ranks, rather than each one's columns.
    whole : of families (by root) that cannot be cut after all.
    heads : queries and the keys that they look at.
    """

    axes: dict[Key, int] = field(default_factory=dict)
    lengths: dict[Key, int] = field(default_factory=dict)
    whole: set[Key] = field(default_factory=set)
    by_expert: bool = False
    heads: list[tuple[Key, Key]] = field(default_factory=list)
    _roots: dict[Key, Key] = field(default_factory=dict)

    def root(self, key: Key) -> Key:
        """Return the family of a value."""
        while self._roots.get(key, key) != key:
            key = self._roots[key]
        return key

    def add(self, key: Key, axis: int, length: int, *others: Key) -> None:
        """Add a value to the family of others, which become one."""
        self.axes[key], self.lengths[key] = axis, length
        for other in others:
            mine, theirs = self.root(key), self.root(other)
            if mine != theirs:
                self._roots[mine] = theirs
                if mine in self.whole:
                    self.whole.add(theirs)

    def keep_whole(self, key: Key) -> None:
        """Leave a value's family uncut."""
        self.whole.add(self.root(key))

    def members(self) -> dict[Key, list[Key]]:
        """Return the values of each family."""
        found: dict[Key, list[Key]] = {}
        for key in self.axes:
            found.setdefault(self.root(key), []).append(key)
        return found


def splits_of(program: Program, ranks: int, by_expert: bool = False) -> dict[Key, Split]:
    """Return how each value and slot that is cut is cut.

    Parameters
    ----------
    program : of primitives. by_expert : divide experts, not each one's columns.
    """
    families = Families(by_expert=by_expert)
    for graph in program.graphs.values():
        for node in graph.nodes:
            _join(families, graph, node, program)
    members = families.members()
    units = {
        root: common_units([families.lengths[key] for key in keys])
        for root, keys in members.items()
    }
    _settle_whole(families, units)
    ranges = _ranges(families, units, ranks)
    return {
        key: Split(
            families.axes[key],
            families.lengths[key],
            scaled(ranges[root], units[root], families.lengths[key]),
        )
        for root, keys in members.items()
        if root in ranges
        for key in keys
    }


def _settle_whole(families: Families, units: Mapping[Key, int]) -> None:
    """Leave families uncut that have one unit, and queries and keys that do not go together."""
    families.whole |= {root for root, count in units.items() if count == 1}
    before = -1
    while before != len(families.whole):
        before = len(families.whole)
        for queries, keys in families.heads:
            own, theirs = families.root(queries), families.root(keys)
            together = units[own] % units[theirs] == 0
            if not together or (theirs in families.whole and families.lengths[keys] > 1):
                families.whole.add(own)
            if own in families.whole:
                families.whole.add(theirs)


def _ranges(
    families: Families, units: Mapping[Key, int], ranks: int
) -> dict[Key, tuple[Range, ...]]:
    """Return the ranges of each family's units; none of a family that is not cut."""
    keys_of = {families.root(queries): families.root(keys) for queries, keys in families.heads}
    cut = {root: count for root, count in units.items() if root not in families.whole}
    apart = {root for root, keys in keys_of.items() if keys != root}
    found = {root: divided(count, ranks) for root, count in cut.items() if root not in apart}
    for root in apart & cut.keys():
        keys = keys_of[root]
        found[root] = refined(found.get(keys, ((0, 1),) * ranks), cut[root] // units[keys])
    return found


def _join(families: Families, graph: Graph, node: Node, program: Program) -> None:
    """Let a node's outputs and slots be cut, where its operator allows it."""
    way = CUTS.get(type(node.op))
    site = Site(families, graph, node)
    if (way is None or not way(site)) and node.slots:
        for slot in node.slots.values():
            kind = program.slots[slot]
            families.add(("", slot), 0, kind.heads if isinstance(kind, KVRows) else 1)
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

    def cut(self, axis: int, *inputs: int, slots: bool = False) -> bool:
        """Let the outputs be cut along an axis, like these inputs."""
        keys = [(self.graph.name, self.node.inputs[which]) for which in inputs]
        for name in self.node.outputs:
            length = self.graph.values[name].shape[axis]
            if axis == EXPERTS:
                op: Any = self.node.op
                length = self.families.lengths[keys[0]] if keys else op.experts
            self.families.add((self.graph.name, name), axis, length, *keys)
        return True

    def slot(self) -> tuple[Key, KVRows]:
        """Return the slot's key and geometry."""
        kind = self.node.op.slot_kinds()["kv"]
        assert isinstance(kind, KVRows)
        return ("", self.node.slots["kv"]), kind


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
    if OVERLAY_INDEX in site.node.inputs:  # the first factor is small: every rank computes it
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


def _gain(site: Site) -> bool:
    op = site.node.op
    assert isinstance(op, ops.Gain)
    flat = op.per != "head" or len(site.type(0).shape) == 2
    return flat and (op.per == "value" or site.axis(0) != EXPERTS) and _first(site)


def _scale_rows(site: Site) -> bool:
    by_head = site.axis(0) == site.axis(1) == 0 and len(site.type(0).shape) > 1
    return by_head and site.cut(0, 0, 1)


def _expert_bias(site: Site) -> bool:
    return site.axis(0) in (1, EXPERTS) and _first(site)


def _expert_gain(site: Site) -> bool:
    return site.axis(0) == EXPERTS and _first(site)


def _combine(site: Site) -> bool:
    return site.axis(1) == 1 and site.cut(0, 1)


def _concat(site: Site) -> bool:
    every = range(len(site.node.inputs))
    by_head = all(site.axis(which) == 0 and len(site.type(which).shape) > 1 for which in every)
    return by_head and site.cut(0, *every)


def _vectors(site: Site) -> bool:
    """Cut the vectors of overlays, which multiply values that are cut."""
    return site.node.inputs == (OVERLAY,) and site.cut(0)


def _reshape(site: Site) -> bool:
    before, after = site.type(0).shape, site.graph.values[site.node.outputs[0]].shape
    if before == (1, *after) and site.axis(0) == 1:
        return site.cut(0, 0)
    flat = sorted((len(before), len(after))) == [1, 2] and prod(before) == prod(after)
    return flat and site.axis(0) == 0 and site.cut(0, 0)


def _slice(site: Site) -> bool:
    op, shape, axis = site.node.op, site.type(0).shape, site.axis(0)
    assert isinstance(op, ops.Slice)
    if axis is None:
        return False
    if axis < len(shape) - 1:
        return site.cut(axis, 0)
    interleaved = op.start < op.step and op.stop > shape[-1] - op.step
    return interleaved and shape[-1] % op.step == 0 and op.step > 1 and site.cut(axis, 0)


def _store(site: Site) -> bool:
    if any(site.axis(which) != 0 for which in range(len(site.node.inputs))):
        return False
    key, kind = site.slot()
    rows = ((site.graph.name, name) for name in site.node.inputs)
    site.families.add(key, 0, kind.heads, *rows)
    return True


def _attend(site: Site) -> bool:
    key, kind = site.slot()
    chosen_by_head = len(site.node.inputs) > 2 and site.type(2).shape[0] > 1
    if site.axis(0) != 0 or chosen_by_head:
        return False
    site.families.axes.setdefault(key, 0)
    site.families.lengths.setdefault(key, kind.heads)
    queries = (site.graph.name, site.node.inputs[0])
    site.families.heads.append((queries, key))
    return site.cut(0, 0)


CUTS: Mapping[type[Op], Callable[[Site], bool]] = {
    ops.MatMul: _matmul, ops.HeadMatMul: _heads, ops.ExpertMatMul: _experts,
    ops.EmbedRows: _vectors,
    ops.Reshape: _reshape, ops.Slice: _slice, ops.StoreKV: _store, ops.Attend: _attend,
    ops.CombineExperts: _combine, ops.Gain: _gain, ops.ScaleRows: _scale_rows,
    ops.ExpertBias: _expert_bias, ops.ExpertGain: _expert_gain, ops.Concat: _concat,
    **dict.fromkeys((ops.Add, ops.Multiply), _pairwise),
    **dict.fromkeys(ALIKE, _first), **dict.fromkeys(LAST_AXIS, _by_head),
}  # fmt: skip
"""Rules that cut an operator's outputs like its inputs, and say whether they did."""
