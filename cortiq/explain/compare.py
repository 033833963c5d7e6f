"""Two runs of one text side by side: two backends, two files of a model, or two adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cortiq.engine.request import id_list
from cortiq.errors import RequestError
from cortiq.explain.facts import EMBED, LOGITS
from cortiq.explain.observed import ObservedModel
from cortiq.ir import Program, primitives_of
from cortiq.ir.trunk_layers import layer_values
from cortiq.model.score import negative_log_likelihood


@dataclass(frozen=True)
class ValueParity:
    """A value on both runs.

    Attributes
    ----------
    value : its name. layer : the number of its layer, or None.
    same : whether every bit is. rows : how many rows differ, and the first that does.
    relative : ‖a − b‖/‖b‖ over all rows, float64. largest : the largest |a − b|.
    """

    value: str
    layer: int | None
    same: bool
    rows: int
    first_row: int | None
    relative: float
    largest: float


@dataclass(frozen=True)
class Parity:
    """Two runs compared.

    Attributes
    ----------
    layers : the embedding, every layer, and the logits, in order.
    first : the first of these that differs, or None. inside : the first value in it that does, of
        those that both write out as numbers.
    nll : the mean −ln p of the text's own next tokens on both; None for a single token.
    same_best : share of positions on which the most likely token is the same.
    """

    layers: tuple[ValueParity, ...]
    first: ValueParity | None
    inside: ValueParity | None
    nll: tuple[float, float] | None
    same_best: float

    @property
    def same(self) -> bool:
        """Whether every bit of every layer is the same."""
        return self.first is None

    def as_object(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {**asdict(self), "same": self.same}


@dataclass
class _Sums:
    rows: int = 0
    first: int | None = None
    difference: float = 0.0
    size: float = 0.0
    largest: float = 0.0
    seen: int = 0

    def add(self, a: np.ndarray, b: np.ndarray) -> None:
        """Add rows of both."""
        for one, other in zip(a, b, strict=True):
            if not same_bits(one, other):
                self.rows += 1
                self.first = self.seen if self.first is None else self.first
            self.seen += 1
        x, y = a.astype(np.float64), b.astype(np.float64)
        self.difference += float(((x - y) ** 2).sum())
        self.size += float((y * y).sum())
        self.largest = max(self.largest, float(np.abs(x - y).max(initial=0.0)))

    def parity(self, value: str, layer: int | None) -> ValueParity:
        """Return what was found."""
        relative = float(np.sqrt(self.difference / max(self.size, 1e-30)))
        return ValueParity(
            value, layer, not self.rows, self.rows, self.first, relative, self.largest
        )


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two rows of a value have the same bits."""
    return bool(a.tobytes() == b.tobytes())


def compare(run: ObservedModel, other: ObservedModel, ids: Sequence[int]) -> Parity:
    """Compute a text on two runs, and find where they differ first.

    Parameters
    ----------
    ids : token ids, which mean the same to both models.

    Raises
    ------
    RequestError : the models have other layers, or cannot be given these ids.
    """
    ids, names = id_list(ids), _common_layers(run, other)
    sums = {name: _Sums() for name in names}
    losses, agreed, position = np.zeros(2), 0, 0
    for a, b in zip(run.rows(ids, names), other.rows(ids, names), strict=True):
        for name, one in sums.items():
            one.add(a[name], b[name])
        for mine, theirs in zip(a[LOGITS], b[LOGITS], strict=True):
            agreed += int(mine.argmax()) == int(theirs.argmax())
            position += 1
            if position < len(ids):
                both = (negative_log_likelihood(x, ids[position]) for x in (mine, theirs))
                losses += np.array(list(both))
    layers = tuple(sums[name].parity(name, layer) for name, layer in names.items())
    first = next((one for one in layers if not one.same), None)
    inside = None if first is None else _inside(run, other, ids, layers, first)
    count = len(ids) - 1
    nll = (float(losses[0] / count), float(losses[1] / count)) if count else None
    return Parity(layers, first, inside, nll, agreed / len(ids))


def _common_layers(run: ObservedModel, other: ObservedModel) -> dict[str, int | None]:
    """Return the values that are compared, in order, with the number of their layer."""
    found, theirs = layer_values(run.program), layer_values(other.program)
    names = [EMBED, *found.values(), LOGITS]
    shapes = [[_shape(r.program, name) for name in names] for r in (run, other)]
    if found != theirs or shapes[0] != shapes[1]:
        what = f"{run.title} has {len(found)} layers, {other.title} {len(theirs)}"
        if len(found) == len(theirs):
            what = f"{run.title} and {other.title} have layers of other names or widths"
        raise RequestError(what, where="against", hint="compare two models of one shape")
    return {EMBED: None, **{name: layer for layer, name in found.items()}, LOGITS: None}


def _shape(program: Program, name: str) -> tuple[int, ...] | None:
    kind = program.trunk.values.get(name)
    return None if kind is None else tuple(kind.shape)


def _inside(
    run: ObservedModel,
    other: ObservedModel,
    ids: Sequence[int],
    layers: Sequence[ValueParity],
    first: ValueParity,
) -> ValueParity | None:
    """Return the first value that differs behind the last layer that does not, up to `first`."""
    trunk, theirs = primitives_of(run.program).trunk, primitives_of(other.program).trunk
    order = [name for node in trunk.nodes for name in node.outputs]
    at = layers.index(first)
    start = order.index(layers[at - 1].value) + 1 if at else 0
    names = [
        name
        for name in order[start : order.index(first.value) + 1]
        if theirs.values.get(name) == trunk.values[name] and trunk.values[name].dtype != "q16"
    ]
    sums = {name: _Sums() for name in names}
    for a, b in zip(run.rows(ids, names), other.rows(ids, names), strict=True):
        for name, one in sums.items():
            one.add(a[name], b[name])
    found = (sums[name].parity(name, first.layer) for name in names)
    return next((one for one in found if not one.same), None)
