"""Primitives that one native op computes together: sum, norm and quantised row in one pass, a
projection's heads on their way into attention, and so on.

What a batch asks for by name stays a value of its own; whatever else an op swallows never exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cortiq.backend.lower import Lowered, Step, joined_products
from cortiq.ir import Node, ops

NORMS = (ops.RMSNorm, ops.LayerNorm)
WISE = (ops.Add, ops.Multiply, ops.Scale, ops.Bias, ops.Activation, ops.SoftCap)


@dataclass(frozen=True)
class NormChain:
    """[norm `after`, then] [residual sum `add`, then] norm, then perhaps a quantised row.

    `total`, `out` and `record` name the values that are stored.
    """

    x: str
    residual: str | None = None
    after: Node | None = None
    norm: Node | None = None
    total: str | None = None
    out: str | None = None
    record: str | None = None


@dataclass(frozen=True)
class Wise:
    """An elementwise node, a gate (activation times another value), perhaps a quantised row."""

    node: Node
    gate: Node | None = None
    out: str | None = None
    record: str | None = None


@dataclass(frozen=True)
class Part:
    """Heads of one projection: [norm], [rope], quantised; to a record, or to the cache."""

    x: str
    quantise: Node
    norm: Node | None = None
    rope: Node | None = None
    target: str = "record"


@dataclass(frozen=True)
class Heads:
    """Parts that are computed in one op; `store` is the node that writes the slot, if one does."""

    parts: tuple[Part, ...]
    store: Node | None = None


@dataclass(frozen=True)
class Attention:
    """Attend, and perhaps the quantised row of all heads."""

    node: Node
    out: str
    record: str | None = None


class Fuser:
    """Joins the steps of one request.

    Parameters
    ----------
    exposed : names that must exist as values when the batch is done.
    solid : names whose rows may be replaced in between: nothing is joined across them.
    """

    def __init__(self, lowered: Lowered, exposed: frozenset[str], solid: frozenset[str]) -> None:
        self.lowered = lowered
        self.solid = {lowered.root(name) for name in solid}
        self.exposed = {lowered.root(name) for name in exposed} | self.solid
        steps = (*joined_products(lowered.trunk), *joined_products(lowered.tail))
        self.uses = Counter(lowered.root(n) for step in steps for n in step.inputs)
        self.done: list[Step] = []

    def fuse(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """The joined steps."""
        self.done = []
        for step in joined_products(steps):
            joined = next(
                (j for j in JOINS if isinstance(step.op, j.takes) and j.join(self, step)), None
            )
            if joined is None:
                self.done.append(self._single(step))
        return tuple(self.done)

    def root(self, name: str) -> str:
        """The value whose buffer holds this one."""
        return self.lowered.root(name)

    def inner(self, name: str) -> bool:
        """Whether a value has one reader and nobody else asks for it."""
        root = self.root(name)
        return self.uses[root] == 1 and root not in self.exposed

    def producer(self, name: str) -> int | None:
        """Place in `done` of the step that computes a value; None for inputs of the steps."""
        root = self.root(name)
        places = (i for i in range(len(self.done) - 1, -1, -1) if root in self.done[i].outputs)
        return next(places, None)

    def maker(self, name: str, kind: Any) -> int | None:
        """The producer, if its op is of this kind and the value may be joined across."""
        place = self.producer(name)
        if place is None or self.root(name) in self.solid:
            return None
        return place if isinstance(self.done[place].op, kind) else None

    def replace_at(self, place: int, op: object, outputs: tuple[str | None, ...]) -> None:
        """Let the step in this place be another op with these outputs."""
        stored = tuple(name for name in outputs if name is not None)
        self.done[place] = replace(self.done[place], op=op, outputs=stored)

    def _single(self, step: Step) -> Step:
        """The step as one of the ops of this module, where there is one for it."""
        if isinstance(step.op, NORMS):
            chain = NormChain(step.inputs[0], norm=step.nodes[0], out=step.outputs[0])
            return replace(step, op=chain)
        if isinstance(step.op, WISE):
            return replace(step, op=Wise(step.nodes[0], out=step.outputs[0]))
        if isinstance(step.op, ops.Attend):
            return replace(step, op=Attention(step.nodes[0], step.outputs[0]))
        return step


def _quantise_after(fuser: Fuser, step: Step) -> bool:
    """Let the op that computes a row also quantise it."""
    (source,), (record,) = step.inputs, step.outputs
    place = fuser.maker(source, NormChain | Wise | Attention)
    if place is None or fuser.done[place].op.record is not None:
        return False
    op = fuser.done[place].op
    if isinstance(op, NormChain) and fuser.root(source) != op.out:
        return False
    if not _whole_rows(fuser, op, source):
        return False
    dropped = fuser.inner(source) and not isinstance(op, Attention)
    joined = replace(op, record=record, out=None if dropped else op.out)
    total = (joined.total,) if isinstance(joined, NormChain) else ()
    fuser.replace_at(place, joined, (*total, joined.out, record))
    return True


def _whole_rows(fuser: Fuser, op: object, source: str) -> bool:
    """Whether the quantised rows are those that the op makes: heads may have been merged."""
    root, types = fuser.root(source), fuser.lowered.types
    if isinstance(op, Attention):
        return len(types[source].shape) == 1
    return types[source].shape == types[root].shape


def _norm_after_sum(fuser: Fuser, step: Step) -> bool:
    """Let the op that adds a branch to the residual also norm the sum."""
    (source,), (out,) = step.inputs, step.outputs
    place = fuser.maker(source, NormChain)
    if place is None or not isinstance(step.op, ops.RMSNorm):
        return False
    op = fuser.done[place].op
    if op.norm is not None or fuser.root(source) != source:
        return False
    joined = replace(op, norm=step.nodes[0], out=out)
    fuser.replace_at(place, joined, (joined.total, out))
    return True


def _residual_sum(fuser: Fuser, step: Step) -> bool:
    """A residual sum, with the norm of its branch where there is one, waits for a norm."""
    residual, branch = step.inputs
    if len(fuser.lowered.types[step.outputs[0]].shape) != 1:
        return False
    chain = NormChain(branch, residual, total=step.outputs[0])
    place = fuser.maker(branch, NormChain)
    if place is not None and fuser.inner(branch):
        op = fuser.done[place].op
        plain = op.residual is None and op.record is None and isinstance(op.norm.op, ops.RMSNorm)
        if plain and fuser.root(branch) == branch:
            del fuser.done[place]
            chain = replace(chain, x=op.x, after=op.norm)
    inputs = (chain.x, residual)
    fuser.done.append(replace(step, op=chain, inputs=inputs))
    return True


def _gate(fuser: Fuser, step: Step) -> bool:
    """activation(gate) · up in one pass."""
    for gate, up in (step.inputs, step.inputs[::-1]):
        place = fuser.maker(gate, Wise)
        if place is None or not fuser.inner(gate) or fuser.root(gate) != gate:
            continue
        op = fuser.done[place].op
        if not isinstance(op.node.op, ops.Activation) or op.record is not None:
            continue
        source = fuser.done[place].inputs[0]
        del fuser.done[place]
        joined = Wise(step.nodes[0], gate=op.node, out=step.outputs[0])
        fuser.done.append(replace(step, op=joined, inputs=(source, up)))
        return True
    return False


def _part(fuser: Fuser, record: str, target: str, dim: int) -> tuple[Part, list[int]] | None:
    """Heads of `dim` behind a quantised value, and the places of the steps they replace."""
    place = fuser.maker(record, ops.Quantise)
    if place is None or not fuser.inner(record):
        return None
    step, places = fuser.done[place], [place]
    part = Part(step.inputs[0], step.nodes[0], target=target)
    rope = fuser.maker(part.x, ops.Rope)
    if rope is not None and fuser.inner(part.x):
        places.append(rope)
        part = replace(part, rope=fuser.done[rope].nodes[0], x=fuser.done[rope].inputs[0])
    norm = fuser.maker(part.x, NormChain)
    if norm is not None and fuser.inner(part.x) and _norm_alone(fuser.done[norm].op, dim):
        places.append(norm)
        chain = fuser.done[norm].op
        part = replace(part, norm=chain.norm, x=chain.x)
    return part, places


def _norm_alone(op: NormChain, dim: int) -> bool:
    """Whether nothing but an RMSNorm of each head is computed: one over all heads is no part."""
    norm = None if op.residual is not None or op.record is not None else op.norm
    return norm is not None and isinstance(norm.op, ops.RMSNorm) and norm.op.width == dim


def _store(fuser: Fuser, step: Step) -> bool:
    """Keys and values on their way into the cache."""
    op = step.op
    targets = (("keys", op.key_dim), ("values", op.value_dim))
    found = [_part(fuser, n, *to) for n, to in zip(step.inputs, targets, strict=False)]
    if any(part is None for part in found):
        return False
    parts, places = zip(*found, strict=True)  # type: ignore[arg-type]
    for place in sorted((p for group in places for p in group), reverse=True):
        del fuser.done[place]
    inputs = tuple(part.x for part in parts)
    fuser.done.append(replace(step, op=Heads(tuple(parts), step.nodes[0]), inputs=inputs))
    return True


def _query(fuser: Fuser, step: Step) -> bool:
    """Queries on their way into attention, in one op with the keys and values."""
    query, *others = step.inputs
    found = _part(fuser, query, "record", step.op.key_dim)
    if found is None:
        return False
    part, places = found
    for place in sorted(places, reverse=True):
        del fuser.done[place]
    heads = [i for i, s in enumerate(fuser.done) if isinstance(s.op, Heads)]
    made = fuser.producer(part.x)
    joins = [i for i in heads if fuser.done[i].nodes and _same_slot(fuser.done[i], step)]
    if joins and (made is None or made < joins[-1]):
        before = fuser.done[joins[-1]]
        op = replace(before.op, parts=(*before.op.parts, part))
        inputs, outputs = (*before.inputs, part.x), (*before.outputs, query)
        fuser.done[joins[-1]] = replace(before, op=op, inputs=inputs, outputs=outputs)
    else:
        fuser.done.append(replace(step, op=Heads((part,)), inputs=(part.x,), outputs=(query,)))
    out = step.outputs[0]
    fuser.done.append(replace(step, op=Attention(step.nodes[0], out), inputs=(query, *others)))
    return True


def _same_slot(heads: Step, attend: Step) -> bool:
    return heads.nodes[0].slots.get("kv") == attend.nodes[0].slots.get("kv")


@dataclass(frozen=True)
class Join:
    """A rule: tries to join a step of these operators with earlier ones."""

    takes: tuple[type, ...]
    join: Callable[[Fuser, Step], bool]


JOINS = (
    Join((ops.Quantise,), _quantise_after),
    Join(NORMS, _norm_after_sum),
    Join((ops.Add,), _residual_sum),
    Join((ops.Multiply,), _gate),
    Join((ops.StoreKV,), _store),
    Join((ops.Attend,), _query),
)
