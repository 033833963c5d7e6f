"""Steps that one launch computes: matrices of one row joined, bias and residual added where a
product ends, norms and gates with the quantised row after them, heads on their way to attention.

A value that a row asks for by name, or supplies itself, stays a value: nothing is fused across it.
"""

from __future__ import annotations

from typing import Any

import torch

from cortiq.backend.plan import Step
from cortiq.ir import Node, ops
from cortiq_triton import fused, products, wise
from cortiq_triton.call import Call
from cortiq_triton.fuse_attention import AttentionFuser
from cortiq_triton.products import PLAIN, Stack
from cortiq_triton.rows import Rows
from cortiq_triton.steps import Fused
from cortiq_triton.weights import Packed


class Fuser(AttentionFuser):
    """Fuses the steps of one request.

    Parameters
    ----------
    exposed : values that must exist when the batch is done.
    graph : the graph they are of, for the types of values.
    """

    def fuse(self) -> list[Step]:
        """The steps, fused ones where their last part was."""
        for step in self.steps:
            self._heads(step)
        for step in self.steps:
            if step.node.name not in self.gone:
                for way in (self._gate, self._norm, self._attention, self._product):
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
