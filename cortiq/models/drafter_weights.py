"""Weights of a block drafter, which has a file of its own."""

from __future__ import annotations

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.models.dflash import PREFIX
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.registry import location_of
from cortiq.models.weight_rules import matrix_names
from cortiq.models.weights import matrix_weight, vector_weight
from cortiq.numerics.layouts import Weight


def drafter_weights(
    program: Program, drafter: OpenCheckpoint | None, layout: str
) -> dict[str, Weight]:
    """Return the weights that a block drafter's own file holds; floats of matrices get a layout.

    Raises
    ------
    FormatError : one is missing, or has another shape.
    """
    weights: dict[str, Weight] = {}
    matrices = matrix_names(program) if drafter is not None else set()
    for name, spec in program.weights.items():
        if drafter is None or not name.startswith(PREFIX):
            continue
        tensor = name.removeprefix(PREFIX)
        if tensor not in drafter:
            raise FormatError(f"lacks {tensor} {list(spec.shape)}", where=location_of(drafter))
        found = drafter.tensor(tensor)
        if tuple(found.shape) != spec.shape:
            what = f"{tensor} is {list(found.shape)}, should be {list(spec.shape)}"
            raise FormatError(what, where=location_of(drafter))
        is_matrix = name in matrices
        weights[name] = (
            matrix_weight([found], spec.shape, layout)
            if is_matrix
            else vector_weight([found], spec.shape)
        )
    return weights
