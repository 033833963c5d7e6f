"""Values put one after the other, on several ranks: which axis is cut, and the bits of one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from rank_threads import CHUNKS, Streams, by_ranks

from cortiq.backend import Batch, CompileOptions, Digest, Row, Status
from cortiq.ir import Builder, Program, ops, primitives_of
from cortiq.ir.layers import Linear
from cortiq.models.bind import with_layouts
from cortiq.numerics.layouts import Weight
from cortiq.numerics.weights import convert
from cortiq.placement.place import place
from cortiq.plugins.selection import find_backend
from cortiq.ranks.cuts import splits_of

WIDTH = 48
ROWS = np.random.default_rng(7).standard_normal((sum(CHUNKS), WIDTH)).astype(np.float32)


class Layers:
    """Write a program of products of `x`, [48]."""

    def __init__(self) -> None:
        self.builder = Builder(context=64)
        self.builder.input("token")
        self.builder.input("position")
        self.x = self.builder.input("x", (WIDTH,), "f32")
        self.shapes: dict[str, tuple[int, int]] = {}

    def product(self, x: Any, width: int, out: int, name: str) -> Any:
        """Return a product with a matrix of its own."""
        self.shapes[f"{name}.weight"] = (out, width)
        return self.add(Linear(width, out), x, name=name, weights={"weight": f"{name}.weight"})

    def add(self, op: Any, *inputs: Any, name: str, **more: Any) -> Any:
        """Return a node's output."""
        (found,) = self.builder.add_node(op, *inputs, name=name, **more)
        return found

    def heads(self, heads: int, width: int, name: str) -> Any:
        """Return a product as [heads, width]."""
        flat = self.product(self.x, WIDTH, heads * width, f"{name}.flat")
        return self.add(ops.Reshape((heads, width)), flat, name=name)

    def bound(self) -> tuple[Program, Mapping[str, Weight]]:
        """Return the program, and random weights for it in w8."""
        rng = np.random.default_rng(3)
        weights = {
            name: convert(Weight.from_floats(matrix.astype(np.float32)), "w8", name)
            for name, shape in self.shapes.items()
            for matrix in [rng.standard_normal(shape) / np.sqrt(shape[1])]
        }
        return with_layouts(self.builder.program(("y",)), weights), weights


def columns(b: Layers, *widths: int) -> None:
    """Parts of a row, each of them divided."""
    parts = [b.product(b.x, WIDTH, width, f"part{n}") for n, width in enumerate(widths)]
    b.product(b.add(ops.Concat(), *parts, name="both"), sum(widths), 12, "y")


def one_twice(b: Layers) -> None:
    """The same part at two places."""
    part = b.product(b.x, WIDTH, 40, "part")
    b.product(b.add(ops.Concat(), part, part, name="both"), 80, 12, "y")


def of_heads(b: Layers) -> None:
    """Parts of each head, as in latent attention: whole heads are divided."""
    both = b.add(ops.Concat(), b.heads(6, 4, "long"), b.heads(6, 2, "short"), name="both")
    b.product(b.add(ops.Reshape((36,)), both, name="row"), 36, 12, "y")


def with_a_whole_one(b: Layers) -> None:
    """A part beside a value that every rank has whole: the part is put together first."""
    part = b.product(b.x, WIDTH, 40, "part")
    b.product(b.add(ops.Concat(), part, b.x, name="both"), 40 + WIDTH, 12, "y")


def heads_with_a_whole_one(b: Layers) -> None:
    """Heads of which some part is supplied whole."""
    whole = b.add(ops.Reshape((6, 8)), b.x, name="whole")
    both = b.add(ops.Concat(), b.heads(6, 4, "long"), whole, name="both")
    b.product(b.add(ops.Reshape((72,)), both, name="row"), 72, 12, "y")


def fed(executable: Any, program: Program) -> Streams:
    """Return the digests of every row, fed in chunks."""
    state, done, found = executable.open(64), 0, []
    wants = Digest("both"), Digest("y")
    for count in CHUNKS:
        rows = [Row(state, at, 0, wants, {"x": ROWS[at]}) for at in range(done, done + count)]
        result = executable.forward(Batch(rows)).result()
        assert result.outcomes[state].status is Status.COMPLETED
        found += [[tuple(row[want]) for want in wants] for row in result.rows]
        done += count
    return found


@pytest.mark.parametrize(
    ("write", "axis"),
    [
        (lambda b: columns(b, 24, 40), 0),
        (lambda b: columns(b, 7, 64, 33), 0),
        (one_twice, 0),
        (of_heads, 0),
        (with_a_whole_one, None),
        (heads_with_a_whole_one, None),
    ],
)
def test_what_is_put_together_is_cut_as_its_parts(
    write: Callable[[Layers], None], axis: int | None
) -> None:
    """Every rank has a part of each section, and its own alone; of rows that want it the whole."""
    b = Layers()
    write(b)
    program, weights = b.bound()
    cpu = find_backend("cpu")[0]
    expected = fed(place(cpu, program, weights, CompileOptions(threads=1)), program)
    assert len({str(row) for row in expected}) == len(ROWS)
    for ranks in (2, 3, 5):
        split = splits_of(primitives_of(program), ranks).get(("trunk", "both"))
        assert (split and split.axis) == axis
        if split is not None:
            owned = [n for rank in range(ranks) for a, z in split.pieces(rank) for n in range(a, z)]
            assert {*owned} == {*range(split.length)}
            assert max(split.size(rank) for rank in range(ranks)) < split.length
        for found in by_ranks(cpu, program, weights, ranks, feed=fed):
            assert found == expected, ranks
