"""Explain a difference at level 0: operands of the wrong element, rows that see others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import floats
from cortiq_conformance.compare import Divergence, first_difference, format_number, same_bits
from cortiq_conformance.drives import ChunkedDrive, SequenceInput

if TYPE_CHECKING:
    from cortiq_conformance.case import Scenario
    from cortiq_conformance.subject import Subject

ELEMENTWISE = frozenset({"Add", "Multiply", "Scale", "Bias", "Activation", "SoftCap"})
"""Operators whose every element follows from one element of each operand."""
MOST_ROWS = 256
"""Rows of a case that are fed again one by one."""


def explained(scenario: Scenario, subject: Subject, found: Divergence) -> Divergence:
    """Return the divergence with operands, or with the remark that rows see their neighbours."""
    if _rows_alone_are_right(scenario, subject, found):
        remark = "fed one row at a time every row is right: a row sees its neighbours in the batch"
        return replace(found.remarked(remark), dubious=True)
    operands = ", ".join(_operands(scenario, found)) if found.op in ELEMENTWISE else ""
    return found.remarked(f"there {operands}") if operands else found


def _rows_alone_are_right(scenario: Scenario, subject: Subject, found: Divergence) -> bool:
    rows = max(len(feed) for feed in scenario.feeds)
    if scenario.drive != ChunkedDrive() or not 1 < rows <= MOST_ROWS:
        return False
    if _row_alone_is_wrong(scenario, subject, found):  # no other row need be fed alone
        return False
    alone = replace(scenario, drive=ChunkedDrive(1))
    return first_difference(scenario.expected(), alone.observe(subject), 0, "") is None


def _row_alone_is_wrong(scenario: Scenario, subject: Subject, found: Divergence) -> bool:
    """Feed the found row alone, behind the rows before it, and compare it."""
    _, _, name = found.value.rpartition(": ")
    feeds = [feed_of(scenario, found.value).cut(0, found.row + 1)]
    behind = replace(scenario, drive=ChunkedDrive(found.row), feeds=feeds)
    got, wanted = behind.observe(subject).get(name), scenario.expected()[found.value]
    return got is None or not same_bits(wanted[found.row], got[-1])


def _operands(scenario: Scenario, found: Divergence) -> Iterator[str]:
    at = (found.row, *found.element)
    for name, array in feed_of(scenario, found.value).inputs.items():
        if array.dtype == F32 and array.ndim == len(at):
            yield _operand(name, array[at])
    for name, weight in scenario.weights.items():
        if weight.layout.kind == "float" and found.element:
            yield _operand(name, floats(weight, name)[0][found.element[-1]])


def _operand(name: str, value: np.floating) -> str:
    return f"{name} = {format_number(value)} (0x{int(F32(value).view(np.uint32)):08x})"


def feed_of(scenario: Scenario, label: str) -> SequenceInput:
    """Return the input of the sequence whose value has this label."""
    prefix, _, _ = label.rpartition(": ")
    return scenario.feeds[int(prefix.removeprefix("sequence ")) if prefix else 0]
