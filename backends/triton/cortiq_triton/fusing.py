"""What fusing steps needs: who makes and who reads each value, and what takes their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cortiq.backend.plan import Step
from cortiq.ir import Graph, Node, Op
from cortiq_triton.steps import Fused, Joined


class Fusing:
    """The steps of one request, some of them gone into others.

    Parameters
    ----------
    exposed : values that must exist when the batch is done.
    graph : the graph they are of, for the types of values.
    """

    def __init__(
        self, steps: Sequence[Step], exposed: Iterable[str], joined: Joined, graph: Graph
    ) -> None:
        self.steps, self.exposed, self.joined = list(steps), set(exposed), joined
        self.graph = graph
        self.maker = {name: step for step in steps for name in step.node.outputs}
        self.uses = Counter(name for step in steps for name in step.node.inputs)
        self.users: dict[str, list[Step]] = {}
        for step in steps:
            for name in step.node.inputs:
                self.users.setdefault(name, []).append(step)
        self.gone: set[str] = set()
        self.made: dict[str, Step] = {}

    def only_user(self, step: Step, *kinds: type[Op]) -> Step | None:
        """The one step that reads a step's only value, if it is of these and nobody else asks."""
        if len(step.node.outputs) != 1 or step.node.outputs[0] in self.exposed:
            return None
        users = self.users.get(step.node.outputs[0], [])
        if len(users) != 1 or self.uses[step.node.outputs[0]] != 1 or users[0].late != step.late:
            return None
        return users[0] if isinstance(users[0].node.op, kinds) else None

    def _width(self, step: Step) -> int:
        return self.graph.values[step.node.outputs[0]].shape[-1]

    def _is_row(self, step: Step) -> bool:
        """Whether a step's value is one vector a row, not several."""
        return len(self.graph.values[step.node.outputs[0]].shape) == 1

    def _replace(
        self, parts: Sequence[Step], inputs: tuple[str, ...], kernel: Callable[..., Any],
        weights: Mapping[str, Any], outputs: tuple[str, ...] | None = None, slots: Any = None,
    ) -> bool:  # fmt: skip
        last = parts[-1]
        node = Node(
            last.node.name, Fused(tuple(part.node.op for part in parts)), inputs,
            last.node.outputs if outputs is None else outputs, slots=slots or {},
        )  # fmt: skip
        self.gone |= {part.node.name for part in parts}
        self.made[last.node.name] = Step(node, kernel, weights, last.late)
        return True
