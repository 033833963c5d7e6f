"""Second moments of the rows that matrices meet, on a text: what error feedback weighs errors by.

The reference computes the model's graph with one operator replaced: rows that a matrix multiplies
are quantised as ever, and their products with one another are added up on the way. The text passes
a few layers at a time: only the weights that these look at, and their moments, are there at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.backend import CompileOptions, Executable, Kernel, Named
from cortiq.convert.scratch import ScratchArrays, panels
from cortiq.engine.request import check_prompt
from cortiq.engine.session import Session
from cortiq.errors import BackendError, RequestError
from cortiq.ir import Program, ops, primitives_of
from cortiq.models.weight_rules import LOGITS
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.layouts import Weight
from cortiq.numerics.quantise import Quantised, quantise_rows
from cortiq.placement.partition import partition
from cortiq.plugins.selection import find_backend

MOMENT_BYTES = 1 << 27
"""Bytes of second moments behind which the trunk is cut."""
WINDOW = 512
"""Tokens of a sequence."""

Moments = npt.NDArray[np.float32]
Values = dict[str, npt.NDArray[Any]]
"""Rows of a text, by the name of their value."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ObservedQuantise(ops.Quantise):
    """`Quantise` whose rows are looked at on the way; `value` names them."""

    value: str = ""


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
    scratch: ScratchArrays,
    progress: Progress | None = None,
) -> Iterator[tuple[list[str], Moments]]:
    """Yield matrices that meet the same rows, and the second moments of those: float32 [K, K].

    The text passes some layers of the trunk at a time, so that moments of no more than these are
    there; weights that are converted when they are looked at are not kept.

    Parameters
    ----------
    program, weights : the model as it is, whose rows count.
    ids : of the text. names : the matrices that are wanted.
    """
    rows = rows_of_matrices(program, names)
    parts = _parts(program, rows)
    window = min(WINDOW, program.context)
    texts = [list(ids[at : at + window]) for at in range(0, len(ids), window)]
    values: list[Values] = [{} for _ in texts]
    reading = _Reading(scratch, rows.keys())
    for index, part in enumerate(parts):
        later = {value for other in parts[index + 1 :] for value in other.trunk.inputs}
        edges = [v for v in part.trunk.values if v in later and v not in part.trunk.inputs]
        executable = reading.compiled(part, weights)
        # Nodes are computed whose values are asked for: a product of each row that is looked at.
        edges += {n.inputs[0]: n.outputs[0] for n in part.trunk.nodes if n.op.kind == "MatMul"
                  and n.inputs[0] in reading.looked_at}.values()  # fmt: skip
        try:
            for number, text in enumerate(texts):
                found = _feed(executable, check_prompt(text, program), values[number], edges)
                values[number] = {n: v for n, v in found.items() if n in later}
                if progress is not None:
                    done = index * len(texts) + number + 1
                    progress("Reading the calibration text", done, len(parts) * len(texts))
        finally:
            executable.close()
        while reading.sums:
            value = next(iter(reading.sums))
            yield rows[value], reading.sums.pop(value)


def _feed(
    executable: Executable, text: Sequence[int], given: Values, edges: Sequence[str]
) -> Values:
    """Feed a text with values from earlier parts; return these, and the edges, by name."""
    taken = [name for name in executable.program.trunk.inputs if name in given]
    inputs = [{name: given[name][i] for name in taken} for i in range(len(text))]
    wants = tuple(map(Named, edges))
    with Session(executable, len(text)) as session:
        pending = session.feed_each(text, [wants] * len(text), inputs)
        brought = session.read_rows(pending)
    return given | {want.name: np.stack([row[want] for row in brought]) for want in wants}


def _parts(program: Program, rows: Mapping[str, Sequence[str]]) -> list[Program]:
    """Cut the trunk behind layers, so that each part has about `MOMENT_BYTES` of moments; leave out
    what follows the last rows that are wanted.

    Layers that read another's slot are in one part with it.
    """
    whole = primitives_of(program)
    homes = {node.name for node in program.trunk.nodes}
    last = {s: i for i, node in enumerate(whole.trunk.nodes) for s in node.slots.values()}
    part_of: dict[tuple[str, str], int] = {}
    part, size, busy, home, left = 0, 0, 0, "", set(rows)
    for index, node in enumerate(whole.trunk.nodes):
        own = _home(node.name, homes)
        if own != home and not left:
            break
        if own != home and size >= MOMENT_BYTES and index > busy:
            part, size = part + 1, 0
        home, busy = own, max(busy, *(last[slot] for slot in node.slots.values()), 0)
        for value in left.intersection(node.outputs):
            size += 4 * program.weights[rows[value][0]].shape[-1] ** 2
        left -= set(node.outputs)
        part_of[whole.trunk.name, node.name] = part
    nodes = whole.trunk.nodes[: len(part_of)]
    trunk = replace(whole.trunk, nodes=nodes, outputs=())
    alone = replace(whole, graphs={trunk.name: trunk})
    return list(partition(alone, part_of, part + 1).programs) if rows else []


def _home(name: str, homes: Collection[str]) -> str:
    """Return the layer that a primitive belongs to."""
    while name not in homes:
        name = name.rpartition(".")[0]
    return name


class _Reading:
    """Second moments of the rows of values, as the reference computes parts of a program.

    Attributes
    ----------
    sums : of the part that is computed, by value. looked_at : names of quantised rows that were,
        as parts have them.
    """

    def __init__(self, scratch: ScratchArrays, values: Collection[str]) -> None:
        self.sums: dict[str, Moments] = {}
        self.looked_at: set[str] = set()
        self._scratch, self._left = scratch, set(values)
        backend, self._device = find_backend("reference")
        if not hasattr(backend, "use_kernel"):
            raise BackendError("takes no kernels of others", where=backend.name)
        self._backend: Any = copy.copy(backend)
        self._backend.use_kernel(Kernel("reference", ObservedQuantise, self._kernel, "moments"))

    def _kernel(self, call: Any, x: Floats) -> Quantised:
        """Quantise rows [n, ..., K], and add their products."""
        flat = x.reshape(-1, x.shape[-1])
        sums = self.sums[call.op.value]
        for cut in panels(len(sums)):
            sums[cut] += flat[:, cut].T @ flat
        return quantise_rows(x)

    def compiled(self, part: Program, weights: Mapping[str, Weight]) -> Executable:
        """Compile a part, in which the rows that are wanted and new in it are looked at.

        A row that a cut is behind is quantised on both sides of it, under the names `VALUE@PART`.
        """
        nodes = []
        for node in part.trunk.nodes:
            value = node.outputs[0].partition("@")[0] if node.outputs else ""
            if node.op.kind == "Quantise" and value in self._left:
                self._left.remove(value)
                self.looked_at.add(node.outputs[0])
                width = part.trunk.values[node.inputs[0]].shape[-1]
                self.sums[value] = self._scratch.zeros((width, width), F32)
                node = replace(node, op=ObservedQuantise(value))
            nodes.append(node)
        trunk = replace(part.trunk, nodes=tuple(nodes))
        own = {name: weights[name].once() for name in part.weights}
        options = CompileOptions(device=self._device or "cpu")
        return self._backend.compile(replace(part, graphs={trunk.name: trunk}), own, options)


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
