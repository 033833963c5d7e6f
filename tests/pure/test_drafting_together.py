"""Drafts of many sequences at once: shared batches, and errors that stay with their sequence."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from engines import TOKENIZER, WAYS, backends, facts

from cortiq.backend import Argmax, CompileOptions, Row
from cortiq.engine.drafters import batched as module
from cortiq.engine.drafters.batched import ForwardRequest, StepwiseDrafting, run_alone, run_batched
from cortiq.engine.drafters.blocks import BlockDrafter
from cortiq.engine.drafters.combined import CombinedDrafter
from cortiq.engine.drafters.heads import HeadDrafter
from cortiq.engine.drafters.model import ModelDrafter
from cortiq.engine.drafters.scripted import ScriptedDrafter
from cortiq.engine.drafting import FixedDepth, Speculation
from cortiq.engine.engine import Engine
from cortiq.engine.request import make_request
from cortiq.errors import BackendError, DeclinedError
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.options import GenerateOptions


@cache
def compiled(heads="mtp"):
    known = backends()
    model = load_program(open_synthetic("synthetic:tiny-llama?seed=1&format=w8"), heads=heads)
    made = known["cpu" if "cpu" in known else "reference"]()
    return made.compile(model.program, model.weights, CompileOptions(threads=1))


class Counting:
    """An executable that counts its batches by entry; `fail` raises in place of the n-th."""

    def __init__(self, executable, fail=None):
        self.executable, self.program, self.fail = executable, executable.program, fail
        self.batches, self.sizes = Counter(), []

    def __getattr__(self, name):
        return getattr(self.executable, name)

    def forward(self, batch):
        self.batches[batch.entry] += 1
        self.sizes.append((batch.entry, len(batch.rows)))
        if self.fail and batch.entry != "trunk" and self.batches[batch.entry] == self.fail:
            raise ValueError("out of order")
        return self.executable.forward(batch)


def run(executable, drafter, numbers, way="greedy", depth=3):
    """The sequences of these numbers, drafted for together."""
    options = GenerateOptions(max_tokens=13, **{"seed": 0, **WAYS[way]})
    speculation = Speculation(drafter, lambda prompt_tokens: FixedDepth(depth)) if drafter else None
    with Engine(executable, TOKENIZER) as engine:
        ids = [np.random.default_rng(i).integers(0, 300, 9).tolist() for i in numbers]
        requests = [make_request(one, options, executable.program, ()) for one in ids]
        made = [engine.submit(request, speculation=speculation) for request in requests]
        engine.run()
    return made


DRAFTERS = {
    "head": ("mtp", lambda executable: HeadDrafter()),
    "stack": ("mimo", lambda executable: HeadDrafter()),
    "block": ("dflash", lambda executable: BlockDrafter()),
    "model": ("off", ModelDrafter),
    "head+lookup": ("mtp", lambda executable: CombinedDrafter(HeadDrafter())),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", DRAFTERS)
def test_drafts_of_many_are_those_of_each_alone(kind, way):
    heads, make = DRAFTERS[kind]
    executable = compiled(heads)
    joint = run(executable, make(executable), range(4), way)
    assert not any(one.stats.drafts.error for one in joint)
    tallies = [one.stats.drafts.as_dict()["drafters"] for one in joint]
    for number, one in enumerate(joint):
        (apart,) = run(executable, make(executable), [number], way)
        assert facts(one) == facts(apart)
        mine, theirs = tallies[number], apart.stats.drafts.as_dict()["drafters"]
        for name, tally in mine.items():
            assert tally["by_depth"] == theirs[name]["by_depth"] and tally["draft_seconds"] > 0
    plain = run(executable, None, range(4), way)
    assert [facts(one) for one in joint] == [facts(one) for one in plain]


def test_steps_of_all_sequences_ride_in_one_batch():
    counts = {}
    for number in (1, 6):
        executable = Counting(compiled())
        made = run(executable, HeadDrafter(), range(number), depth=2)
        counts[number] = executable.batches["mtp"]
        rounds = max(sum(t.rounds for t in one.stats.drafts.drafters.values()) for one in made)
        assert executable.batches["mtp"] <= 3 * rounds + 6
    assert counts[6] <= counts[1] + 6
    assert max(size for entry, size in executable.sizes if entry == "mtp") >= 6


def test_a_batch_that_raises_ends_the_drafting_of_all_in_it_and_no_text():
    plain = run(compiled(), None, range(3))
    made = run(Counting(compiled(), fail=6), HeadDrafter(), range(3))
    errors = [one.stats.drafts.error for one in made]
    assert all("BackendError" in error and "ValueError: out of order" in error for error in errors)
    assert [facts(one) for one in made] == [facts(one) for one in plain]


def feeding(executable, state, positions, wants=()):
    """Feeds one row of each position, then gives how many came."""
    for position in positions:
        yield ForwardRequest(executable, [Row(state, position, 3, wants)])
    return len(positions)


def test_what_is_declined_is_raised_where_it_was_asked_for():
    executable = compiled()
    states = [executable.open(9) for _ in range(3)]
    steps = [
        feeding(executable, states[0], [0, 1, 2]), feeding(executable, states[1], [0, 5]),
        feeding(executable, states[2], [0]),
    ]  # fmt: skip
    first, second, third = run_batched(steps)
    assert (first, third) == (3, 1) and isinstance(second, DeclinedError)
    assert [state.length() for state in states] == [3, 1, 1]
    with pytest.raises(DeclinedError, match="go on from 1"):
        run_alone(feeding(executable, states[1], [7]))
    for state in states:
        state.release()


def test_batches_have_a_most_and_a_feed_by_itself_may_have_more(monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 4)
    executable = Counting(compiled())
    states = [executable.open(20) for _ in range(4)]

    def whole(state, count):
        rows = [Row(state, i, 5, (Argmax(),) if i + 1 == count else ()) for i in range(count)]
        brought = yield ForwardRequest(executable, rows)
        return brought[-1][Argmax()]

    sizes = (3, 1, 9, 2)
    found = run_batched([whole(s, n) for s, n in zip(states, sizes, strict=True)])
    assert [size for _, size in executable.sizes] == [4, 9, 2]
    for count, state in zip(sizes, states, strict=True):
        state.release()
        apart = executable.open(20)
        assert run_alone(whole(apart, count)) == found[sizes.index(count)]
        apart.release()


def test_a_drafter_without_steps_is_asked_at_once_and_its_error_is_its_own():
    def odd(ids, count):
        if ids[-1] % 2:
            raise BackendError("odd")
        return [ids[-1]] * count

    made = run(compiled(), ScriptedDrafter(odd), range(4))
    plain = run(compiled(), None, range(4))
    assert [facts(one) for one in made] == [facts(one) for one in plain]
    assert any("odd" in one.stats.drafts.error for one in made)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_prompts_of_one_token_are_drafted_for(kind):
    """Nothing was fed yet when their first draft is asked for."""
    heads, make = DRAFTERS[kind]
    executable = compiled(heads)
    request = make_request([7], GenerateOptions(max_tokens=12, seed=0), executable.program, ())
    made = {}
    for drafter in (None, make(executable)):
        way = Speculation(drafter, lambda prompt_tokens: FixedDepth(3)) if drafter else None
        with Engine(executable, TOKENIZER) as engine:
            made[drafter] = [engine.submit(request, speculation=way) for _ in range(2)]
            engine.run()
    plain, drafted = made.values()
    assert [facts(one) for one in drafted] == [facts(one) for one in plain]
    assert all(not o.stats.drafts.error and o.stats.drafts.drafted for o in drafted)


class Careless:
    """A drafter whose steps yield what they should not."""

    name = "careless"

    def __init__(self, yields):
        self.yields = yields

    def open(self, task):
        drafting = Steady()
        drafting.yields = self.yields
        return drafting


class Steady(StepwiseDrafting):
    wants = ()

    def steps(self, ids, count):
        yield self.yields

    def observe(self, position, rows, ids):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("yields", [None, [], ForwardRequest(None, ())])
def test_a_drafter_that_yields_no_rows_ends_its_own_drafting_only(yields):
    made, plain = run(compiled(), Careless(yields), range(2)), run(compiled(), None, range(2))
    assert [facts(one) for one in made] == [facts(one) for one in plain]
    assert all("a drafter wants rows computed" in one.stats.drafts.error for one in made)
