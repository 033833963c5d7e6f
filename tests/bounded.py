"""Programs with layers of plugins/cortiq-bounded, and what backends compute of them."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import cortiq_bounded
from cortiq.backend import Batch, CompileOptions, Named, Row
from cortiq.ir import Builder
from cortiq.ir.layers import Attention
from cortiq.models import load_program
from cortiq.models.rewriting import rewritten
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import Weight
from cortiq.numerics.rope import RopeTable
from cortiq.placement.place import place
from cortiq_bounded.rewriting import attention_nodes, layer_prefix
from cortiq_reference.backend import ReferenceBackend

PLUGIN = Path(cortiq_bounded.__file__)
WIDTH, DIM, CONTEXT = 24, 8, 1 << 20
MODEL = "synthetic:tiny-llama?seed=1&format=w8"


def rewrite():
    """The package's rewritings."""
    return cortiq_bounded.cortiq_rewrites()


def attention(heads, kv_heads):
    """A layer of a family."""
    return Attention(WIDTH, heads, kv_heads, DIM, rope=RopeTable(10000.0, DIM))


def one_layer(op, rows, seed=0, width=WIDTH):
    """A program whose rows supply x and whose value `y` is the layer's, its weights, and rows."""
    random = np.random.default_rng(seed)
    b = Builder(context=CONTEXT)
    b.input("token")
    position, x = b.input("position"), b.input("x", (width,), "f32")
    roles, slots = op.weight_shapes(), op.slot_kinds()
    b.add(op, x, position, name="y", weights={r: r for r in roles}, slots={r: r for r in slots})
    weights = {
        role: Weight.from_floats(random.standard_normal((prod(s[:-1]), s[-1])).astype(F32) / 2)
        for role, s in roles.items()
    }
    made = b.program(("y",)).with_layouts(dict.fromkeys(roles, "f32"))
    return made, weights, random.standard_normal((rows, width)).astype(F32)


def computed(backend, program, weights, rows, size=7, plugins=None):
    """The last value of each row: rows of `x`, or tokens; in batches of this size."""
    given = np.asarray(rows)
    name = program.trunk.outputs[-1]
    executable = place(
        backend, program, weights, CompileOptions(), fallback=plugins or ReferenceBackend()
    )
    state, out = executable.open(len(given)), []
    for start in range(0, len(given), size):
        part = range(start, min(start + size, len(given)))
        batch = [
            Row(state, at, int(given[at]), (Named(name),))
            if given.ndim == 1
            else Row(state, at, 0, (Named(name),), inputs={"x": given[at]})
            for at in part
        ]
        out += [row[Named(name)] for row in executable.forward(Batch(batch)).result().rows]
    executable.close()
    return np.stack(out)


def sink_file(folder, count):
    """A file of random sinks for the model."""
    loaded, random = load_program(open_synthetic(MODEL), context=64), np.random.default_rng(1)
    tensors = {}
    for node in attention_nodes(loaded.program, "all"):
        op, prefix = node.op, layer_prefix(node)
        for role, shape in (
            ("sink_keys", (op.kv_heads, count, op.head_dim)),
            ("sink_values", (op.kv_heads, op.head_dim, count)),
        ):
            tensors[f"{prefix}.{role}"] = random.standard_normal(shape).astype(F32)
    save_file(tensors, folder / "sinks.safetensors")
    return folder / "sinks.safetensors"


def rewritten_model(*asked, name=MODEL, context=1 << 20):
    """A model with the rewritings: program and weights."""
    loaded = load_program(open_synthetic(name), context=None)
    program = replace(loaded.program, context=context)
    made = rewritten(program, loaded.weights, asked, rewrite())
    return made.program, made.weights


def loaded_plugins(*backends):
    """These backends, the reference among them, with the package's kernels."""
    from types import SimpleNamespace

    from cortiq.hookspecs import hookimpl
    from cortiq.plugins import load_plugins

    class Owner:
        @hookimpl
        def cortiq_backends(self):
            return [ReferenceBackend(), *backends]

    found = {"owner": Owner(), "bounded": cortiq_bounded}
    return load_plugins([
        SimpleNamespace(name=name, value=name, dist=None, load=lambda plugin=plugin: plugin)
        for name, plugin in found.items()
    ])  # fmt: skip


def stepped(step, op, size, rows):
    """The rows' outputs of a step function, from an empty state, and the last state."""
    state, out = np.zeros(size, F32), []
    for row in zip(*rows, strict=True):
        state, one = step(op, state, *row)
        out.append(one)
    return np.stack(out), state
