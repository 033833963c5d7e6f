"""Random overlays of a program, as the numerics' section 16 has them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from cortiq.ir import Program, ops
from cortiq.ir.overlay_graphs import with_overlays
from cortiq.ir.overlays import (
    OVERLAY,
    OVERLAY_INDEX,
    OVERLAY_ROW,
    OverlayChange,
    changeable,
)
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import Weight
from cortiq.numerics.weights import convert
from cortiq_conformance.case_data import CaseData

SMALL = 0.3
"""Amplitude of second factors, beside the first ones' 1."""


def varied(
    source: CaseData, program: Program, members: int, ranks: tuple[int, ...]
) -> tuple[Program, dict[str, Weight]]:
    """Return a program with overlays of all its weights, and their banks; number 0 is without.

    Parameters
    ----------
    ranks : of the products, by turns.
    """
    changes = {}
    for place, (key, node) in enumerate(changeable(program).items()):
        rank, table = ranks[place % len(ranks)], isinstance(node.op, ops.EmbedRows)
        vectors = (not table and place % every == 0 for every in (3, 1, 2))
        before, gain, after = vectors
        changes[key] = OverlayChange(rank, before, gain, after, table)
    made = with_overlays(program, members, changes)
    names = made.weights.keys() - program.weights.keys()
    return made, {n: random_bank(source, n, made.weights[n].shape, members) for n in sorted(names)}


def random_bank(source: CaseData, name: str, shape: tuple[int, ...], members: int) -> Weight:
    """Return a bank by its name, of a shape; number 0 changes nothing."""
    part = name.rpartition("@")[2].removeprefix("table.")
    if part not in ("a", "b"):
        values = source.floats(*shape, amplitude=SMALL) + F32(1)
        values[0] = 1
        return Weight.from_floats(values)
    rows = prod(shape[:-1])
    values = source.floats(rows, shape[-1], amplitude=1.0 if part == "a" else SMALL)
    values[: rows // members] = 0
    return convert(Weight.from_floats(values), "w16", name)


def inputs_of(program: Program, numbers: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return what rows of these overlays and tokens supply, a row each."""
    numbers = np.asarray(numbers, np.int32)
    given = {OVERLAY: numbers, OVERLAY_INDEX: numbers[:, None]}
    if OVERLAY_ROW in program.trunk.inputs:
        given[OVERLAY_ROW] = numbers * np.int32(_vocabulary(program)) + np.asarray(tokens, np.int32)
    return given


def _vocabulary(program: Program) -> int:
    tables = [n.op for n in program.trunk.nodes if n.inputs[:1] == ("token",)]
    return max(op.vocab for op in tables if isinstance(op, ops.EmbedRows))


def by_row(given: Mapping[str, np.ndarray], at: int) -> dict[str, np.ndarray]:
    """Return what row `at` supplies to an executable, which finds rows of tables itself."""
    return {name: array[at] for name, array in given.items() if name != OVERLAY_ROW}
