"""Second moments of the rows that matrices meet, on a text: what error feedback weighs errors by.

The reference computes the model's graph with one operator replaced: rows that a matrix multiplies
are quantised as ever, and their products with one another are added up on the way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.backend import CompileOptions, Kernel, Named
from cortiq.engine.request import check_prompt
from cortiq.engine.session import Session
from cortiq.errors import BackendError, RequestError
from cortiq.ir import Program, ops, primitives_of
from cortiq.models.weight_rules import LOGITS
from cortiq.numerics.contract import Floats
from cortiq.numerics.layouts import Weight
from cortiq.numerics.quantise import Quantised, quantise_rows
from cortiq.plugins.selection import find_backend

MOMENT_BYTES = 1 << 28
"""Bytes of second moments that are held at once; a text is read again for those beyond."""
WINDOW = 512
"""Tokens of a sequence."""

Moments = npt.NDArray[np.float32]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ObservedQuantise(ops.Quantise):
    """`Quantise` whose rows are looked at on the way; `value` names them."""

    value: str = ""


class _Sums:
    """Σ xᵀx of the rows of values, by name."""

    def __init__(self) -> None:
        self.found: dict[str, Moments] = {}

    def kernel(self, call: Any, x: Floats) -> Quantised:
        """Quantise rows [n, ..., K], and add their products."""
        flat = x.reshape(-1, x.shape[-1])
        product = flat.T @ flat
        name = call.op.value
        if name in self.found:
            self.found[name] += product
        else:
            self.found[name] = product
        return quantise_rows(x)


def rows_of_matrices(program: Program, names: set[str]) -> dict[str, list[str]]:
    """Return, by value of quantised rows, the matrices among `names` that multiply it.

    Matrices of experts and of heads are left out, since which rows they meet is not known from the
    graph, and so are products of floats, and output heads, of which no row is computed here.
    """
    trunk = primitives_of(program).graphs["trunk"]
    quantised = {value for n in trunk.nodes if n.op.kind == "Quantise" for value in n.outputs}
    found: dict[str, list[str]] = {}
    for node in trunk.nodes:
        for weight in node.weights.values():
            known = node.inputs[0] in quantised and LOGITS not in node.outputs
            if node.op.kind == "MatMul" and weight in names and known:
                found.setdefault(node.inputs[0], []).append(weight)
    return found


def moments_of(
    program: Program,
    weights: Mapping[str, Weight],
    ids: Sequence[int],
    names: set[str],
    progress: Progress | None = None,
) -> Iterator[tuple[list[str], Moments]]:
    """Yield matrices that meet the same rows, and the second moments of those: float32 [K, K].

    Parameters
    ----------
    program, weights : the model as it is, whose rows count.
    ids : of the text. names : the matrices that are wanted.
    """
    rows = rows_of_matrices(program, names)
    widths = {value: program.weights[held[0]].shape[-1] for value, held in rows.items()}
    group: dict[str, list[str]] = {}
    for value, held in [*rows.items(), ("", [])]:
        size = sum(4 * widths[name] ** 2 for name in group)
        if group and (not value or size + 4 * widths[value] ** 2 > MOMENT_BYTES):
            sums = _read(program, weights, ids, set(group), progress)
            yield from ((group[name], sums.pop(name)) for name in group)
            group = {}
        if value:
            group[value] = held


def _read(
    program: Program,
    weights: Mapping[str, Weight],
    ids: Sequence[int],
    values: set[str],
    progress: Progress | None,
) -> dict[str, Moments]:
    """Feed the text in sequences of at most `WINDOW` tokens; return the sums of these values."""
    backend, device = find_backend("reference")
    sums, observing = _Sums(), copy.copy(backend)
    if not hasattr(observing, "use_kernel"):
        raise BackendError("takes no kernels of others", where=backend.name)
    observing.use_kernel(Kernel("reference", ObservedQuantise, sums.kernel, "moments"))
    options = CompileOptions(device=device or "cpu")
    executable = observing.compile(_observed(program, values), weights, options)
    try:
        window = min(WINDOW, program.context)
        for start in range(0, len(ids), window):
            part = check_prompt(list(ids[start : start + window]), program)
            with Session(executable, len(part)) as session:
                session.read(session.feed(part, (Named("hidden"),), every=True))
            if progress is not None:
                progress("Reading the calibration text", start + len(part), len(ids))
    finally:
        executable.close()
    return sums.found


def _observed(program: Program, values: set[str]) -> Program:
    """Return the primitives of the trunk, with the rows of these values looked at."""
    whole = primitives_of(program)
    trunk = whole.graphs["trunk"]
    nodes = tuple(
        replace(node, op=ObservedQuantise(node.outputs[0]))
        if node.op.kind == "Quantise" and node.outputs[0] in values
        else node
        for node in trunk.nodes
    )
    return replace(whole, graphs={**whole.graphs, "trunk": replace(trunk, nodes=nodes)})


def calibration_ids(ids: Sequence[int], most: int, where: str) -> list[int]:
    """Return the tokens that are read, whole windows of them if there are.

    Raises
    ------
    RequestError : the text has too few for a second moment that says anything.
    """
    if len(ids) < WINDOW:
        hint = f"give a text of at least {WINDOW} tokens"
        raise RequestError(f"the text has {len(ids)} tokens", where=where, hint=hint)
    return list(ids[: max(WINDOW, most // WINDOW * WINDOW)])
