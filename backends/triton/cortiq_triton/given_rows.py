"""Values that rows supply to captured shapes, as arrays that launches read: data, as ids are.

Whole numbers lie row by row. Of floats each different row lies once, in a table: texts in a model
that sees supply rows of zeros, all of them one array, and an image's rows are few among many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from cortiq.backend import Batch
from cortiq.backend.admission import BY_ROW
from cortiq.backend.executable import Accepted
from cortiq.backend.row_runs import supplies
from cortiq.ir import Graph
from cortiq.ir.overlays import OVERLAY, OVERLAY_INDEX, OVERLAY_ROW, overlay_number
from cortiq_triton.language import pow2
from cortiq_triton.plan import Plan
from cortiq_triton.rowset import GIVEN

PLACE = " at"
"""Behind the names of floats: int32 [rows], which row of the table each has; −1 for none."""
FEW = 64
"""Rows of a table are a power of two up to so many, and a multiple of it above."""
Inputs = Mapping[str, Any]
NOTHING: Inputs = {}


def known_inputs(graph: Graph) -> bool:
    """Whether the host knows all that rows of a graph supply: numbers that do not depend on ids,
    which the device draws, as rows of overlays' tables do.
    """
    values = graph.values
    numbers = all(values[name].dtype != "q16" for name in graph.inputs)
    return numbers and OVERLAY_ROW not in graph.inputs


def accepted_inputs(batch: Batch, accepted: Sequence[Accepted[Any]]) -> Sequence[Inputs]:
    """Return what each accepted row supplies; nothing, if no row does."""
    if not supplies(batch.rows):
        return ()
    return [batch.rows[index].inputs for sequence in accepted for index in sequence.indices]


def given_names(rows: Sequence[Inputs], plan: Plan, every: bool = False) -> tuple[str, ...] | None:
    """Return the names of what rows supply; None where a row lacks an input of the graph, or
    supplies something that is neither one nor floats in place of a value of all rows.

    Parameters
    ----------
    every : whether rows have to supply the same.
    """
    values = plan.graph.values
    inputs = {name for name in plan.graph.inputs if name not in BY_ROW}
    known = [given.keys() for given, _ in shared(rows)] or [NOTHING.keys()]
    if not (known_inputs(plan.graph) and all(inputs <= names for names in known)):
        return None
    if every and any(names != known[0] for names in known):
        return None
    found = {name for names in known for name in names}
    more = found - inputs
    floats = all(name in plan.known and values[name].dtype == "f32" for name in more)
    return tuple(sorted(found)) if floats else None


def given_arrays(
    rows: Iterable[Inputs], plan: Plan, names: Sequence[str], count: int
) -> dict[str, np.ndarray]:
    """Return the words of what rows supply, filled up to `count` rows."""
    if not names:
        return {}
    known, found = [*shared(rows)], dict[str, np.ndarray]()
    times = [number for _, number in known]
    for name, numbers in _overlays(known, names).items():
        found[GIVEN + name] = _filled(np.repeat(numbers, times, 0), count)
    for name in names:
        kind, given = plan.graph.values[name], [inputs.get(name) for inputs, _ in known]
        if GIVEN + name in found:
            continue
        if kind.dtype == "i32":
            whole = np.stack([np.asarray(value, np.int32).reshape(kind.shape) for value in given])
            found[GIVEN + name] = _filled(np.repeat(whole, times, 0), count)
            continue
        table, places = _table(given, kind.shape)
        found[GIVEN + name] = table.view(np.int32)
        rest = 0 if name in plan.graph.inputs else -1
        found[GIVEN + name + PLACE] = _filled(np.repeat(places, times), count, rest)
    return found


def shared(rows: Iterable[Inputs]) -> Iterator[tuple[Inputs, int]]:
    """Yield what rows supply and how many rows in turn: those of a sequence may share it."""
    return ((same[0], len(same)) for _, group in groupby(rows, id) for same in [[*group]])


def _overlays(known: Sequence[tuple[Inputs, int]], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the numbers of overlays where rows supply nothing else, in a fraction of the time."""
    if OVERLAY not in names or len(names) > 2:
        return {}
    overlays = [overlay_number(inputs) for inputs, _ in known]
    if None in overlays:
        return {}
    numbers = np.array(overlays, np.int32)
    return {OVERLAY: numbers, OVERLAY_INDEX: numbers[:, None]}


def _table(given: Sequence[Any], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the different arrays, float32 [rows, …], and which each is; −1 where there is none."""
    numbers: dict[int, int] = {}
    different: list[Any] = []
    places = np.full(len(given), -1, np.int32)
    for at, value in enumerate(given):
        if value is not None:
            places[at] = numbers.setdefault(id(value), len(numbers))
            if places[at] == len(different):
                different.append(value)
    size = len(different)
    table = np.zeros((pow2(size) if size <= FEW else -(-size // FEW) * FEW, *shape), np.float32)
    with np.errstate(over="ignore"):  # float64 beyond float32 is infinite, and so a fault
        for line, value in zip(table, different, strict=False):
            line[...] = np.asarray(value).reshape(shape)
    return table, places


def _filled(numbers: np.ndarray, count: int, rest: int = 0) -> np.ndarray:
    """Return int32 [count, …] that begins with these."""
    whole = np.full((count, *numbers.shape[1:]), rest, np.int32)
    whole[: len(numbers)] = numbers
    return whole
