"""`explain`: what a model computes of a text, layer by layer, and what it thinks comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cortiq.engine.request import id_list
from cortiq.errors import RequestError
from cortiq.explain.neurons import NeuronSums, neuron_sites, neuron_sums
from cortiq.explain.observed import ObservedModel
from cortiq.ir.trunk_layers import layer_values
from cortiq.model.score import negative_log_likelihood

EMBED, LOGITS = "embed", "logits"


@dataclass(frozen=True)
class LayerRows:
    """Rows behind a layer, over all tokens.

    Attributes
    ----------
    layer : its number. value : its name in the graph.
    rms : of all numbers. largest : the largest magnitude.
    change : ‖row − row before‖ over ‖row before‖, of all rows together.
    """

    layer: int
    value: str
    rms: float
    largest: float
    change: float


@dataclass(frozen=True)
class NextToken:
    """A model's view of the token after a position.

    Attributes
    ----------
    position : of the row. best : the most likely token. probability : its own.
    forced : the token that follows, or None. forced_probability, rank : of that; rank 0 is `best`.
    """

    position: int
    best: int
    probability: float
    forced: int | None = None
    forced_probability: float | None = None
    rank: int | None = None


@dataclass(frozen=True, eq=False)
class Explanation:
    """All that a model computes of a text, for people.

    Attributes
    ----------
    ids : tokens that were fed. prompt_tokens : those before the forced ones.
    layers : rows behind each layer.
    neurons : sums of activations by the matrix that multiplies them; with experts, who ran.
    following : what comes after the prompt's last token, and after each forced one.
    """

    ids: tuple[int, ...]
    prompt_tokens: int
    layers: tuple[LayerRows, ...]
    neurons: dict[str, NeuronSums] = field(repr=False)
    following: tuple[NextToken, ...]

    def __eq__(self, other: object) -> bool:
        """Return whether the other one has the same numbers."""
        if not isinstance(other, Explanation):
            return NotImplemented
        return self.as_object() == other.as_object()

    def as_object(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            "ids": list(self.ids),
            "prompt_tokens": self.prompt_tokens,
            "layers": [vars(layer) for layer in self.layers],
            "neurons": {name: _sums_object(sums) for name, sums in self.neurons.items()},
            "following": [vars(one) for one in self.following],
        }


def _sums_object(sums: NeuronSums) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(sums, name).tolist() for name in ("magnitude", "square")}
    if len(sums.runs):
        found |= {name: getattr(sums, name).tolist() for name in ("energy", "runs", "shares")}
    return found


class _LayerSums:
    """Sums of squares of a layer's rows, and of what they differ by from those before."""

    def __init__(self) -> None:
        self.square = self.before = self.change = self.largest = 0.0
        self.count = 0

    def add(self, rows: np.ndarray, before: np.ndarray) -> None:
        """Add rows."""
        values, earlier = rows.astype(np.float64), before.astype(np.float64)
        self.square += float((values * values).sum())
        self.largest = max(self.largest, float(np.abs(values).max()))
        self.count += values.size
        if values.shape == earlier.shape:
            self.change += float(((values - earlier) ** 2).sum())
            self.before += float((earlier * earlier).sum())


def explain(run: ObservedModel, prompt: Sequence[int], forced: Sequence[int] = ()) -> Explanation:
    """Compute a text, and report what is inside.

    Parameters
    ----------
    prompt : token ids (`ObservedModel.ids` makes them of a text).
    forced : ids that follow, whatever the model thinks of them.

    Raises
    ------
    RequestError : the prompt is empty, or with the forced ids longer than the context.
    """
    prompt = id_list(prompt)
    if not prompt:
        raise RequestError("the prompt has no tokens", where="prompt")
    ids = [*prompt, *id_list(forced)]
    layers, sites = layer_values(run.program), neuron_sites(run.program)
    names = [EMBED, *layers.values(), *(v for site in sites.values() for v in site.values), LOGITS]
    sums, neurons = {layer: _LayerSums() for layer in layers}, neuron_sums(sites)
    following: list[NextToken] = []
    position = 0
    for values in run.rows(ids, names):
        before = values[EMBED]
        for layer, name in layers.items():
            sums[layer].add(values[name], before)
            before = values[name]
        for weight, site in sites.items():
            neurons[weight].add(site, values)
        for logits in values[LOGITS]:
            if position >= len(prompt) - 1:
                after = ids[position + 1] if position + 1 < len(ids) else None
                following.append(_next_token(position, logits, after))
            position += 1
    found = (_layer_rows(layer, layers[layer], one) for layer, one in sums.items())
    return Explanation(tuple(ids), len(prompt), tuple(found), neurons, tuple(following))


def _layer_rows(layer: int, value: str, sums: _LayerSums) -> LayerRows:
    change = float(np.sqrt(sums.change / sums.before)) if sums.before else 0.0
    rms = float(np.sqrt(sums.square / max(sums.count, 1)))
    return LayerRows(layer, value, rms, sums.largest, change)


def _next_token(position: int, logits: np.ndarray, after: int | None) -> NextToken:
    best = int(logits.argmax())
    made = NextToken(position, best, _probability(logits, best))
    if after is None:
        return made
    own = logits[after]
    rank = int((logits > own).sum() + (logits[:after] == own).sum())
    return NextToken(position, best, made.probability, after, _probability(logits, after), rank)


def _probability(logits: np.ndarray, token: int) -> float:
    return float(np.exp(-negative_log_likelihood(logits, token)))
