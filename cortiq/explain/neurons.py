"""Activations that a model's `down` matrices multiply: sums by neuron, and which experts ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cortiq.explain.observed import Values
from cortiq.ir import Program, ops, primitives_of

Doubles = npt.NDArray[np.float64]
DOWN = ("down", "shared_down")
"""Roles of the matrices that a layer's neurons are the columns of."""


@dataclass(frozen=True)
class NeuronSite:
    """The values in which a layer's neurons are.

    Attributes
    ----------
    value : their activations, [width], or [k, width] of the chosen experts.
    width : neurons, of one expert.
    experts : how many there are, 0 for a layer without. chosen, shares : values that name the
        experts of a row, and what their outputs are multiplied with.
    """

    value: str
    width: int
    experts: int = 0
    chosen: str = ""
    shares: str = ""

    @property
    def values(self) -> tuple[str, ...]:
        """The values that statistics of it are made of."""
        return tuple(filter(None, (self.value, self.chosen, self.shares)))


def neuron_sites(program: Program) -> dict[str, NeuronSite]:
    """Return the sites of a program's neurons, by the matrix that multiplies them, in order."""
    trunk = primitives_of(program).trunk
    makers = {out: node for node in trunk.nodes for out in node.outputs}
    wanted = [n.weights[role] for n in program.trunk.nodes for role in DOWN if role in n.weights]
    combined = {n.inputs[1]: n.inputs[0] for n in trunk.nodes
                if isinstance(n.op, ops.CombineExperts)}  # fmt: skip
    found = {}
    for node in trunk.nodes:
        weight = next(iter(node.weights.values()), "")
        if weight not in wanted or not isinstance(node.op, ops.MatMul | ops.ExpertMatMul):
            continue
        value = node.inputs[0]
        if isinstance(makers[value].op, ops.Quantise):
            value = makers[value].inputs[0]
        width = node.op.in_width
        if isinstance(node.op, ops.MatMul):
            found[weight] = NeuronSite(value, width)
            continue
        shares = combined.get(node.outputs[0], "")
        found[weight] = NeuronSite(value, width, node.op.experts, node.inputs[1], shares)
    return found


@dataclass
class NeuronSums:
    """Sums over the rows of a text, in their order.

    Attributes
    ----------
    magnitude, square : Σ|a| and Σa², float64 [width], or [experts, width].
    energy : Σ(w·a)², w being the expert's share of the output; `square` without experts.
    runs : rows that each expert ran in, int64 [experts]; none without experts.
    shares : the sum of each expert's shares, float64 [experts].
    """

    magnitude: Doubles
    square: Doubles
    energy: Doubles
    runs: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    shares: Doubles = field(default_factory=lambda: np.zeros(0))

    @staticmethod
    def none(site: NeuronSite) -> NeuronSums:
        """Return the sums over no rows."""
        shape = (site.experts, site.width) if site.experts else (site.width,)
        return NeuronSums(
            np.zeros(shape), np.zeros(shape), np.zeros(shape),
            np.zeros(site.experts, np.int64), np.zeros(site.experts),
        )  # fmt: skip

    def add(self, site: NeuronSite, values: Values) -> None:
        """Add rows."""
        rows = values[site.value].astype(np.float64)
        if not site.experts:
            for row in rows:
                self.magnitude += np.abs(row)
                self.square += row * row
            self.energy = self.square
            return
        shares = values[site.shares].astype(np.float64) if site.shares else np.ones(rows.shape[:2])
        for row, chosen, share in zip(rows, values[site.chosen], shares, strict=True):
            ran = chosen[share > 0]  # the list is filled with others where fewer are admitted
            own, weighs = row[share > 0], share[share > 0]
            self.magnitude[ran] += np.abs(own)
            self.square[ran] += own * own
            self.energy[ran] += (own * weighs[:, None]) ** 2
            self.runs[ran] += 1
            self.shares[ran] += weighs

    def share_of_largest(self, part: float = 0.1) -> float:
        """Return the share of Σ|a| that this part of the neurons has, the largest first."""
        ordered = np.sort(self.magnitude.reshape(-1))[::-1]
        whole = float(ordered.sum())
        return float(ordered[: max(1, round(part * len(ordered)))].sum()) / whole if whole else 0.0


def neuron_sums(rows: Mapping[str, NeuronSite]) -> dict[str, NeuronSums]:
    """Return the sums over no rows of each site."""
    return {name: NeuronSums.none(site) for name, site in rows.items()}
