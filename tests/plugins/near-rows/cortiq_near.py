"""A rewriting: `--rewrite near:N` lets attention see the last N rows only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    from cortiq.models.rewriting import ProgramRewrite


def near(program: Any, weights: Mapping[str, Any], argument: str) -> Any:
    """Give every attention layer a window of this many rows."""
    from cortiq.errors import RequestError
    from cortiq.ir.layers import Attention
    from cortiq.models.rewriting import Rewritten

    if not argument.isdecimal():
        raise RequestError(f"a window of {argument!r} rows", where="near", hint="near:128")
    nodes = tuple(
        replace(node, op=replace(node.op, window=int(argument)))
        if isinstance(node.op, Attention)
        else node
        for node in program.trunk.nodes
    )
    graphs = {**program.graphs, "trunk": replace(program.trunk, nodes=nodes)}
    return Rewritten(replace(program, graphs=graphs), weights, int(argument))


@hookimpl
def cortiq_rewrites() -> Sequence[ProgramRewrite]:
    """The rewriting of this package."""
    from cortiq.models.rewriting import ProgramRewrite

    return [ProgramRewrite("near", "attention to the last rows", near)]
