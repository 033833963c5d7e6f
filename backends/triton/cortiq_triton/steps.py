"""Steps of a plan, and the weights of those that are made one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cortiq.backend.plan import Step
from cortiq.ir import Op, ops
from cortiq_triton.weights import Packed, join


@dataclass(frozen=True)
class Fused(Op):
    """Stands for several primitives; `detail` says what of, and takes no part in comparisons."""

    name: str
    detail: Any = field(default=None, compare=False)


def joinable(steps: Iterable[Step]) -> list[list[Step]]:
    """Products of one value whose matrices can be rows of one weight, two or three at a time."""
    groups: dict[tuple[Any, ...], list[Step]] = {}
    for step in steps:
        weight = step.weights.get("weight")
        if isinstance(step.node.op, ops.MatMul) and isinstance(weight, Packed):
            groups.setdefault((step.node.inputs, step.late), []).append(step)
    found = []
    for group in groups.values():
        while len(group) > 1:
            first = group[0].weights["weight"]
            alike: list[Step] = []
            for step in group:
                weight = step.weights["weight"]
                apart = all(weight is not other.weights["weight"] for other in alike)
                if first.joins(weight) and apart and len(alike) < 3:
                    alike.append(step)
            if len(alike) > 1:
                found.append(alike)
            group = [step for step in group if step not in alike]
    return found


class Joined:
    """Weights that were made one, by the steps whose matrices they are.

    Parameters
    ----------
    before : of another plan over the same weights: what is one there is one here, and nothing else.
    """

    def __init__(self, steps: Sequence[Step], before: Joined | None = None) -> None:
        times = Counter(id(s.weights["weight"]) for s in steps if "weight" in s.weights)
        self.groups: dict[str, tuple[list[Step], Packed]] = {}
        self.wholes: dict[tuple[int, ...], Packed] = {}
        for group in joinable(steps):
            weights = [step.weights["weight"] for step in group]
            key = tuple(map(id, weights))
            if before is not None and key not in before.wholes:
                continue
            if all(times[one] == 1 for one in key):
                whole = join(weights) if before is None else before.wholes[key]
                self.wholes[key] = whole
                for step in group:
                    self.groups[step.node.name] = (group, whole)
