"""Level 2: whole graphs, by the digest of the hidden state after every layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from cortiq.backend import Digest
from cortiq.ir import Graph
from cortiq_conformance import models
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import ChunkedDrive, Drive, SequenceInput
from cortiq_conformance.loops import LOOPED, looped
from cortiq_conformance.outputs import Observations
from cortiq_conformance.subject import Subject

FULL_DRIVES: dict[str, Drive] = {"chunks of 7": ChunkedDrive(7), "chunks of 64": ChunkedDrive(64)}
LOOP_DRIVES: dict[str, Drive] = {
    "whole": ChunkedDrive(), "chunks of 7": ChunkedDrive(7), "row by row": ChunkedDrive(1)
}  # fmt: skip


def cases(profile: str, names: Sequence[str] | None) -> Iterator[Case]:
    """Yield all cases of level 2; the real models only in the full profile."""
    tiny, real = models.chosen(names)
    for name in tiny:
        yield _case(name, "70 tokens", "whole", ChunkedDrive())
        for what, drive in FULL_DRIVES.items():
            yield _case(name, "70 tokens", what, drive)
    if "tiny-mtp" in tiny:
        build = partial(_second_entry, "tiny-mtp")
        name = "level2/second entry[tiny-mtp, its draft head]"
        yield Case(name, 2, "second entry", "", build, model="tiny-mtp")
    for name in models.chosen_mini(names):
        yield _case(name, "70 tokens", "whole", ChunkedDrive())
        yield _case(name, "70 tokens", "chunks of 7", ChunkedDrive(7))
    for name in LOOPED if names is None else [name for name in LOOPED if name in names]:
        for what, drive in LOOP_DRIVES.items():
            build = partial(_looped, name, drive)
            case_id = f"level2/loop[{name}, its layers twice, {what}]"
            yield Case(case_id, 2, "loop", "", build, model=name)
    for name in real if profile == "full" or names is not None else ():
        title = models.prompts(name)[-1]
        yield _case(name, title, "whole", ChunkedDrive())
        for what, drive in FULL_DRIVES.items() if profile == "full" else ():
            yield _case(name, title, what, drive)


def _case(name: str, title: str, what: str, drive: Drive) -> Case:
    family = "graph" if what == "whole" else "graph chunks"
    case_id = f"level2/{family}[{name}, {title}, {what}]"
    return Case(case_id, 2, family, "", partial(_build, name, title, drive), model=name)


@dataclass(frozen=True)
class GraphScenario(Scenario):
    """A scenario on a model; a real model's expected values are the reference's.

    The definitions of `cortiq.numerics` are too slow for a real model; levels 0 to 2 on tiny
    models hold the reference to them.
    """

    facts: Mapping[str, str] = field(default_factory=dict)
    real: bool = False

    def expected(self) -> Observations:
        """Return the result by definition, or the reference's."""
        return self.observe(reference()) if self.real else super().expected()

    def golden_facts(self, expected: Observations) -> Mapping[str, str]:
        """Return the facts of a golden entry besides the digest."""
        return self.facts


def reference() -> Subject:
    """Return the reference, as a subject."""
    from cortiq_reference.backend import ReferenceBackend

    return Subject(ReferenceBackend())


def layer_values(graph: Graph) -> list[str]:
    """Return the values after every layer, the last hidden state and the logits."""
    outs = [o for node in graph.nodes for o in node.outputs if o.endswith(".out")]
    return list(dict.fromkeys([*outs, *graph.outputs]))


def _build(name: str, title: str, drive: Drive, source: CaseData) -> GraphScenario:
    model = models.load(name)
    wants = tuple(Digest(value) for value in layer_values(model.program.trunk))
    feeds = [SequenceInput(models.prompt(name, title))]
    return GraphScenario(
        model.program, model.weights, feeds, wants, drive, facts=model.facts,
        options={"threads": 1 if name in models.FORMULA else 0}, real=name not in models.FORMULA,
    )  # fmt: skip


def _looped(name: str, drive: Drive, source: CaseData) -> GraphScenario:
    """Return a case with every layer twice: both passes give the definitions' digests."""
    model = models.load(name)
    program = looped(model.program)
    wants = tuple(Digest(value) for value in layer_values(program.trunk))
    feeds = [SequenceInput(models.prompt(name, "70 tokens"))]
    weights = {weight: model.weights[weight] for weight in program.weights}
    return GraphScenario(program, weights, feeds, wants, drive, facts=model.facts)


def _second_entry(name: str, source: CaseData) -> GraphScenario:
    """Return a case of the draft head alone, on hidden states that the rows supply."""
    model = models.load(name)
    graph = model.program.graphs["mtp"]
    ids = source.integers(0, model.program.facts["vocab_size"], 40)
    hidden = source.floats(40, *graph.values["hidden"].shape)
    feed = SequenceInput(ids, {"hidden": hidden}, "mtp")
    wants = tuple(Digest(value) for value in layer_values(graph))
    return GraphScenario(model.program, model.weights, [feed], wants, facts=model.facts)
