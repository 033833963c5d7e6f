"""Models whose programs are changed before they are compiled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.formats.digest import file_sha256
from cortiq.ir import Program
from cortiq.model.load import choose_backend, model_of
from cortiq.model.model import Model
from cortiq.model.source import ModelSource, model_name, open_source
from cortiq.models.adapters import FACT as ADAPTERS
from cortiq.numerics.layouts import Weight
from cortiq.options import LoadOptions, resolve
from cortiq_masks.experts import Indices, with_admitted, with_expert_tubes
from cortiq_masks.files import read_mask
from cortiq_masks.narrowing import Narrowing, gathered, narrowed_program, narrowings, roles_of
from cortiq_masks.notice import NOTICE
from cortiq_masks.routing import NeuronRouting, routed_program

Change = Callable[[ModelSource], ModelSource]


def load_sparse(name: str, mask: str | Path, **options: Any) -> Model:
    """Load a model without the neurons that a mask closes: nothing of theirs is computed.

    The bits are those of the model with the mask as an adapter, and so is the model's hash; the
    fingerprint has the mask among the merged adapters.

    Parameters
    ----------
    options : as for `cortiq.load`.

    Raises
    ------
    UnsupportedError : the mask does more than close neurons, or is of another model.
    """
    path = Path(mask)
    return _load(name, lambda source: sparse_source(source, path), options)


def load_routed(name: str, routing: NeuronRouting, **options: Any) -> Model:
    """Load a model whose feed-forward parts keep, of each row, the neurons of the best scores.

    Parameters
    ----------
    options : as for `cortiq.load`.
    """
    return _load(name, lambda source: routed_source(source, routing), options)


def load_admitting(
    name: str, admitted: Mapping[int, npt.NDArray[np.bool_]], **options: Any
) -> Model:
    """Load a model whose routers choose only among admitted experts, flags by layer.

    Parameters
    ----------
    options : as for `cortiq.load`.
    """

    def change(source: ModelSource) -> ModelSource:
        said = {str(i): flags.tolist() for i, flags in admitted.items()}
        return _changed(source, *with_admitted(source, admitted), _digest(said))

    return _load(name, change, options)


def load_expert_tubes(
    name: str,
    tubes: Mapping[int, Indices],
    *,
    rest: str = "w8",
    better: str = "w16",
    **options: Any,
) -> Model:
    """Load a model whose experts' busiest neurons are in a better format than the others.

    Parameters
    ----------
    tubes : numbers of each expert's busiest neurons, by layer (`experts.busiest`).
    options : as for `cortiq.load`; `weight_format` is that of everything else, read first.
    """

    def change(source: ModelSource) -> ModelSource:
        said = {str(i): numbers.tolist() for i, numbers in tubes.items()}
        made = with_expert_tubes(source, tubes, rest, better)
        return _changed(source, *made, _digest({"tubes": said, "formats": [rest, better]}))

    return _load(name, change, options)


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _load(name: str, change: Change, options: Mapping[str, Any]) -> Model:
    called, chosen = model_name(name), resolve(LoadOptions, dict(options))
    placed = choose_backend(chosen)
    source = open_source(called, chosen)
    try:
        changed = change(source)
    except BaseException:
        source.close()
        raise
    return model_of(called, changed, placed, chosen)


def sparse_source(source: ModelSource, path: Path) -> ModelSource:
    """Return an opened model without the neurons that a mask closes."""
    found = narrowings(read_mask(path), source.program, str(path))
    weights = NarrowedWeights(source.weights, roles_of(source.program, found))
    return _changed(source, narrowed_program(source.program, found), weights, file_sha256(path))


def routed_source(source: ModelSource, routing: NeuronRouting) -> ModelSource:
    """Return an opened model whose neurons are chosen by the row."""
    program = routed_program(source.program, routing)
    return _changed(source, program, source.weights, _digest(routing.facts()))


def _changed(
    source: ModelSource, program: Program, weights: Mapping[str, Weight], sha256: str
) -> ModelSource:
    """Return the source with another program, which takes no adapters and keeps no weights."""
    named = [*program.facts.get(ADAPTERS, []), [sha256, 1.0]]
    program = replace(program, facts={**program.facts, ADAPTERS: named})
    notes = (*source.notes, NOTICE)
    return replace(
        source, program=program, weights=weights, files=(), loaded=None, senses=(), notes=notes
    )


class NarrowedWeights(Mapping[str, Weight]):
    """Weights of which the narrowed ones are gathered when they are looked at."""

    def __init__(
        self, weights: Mapping[str, Weight], roles: Mapping[str, tuple[str, Narrowing]]
    ) -> None:
        self._weights, self._roles = weights, roles

    def __getitem__(self, name: str) -> Weight:
        weight = self._weights[name]
        return gathered(weight, *self._roles[name]) if name in self._roles else weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
