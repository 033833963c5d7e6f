"""Ops that meet a matrix, and the choice of experts."""

from __future__ import annotations

import numpy as np

from cortiq.backend.fuse import FusedLowRank
from cortiq.backend.lower import LoweredStep
from cortiq.ir import ops
from cortiq_cpu import arguments
from cortiq_cpu.arguments import OpKind, address
from cortiq_cpu.binder import OpArgs, OpBinder, fields
from cortiq_cpu.matmul_arguments import (
    PRODUCTS,
    ChosenMatmulArgs,
    EmbedArgs,
    LowRankArgs,
    MatmulArgs,
)

F32 = np.float32
ROUTERS = ("softmax", "sigmoid", "softmax_topk", "sqrt_softplus", "sparse_mixer")
"""By the number the native core gives them."""


def bind_embed(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind EMBED_ROWS."""
    matrix = b.weights.matrix(step.nodes[0].weights["table"])
    of_rows = {"token": b.rows.tokens, "position": b.rows.positions}
    ids = of_rows.get(step.inputs[0])
    place = b.at(step.inputs[0]) if ids is None else address(ids)
    inner = b.stride(step.nodes[0].inputs[0])
    args = EmbedArgs(matrix, place, b.at(step.outputs[0]), inner)
    return [(OpKind.EMBED_ROWS, args)]


def bind_matmul(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind MATMUL: up to four matrices an op."""
    bound: OpArgs = []
    pairs = list(zip(step.nodes, step.outputs, strict=True))
    for start in range(0, len(pairs), PRODUCTS):
        part = pairs[start : start + PRODUCTS]
        args = MatmulArgs(x=b.at(step.inputs[0]), inner=1, count=len(part))
        for product, (node, out) in zip(args.products, part, strict=False):
            split = b.split(out)
            args.inner = split["inner"]
            product.matrix = b.weights.matrix(node.weights["weight"])
            product.out, product.stride = b.at(out), split["width"]
        bound.append((OpKind.MATMUL, args))
    return bound


def bind_chosen(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind MATMUL_CHOSEN: a matrix for each head or expert."""
    node = step.nodes[0]
    slots, _ = b.shape(step.outputs[0])
    args = ChosenMatmulArgs(
        matrix=b.weights.matrix(node.weights["weight"]),
        x=b.at(step.inputs[0]),
        out=b.at(step.outputs[0]),
        slots=slots,
        shared=len(b.shape(node.inputs[0])) == 1,
    )
    if isinstance(node.op, ops.ExpertMatMul):
        args.choice = b.at(step.inputs[1])
    return [(OpKind.MATMUL_CHOSEN, args)]


def bind_low_rank(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind LOW_RANK: what overlays add to the products of a row, up to four an op."""
    bound: OpArgs = []
    op: FusedLowRank = step.op
    for start in range(0, len(op.parts), PRODUCTS):
        some = op.parts[start : start + PRODUCTS]
        x, choice = map(b.at, step.inputs[:2])
        args = LowRankArgs(x, choice, b.workspace.address, len(some))
        for part, of in zip(args.parts, some, strict=False):
            first, second = (node.weights["weight"] for node in (of.a, of.b))
            part.a, part.b = b.weights.matrix(first), b.weights.matrix(second)
            part.changes = b.weights.changes(first)
            part.base, part.out = b.at(of.base), b.at(of.out)
        bound.append((OpKind.LOW_RANK, args))
    return bound


def bind_route(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind ROUTE."""
    node = step.nodes[0]
    op: ops.Route = fields(node)
    router = op.router
    index, weights = step.outputs
    args = arguments.RouteArgs(
        scores=b.at(step.inputs[0]),
        bias=b.vector(node, "bias"),
        index=b.at(index),
        weights=b.at(weights),
        scores_stride=b.stride(node.inputs[0]),
        experts=op.experts,
        top_k=router.top_k,
        router=ROUTERS.index(router.kind),
        renormalise=router.renormalise,
        floor=F32(router.denominator_floor),
        scaling=F32(router.routed_scaling),
        mask=b.vector(node, "mask"),
        groups=router.groups,
        kept_groups=router.kept_groups,
        best_two=router.group_score == "top2",
        tau=F32(router.tau or 0),
        margin=F32(router.margin or 0),
    )
    return [(OpKind.ROUTE, args)]


def bind_combine(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind COMBINE_EXPERTS."""
    weights, outputs = step.inputs
    count, width = b.shape(step.nodes[0].inputs[1])
    args = arguments.CombineExpertsArgs(
        weights=b.at(weights),
        outputs=b.at(outputs),
        out=b.at(step.outputs[0]),
        outputs_stride=count * width,
        out_stride=width,
        count=count,
        width=width,
    )
    return [(OpKind.COMBINE_EXPERTS, args)]
