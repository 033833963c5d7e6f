"""Rules that give matrices their formats: which are matrices, and which need finer codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cortiq.errors import UnsupportedError
from cortiq.ir import Program, primitives_of
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.tensor_pieces import TensorSlice
from cortiq.models.weights import FLOAT_TARGET
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq.numerics.layouts import LAYOUTS

DEFAULT_WEIGHT_FORMAT = "w16"
"""Layout that float matrices of a checkpoint are converted to, unless another is asked for."""
MATRIX_OPERATORS = frozenset({"EmbedRows", "MatMul", "HeadMatMul", "ExpertMatMul"})
"""Primitives whose weights are matrices; every other weight stays float32."""
WEIGHT_RULE = "weight_rule"
"""Fact of a program: the format that all its matrices were converted to."""
FINER = {"w4": "w8", "w4-5": "w8"}
"""Formats too coarse for embedding tables, output heads and the scores that choose experts, and
what those matrices get."""
LOGITS = "logits"


def matrix_names(program: Program) -> set[str]:
    """Return the weights that multiply quantised rows or are looked up by token."""
    nodes = (n for g in primitives_of(program).graphs.values() for n in g.nodes)
    return {w for n in nodes if n.op.kind in MATRIX_OPERATORS for w in n.weights.values()}


def delicate_names(program: Program) -> set[str]:
    """Return the weights of tables, and those whose products are, perhaps shifted or scaled, logits
    or the scores that choose experts.
    """
    found: set[str] = set()
    for graph in primitives_of(program).graphs.values():
        makers = {value: node for node in graph.nodes for value in node.outputs}
        chosen = [value for n in graph.nodes if n.op.kind == "Route" for value in n.inputs]
        values = [*chosen, *(value for value in makers if value == LOGITS)]
        for node in graph.nodes:
            if node.op.kind == "EmbedRows":
                found |= set(node.weights.values())
        while values:
            maker = makers.get(values.pop())
            if maker is not None and maker.op.kind in MATRIX_OPERATORS:
                found |= set(maker.weights.values())
            elif maker is not None:
                values += maker.inputs
    return found


def format_of_each(program: Program, rule: str) -> dict[str, str]:
    """Return the format of each matrix under a rule."""
    delicate = delicate_names(program)
    names = matrix_names(program)
    return {name: FINER.get(rule, rule) if name in delicate else rule for name in names}


def with_rule(
    program: Program,
    rule: str | None,
    checkpoint: OpenCheckpoint,
    tensors: Mapping[str, Sequence[TensorSlice]],
) -> Program:
    """Return the program with the rule that gave its matrices their codes among its facts.

    The layouts alone say enough of floats that became w8, w8b256, w16 or f32.
    """
    matrices = matrix_names(program) & tensors.keys()
    types = (checkpoint.tensor(piece.tensor).type for name in matrices for piece in tensors[name])
    finer = rule in FINER or any(LAYOUTS[t].kind != "float" for t in types)
    if rule is None or rule == FLOAT_TARGET or not finer:
        return program
    return replace(program, facts={**program.facts, WEIGHT_RULE: rule})


def check_contract(checkpoint: OpenCheckpoint) -> None:
    """Raise UnsupportedError for codes that another version of the contract made.

    They would be read alike, but not be those that the same conversion gives now.
    """
    own = getattr(checkpoint, "own", None)
    if own is not None and own.description.contract != CONTRACT_VERSION:
        what = f"was converted under version {own.description.contract} of the contract"
        hint = f"convert the model again: this is version {CONTRACT_VERSION}"
        raise UnsupportedError(what, where=str(own.path), hint=hint)
