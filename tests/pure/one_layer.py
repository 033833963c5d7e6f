"""Programs of one layer over rows that the caller supplies, and plain formulas to compare with."""

from __future__ import annotations

import math

import numpy as np

from cortiq.ir import Builder
from cortiq.numerics.layouts import Weight
from cortiq_reference.ideal import evaluate

EPS = 0.01


def normed(x, weight=1.0):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


FUNCTIONS = {
    "silu": lambda x: x * sigmoid(x),
    "gelu_tanh": lambda x: x * sigmoid(2 * 0.7978845608028654 * (x + 0.044715 * x**3)),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": sigmoid,
    "softplus": softplus,
}


def program_of(op, rows):
    """The layer alone, of its outputs the first.

    It takes the position after its first input if it has key rows.
    """
    b = Builder(context=256)
    b.input("token")
    position = b.input("position")
    taken = [b.input(n, x.shape[1:], "i32" if x.dtype.kind == "i" else "f32")
             for n, x in rows.items()]  # fmt: skip
    if "kv" in op.slot_kinds():
        taken.insert(1, position)
    roles, slots = op.weight_shapes(), op.slot_kinds()
    found = b.add_node(op, *taken, name="y", weights={r: r for r in roles},
                       slots={s: s for s in slots})  # fmt: skip
    return b.program((found[0].name,))


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
    """Return the same weights as float64 arrays of the layer's shapes."""
    shapes = op.weight_shapes()
    return {role: weight.parts["raw"].view(np.float32).astype(np.float64).reshape(shapes[role])
            for role, weight in weights.items()}  # fmt: skip


def run(op, weights, rows):
    """The layer's (first) output in float64, through its decomposition."""
    program = program_of(op, rows)
    program = program.with_layouts(dict.fromkeys(program.weights, "f32"))
    count = len(next(iter(rows.values())))
    (name,) = program.trunk.outputs
    return evaluate(program, weights, [0] * count, [name], inputs=rows)[name]
