"""Admission looks into a graph once, and is right for the rows after."""

from __future__ import annotations

import numpy as np
import pytest

from cortiq.backend import Row
from cortiq.backend.admission import refusals
from cortiq.backend.known_wants import KnownWants
from cortiq.ir import Builder, ops

ROWS_OF_TABLE = 5


@pytest.fixture
def graph():
    """A graph whose rows supply an index into a table of their own."""
    b = Builder(context=8)
    b.input("token")
    b.input("position")
    index = b.input("index", (), "i32")
    b.add_node(ops.EmbedRows(ROWS_OF_TABLE, 4), index, name="y", weights={"table": "table"})
    return b.program(("y",)).trunk


def test_a_graphs_tables_are_looked_up_once(graph, monkeypatch):
    known = KnownWants()

    def refused(index):
        rows = [Row(None, 0, 0, (), {"index": np.int32(index)})]
        return list(refusals(graph, rows, [0], 0, 3, 8, known))

    first = refused(0), refused(ROWS_OF_TABLE - 1), refused(ROWS_OF_TABLE)
    assert not first[0] and not first[1] and first[2]
    monkeypatch.setattr("cortiq.backend.admission._sizes", None)
    assert (refused(0), refused(ROWS_OF_TABLE - 1), refused(ROWS_OF_TABLE)) == first
