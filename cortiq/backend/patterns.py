"""The table of fusion patterns: steps that one kernel computes together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cortiq.backend.fuse import (
    NORMS,
    FusedAttention,
    FusedElementwise,
    FusedLowRank,
    FusedProduct,
    Fuser,
    FusionPattern,
    HeadGroup,
    LowRankPart,
    NormChain,
    QKVPrologue,
)
from cortiq.backend.lower import TAIL, LoweredStep
from cortiq.ir import ops
from cortiq.ir.overlays import OVERLAY_INDEX


def _quantise_after(fuser: Fuser, step: LoweredStep) -> bool:
    """Fuse quantising into the op that computes the row."""
    (source,), (record,) = step.inputs, step.outputs
    place = fuser.maker(source, NormChain | FusedElementwise | FusedAttention)
    if place is None or fuser.done[place].op.record is not None:
        return False
    op = fuser.done[place].op
    if isinstance(op, NormChain) and fuser.root(source) != op.out:
        return False
    if not _whole_rows(fuser, op, source):
        return False
    dropped = fuser.inner(source) and not isinstance(op, FusedAttention)
    joined = replace(op, record=record, out=None if dropped else op.out)
    total = (joined.total,) if isinstance(joined, NormChain) else ()
    fuser.replace_at(place, joined, (*total, joined.out, record))
    return True


def _whole_rows(fuser: Fuser, op: object, source: str) -> bool:
    """Check whether the quantised rows are those that the op makes: heads may have been merged."""
    root, types = fuser.root(source), fuser.lowered.types
    if isinstance(op, FusedAttention):
        return len(types[source].shape) == 1 and len(op.node.outputs) == 1
    return types[source].shape == types[root].shape


def _norm_after_sum(fuser: Fuser, step: LoweredStep) -> bool:
    """Fuse a norm into the op that adds a branch to the residual."""
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


def _residual_sum(fuser: Fuser, step: LoweredStep) -> bool:
    """Start a chain at a residual sum, with the norm of its branch, that waits for a norm."""
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


def _gate(fuser: Fuser, step: LoweredStep) -> bool:
    """Fuse activation(gate) · up."""
    for gate, up in (step.inputs, step.inputs[::-1]):
        place = fuser.maker(gate, FusedElementwise)
        if place is None or not fuser.inner(gate) or fuser.root(gate) != gate:
            continue
        op = fuser.done[place].op
        if not isinstance(op.node.op, ops.Activation) or op.record is not None:
            continue
        source = fuser.done[place].inputs[0]
        del fuser.done[place]
        joined = FusedElementwise(step.nodes[0], gate=op.node, out=step.outputs[0])
        fuser.done.append(replace(step, op=joined, inputs=(source, up)))
        return True
    return False


def _part(fuser: Fuser, record: str, target: str, dim: int) -> tuple[HeadGroup, list[int]] | None:
    """Find the heads of `dim` behind a quantised value, and the places of their steps."""
    place = fuser.maker(record, ops.Quantise)
    if place is None or not fuser.inner(record):
        return None
    step, places = fuser.done[place], [place]
    part = HeadGroup(step.inputs[0], step.nodes[0], target=target)
    rope = fuser.maker(part.x, ops.Rope)
    if rope is not None and fuser.inner(part.x):
        places.append(rope)
        part = replace(part, rope=fuser.done[rope].nodes[0], x=fuser.done[rope].inputs[0])
    norm = fuser.maker(part.x, NormChain)
    if norm is not None and fuser.inner(part.x) and _norm_alone(fuser.done[norm].op, dim):
        places.append(norm)
        chain = fuser.done[norm].op
        part = replace(part, norm=chain.norm, x=chain.x)
    return (part, places) if fuser.takes_part(part) else None


def _norm_alone(op: NormChain, dim: int) -> bool:
    """Check for an RMSNorm of each head: one over all heads is no part."""
    norm = None if op.residual is not None or op.record is not None else op.norm
    return norm is not None and isinstance(norm.op, ops.RMSNorm) and norm.op.width == dim


def _store(fuser: Fuser, step: LoweredStep) -> bool:
    """Fuse keys and values on their way into the cache."""
    op = step.op
    targets = (("keys", op.key_dim), ("values", op.value_dim))
    found = [_part(fuser, n, *to) for n, to in zip(step.inputs, targets, strict=False)]
    if any(part is None for part in found):
        return False
    parts, places = zip(*found, strict=True)  # type: ignore[arg-type]
    for place in sorted((p for group in places for p in group), reverse=True):
        del fuser.done[place]
    inputs = tuple(part.x for part in parts)
    fuser.done.append(replace(step, op=QKVPrologue(tuple(parts), step.nodes[0]), inputs=inputs))
    return True


def _query(fuser: Fuser, step: LoweredStep) -> bool:
    """Fuse queries on their way into attention with the keys and values."""
    query, *others = step.inputs
    found = _part(fuser, query, "record", step.op.key_dim)
    if found is None:
        return False
    part, places = found
    for place in sorted(places, reverse=True):
        del fuser.done[place]
    heads = [i for i, s in enumerate(fuser.done) if isinstance(s.op, QKVPrologue)]
    made = fuser.producer(part.x)
    joins = [i for i in heads if fuser.done[i].nodes and _same_slot(fuser.done[i], step)]
    if joins and (made is None or made < joins[-1]):
        before = fuser.done[joins[-1]]
        op = replace(before.op, parts=(*before.op.parts, part))
        inputs, outputs = (*before.inputs, part.x), (*before.outputs, query)
        fuser.done[joins[-1]] = replace(before, op=op, inputs=inputs, outputs=outputs)
    else:
        fuser.done.append(
            replace(step, op=QKVPrologue((part,)), inputs=(part.x,), outputs=(query,))
        )
    out = step.outputs[0]
    fuser.done.append(replace(step, op=FusedAttention(step.nodes[0], out), inputs=(query, *others)))
    return True


def _same_slot(heads: LoweredStep, attend: LoweredStep) -> bool:
    return heads.nodes[0].slots.get("kv") == attend.nodes[0].slots.get("kv")


def _product_end(fuser: Fuser, step: LoweredStep) -> bool:
    """Fuse the bias, or the residual, into a product that nobody else reads."""
    for source, *other in (step.inputs, step.inputs[::-1]):
        place = fuser.maker(source, (ops.MatMul, FusedProduct))
        if place is None or not fuser.inner(source) or fuser.root(source) != source:
            continue
        before = fuser.done[place]
        op = before.op if isinstance(before.op, FusedProduct) else FusedProduct(before.nodes[0])
        if op.residual is not None or source in other:
            continue
        if isinstance(step.op, ops.Bias):
            op = replace(op, bias=step.nodes[0])
        else:
            op = replace(op, residual=other[0])
        del fuser.done[place]
        inputs = (*before.inputs, *other)
        fuser.done.append(replace(step, op=op, inputs=inputs))
        return True
    return False


def _overlay_product(fuser: Fuser, name: str) -> int | None:
    """Return the place of a product with a row's own matrix, whose value nobody else reads."""
    place = fuser.maker(name, ops.ExpertMatMul)
    if place is None or not fuser.inner(name):
        return None
    return place if fuser.done[place].inputs[1].removesuffix(TAIL) == OVERLAY_INDEX else None


def _low_rank(fuser: Fuser, step: LoweredStep) -> bool:
    """Fuse both products of an overlay into the sum, and the sums of one row into one step."""
    base, delta = step.inputs
    b = _overlay_product(fuser, delta)
    row = None if b is None else fuser.maker(fuser.done[b].inputs[0], ops.Quantise)
    if b is None or row is None or not fuser.inner(fuser.done[row].outputs[0]):
        return False
    a = _overlay_product(fuser, fuser.done[row].inputs[0])
    if a is None or fuser.root(base) == fuser.root(delta):
        return False
    inner = [fuser.done[place] for place in (a, row, b)]
    nodes = tuple(node for one in (*inner, step) for node in one.nodes)
    source, out = inner[0].inputs[0], step.outputs[0]
    part = LowRankPart(inner[0].nodes[0], inner[2].nodes[0], base, out)
    for place in sorted((a, row, b), reverse=True):
        del fuser.done[place]
    made = fuser.producer(base)
    for place, before in enumerate(fuser.done):
        same = isinstance(before.op, FusedLowRank) and before.inputs[0] == source
        open_ = same and before.op.parts[0].residual is None
        if open_ and (made is None or made < place):
            fuser.done[place] = replace(
                before,
                op=FusedLowRank((*before.op.parts, part)),
                inputs=(*before.inputs, base),
                outputs=(*before.outputs, out),
                nodes=(*before.nodes, *nodes),
            )
            return True
    joined = FusedLowRank((part,))
    inputs = (source, inner[0].inputs[1], base)
    fuser.done.append(replace(step, op=joined, inputs=inputs, nodes=nodes))
    return True


def _low_rank_end(fuser: Fuser, step: LoweredStep) -> bool:
    """Fuse the residual into the sum of a product and its overlay's, where that is alone."""
    for source, residual in (step.inputs, step.inputs[::-1]):
        place = fuser.maker(source, FusedLowRank)
        if place is None or not fuser.inner(source) or source == residual:
            continue
        before = fuser.done[place]
        (part, *more), (out,) = before.op.parts, step.outputs
        if more or part.residual is not None or fuser.root(source) != source:
            continue
        del fuser.done[place]
        joined = FusedLowRank((replace(part, residual=residual, out=out),))
        inputs = (*before.inputs, residual)
        fuser.done.append(replace(step, op=joined, inputs=inputs, nodes=before.nodes + step.nodes))
        return True
    return False


PATTERNS: Mapping[str, FusionPattern] = {
    "quantised rows": FusionPattern((ops.Quantise,), _quantise_after),
    "norms of sums": FusionPattern(NORMS, _norm_after_sum),
    "overlays": FusionPattern((ops.Add,), _low_rank),
    "residuals beside overlays": FusionPattern((ops.Add,), _low_rank_end),
    "residual sums": FusionPattern((ops.Add,), _residual_sum),
    "gates": FusionPattern((ops.Multiply,), _gate),
    "keys and values": FusionPattern((ops.StoreKV,), _store),
    "queries": FusionPattern((ops.Attend,), _query),
    "products": FusionPattern((ops.Bias, ops.Add), _product_end),
}
"""Patterns by what is computed together."""
