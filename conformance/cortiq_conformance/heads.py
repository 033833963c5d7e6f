"""Draft heads: their graphs after the trunk's, and streams that they draft for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cortiq.backend import Argmax, Digest, Draw, Want
from cortiq.engine.drafters.heads import HeadDrafter
from cortiq.engine.drafters.kinds import block_drafter
from cortiq.engine.drafters.markov_blocks import block_inputs
from cortiq.engine.drafters.turns import in_turns
from cortiq.engine.drafting import Drafter, FixedDepth, Speculation
from cortiq.ir.heads import LISTED
from cortiq_conformance import models, outputs
from cortiq_conformance.case import Case
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import ProgramUnderTest, SequenceInput, SequenceOutcome, advance
from cortiq_conformance.engines import EngineRun, EngineSchedule, stream_of
from cortiq_conformance.graphs import GraphScenario, layer_values
from cortiq_conformance.level0.tails import CHAINS
from cortiq_conformance.oracle import OracleSequence
from cortiq_conformance.outputs import Observations
from cortiq_conformance.schedules import GeneratedStream
from cortiq_conformance.streams import StreamScenario

ROWS = 70
DEPTHS = (1, 3, 5)
CHAIN = "penalties"
BLOCKS = frozenset({
    "tiny-deepseek_v4+dspark", "tiny-llama+dflash", "tiny-llama+dspark", "tiny-llama+mtp,dflash",
})  # fmt: skip
"""Models with a block drafter, whose entry takes rows of two kinds."""
MARKOV_BLOCKS = frozenset({"tiny-deepseek_v4+dspark", "tiny-llama+dspark"})
"""Those whose entries take rows of one kind each: a block's, and a row's scores."""
MARKOV = "a block", "after the token before"
UNSTREAMED = frozenset({"tiny-deepseek_v4+dspark"})
"""Models whose streams take the reference minutes: their entries' values alone are compared."""


def graph_cases(names: Sequence[str] | None) -> Iterator[Case]:
    """Yield cases of level 2: values of the first and last module, and the first one's drafts."""
    for name in models.chosen_headed(names):
        if name not in BLOCKS:
            case_id = f"level2/draft head[{name}, what it drafts]"
            build = partial(_drawn, name)
            yield Case(case_id, 2, "draft head", "Draw", build, model=name)
        for which in (0, -1) if name not in BLOCKS else ():
            what = "first" if which == 0 else "last"
            build = partial(_after_trunk, name, which)
            case_id = f"level2/draft head[{name}, the {what} module]"
            yield Case(case_id, 2, "draft head", "", build, model=name)
        for which, what in enumerate(MARKOV) if name in MARKOV_BLOCKS else ():
            build = partial(_markov_block, name, which)
            case_id = f"level2/draft head[{name}, {what}]"
            yield Case(case_id, 2, "draft head", "", build, model=name)


def stream_cases(level: int, names: Sequence[str] | None) -> Iterator[Case]:
    """Yield the cases of level 3, or of level 4: streams drafted for at several depths."""
    choose: Want = Argmax() if level == 3 else Draw(CHAINS[CHAIN])
    family = "draft head" if level == 3 else "sampled draft head"
    for name in (n for n in models.chosen_headed(names) if n not in UNSTREAMED):
        for depth in DEPTHS if level == 3 else DEPTHS[1:2]:
            build = partial(_streams, name, depth, choose)
            case_id = f"level{level}/{family}[{name}, {depth} at a time]"
            yield Case(case_id, level, family, type(choose).__name__, build, model=name)


@dataclass(frozen=True)
class AfterTrunkDrive:
    """Runs the trunk's rows, and then those of a module that recalls them, in chunks."""

    trunk: SequenceInput
    rows: int = 33

    def run(
        self, bench: ProgramUnderTest, feeds: Sequence[SequenceInput], wants: Sequence[Want]
    ) -> list[SequenceOutcome]:
        """Return an outcome for each input of the module."""
        with bench.compiled() as executable:
            answers = []
            for feed in feeds:
                state, answer = executable.open(len(self.trunk)), SequenceOutcome()
                advance(executable, state, self.trunk, (0, len(self.trunk)), ())
                for start in range(0, len(feed), self.rows):
                    span = start, min(start + self.rows, len(feed))
                    answer.rows += advance(executable, state, feed, span, wants)
                state.release()
                answers.append(answer)
            return answers


@dataclass(frozen=True)
class HeadScenario(GraphScenario):
    """A module's values, after `drive.trunk`."""

    def _expected(self, feed: SequenceInput) -> tuple[int, Observations]:
        oracle = OracleSequence(self.program, self.weights)
        assert isinstance(self.drive, AfterTrunkDrive)
        oracle.feed(self.drive.trunk.tokens)
        evaluation = oracle.feed(feed.tokens, feed.inputs, feed.entry)
        return 0, outputs.expected(self.wants, evaluation, feed.tokens.tolist())


def _after_trunk(name: str, which: int, source: CaseData) -> HeadScenario:
    program = models.load(name).program
    entry = program.facts["draft_head"].entries[which]
    wants = tuple(Digest(value) for value in layer_values(program.graphs[entry]))
    return _module(name, entry, wants, source)


def _drawn(name: str, source: CaseData) -> HeadScenario:
    """Draw drafts with the numbers of the position after the next one, also after a text's ids."""
    (entry, *_) = models.load(name).program.facts["draft_head"].entries
    text = tuple(source.integers(0, 40, 30).tolist())
    plain = Draw(CHAINS["every filter"], 1, ahead=2)
    return _module(
        name, entry, (Argmax(), plain, Draw(CHAINS[CHAIN], ahead=2, history=text)), source
    )


def _module(name: str, entry: str, wants: tuple[Want, ...], source: CaseData) -> HeadScenario:
    """Return the scenario of a module's rows after the trunk's."""
    model = models.load(name)
    head = model.program.facts["draft_head"]
    ids = source.integers(0, model.program.facts["vocab_size"], ROWS)
    # Modules of a stack and the first of others recall the trunk alone.
    feed = SequenceInput(ids[head.entries.index(entry) + 1 :], {}, entry)
    return HeadScenario(
        model.program,
        model.weights,
        [feed],
        wants,
        AfterTrunkDrive(SequenceInput(ids)),
        facts=model.facts,
    )


def _markov_block(name: str, which: int, source: CaseData) -> HeadScenario:
    """Return the scenario of a block's rows after the trunk's, or of rows that supply scores."""
    model = models.load(name)
    facts = model.program.facts
    head = facts["block_drafter"]
    entry, vocabulary = head.entries[which], facts["vocab_size"]
    graph, ids = model.program.graphs[entry], source.integers(0, vocabulary, ROWS)
    given: dict[str, Any]
    if which == 0:
        window = graph.values[LISTED].shape[-1] if LISTED in graph.inputs else 0
        given = block_inputs(ROWS, head.size, window)
    else:
        floats = [n for n in graph.inputs if graph.values[n].dtype == "f32"]
        given = {n: source.floats(head.size, *graph.values[n].shape) for n in floats}
    wants = tuple(Digest(value) for value in layer_values(graph))
    drive = AfterTrunkDrive(SequenceInput(ids))
    feed = SequenceInput(ids[: head.size], given, entry)
    return HeadScenario(model.program, model.weights, [feed], wants, drive, facts=model.facts)


@dataclass(frozen=True)
class HeadSchedule:
    """All prompts at once, drafted for by the model's own head, its block drafter, or in turns."""

    depth: int

    def __call__(self, work: EngineRun) -> list[GeneratedStream]:
        """Run; see the class."""
        facts, ways = work.executable.program.facts, list[Drafter]()
        ways += [HeadDrafter()] if "draft_head" in facts else []
        ways += [block_drafter(facts["block_drafter"])] if "block_drafter" in facts else []
        policy = partial(lambda depth, prompt_tokens: FixedDepth(depth), self.depth)
        drafted = in_turns([Speculation(drafter, policy) for drafter in ways])
        made = [work.engine.submit(request, speculation=drafted) for request in work.requests]
        work.engine.run()
        for one in made:
            assert not one.stats.drafts.error, one.stats.drafts.error
        return [stream_of(one) for one in made]


def _streams(name: str, depth: int, choose: Want, source: CaseData) -> StreamScenario:
    titles = tuple(models.prompts(name))
    schedule = EngineSchedule("draft head", HeadSchedule(depth))
    return StreamScenario(name, titles, schedule, choose, models.load(name).facts)
