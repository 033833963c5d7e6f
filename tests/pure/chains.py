"""Chains of executables over the small program, and how tests feed and compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from small_program import bound, small_program

from cortiq.backend import (
    Argmax,
    Batch,
    CompileOptions,
    Declined,
    Device,
    Digest,
    Draw,
    Executable,
    Named,
    Row,
    State,
    Status,
    Supported,
    Top,
    Versions,
)
from cortiq.ir import verify
from cortiq.ir.layers import LAYERS
from cortiq.ir.ops import PRIMITIVES
from cortiq.numerics.sampling import Sampling
from cortiq.placement.place import place, place_split
from cortiq_reference.backend import ReferenceBackend

ONE_THREAD = CompileOptions(threads=1, page_rows=8)
REFERENCE = ReferenceBackend()
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
PENALISED = Sampling(temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.1, seed=7)
WANTS = (Digest(), Digest("hidden"), Argmax(), Draw(PENALISED), Top(3), Named("logits"))


class Renamed:
    """An executable of the reference that says another name."""

    def __init__(self, executable: Executable, name: str) -> None:
        self._executable = executable
        self.placement = dict.fromkeys(executable.placement, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)


@dataclass
class Partial:
    """A backend that computes only these kinds, with the reference's kernels."""

    kinds: frozenset[str]
    takes: Any = lambda node: True
    name: str = "partial"
    priority: int = 1
    versions: Versions = field(default_factory=Versions)
    compiled: list = field(default_factory=list)

    def devices(self) -> list[Device]:
        return [Device("one")]

    def supports(self, node, graph, program):
        for value in (*node.inputs, *node.outputs):
            assert value in graph.values  # a backend may look types up
        if node.op.kind in self.kinds and self.takes(node):
            return Supported()
        return Declined(f"{node.op.kind} is not written yet")

    def compile(self, program, weights, options):
        verify(program)
        kinds = {n.op.kind for g in program.graphs.values() for n in g.nodes}
        assert kinds <= self.kinds
        assert set(weights) == set(program.weights)
        self.compiled.append(program)
        return Renamed(REFERENCE.compile(program, weights, options), self.name)


def partial(*kinds: str) -> Partial:
    return Partial(frozenset(kinds))


def partial_by_name(takes: Any) -> Partial:
    """A backend that computes the layers and primitives whose node it takes."""
    return Partial(frozenset(op.__name__ for op in (*PRIMITIVES, *LAYERS)), takes)


PRIMITIVE_KINDS = [op.__name__ for op in PRIMITIVES]
BACKENDS = {
    "linear and norm": ("Linear", "RMSNorm"),
    "attention layer": ("Attention", "Residual"),
    "matmul without quantise": ("MatMul", "RMSNorm"),
    "quantise without matmul": ("Quantise", "Add"),
    "store without attend": ("Quantise", "MatMul", "StoreKV"),
    "attend without store": ("Quantise", "MatMul", "Attend", "Rope"),
    "embedding only": ("EmbedRows",),
    "conv and route": ("CausalConv", "Route", "ExpertMatMul"),
    "delta rule only": ("DeltaRule",),
    "what a delta rule takes": ("L2Norm", "Activation", "Slice", "Reshape", "MatMul"),
    "nothing": (),
    "every other primitive": tuple(PRIMITIVE_KINDS[::2]),
    "the primitives between": tuple(PRIMITIVE_KINDS[1::2]),
}


def alone(**options: Any) -> Executable:
    return REFERENCE.compile(*bound(small_program(**options)), ONE_THREAD)


def placed(kind: str, **options: Any) -> Executable:
    backend = partial(*BACKENDS[kind])
    return place(backend, *bound(small_program(**options)), ONE_THREAD, fallback=REFERENCE)


def placed_by_name(takes: Any, **options: Any) -> Executable:
    program, weights = bound(small_program(**options))
    return place(partial_by_name(takes), program, weights, ONE_THREAD, fallback=REFERENCE)


def split(cuts: Sequence[int | str], **options: Any) -> Executable:
    program, weights = bound(small_program(**options))
    assignments = [
        (REFERENCE, replace(ONE_THREAD, page_rows=4 * (1 + i))) for i in range(len(cuts) + 1)
    ]
    return place_split(assignments, program, weights, cuts)


CHAINS = {
    **{kind: lambda kind=kind, **o: placed(kind, **o) for kind in BACKENDS},
    "draft only": lambda **o: placed_by_name(lambda node: node.name.startswith("draft"), **o),
    "in two": lambda **o: split(["layers.2.attention"], **o),
    "in three": lambda **o: split(["layers.0.mlp", "layers.3"], **o),
    "beside a shared slot": lambda **o: split(["layers.3"], **o),
    "at every node": lambda **o: split(list(range(1, len(small_program(**o).trunk.nodes))), **o),
}


def rows(state: State, ids: Sequence, wants: tuple = WANTS, **inputs: Any) -> list[Row]:
    start = state.length()
    return [Row(state, start + i, t, wants, **inputs) for i, t in enumerate(ids)]


def feed(executable: Executable, state: State, ids: Sequence, wants: tuple = WANTS) -> list[dict]:
    result = executable.forward(Batch(rows(state, ids, wants))).result()
    assert result.outcomes[state].status is Status.COMPLETED, result.outcomes[state]
    return [dict(row) for row in result.rows]


def same(a: Any, b: Any) -> bool:
    """Whether answers are equal, bit for bit."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
