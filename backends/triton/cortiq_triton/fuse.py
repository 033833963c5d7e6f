"""Steps that one launch computes: matrices of one row joined, bias and residual added where a
product ends, norms and gates with the quantised row after them, heads on their way to attention.

A value that a row asks for by name, or supplies itself, stays a value: nothing is fused across it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from cortiq.ir import Graph, Node, Op, ops
from cortiq_triton import fused, into, products, wise
from cortiq_triton.call import Call
from cortiq_triton.products import PLAIN, Stack
from cortiq_triton.rows import Rows
from cortiq_triton.steps import Fused, Joined, Step
from cortiq_triton.weights import Packed


class Fuser:
    """Fuses the steps of one request.

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

    def fuse(self) -> list[Step]:
        """The steps, fused ones where their last part was."""
        for step in self.steps:
            self._heads(step)
        for step in self.steps:
            if step.node.name not in self.gone:
                for way in (self._gate, self._norm, self._product):
                    if way(step):
                        break
        self._join()
        found = []
        for step in self.steps:
            if step.node.name in self.made:
                found.append(self.made[step.node.name])
            elif step.node.name not in self.gone:
                found.append(step)
        return found

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

    def _norm(self, step: Step) -> bool:
        """RMSNorm of whole rows, and the quantised row of it; the normed row if others read it."""
        if not isinstance(step.node.op, ops.RMSNorm) or not self._is_row(step):
            return False
        (name,), users = step.node.outputs, self.users.get(step.node.outputs[0], [])
        quantise = next((u for u in users if isinstance(u.node.op, ops.Quantise)), None)
        if quantise is None or quantise.late != step.late or step.node.op.width > fused.WIDEST_NORM:
            return False
        keep = self.uses[name] > 1 or name in self.exposed
        if keep and users[0] is not quantise:
            return False
        eps = step.node.op.eps

        def kernel(call: Call, x: torch.Tensor) -> Any:
            out, rows = fused.normed_rows(x, call.weights.get("weight"), eps, call.faults, keep)
            return (out, rows) if keep else rows

        outputs = (name, *quantise.node.outputs) if keep else quantise.node.outputs
        return self._replace([step, quantise], step.node.inputs, kernel, step.weights, outputs)

    def _gate(self, step: Step) -> bool:
        """Activation, times what it gates, quantised."""
        op = step.node.op
        times = self.only_user(step, ops.Multiply) if isinstance(op, ops.Activation) else None
        quantise = self.only_user(times, ops.Quantise) if times is not None else None
        if times is None or quantise is None or times.node.inputs[0] == times.node.inputs[1]:
            return False
        if not self._is_row(step) or self._width(step) > fused.WIDEST:
            return False
        other = next(n for n in times.node.inputs if n != step.node.outputs[0])
        function = wise.ACTIVATIONS[op.function]  # type: ignore[attr-defined]

        def kernel(call: Call, gate: torch.Tensor, up: torch.Tensor) -> Rows:
            return fused.gated_rows(function, gate, up, call.faults)

        return self._replace([step, times, quantise], (step.node.inputs[0], other), kernel, {})

    def _product(self, step: Step) -> bool:
        """A product with the bias, and then the residual, that are added to it."""
        if not isinstance(step.node.op, ops.MatMul) or not isinstance(
            step.weights["weight"], Packed
        ):
            return False
        bias = self.only_user(step, ops.Bias)
        add = self.only_user(bias or step, ops.Add)
        if add is not None and add.node.inputs[0] == add.node.inputs[1]:
            add = None
        if bias is None and add is None:
            return False
        parts = [part for part in (step, bias, add) if part is not None]
        ended = (bias or step).node.outputs[0]
        other = [n for n in add.node.inputs if n != ended] if add is not None else []
        vector = None if bias is None else bias.weights["bias"]

        def kernel(call: Call, x: Rows, *residual: torch.Tensor) -> torch.Tensor:
            weight, lead = call.weights["weight"], tuple(x.e.shape)
            count, each = x.e.numel(), max(1, x.e.numel() // max(1, lead[0]))
            given = residual[0].reshape(count, -1) if residual else None
            how = Stack(PLAIN, weight.height, group=each, bias=vector, residual=given)
            return products.product(weight, x, count, call.faults, how).view(*lead, -1)

        inputs = (step.node.inputs[0], *other)
        return self._replace(parts, inputs, kernel, step.weights)

    def _heads(self, step: Step) -> bool:
        """Heads from their projection on: [norm], [turn], quantised; keys and values are stored.

        Queries are made with their keys and values if the same rows are.
        """
        if isinstance(step.node.op, ops.StoreKV) and step.node.op.value_dim:
            key, value = (self._chain(name) for name in step.node.inputs)
            if key is not None and value is not None:
                chains = {"key": key, "value": value}
                query = self._queries_of(step)
                if query is not None:
                    chains = {"query": query} | chains
                return self._into_attention(chains, step)
        if isinstance(step.node.op, ops.Attend):
            query = self._chain(step.node.inputs[0])
            if query is not None and query[-1].node.name not in self.gone:
                return self._into_attention({"query": query})
        return False

    def _queries_of(self, store: Step) -> list[Step] | None:
        """What makes the queries of the attention that reads what is stored first, if what they
        are made of is known before.
        """
        at = self.steps.index(store)
        known = {name for step in self.steps[:at] for name in step.node.outputs}
        for step in self.steps[at:]:
            if isinstance(step.node.op, ops.Attend) and step.node.slots == store.node.slots:
                chain = self._chain(step.node.inputs[0]) if step.late == store.late else None
                return chain if chain and chain[0].node.inputs[0] in known else None
        return None

    def _into_attention(self, chains: dict[str, list[Step]], store: Step | None = None) -> bool:
        found = {role: self._way(chain) for role, chain in chains.items()}
        ways = {role: way for role, (way, _) in found.items()}
        weights = {role: weight for role, (_, weight) in found.items() if weight is not None}
        names = tuple(ways)

        def kernel(call: Call, *given: torch.Tensor) -> Rows | tuple[()]:
            return into.into_attention(call, ways, dict(zip(names, given, strict=True)))

        parts = [step for chain in chains.values() for step in chain]
        slots = {} if store is None else store.node.slots
        inputs = tuple(chain[0].node.inputs[0] for chain in chains.values())
        outputs = chains["query"][-1].node.outputs if "query" in chains else ()
        parts += [] if store is None else [store]
        return self._replace(parts, inputs, kernel, weights, outputs, slots)

    def _chain(self, name: str) -> list[Step] | None:
        """What makes a value from a projection, from its Reshape to its Quantise."""
        chain: list[Step] = []
        wanted: tuple[type[Op], ...] = (ops.Quantise,)
        while not chain or not isinstance(chain[0].node.op, ops.Reshape):
            step = self.maker.get(name)
            alone = self.uses[name] == 1 and name not in self.exposed
            if step is None or not alone or not isinstance(step.node.op, wanted):
                return None
            if isinstance(step.node.op, ops.Rope) and step.node.op.sections:
                return None
            earlier = {ops.Quantise: 3, ops.Rope: 2, ops.RMSNorm: 1, ops.Reshape: 0}
            wanted = (ops.Reshape, ops.RMSNorm, ops.Rope)[: earlier[type(step.node.op)]]
            chain.insert(0, step)
            name = step.node.inputs[0]
        op: Any = chain[0].node.op
        late = {step.late for step in chain}
        return (
            chain if len(op.shape) == 2 and op.shape[1] <= into.WIDEST and len(late) == 1 else None
        )

    def _way(self, chain: list[Step]) -> tuple[into.Way, Any]:
        """What a chain does to its heads, and the norm's weight or None."""
        found: dict[type[Op], Step] = {type(step.node.op): step for step in chain}
        norm, turn = found.get(ops.RMSNorm), found.get(ops.Rope)
        eps = None if norm is None else norm.node.op.eps  # type: ignore[attr-defined]
        shape = chain[0].node.op.shape  # type: ignore[attr-defined]
        way = into.Way(shape, eps, None if turn is None else turn.node.op)
        return way, None if norm is None else norm.weights.get("weight")

    def _join(self) -> None:
        """Products of one row as one, where none of them was fused with what follows."""
        done: set[str] = set()
        for step in self.steps:
            group, whole = self.joined.groups.get(step.node.name, ([], None))
            names = [part.node.name for part in group]
            if not group or names[0] in done or any(n in self.gone for n in names):
                continue
            if not set(names) <= {s.node.name for s in self.steps}:
                continue
            done |= set(names)
            heights = tuple(part.node.op.out_width for part in group)  # type: ignore[attr-defined]

            def kernel(call: Call, x: Rows, heights: tuple[int, ...] = heights) -> Any:
                weight, lead = call.weights["weight"], tuple(x.e.shape)
                count, each = x.e.numel(), max(1, x.e.numel() // max(1, lead[0]))
                how = Stack(PLAIN, weight.height, group=each, parts=heights)
                flat = products.product(weight, x, count, call.faults, how).view(-1)
                cut = flat.split([count * height for height in heights])
                return tuple(
                    part.view(*lead, height) for part, height in zip(cut, heights, strict=True)
                )

            outputs = tuple(output for part in group for output in part.node.outputs)
            first = group[0].node
            node = Node(first.name, Fused(tuple(p.node.op for p in group)), first.inputs, outputs)
            self.gone |= set(names[1:])
            self.made[first.name] = Step(node, kernel, {"weight": whole}, group[0].late)
