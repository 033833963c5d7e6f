"""Named requirements on a backend: the rows of a report.

A name is `ops.RMSNorm`, `weights.q4_k`, `attention.sinks`, `state.ring`, `activations.silu`,
`routers.softmax` or `options.Route.groups`. Each node of a program has some of them;
`Declined(reason, requirement)` says which one is not met, `ops.KIND` where it does not say.
"""

from __future__ import annotations

import re

from cortiq.backend import Declined
from cortiq.errors import BackendError
from cortiq.ir import Node, Program, ops

OPTIONS = {
    "window": "attention over the last rows only",
    "soft_cap": "scores capped by tanh",
    "sinks": "a logit per head that only enters the denominator",
}
"""Options of Attend that are off by default."""
PREFIXES = {
    "weights": "matrices in the layout {}",
    "state": "a slot of the kind {} in every sequence",
    "activations": "the function {}, elementwise",
    "routers": "experts chosen by the rule {}",
    "options": "{} as an option of the operator",
}
OPERATORS = {op.__name__: (op.__doc__ or "").split("\n")[0].rstrip(".") for op in ops.PRIMITIVES}


def of_node(node: Node, program: Program) -> list[str]:
    """Return the names of the requirements for computing this primitive."""
    op, found = node.op, [f"ops.{node.op.kind}"]
    layouts = [program.weights[weight].layout or "" for weight in node.weights.values()]
    if type(op) in (ops.EmbedRows, ops.MatMul, ops.HeadMatMul, ops.ExpertMatMul):
        found += [f"weights.{layout.lower()}" for layout in layouts if layout]
    if isinstance(op, ops.Attend):
        found += [f"attention.{name}" for name in OPTIONS if getattr(op, name)]
    if isinstance(op, ops.Activation):
        found.append(f"activations.{op.function}")
    else:
        found += [f"options.{op.kind}.{name}" for name in sorted(op.options())]
    if isinstance(op, ops.Route):
        found.append(f"routers.{op.router.kind}")
    return found + [f"state.{_snake(program.slots[slot])}" for slot in node.slots.values()]


def _snake(slot: object) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(slot).__name__).lower()


def sentence(name: str) -> str:
    """Describe a requirement in a sentence."""
    kind, _, what = name.partition(".")
    if kind == "ops":
        return OPERATORS.get(what, what)
    if kind == "attention":
        return OPTIONS[what]
    return PREFIXES[kind].format(what.rpartition(".")[2])


def unmet(node: Node, program: Program, answer: Declined) -> str:
    """Return the requirement that a backend declines a node for: its own word if it is known.

    Raises
    ------
    BackendError : the node has no such requirement.
    """
    names = of_node(node, program)
    if answer.requirement is None:
        return names[0]
    if answer.requirement not in names:
        raise BackendError(
            f"a {node.op.kind} was declined for {answer.requirement!r}, which it does not require",
            hint=f"It requires {', '.join(names)}",
        )
    return answer.requirement
