"""A program with an operator of a package's own (`plugins/mean-norm`), on any backend."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from cortiq.backend import Backend, Batch, CompileOptions, Digest, Named, Row, Status
from cortiq.ir import Builder, Program, ops
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import Weight
from cortiq.placement.place import place
from cortiq.plugins import load_plugins
from cortiq.plugins.loading import Plugins

SOURCE = Path(__file__).parent / "plugins/mean-norm/cortiq_mean_norm.py"
HEADS, WIDTH, VOCABULARY = 3, 300, 7
ROWS = 5


@cache
def mean_norm() -> Any:
    """The package's module."""
    spec = importlib.util.spec_from_file_location("cortiq_mean_norm", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def with_package(*backends: Backend) -> Plugins:
    """Load these backends, then the package."""
    from cortiq.hookspecs import hookimpl

    class Owner:
        @hookimpl
        def cortiq_backends(self) -> list[Backend]:
            return list(backends)

    plugins = [Owner(), mean_norm()]
    names = ["owner", "mean-norm"]
    points = [
        SimpleNamespace(name=name, value=name, dist=None, load=lambda plugin=plugin: plugin)
        for name, plugin in zip(names, plugins, strict=True)
    ]
    return load_plugins(points)


def program(late: bool = False) -> tuple[Program, dict[str, Weight]]:
    """Two of the operators with catalogue operators before, between and behind them.

    Parameters
    ----------
    late : nothing that state depends on, so that only rows which ask for it are computed.
    """
    b, op = Builder(context=64), mean_norm().MeanNorm(WIDTH)
    token, position = b.input("token"), b.input("position")
    table = {"table": "table"}
    x = b.add(ops.EmbedRows(VOCABULARY, HEADS * WIDTH), token, name="x", weights=table)
    heads = b.add(ops.Reshape((HEADS, WIDTH)), x, name="heads")
    scaled = b.add(ops.Scale(3.0), heads, name="scaled")
    y = b.add(op, scaled, name="y", weights={"gain": "gain"})
    z = b.add(ops.Activation("silu"), y, name="z")
    w = b.add(op, z, name="w", weights={"gain": "other"})
    if not late:
        q = b.add(ops.Quantise(), w, name="q")
        kv = {"kv": "kv"}
        b.add_node(ops.StoreKV(HEADS, WIDTH, WIDTH), q, q, name="stored", slots=kv)
    b.add(ops.Add(), w, z, name="sum")
    b.graph("trunk", ("sum",))
    assert position is not None
    random = np.random.default_rng(5)
    values = random.standard_normal((VOCABULARY, HEADS * WIDTH)).astype(F32)
    values[-1] = np.tile(np.eye(1, WIDTH, dtype=F32), HEADS)  # its mean is 1/WIDTH of its peak,
    weights = {"table": Weight.from_floats(values)}
    for name in ("gain", "other"):
        weights[name] = Weight.from_floats(1 + random.standard_normal((1, WIDTH)).astype(F32) / 4)
    other = weights["other"].parts["raw"].view(F32)
    other[:, 0] = 2.0**43  # and so the second norm's value is outside the domain
    return b.program(), weights


def computed(
    backend: Backend, late: bool = False, fallback: Backend | None = None, **options: Any
) -> tuple[Any, Any]:
    """Digests and values of rows of two sequences, one of which fails, and the placement."""
    made, weights = program(late)
    executable = place(backend, made, weights, CompileOptions(**options), fallback=fallback)
    good, bad = executable.open(ROWS + 1), executable.open(2)
    wants = (Digest("sum"), Digest("y"), Named("w"))
    rows = [Row(good, token, token, wants) for token in range(ROWS)]
    rows.append(Row(bad, 0, VOCABULARY - 1, wants))
    result = executable.forward(Batch(rows)).result()
    assert result.outcomes[bad].status is Status.FAILED, result.outcomes
    assert result.outcomes[good].status is Status.COMPLETED
    after = executable.forward(Batch([Row(good, ROWS, 0, wants)])).result().rows[0]
    found = [
        (row[wants[0]], row[wants[1]], row[wants[2]].tobytes())
        for row in (*result.rows[:ROWS], after)
    ]
    placement = dict(executable.placement)
    executable.close()
    return found, placement
