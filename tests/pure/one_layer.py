"""Programs of one layer over rows that the caller supplies, evaluated in float64."""

from __future__ import annotations

import numpy as np

from cortiq.ir import Builder
from cortiq.numerics.layouts import Weight
from cortiq_reference.ideal import evaluate


def program_of(op, rows):
    """The layer alone, `y`; it takes the position after its first input if it has key rows."""
    b = Builder(context=256)
    b.input("token")
    position = b.input("position")
    taken = [b.input(n, x.shape[1:], "i32" if x.dtype.kind == "i" else "f32")
             for n, x in rows.items()]  # fmt: skip
    if "kv" in op.slot_kinds():
        taken.insert(1, position)
    roles, slots = op.weight_shapes(), op.slot_kinds()
    b.add(op, *taken, name="y", weights={r: r for r in roles}, slots={s: s for s in slots})
    return b.program(("y",))


def weights_for(op, seed):
    """Random float weights of about the size that keeps values near 1."""
    rng, weights = np.random.default_rng(seed), {}
    for role, shape in op.weight_shapes().items():
        rows = 1 if len(shape) == 1 else int(np.prod(shape[:-1]))
        values = rng.standard_normal((rows, shape[-1]))
        values = values / np.sqrt(shape[-1]) if len(shape) > 1 else 0.5 * values
        values = values + 1 if role.endswith("norm") else values
        weights[role] = Weight.from_floats(values.astype(np.float32))
    return weights


def plain(op, weights):
    """The same weights as float64 arrays of the shapes the layer gives them."""
    shapes = op.weight_shapes()
    return {role: weight.parts["raw"].view(np.float32).astype(np.float64).reshape(shapes[role])
            for role, weight in weights.items()}  # fmt: skip


def run(op, weights, rows):
    """Outputs of the layer in float64, through its decomposition."""
    program = program_of(op, rows)
    program = program.with_layouts(dict.fromkeys(program.weights, "f32"))
    count = len(next(iter(rows.values())))
    return evaluate(program, weights, [0] * count, ["y"], inputs=rows)["y"]
