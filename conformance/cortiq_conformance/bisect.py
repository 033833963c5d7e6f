"""The first node of a model on which two backends differ.

Layers first, by the digests of their outputs; then, inside the first layer that differs, every
value of its primitives, bit by bit. What comes before it is the same on both, so that the node's
own inputs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cortiq.backend import Backend, Digest, Named, Want
from cortiq.errors import RequestError
from cortiq.ir import Graph, Node, primitives_of
from cortiq.numerics.contract import F32
from cortiq.numerics.quantise import Quantised
from cortiq_conformance import models
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.compare import Divergence, first_difference
from cortiq_conformance.drives import ProgramUnderTest, SequenceInput, advance
from cortiq_conformance.graphs import layer_values
from cortiq_conformance.models import LoadedModel
from cortiq_conformance.outputs import Observations
from cortiq_conformance.runner import make_subject
from cortiq_conformance.subject import Subject

LEVEL = 2


@dataclass(frozen=True)
class Bisection:
    """The result of a bisection.

    Attributes
    ----------
    node, op : the first node that differs; both empty where nothing does.
    layer : the value of the layer in which it lies.
    whole : whether only the layer as a whole differs, and its primitives do not.
    rows : rows that were run.
    """

    backend: str
    against: str
    rows: int
    node: str = ""
    op: str = ""
    layer: str = ""
    whole: bool = False
    divergence: Divergence | None = None

    def sentence(self) -> str:
        """Describe the result in a sentence."""
        pair = f"{self.backend} and {self.against}"
        if self.divergence is None:
            return f"{pair} give the same bits after every layer, in all of {self.rows} rows"
        found = f"{pair} differ first in {self.node} ({self.op}), before {self.layer}"
        if self.whole:
            found += "; its decomposition gives the same bits: the layer as a whole is wrong"
        else:
            found += "; every value before it is the same on both"
        return f"{found}\n  {self.divergence.sentence()}"

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        divergence = self.divergence.as_dict() if self.divergence else None
        return {**vars(self), "same": self.divergence is None, "divergence": divergence}


def ids_of(model: str, prompt: str | None, count: int) -> np.ndarray:
    """Return at most `count` ids, of a text or by formula.

    Raises
    ------
    RequestError : the text has no ids, or the model no tokenizer.
    """
    if prompt is None:
        vocabulary = models.load(model).program.facts["vocab_size"]
        return CaseData(f"bisect {model}").integers(0, vocabulary, count)
    from cortiq.model.source import open_source
    from cortiq.options import LoadOptions

    ids = open_source(model, LoadOptions()).tokenizer.encode(prompt)[:count]
    if not ids:
        raise RequestError("has no tokens", where="--prompt")
    return np.array(ids, np.int32)


def bisect(
    model: str,
    backend: Backend | str | None,
    against: Backend | str | None,
    ids: np.ndarray,
    chunk: int = 0,
) -> Bisection:
    """Run ids on two backends and find the first node that differs.

    Parameters
    ----------
    model : as for `cortiq conform --model`. chunk : rows at a time, 0 for all of them.
    """
    search = _Search(models.load(model), (make_subject(backend), make_subject(against)), ids, chunk)
    return search.run()


class _Search:
    """Search for the first difference in a model on given ids."""

    def __init__(
        self, model: LoadedModel, subjects: tuple[Subject, Subject], ids: np.ndarray, chunk: int
    ) -> None:
        self.model, self.subjects, self.ids, self.chunk = model, subjects, ids, chunk
        self.graph: Graph = primitives_of(model.program).trunk

    def run(self) -> Bisection:
        """Compare layers, then the inside of the first that differs."""
        ours, theirs = (subject.name for subject in self.subjects)
        layers = layer_values(self.model.program.trunk)
        found = self._first([Digest(name) for name in layers], False)
        if found is None:
            return Bisection(ours, theirs, len(self.ids))
        layer = found.value
        nodes = self._inside(layers, layer)
        names = [name for node in nodes for name in node.outputs]
        inner = self._first([Named(name) for name in names], True)
        if inner is None:
            return self._as_a_whole(layer)
        at = inner.value.partition(": ")[0]
        node = next(node for node in nodes if at in node.outputs)
        inner = _blamed(inner, node)
        return Bisection(ours, theirs, len(self.ids), node.name, node.op.kind, layer, False, inner)

    def _inside(self, layers: Sequence[str], layer: str) -> list[Node]:
        """Compare the primitives between the previous layer and this one's output."""
        order = [name for node in self.graph.nodes for name in node.outputs]
        owner = {name: at for at, n in enumerate(self.graph.nodes) for name in n.outputs}
        before = [owner[name] for name in layers[: layers.index(layer)] if name in order]
        return list(self.graph.nodes[max(before, default=-1) + 1 : owner[layer] + 1])

    def _as_a_whole(self, layer: str) -> Bisection:
        """Find the first differing node of the undecomposed graph: the layer's primitives agree."""
        graph = self.model.program.trunk
        names = [
            name
            for node in graph.nodes
            for name in node.outputs
            if graph.values[name].dtype == "f32"
        ]
        found = self._first([Named(name) for name in names], False)
        ours, theirs = (subject.name for subject in self.subjects)
        assert found is not None
        node = next(node for node in graph.nodes if found.value in node.outputs)
        found = _blamed(found, node)
        return Bisection(ours, theirs, len(self.ids), node.name, node.op.kind, layer, True, found)

    def _first(self, wants: Sequence[Want], decomposed: bool) -> Divergence | None:
        """Return the first want whose values differ."""
        ours, theirs = (self._observed(s, wants, decomposed) for s in self.subjects)
        return first_difference(theirs, ours, LEVEL, "")

    def _observed(self, subject: Subject, wants: Sequence[Want], decomposed: bool) -> Observations:
        program, weights = self.model.program, self.model.weights
        bench = ProgramUnderTest(subject, program, weights, decomposed, {"threads": 0})
        feed, rows = SequenceInput(self.ids), []
        with bench.compiled() as executable:
            state, step = executable.open(len(feed)), self.chunk or len(feed)
            for start in range(0, len(feed), step):
                span = (start, min(start + step, len(feed)))
                rows += advance(executable, state, feed, span, wants)
        found: Observations = {}
        for want in wants:
            found |= _arrays(want, [row[want] for row in rows])
        return found


def _blamed(found: Divergence, node: Node) -> Divergence:
    return replace(found, op=node.op.kind)


def _arrays(want: Want, values: Sequence[Any]) -> Observations:
    """Return each value of all rows as arrays, by the value's name."""
    name = want.name  # type: ignore[union-attr]
    if isinstance(want, Digest):
        return {name: np.array([[int(w) for w in value] for value in values], np.uint32)}
    if isinstance(values[0], Quantised):
        return {
            f"{name}: exponents": np.stack([np.asarray(v.e, np.int32) for v in values]),
            f"{name}: q": np.stack([np.asarray(v.q, np.int32) for v in values]),
        }
    integral = np.asarray(values[0]).dtype.kind in "iu"
    return {name: np.stack([np.asarray(v, np.int32 if integral else F32) for v in values])}
