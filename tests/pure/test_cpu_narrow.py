"""Rows of w8 and w16 that are no whole pairs of 16 columns, as factors of low-rank products are."""

from __future__ import annotations

import numpy as np
import pytest

from cortiq.backend import Batch, CompileOptions, Named, Row
from cortiq.errors import BackendError
from cortiq.ir import Builder, ops
from cortiq.numerics.layouts import Weight, decode
from cortiq.numerics.matmul import matmul
from cortiq.numerics.quantise import quantise_rows
from cortiq.numerics.weights import convert

native = pytest.importorskip("cortiq_cpu.native")
HEIGHT, MOST = 40, 70
Y = Named("y")


@pytest.mark.parametrize("layout", ["w8", "w16"])
@pytest.mark.parametrize("width", [15, 16, 48, 272])
def test_products_of_narrow_rows_on_every_instruction_set(width, layout):
    from cortiq_cpu.backend import CpuBackend

    b, random = Builder(context=128), np.random.default_rng(width)
    b.input("token"), b.input("position")
    x = b.add(ops.Quantise(), b.input("x", (width,), "f32"), name="q")
    b.add(ops.MatMul(width, HEIGHT), x, name="y", weights={"weight": "w"})
    program = b.program(("y",)).with_layouts({"w": layout})
    values = random.normal(size=(HEIGHT, width)).astype(np.float32)
    weight = convert(Weight.from_floats(values), layout, "w")
    given = random.normal(size=(MOST, width)).astype(np.float32)
    want = matmul(quantise_rows(given), decode(weight), np.zeros(MOST, np.bool_))
    seen = 0
    for isa in native.ISAS:
        options = CompileOptions(threads=1, extra={"isa": isa})
        try:
            executable = CpuBackend().compile(program, {"w": weight}, options)
        except BackendError:  # it does not run here
            continue
        for count in (1, 3, MOST):
            state = executable.open(MOST)
            rows = [Row(state, i, 0, (Y,), {"x": given[i]}) for i in range(count)]
            found = [row[Y] for row in executable.forward(Batch(rows)).result().rows]
            assert np.stack(found).tobytes() == want[:count].tobytes(), (isa, count)
            state.release()
        executable.close()
        seen += 1
    assert seen
