"""Refitting of `down` to the neurons that a mask leaves open: sums over a text, and their solution.

Over the rows of a text, with A the activations of open neurons and Y what the whole feed-forward
part gives: Gss = AᵀA, YA = YᵀA. The matrix that loses least of Y is YA·(Gss + λ·m·1)⁻¹, m the mean
of Gss's diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cortiq.atomic import write_atomically
from cortiq.errors import FormatError, RequestError
from cortiq.explain.observed import compiled_to_observe, value_rows
from cortiq.ir import Program, ops
from cortiq.ir.decompose import primitives_of
from cortiq.model.source import ModelSource
from cortiq_masks.mask import ActivationMask
from cortiq_masks.sites import activation_values, feed_forward_nodes
from cortiq_masks.statistics import WINDOW

Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
DAMPING = 1e-4
"""λ: a share of the mean of Gss's diagonal that is added to it."""


@dataclass
class Refit:
    """The sums of some layers.

    Attributes
    ----------
    support : numbers of the open neurons, by layer. rows : how many rows were added.
    gss, ya : float64 [n, n] and [hidden, n].
    """

    support: dict[int, Indices] = field(default_factory=dict)
    rows: int = 0
    gss: dict[int, Doubles] = field(default_factory=dict)
    ya: dict[int, Doubles] = field(default_factory=dict)

    def add(self, layer: int, activations: Doubles, outputs: Doubles) -> None:
        """Add rows of a layer: activations of all its neurons, and outputs of `down`."""
        kept = activations[:, self.support[layer]]
        gss, ya = kept.T @ kept, outputs.T @ kept
        self.gss[layer] = self.gss.get(layer, 0.0) + gss
        self.ya[layer] = self.ya.get(layer, 0.0) + ya

    def matrix(self, layer: int, damping: float = DAMPING) -> Doubles:
        """Return the refitted `down` of a layer, [hidden, open neurons].

        Raises
        ------
        RequestError : the layer was not refitted.
        """
        if layer not in self.gss:
            raise RequestError(f"has no sums of layer {layer}", where="refit")
        gss = self.gss[layer]
        count = len(gss)
        gss = gss + damping * (np.trace(gss) / max(count, 1)) * np.eye(count)
        solved: Doubles = np.linalg.solve(gss, self.ya[layer].T).T
        return solved

    def write(self, folder: Path) -> int:
        """Write `support.L.u32`, `gss.L.f32` and `ya.L.f32`; return how many layers there are."""
        folder.mkdir(parents=True, exist_ok=True)
        for layer, support in self.support.items():
            head = np.array([len(support)], "<u4").tobytes()
            parts: dict[str, tuple[bytes, ...]] = {}
            parts["support"] = head, support.astype("<u4").tobytes()
            if layer in self.gss:
                parts["gss"] = (self.gss[layer].astype("<f4").tobytes(),)
                parts["ya"] = (self.ya[layer].astype("<f4").tobytes(),)
            for name, content in parts.items():
                kind = "u32" if name == "support" else "f32"
                write_atomically(folder / f"{name}.{layer}.{kind}", content)
        return len(self.gss)


def read_support(folder: Path) -> dict[int, Indices]:
    """Return the neurons that each file `support.L.u32` of a folder keeps.

    Raises
    ------
    FormatError : one is damaged.
    """
    found = {}
    for path in folder.glob("support.*.u32"):
        raw = path.read_bytes()
        layer, numbers = path.name.split(".")[1], np.frombuffer(raw[: len(raw) // 4 * 4], "<u4")
        counted = len(raw) % 4 == 0 and len(numbers) > 0 and len(numbers) == 1 + numbers[0]
        if not (layer.isdecimal() and counted):
            raise FormatError("is no list of neurons", where=str(path))
        kept = numbers[1:].astype(np.int64)
        if (np.diff(kept) <= 0).any():
            raise FormatError("lists neurons that do not ascend", where=str(path))
        found[int(layer)] = kept
    return found


def support_of(mask: ActivationMask) -> dict[int, Indices]:
    """Return the open neurons of each layer that a mask narrows."""
    return {i: np.flatnonzero(v != 0) for i, v in sorted(mask.neurons.items())}


def refit(
    source: ModelSource,
    ids: Sequence[int],
    support: dict[int, Indices],
    *,
    window: int = WINDOW,
    backend: str | None = None,
) -> Refit:
    """Return the sums of a text's rows, every one of them, for layers with these open neurons.

    Raises
    ------
    RequestError : the model has no such layer, or fewer neurons.
    """
    values, outputs = activation_values(source.program), product_values(source.program)
    widths = {i: n.op.inner for i, n in feed_forward_nodes(source.program).items()}  # type: ignore[attr-defined]
    for layer, kept in support.items():
        if layer not in widths or (len(kept) and kept[-1] >= widths[layer]):
            raise RequestError(f"names neurons that layer {layer} does not have", where="refit")
    made = Refit(dict(support))
    names = [name for layer in support for name in (values[layer], outputs[layer])]
    executable = compiled_to_observe(source, backend)
    try:
        for held in value_rows(executable, ids, names, window):
            for layer in support:
                rows, out = held[values[layer]], held[outputs[layer]]
                made.add(layer, rows.astype(np.float64), out.astype(np.float64))
            made.rows += len(next(iter(held.values())))
    finally:
        executable.close()
    return made


def product_values(program: Program) -> dict[int, str]:
    """Return the value, by name, that each layer's `down` gives, before its bias."""
    users = {node.weights["weight"]: node for node in primitives_of(program).trunk.nodes
             if isinstance(node.op, ops.MatMul)}  # fmt: skip
    nodes = feed_forward_nodes(program)
    return {i: users[node.weights["down"]].outputs[0] for i, node in nodes.items()}
