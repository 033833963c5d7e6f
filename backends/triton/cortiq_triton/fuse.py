"""Steps that one launch computes, from the patterns that there are kernels for; and the products of
one row whose matrices are rows of one weight.

A value that a row asks for by name, or supplies itself, stays a value: nothing is fused across it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from cortiq.backend import lower
from cortiq.backend.fuse import (
    FusedAttention,
    FusedElementwise,
    FusedLowRank,
    FusedProduct,
    Fuser,
    HeadGroup,
    NormChain,
    QKVPrologue,
)
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.backend.lower import Lowered
from cortiq.backend.patterns import PATTERNS
from cortiq.backend.plan import Step
from cortiq.ir import Graph, Node, ops
from cortiq_triton import fused, launches, qkv_prologue
from cortiq_triton.low_rank import FactorBanks
from cortiq_triton.rows import LAYER, RMS
from cortiq_triton.steps import Fused, Joined
from cortiq_triton.weights import Packed


def _of_rows(fuser: Fuser, step: lower.LoweredStep) -> bool:
    """Whether one vector a row is quantised, not several."""
    return len(fuser.lowered.types[step.inputs[0]].shape) == 1


LAUNCHED = (
    PATTERNS["quantised rows"].when(_of_rows),
    PATTERNS["gates"],
    PATTERNS["keys and values"].when(lambda fuser, step: step.op.value_dim > 0),
    PATTERNS["queries"],
    PATTERNS["overlays"],
    PATTERNS["residuals beside overlays"],
    PATTERNS["products"],
)
ROLES = {"record": "query", "keys": "key", "values": "value"}
Launch = tuple[Callable[..., Any], Mapping[str, Any], Sequence[str], Mapping[str, str]]
"""A kernel, its weights, the values it takes, and its slots."""


class Launches:
    """The steps of one request, fused where they can be.

    Parameters
    ----------
    steps : those that the request needs. exposed : values that must exist when the batch is done.
    given : kernels of other packages, which nothing is fused with.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        graph: Graph,
        exposed: frozenset[str],
        solid: Iterable[str],
        given: GivenKernels = NO_KERNELS,
    ) -> None:
        self.known = {step.node.name: step for step in steps}
        self.views = {s.node.outputs[0]: s for s in steps if isinstance(s.node.op, ops.Reshape)}
        aliases = {name: step.node.inputs[0] for name, step in self.views.items()}
        parts: dict[bool, list[lower.LoweredStep]] = {False: [], True: []}
        for step in steps:
            node = step.node
            if not isinstance(node.op, ops.Reshape):
                op = lower.kernel_op(node, given)
                lowered = lower.LoweredStep(op, node.inputs, node.outputs, (node,), step.late)
                parts[step.late].append(lowered)
        trunk, tail = (_together(parts[late]) for late in (False, True))
        self.lowered = Lowered(trunk, tail, {**graph.values}, aliases)
        self.fuser = Fuser(LAUNCHED, self.lowered, exposed, solid, self._takes_part)
        self.exposed = exposed
        self.found: list[Step] = []

    def fuse(self, joined: Joined) -> list[Step]:
        """The steps in order."""
        self.found, views = [], dict(self.views)
        for late, steps in enumerate((self.lowered.trunk, self.lowered.tail)):
            for step in self.fuser.fuse(steps):
                for launch in self._launches(step):
                    for name in launch.node.inputs:
                        self._view(name, views)
                    self.found.append(launch)
            for name in [n for n, view in views.items() if view.late == bool(late)]:
                if name in self.exposed:
                    self._view(name, views)
        return _beside(_joined(self.found, self.known, joined))

    def _view(self, name: str, views: dict[str, Step]) -> None:
        """Have a reshaped value before it is read."""
        if name in views:
            view = views.pop(name)
            self._view(view.node.inputs[0], views)
            self.found.append(view)

    def _launches(self, step: lower.LoweredStep) -> list[Step]:
        makers: Mapping[type, Callable[[Any, lower.LoweredStep], Launch | None]] = {
            NormChain: self._norm, FusedElementwise: self._gate, QKVPrologue: self._heads,
            FusedAttention: self._attention, FusedProduct: self._product,
            FusedLowRank: self._low_rank,
        }  # fmt: skip
        made = makers[type(step.op)](step.op, step) if type(step.op) in makers else None
        if made is None:
            return self._primitives(step)
        kernel, weights, inputs, slots = made
        op, outputs = Fused(step.kind, self._detail(step)), step.outputs
        if isinstance(step.op, FusedAttention):
            outputs = outputs[1:]
        node = Node(step.nodes[0].name, op, tuple(inputs), outputs, slots=slots)
        return [Step(node, kernel, weights, step.tail)]

    def _detail(self, step: lower.LoweredStep) -> Any:
        """Return what a step is made of: the ways of heads by their roles, else its operator."""
        if isinstance(step.op, QKVPrologue):
            return self._ways(step.op)
        return step.op

    def _primitives(self, step: lower.LoweredStep) -> list[Step]:
        """The steps that a step stands for, where there is no kernel for all of them at once."""
        if step.op is step.nodes[0].op or isinstance(step.op, lower.PackageOp):
            return [self.known[step.nodes[0].name]]
        root, found = self.lowered.root, []
        wanted, given = {root(n) for n in step.outputs}, {root(n) for n in step.inputs}
        for before in reversed(list(self.known.values())):
            node = before.node
            is_store = isinstance(step.op, QKVPrologue) and node is step.op.store
            if is_store or (wanted & set(node.outputs) and node.outputs[0] not in self.views):
                found.append(before)
                wanted |= {root(name) for name in node.inputs} - given
        return found[::-1]

    def _is_row(self, name: str) -> bool:
        return len(self.lowered.types[name].shape) == 1

    def _weights(self, node: Node) -> Mapping[str, Any]:
        return self.known[node.name].weights

    def _norm(self, op: NormChain, step: lower.LoweredStep) -> Launch | None:
        """Norm of whole rows, and the quantised row of it; the normed row if others read it."""
        norm: Any = op.norm
        if op.record is None or not self._is_row(op.x) or norm.op.width > fused.WIDEST_NORM:
            return None
        kind = RMS if isinstance(norm.op, ops.RMSNorm) else LAYER
        kernel = launches.norm(kind, norm.op.eps, op.out is not None)
        return kernel, self._weights(norm), step.inputs, {}

    def _gate(self, op: FusedElementwise, step: lower.LoweredStep) -> Launch | None:
        """Activation, times what it gates if any; quantised, if that is all that others read."""
        node: Any = op.gate or op.node
        alone = op.gate is None and op.record is None  # a primitive
        if alone or not isinstance(node.op, ops.Activation) or (op.record and op.out):
            return None
        width, *more = self.lowered.types[step.inputs[0]].shape
        if more or width > fused.WIDEST:
            return None
        kernel = launches.gate if op.out is None else launches.gate_alone
        return kernel(node.op.function), {}, step.inputs, {}

    def _takes_part(self, part: HeadGroup) -> bool:
        """Whether these are heads of one projection, none too wide."""
        shape = self.lowered.types[part.x].shape
        return part.x in self.views and len(shape) == 2 and shape[1] <= qkv_prologue.WIDEST

    def _heads(self, op: QKVPrologue, step: lower.LoweredStep) -> Launch | None:
        """Heads from their projection on: [norm], [turn], quantised; keys and values are stored."""
        parts = {ROLES[part.target]: part for part in op.parts}
        axes = {_axes_of(part) for part in op.parts} - {None}
        if len(parts) < len(op.parts) or len(axes) > 1:
            return None
        parts = {role: parts[role] for role in ROLES.values() if role in parts}
        norms = {role: part.norm for role, part in parts.items() if part.norm is not None}
        known = {role: self._weights(norm).get("weight") for role, norm in norms.items()}
        weights = {role: weight for role, weight in known.items() if weight is not None}
        ways = self._ways(op)
        inputs = [self._source(part.x) for part in parts.values()]
        inputs += [positions for positions, _ in axes if positions]  # type: ignore[misc]
        return launches.heads(ways), weights, inputs, op.store.slots if op.store else {}

    def _source(self, name: str) -> str:
        """Name the value that heads are views of; themselves where rows may have replaced them."""
        while name in self.views and name not in self.exposed:
            name = self.lowered.aliases[name]
        return name

    def _ways(self, op: QKVPrologue) -> dict[str, qkv_prologue.Way]:
        """Describe the ways of heads, by their roles."""
        parts = {ROLES[part.target]: part for part in op.parts}
        return {role: self._way(parts[role]) for role in ROLES.values() if role in parts}

    def _way(self, part: HeadGroup) -> qkv_prologue.Way:
        """Describe the way of heads into attention."""
        norm, turn = part.norm, part.rope
        eps = None if norm is None else norm.op.eps  # type: ignore[attr-defined]
        shape = self.lowered.types[part.x].shape
        return qkv_prologue.Way(shape, eps, None if turn is None else turn.op)

    def _attention(self, op: FusedAttention, step: lower.LoweredStep) -> Launch | None:
        """Attention, its heads side by side, quantised."""
        if op.record is None or not self.fuser.inner(op.out):
            return None
        kernel = launches.attention(op.node.op)
        return kernel, self._weights(op.node), step.inputs, op.node.slots

    def _product(self, op: FusedProduct, step: lower.LoweredStep) -> Launch | None:
        """A product with the bias, and then the residual, that are added to it."""
        weights = self._weights(op.node)
        if not isinstance(weights["weight"], Packed):
            return None
        bias = None if op.bias is None else self._weights(op.bias)["bias"]
        return launches.product(bias), weights, step.inputs, {}

    def _low_rank(self, op: FusedLowRank, step: lower.LoweredStep) -> Launch | None:
        """Sums of products of one row and those of its overlay's factors."""
        pairs = [(self._weights(part.a), self._weights(part.b)) for part in op.parts]
        parts = [FactorBanks(a["weight"], b["weight"]) for a, b in pairs]
        if not all(part.fits() for part in parts):
            return None
        members: int = op.parts[0].a.op.experts  # type: ignore[attr-defined]
        in_place = all(self.fuser.inner(part.base) for part in op.parts)
        return launches.low_rank(parts, members, in_place, step.tail), {}, step.inputs, {}


def _together(steps: Sequence[lower.LoweredStep]) -> tuple[lower.LoweredStep, ...]:
    """Steps with products of one row side by side, so that what is added to them is one launch."""
    groups: dict[Any, list[lower.LoweredStep]] = {}
    for step in steps:
        is_product = isinstance(step.op, ops.MatMul)
        groups.setdefault(step.inputs if is_product else step.nodes[0].name, []).append(step)
    return tuple(step for group in groups.values() for step in group)


def _axes_of(part: HeadGroup) -> tuple[str, Any] | None:
    """Return by what heads turn: "" and None for the row's own position; None for nothing."""
    if part.rope is None:
        return None
    sections = part.rope.op.sections  # type: ignore[attr-defined]
    return (part.rope.inputs[1], sections) if sections else ("", None)


def _product_of(step: Step, known: Mapping[str, Step]) -> FusedProduct | None:
    """Return what a step is if it is a product, perhaps with a bias, and nothing else."""
    if isinstance(step.node.op, ops.MatMul) and known.get(step.node.name) is step:
        return FusedProduct(step.node)
    detail = step.node.op.detail if isinstance(step.node.op, Fused) else None
    alone = isinstance(detail, FusedProduct) and detail.residual is None
    return detail if alone else None


def _joined(steps: list[Step], known: Mapping[str, Step], joined: Joined) -> list[Step]:
    """Products of one row as one, where they have nothing but biases, and all of them or none."""
    alone = {p.node.name: (p, s) for s in steps if (p := _product_of(s, known)) is not None}
    found: list[Step] = []
    for step in steps:
        product = _product_of(step, known)
        group, whole = joined.groups.get(product.node.name if product else "", ([], None))
        names = [part.node.name for part in group]
        parts = [alone[name] for name in names if name in alone]
        biases = [known[p.bias.name].weights["bias"] for p, _ in parts if p.bias is not None]
        if not group or len(parts) < len(group) or 0 < len(biases) < len(group):
            found.append(step)
        elif step is parts[0][1]:
            heights = tuple(part.node.op.out_width for part in group)  # type: ignore[attr-defined]
            outputs = tuple(output for _, part in parts for output in part.node.outputs)
            op = Fused("BiasedProducts" if biases else "Products", heights)
            node = Node(names[0], op, step.node.inputs, outputs)
            bias = torch.cat([part.view(-1) for part in biases]) if biases else None
            kernel = launches.products_of(heights, bias)
            found.append(Step(node, kernel, {"weight": whole}, step.late))
    return found


def _beside(steps: list[Step]) -> list[Step]:
    """Steps of overlays with the weight of a product of the same row that is launched just before:
    they may run beside it.
    """
    found = steps[:1]
    for before, step in pairwise(steps):
        weight, op = before.weights.get("weight"), step.node.op
        same = isinstance(weight, Packed) and before.node.inputs[0] == step.node.inputs[0]
        if same and isinstance(op, Fused) and isinstance(op.detail, FusedLowRank):
            step = replace(step, weights={"weight": weight})
        found.append(step)
    return found
