"""Steps around attention that one launch computes: heads going in, quantised rows coming out."""

from __future__ import annotations

from typing import Any

import torch

from cortiq.backend.plan import Step
from cortiq.ir import Op, ops
from cortiq_triton import into
from cortiq_triton.attend import attended_rows
from cortiq_triton.call import Call
from cortiq_triton.fusing import Fusing
from cortiq_triton.rows import Rows


class AttentionFuser(Fusing):
    """Fuses what goes into attention and what comes out of it."""

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

    def _attention(self, step: Step) -> bool:
        """Attention, its heads side by side, quantised."""
        op = step.node.op
        flat = self.only_user(step, ops.Reshape) if isinstance(op, ops.Attend) else None
        quantise = self.only_user(flat, ops.Quantise) if flat is not None else None
        if flat is None or quantise is None or not self._is_row(flat):
            return False

        def kernel(call: Call, *given: Any) -> Rows:
            return attended_rows(call, op, *given)

        parts = [step, flat, quantise]
        return self._replace(parts, step.node.inputs, kernel, step.weights, slots=step.node.slots)
