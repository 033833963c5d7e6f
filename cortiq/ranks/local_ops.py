"""Operators of a rank: what changes about one where a part of its output is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cortiq.errors import GraphError
from cortiq.ir import Node, Op, ops
from cortiq.ranks.shares import EXPERTS, Split

BY_EXPERT = (ops.ExpertMatMul, ops.ExpertBias, ops.ExpertGain)
"""Operators whose second input has the experts that their rows are of."""
NEED_WHOLE = (ops.MatMul, ops.ExpertMatMul)
"""Operators whose outputs are cut while they take rows that are whole."""


@dataclass
class Part:
    """A node of which a rank computes a part.

    Attributes
    ----------
    shape : of its whole output. split, slot : of its output, and of its slot.
    inputs : splits of its inputs.
    part_of_weight : names this rank's part of a weight along an axis. weights : such, by role.
    """

    node: Node
    rank: int
    shape: tuple[int, ...]
    split: Split | None
    slot: Split | None
    inputs: tuple[Split | None, ...]
    part_of_weight: Callable[[str, int, Split], str]
    weights: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Indices that this rank has."""
        return self._size(self.split)

    @property
    def slot_size(self) -> int:
        """Heads, or channels, that this rank has of the slot."""
        return self._size(self.slot)

    def _size(self, split: Split | None) -> int:
        if split is None:
            raise GraphError("a node is cut that has no cut value", where=self.node.name)
        return split.size(self.rank)

    def input_size(self, which: int, whole: int) -> int:
        """Return this rank's size of an input; `whole` if that is not cut."""
        split = self.inputs[which]
        return whole if split is None else split.size(self.rank)

    def of_heads(self, values: tuple[float, ...]) -> tuple[float, ...]:
        """Return this rank's of numbers that every head has, if they have any."""
        if self.split is None:
            return values
        return tuple(n for start, stop in self.split.pieces(self.rank) for n in values[start:stop])

    @property
    def by_expert(self) -> bool:
        """Whether rows are divided by their experts."""
        return self.split is not None and self.split.axis == EXPERTS

    @property
    def last(self) -> bool:
        """Whether the last axis is cut."""
        assert self.split is not None
        return self.split.axis == len(self.shape) - 1

    def cut(self, role: str, axis: int) -> None:
        """Take the part of a weight along an axis of it."""
        assert self.split is not None
        self.weights[role] = self.part_of_weight(self.node.weights[role], axis, self.split)


def _matmul(part: Part) -> dict[str, Any]:
    if not part.last:
        return {}
    part.cut("weight", 0)
    return {"out_width": part.size}


def _heads(part: Part) -> dict[str, Any]:
    part.cut("weight", 0)
    return {"heads": part.size}


def _own(part: Part, role: str) -> dict[str, Any]:
    """Take this rank's experts, and one that stands for all others."""
    part.cut(role, 0)
    return {"experts": part.size + 1}


def _experts(part: Part) -> dict[str, Any]:
    if part.by_expert:
        return _own(part, "weight")
    part.cut("weight", 1)
    return {"out_width": part.size}


def _bias(part: Part) -> dict[str, Any]:
    if not part.last:
        return {}
    part.cut("bias", 0)
    return {"width": part.size}


def _expert_gain(part: Part) -> dict[str, Any]:
    return _own(part, "weight")


def _expert_bias(part: Part) -> dict[str, Any]:
    if part.by_expert:
        return _own(part, "bias")
    part.cut("bias", 1)
    return {"width": part.size}


def _vectors(part: Part) -> dict[str, Any]:
    part.cut("table", 1)
    return {"width": part.size}


def _gain(part: Part) -> dict[str, Any]:
    op: Any = part.node.op
    if op.per == "all" or part.last != (op.per == "value"):
        return {}
    part.cut("weight", 0)
    return {"width": part.size}


def _reshape(part: Part) -> dict[str, Any]:
    return {"shape": (part.size, *part.shape[1:])}


def _slice(part: Part) -> dict[str, Any]:
    op: Any = part.node.op
    given = part.inputs[0]
    if given is None or given.axis != len(part.shape) - 1:
        return {}
    if op.step > 1:
        return {"stop": part.size * op.step}
    places = given.places(op.start, op.stop, part.rank)
    assert places is not None
    return {"start": places[0], "stop": places[1]}


def _store(part: Part) -> dict[str, Any]:
    return {"heads": part.slot_size}


def _attend(part: Part) -> dict[str, Any]:
    op: Any = part.node.op
    if op.sinks:
        part.cut("sinks", 0)
    kv_heads = op.kv_heads if part.slot is None else part.slot_size
    return {"heads": part.size, "kv_heads": kv_heads, "slopes": part.of_heads(op.slopes)}


def _conv(part: Part) -> dict[str, Any]:
    for role in part.node.weights:
        part.cut(role, 0)
    return {"width": part.size}


def _delta_rule(part: Part) -> dict[str, Any]:
    op: Any = part.node.op
    return {"heads": part.size, "key_heads": part.input_size(0, op.groups)}


def _diagonal_delta_rule(part: Part) -> dict[str, Any]:
    return {"heads": part.size}


def _state_space(part: Part) -> dict[str, Any]:
    op: Any = part.node.op
    return {"heads": part.size, "groups": part.input_size(1, op.groups)}


LOCAL: Mapping[type[Op], Callable[[Part], dict[str, Any]]] = {
    ops.MatMul: _matmul, ops.HeadMatMul: _heads, ops.ExpertMatMul: _experts, ops.Bias: _bias,
    ops.ExpertBias: _expert_bias, ops.ExpertGain: _expert_gain, ops.Gain: _gain,
    ops.Reshape: _reshape, ops.Slice: _slice, ops.StoreKV: _store, ops.Attend: _attend,
    ops.EmbedRows: _vectors, ops.CausalConv: _conv, ops.DeltaRule: _delta_rule,
    ops.StateSpace: _state_space, ops.DiagonalDeltaRule: _diagonal_delta_rule,
}  # fmt: skip
"""What changes about an operator's options where a part of its output is computed."""
