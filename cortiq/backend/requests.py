"""Requests of the rows of a batch: they decide which kernels a compiled backend needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from cortiq.backend.admission import BY_ROW
from cortiq.backend.batch import Argmax, Digest, Draw, Row, Top, Want
from cortiq.backend.last_keys import last_encoded_of, last_keys_of
from cortiq.backend.plan import always_known, needed
from cortiq.backend.rotary import RotaryTables, reach
from cortiq.backend.row_runs import stretches_of, supplied_names
from cortiq.backend.wants import value_of
from cortiq.ir import Graph
from cortiq.numerics.masks import Mask

F32 = np.float32
WORD = (1 << 32) - 1
SHARE = 1 << 24
"""top_p and min_p are used in units of 2⁻²⁴."""
C = TypeVar("C")


class Ask(NamedTuple):
    """One kind of answer about one value: `argmax`, `draw`, `top` or `digest`.

    `number` is how many of `Top`, and which of the draws of its row for a draw.
    """

    kind: str
    value: str
    number: int = 0


@lru_cache(maxsize=128)  # masks have kilobytes, and every row may have its own
def asked_by(wants: tuple[Want, ...]) -> tuple[tuple[Want, Ask | None], ...]:
    """Pair each want of a row with what has to be computed; named values are only looked up.

    The draws of one row are numbered, since a kernel draws once from each row.
    """
    draws = [want for want in wants if isinstance(want, Draw)]
    return tuple((want, _ask(want, draws)) for want in wants)


def _ask(want: Want, draws: list[Draw]) -> Ask | None:
    if isinstance(want, Digest):
        return Ask("digest", want.name)
    if isinstance(want, Draw):
        return Ask("draw", want.name, draws.index(want))
    if isinstance(want, Top):
        return Ask("top", "logits", want.count)
    return Ask("argmax", want.name) if isinstance(want, Argmax) else None


class RequestedOutputs(NamedTuple):
    """Everything that the rows of a batch ask for.

    Attributes
    ----------
    wanted : names of values. asks : answers about them. supplied : names of computed values that
        rows replace. mixed : whether some rows want values of the tail that others do not; then
        nothing of the tail is joined, and faults are known by kernel.
    """

    wanted: frozenset[str]
    asks: frozenset[Ask]
    supplied: frozenset[str]
    mixed: bool = False


class RequestPlan(ABC, Generic[C]):
    """An entry graph of primitives that is compiled anew for what rows ask of it.

    Attributes
    ----------
    graph : without the values of nodes that were merged into equal ones: these mean nothing.
    always : values that every row has. angles : rotary tables.
    until : see `last_keys_of`. encoded : see `last_encoded_of`.
    needs : of a row's wants, the names of the nodes that these, or any write of state, depend on.
    most_compiled : requests kept; the oldest goes first.
    """

    most_compiled: ClassVar[int] = 64
    angles: RotaryTables

    def __init__(self, graph: Graph) -> None:
        self.computed = frozenset(name for node in graph.nodes for name in node.outputs)
        there = self.computed | set(graph.inputs)
        graph = replace(graph, values={n: t for n, t in graph.values.items() if n in there})
        self.graph, self.always, self.until = graph, always_known(graph), last_keys_of(graph)
        self.encoded = last_encoded_of(graph)
        self._compiled: dict[RequestedOutputs, C] = {}
        self.needs = lru_cache(maxsize=256)(self._needs)

    @abstractmethod
    def compile(self, request: RequestedOutputs) -> C:
        """Make the kernels of a request."""

    def compiled(self, request: RequestedOutputs) -> C:
        """Return the kernels of a request, made if they are not there."""
        if request not in self._compiled:
            if len(self._compiled) == self.most_compiled:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[request] = self.compile(request)
        return self._compiled[request]

    def request_of(self, rows: Sequence[Row]) -> RequestedOutputs:
        """Collect the requests of rows."""
        kinds = {wants for _, _, wants in stretches_of(rows) if wants}
        asked = [pair for wants in kinds for pair in asked_by(wants)]
        wanted = frozenset(value_of(want) for want, _ in asked) - set(BY_ROW)
        asks = frozenset(ask for _, ask in asked if ask is not None)
        given = supplied_names(rows)
        late = {frozenset(value_of(want) for want in wants) - self.always for wants in kinds}
        mixed = len(late - {frozenset()}) > 1
        return RequestedOutputs(wanted, asks, given & self.computed, mixed)

    def _needs(self, wants: tuple[Want, ...]) -> frozenset[str]:
        return frozenset(needed(self.graph.nodes, {value_of(want) for want in wants}))

    def prepare(self, positions: int) -> None:
        """Precompute rotary tables for so many positions."""
        self.angles.grow(positions)

    def reach(self, rows: Sequence[Row]) -> int:
        """Return how many positions rotary tables must have for what rows supply."""
        return reach(rows, self.angles.supplied)


def penalises(want: Draw) -> bool:
    """Check whether the draw looks at the history."""
    s = want.sampling
    return s.repetition_penalty != 1 or s.presence_penalty != 0 or s.frequency_penalty != 0


class DrawNumbers(NamedTuple):
    """A draw as kernels read it: ids with their bias, ids seen with their counts, constants."""

    bias_ids: npt.NDArray[np.int32]
    bias: npt.NDArray[np.float32]
    seen_ids: npt.NDArray[np.int32]
    seen_counts: npt.NDArray[np.int32]
    mask: Mask | None
    inverse_temperature: np.float32
    repetition: np.float32
    inverse_repetition: np.float32
    presence: np.float32
    frequency: np.float32
    top_k: int
    top_p: int
    top_p_on: bool
    min_p: int
    seed_low: int
    seed_high: int
    choice: int
    position: int


def draw_numbers(want: Draw, history: npt.NDArray[np.int32] | None, position: int) -> DrawNumbers:
    """Convert a draw to numbers.

    Parameters
    ----------
    history : ids that penalties look at; None when none is on.
    position : that of the drawn token.
    """
    s = want.sampling
    ids = np.array(list(s.logit_bias), np.int32)
    bias = np.array(list(s.logit_bias.values()), np.float64).astype(F32)
    known = np.zeros(0, np.int32) if history is None else history
    seen, counts = np.unique(known, return_counts=True)
    repetition = F32(s.repetition_penalty)
    return DrawNumbers(
        ids,
        bias,
        seen.astype(np.int32),
        counts.astype(np.int32),
        want.mask,
        F32(1) / F32(s.temperature) if s.temperature else F32(0),
        repetition,
        F32(1) / repetition,
        F32(s.presence_penalty),
        F32(s.frequency_penalty),
        s.top_k,
        round(s.top_p * SHARE),
        s.top_p < 1,
        round(s.min_p * SHARE),
        s.seed & WORD,
        s.seed >> 32,
        want.choice,
        position,
    )
