"""Recurrent slots and the rows that drive them, from which a state can be computed once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

from cortiq.ir import Program, Recurrent, ops, primitives_of


@dataclass(frozen=True)
class Recurrence:
    """Sizes of a recurrent slot and of the rows that drive it.

    Attributes
    ----------
    key_heads : heads of q and k. decays : numbers of a head's decay.
    is_delta : whether it is a delta rule, or a state space.
    is_diagonal : whether it is a diagonal delta rule; its decays are α, κ and β.
    """

    slot: Recurrent
    key_heads: int
    decays: int
    is_delta: bool
    is_diagonal: bool = False


R = TypeVar("R", bound=Recurrence)


def recurrences_of(
    program: Program, make: Callable[[Recurrent, int, int, bool, bool], R]
) -> dict[str, R]:
    """Return what `make` makes of each recurrent slot that a node of a program writes."""
    found = {}
    for graph in primitives_of(program).graphs.values():
        for node in graph.nodes:
            op = node.op
            diagonal = isinstance(op, ops.DiagonalDeltaRule)
            if isinstance(op, ops.DeltaRule | ops.DiagonalDeltaRule | ops.StateSpace):
                name = node.slots["state"]
                slot: Any = program.slots[name]
                decays = prod(graph.values[node.inputs[3]].shape) // slot.shape[0]
                groups = op.heads if isinstance(op, ops.DiagonalDeltaRule) else op.groups
                is_delta = not isinstance(op, ops.StateSpace)
                found[name] = make(
                    slot, groups, 3 * decays if diagonal else decays, is_delta, diagonal
                )
    return found
