"""Feed-forward parts without closed neurons: which columns stay, and weights gathered by them.

A product adds integers of one block of columns exactly, then blocks in order. So columns of zeros
may be left out where no sum of blocks is regrouped: any under one scale a row, else whole runs of
eight blocks, of floats whole lanes. Closed neurons that stay with the others of their run get rows
of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from cortiq.errors import UnsupportedError
from cortiq.ir import Node, Program
from cortiq.numerics.contract import F32, LANES
from cortiq.numerics.layouts import LAYOUTS, Weight
from cortiq.numerics.scalar import ACTIVATIONS, activation
from cortiq_masks.mask import ActivationMask
from cortiq_masks.sites import feed_forward_nodes

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
RUN = 8
"""Blocks that a product adds before it adds them to the others."""
BY_ROWS = ("gate", "up", "gate_bias", "up_bias")
"""Roles of weights with a row, or a number, for each neuron."""


@dataclass(frozen=True)
class Narrowing:
    """The neurons of one layer that are left.

    Attributes
    ----------
    kept : their numbers, ascending. dead : which of these are closed all the same.
    """

    kept: Indices
    dead: Flags

    @property
    def width(self) -> int:
        """Number of them."""
        return len(self.kept)


def granule(layout: str | None) -> int:
    """Return the columns that may be left out together without a change of any bit."""
    found = LAYOUTS[layout or "f32"]
    if found.kind == "float":
        return LANES
    return RUN * found.block if found.block else 1


def check_narrow(mask: ActivationMask, where: str) -> None:
    """Refuse a mask that does more than close neurons."""
    binary = mask.is_binary and not mask.heads and not mask.closed and not mask.means
    if not binary:
        what = "closes more than neurons, or fills or scales them"
        hint = f"choose it by request: --adapter NAME={where}"
        raise UnsupportedError(what, where=where, hint=hint)


def narrowings(
    mask: ActivationMask, program: Program, where: str, *, uniform: bool = False
) -> dict[int, Narrowing]:
    """Return which neurons of each feed-forward part are left under a mask.

    Parameters
    ----------
    uniform : every layer keeps as many neurons as the one with most.

    Raises
    ------
    UnsupportedError : the mask is of another model or does more than close neurons, or a closed
        neuron of a part adds something all the same.
    """
    check_narrow(mask, where)
    nodes = feed_forward_nodes(program)
    strange = sorted(mask.neurons.keys() - nodes.keys())
    if strange:
        what = f"masks neurons of layer {strange[0]}, which has no feed-forward part of its own"
        raise UnsupportedError(what, where=where)
    runs = {}
    for layer, node in nodes.items():
        width: int = node.op.inner  # type: ignore[attr-defined]
        if layer in mask.neurons and len(mask.neurons[layer]) != width:
            what = f"has {len(mask.neurons[layer])} neurons in layer {layer}, the model {width}"
            raise UnsupportedError(what, where=where, hint="it was made for another model")
        size = granule(program.weights[node.weights["down"]].layout)
        runs[layer] = _Runs(mask.live(layer, width), size)
    if uniform:
        _make_uniform(runs)
    found = {layer: one.narrowing() for layer, one in runs.items()}
    for layer, one in found.items():
        if one.dead.any():
            _check_silent(nodes[layer], where)
    return found


class _Runs:
    """Runs of a layer's columns, of which some stay."""

    def __init__(self, live: Flags, size: int) -> None:
        self.live, self.size = live, size
        starts = range(0, len(live), size)
        self.stays = [bool(live[at : at + size].any()) for at in starts]
        if not any(self.stays):
            self.stays[0] = True

    @property
    def ragged(self) -> bool:
        """Whether the last run, shorter than the others, stays."""
        return bool(len(self.live) % self.size) and self.stays[-1]

    def grow(self, count: int, ragged: bool) -> None:
        """Let more runs stay, the first ones, until there are `count`."""
        if ragged:
            self.stays[-1] = True
        for at in range(len(self.stays)):
            if sum(self.stays) >= count:
                return
            short = bool(len(self.live) % self.size) and at == len(self.stays) - 1
            if not short:
                self.stays[at] = True

    def narrowing(self) -> Narrowing:
        """Return the neurons of the runs that stay."""
        kept = np.flatnonzero(np.repeat(self.stays, self.size)[: len(self.live)])
        return Narrowing(kept, ~self.live[kept])


def _make_uniform(runs: Mapping[int, _Runs]) -> None:
    """Let all layers keep equally many columns."""
    ragged = any(one.ragged for one in runs.values())
    for one in runs.values():
        one.grow(0, ragged and bool(len(one.live) % one.size))
    count = max(sum(one.stays) for one in runs.values())
    for one in runs.values():
        one.grow(count, ragged)


def _check_silent(node: Node, where: str) -> None:
    """Refuse a part in which rows of zeros do not make an activation of 0, or that of others."""
    op = node.op
    how = getattr(op, "activation", "relu2")
    name = how if isinstance(how, str) else how.activation
    silent = name in ACTIVATIONS and not activation(np.zeros(1, F32), name).any()
    if getattr(op, "above", None) is not None or not silent:
        what = f"{node.name} has to keep all its neurons: closed ones act on it"
        raise UnsupportedError(what, where=where)


def narrowed_program(program: Program, found: Mapping[int, Narrowing]) -> Program:
    """Return the program whose feed-forward parts have only the neurons that are left."""
    nodes = {node.name: layer for layer, node in feed_forward_nodes(program).items()}
    specs = dict(program.weights)

    def narrow(node: Node) -> Node:
        layer = nodes.get(node.name)
        if layer is None:
            return node
        op = replace(node.op, inner=found[layer].width)  # type: ignore[type-var]
        for role, shape in op.weight_shapes().items():
            name = node.weights[role]
            specs[name] = replace(specs[name], shape=shape)
        return replace(node, op=op)

    trunk = replace(program.trunk, nodes=tuple(narrow(n) for n in program.trunk.nodes))
    return replace(program, graphs={**program.graphs, "trunk": trunk}, weights=specs)


def roles_of(program: Program, found: Mapping[int, Narrowing]) -> dict[str, tuple[str, Narrowing]]:
    """Return the role, and what is left, of each weight that is narrowed.

    Raises
    ------
    UnsupportedError : such a weight belongs to several nodes.
    """
    nodes = feed_forward_nodes(program)
    users: dict[str, int] = {}
    for graph in program.graphs.values():
        for node in graph.nodes:
            for name in node.weights.values():
                users[name] = users.get(name, 0) + 1
    roles = {}
    for layer, one in found.items():
        for role, name in nodes[layer].weights.items():
            if role in (*BY_ROWS, "gate_up", "gate_up_bias", "down"):
                roles[name] = role, one
                if users[name] > 1:
                    raise UnsupportedError("is shared by layers, which keep one width", where=name)
    return roles


def gathered(weight: Weight, role: str, one: Narrowing) -> Weight:
    """Return what of a weight in a role is left; rows of closed neurons are zeros."""
    if role == "down":
        return columns_of(weight, one.kept)
    rows, dead = one.kept, one.dead
    if role.startswith("gate_up"):
        rows = np.stack([2 * rows, 2 * rows + 1], 1).reshape(-1)
        dead = np.repeat(dead, 2)
    if role.endswith("_bias"):
        made = columns_of(weight, rows)
        raw = made.parts["raw"].reshape(len(rows), -1)
        raw[dead] = 0
        return replace(made, parts={"raw": raw.reshape(1, -1)})
    taken = weight.take(rows)
    parts = {name: part.copy() for name, part in taken.parts.items()}
    for part in parts.values():
        part[dead] = 0
    return replace(taken, parts=parts, origin=0)


def columns_of(weight: Weight, columns: Indices) -> Weight:
    """Return some columns of a weight: whole blocks of it, ascending."""
    layout, parts = weight.layout, dict(weight.parts)
    shape = (weight.shape[0], len(columns))
    if layout.kind == "parts":
        block = layout.block or weight.shape[1]
        scales = columns[:: layout.block] // block if layout.block else np.zeros(1, np.int64)
        made = {n: p[:, scales if n == "scale" else columns] for n, p in parts.items()}
        return Weight(layout, shape, {n: np.ascontiguousarray(p) for n, p in made.items()})
    block = layout.block or 1
    raw = parts["raw"].reshape(shape[0], ceil(weight.shape[1] / block), layout.block_bytes)
    made_raw = np.ascontiguousarray(raw[:, columns[::block] // block])
    return Weight.from_bytes(layout, made_raw.reshape(-1), shape)
