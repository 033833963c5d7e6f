"""Any order of submit, step, cancel, fork, rewind and evict, against what each text must be."""

from __future__ import annotations

import os
from functools import cache

from engines import (
    WAYS,
    Scripted,
    alone,
    backends,
    engine,
    executable,
    facts,
    loaded,
    request,
    speculation,
)
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cortiq.backend import CompileOptions
from cortiq.engine.cache_roles import CachePoint, CacheRole
from cortiq.engine.prefixes import PrefixCache

BACKEND = "cpu" if "cpu" in backends() else "reference"
MORE = int(os.environ.get("CORTIQ_TEST_EXAMPLES", "0"))
HEADS = [[7] * 20, [7] * 12 + [9] * 30, list(range(70))]
LONG = [i * i % 97 for i in range(450)]
"""Past what models with windows keep."""


@cache
def expected(model, wanted):
    return alone(executable(BACKEND, model, full_windows=True), wanted)


class EngineMachine(RuleBasedStateMachine):
    """An engine with kept prefixes and little memory, and every request's text if it were alone.

    Alone it has all the memory it wants, and keeps all rows behind windows.
    """

    @initialize(
        model=st.sampled_from(["tiny-gemma3", "tiny-llama", "tiny-lfm2"]),
        kept=st.integers(0, 4),
        pages=st.integers(6, 20),
        rows=st.sampled_from([4, 32, 256]),
    )
    def begin(self, model, kept, pages, rows):
        self.model = model
        size = executable(BACKEND, model).state_bytes(64)
        self.windowed = model == "tiny-gemma3"
        pages += 4 * self.windowed
        limited = CompileOptions(threads=1, memory_limit=pages * size)
        known = loaded(model)
        self.on = backends()[BACKEND]().compile(known.program, known.weights, limited)
        self.free = self.on.free_bytes()
        self.cache = PrefixCache(self.on, kept) if kept else None
        self.engine = engine(self.on, prefixes=self.cache, batch_rows=rows, sequences=5)
        self.made = []
        self.cancelled = set()

    @rule(
        head=st.sampled_from([LONG, *HEADS, LONG, LONG]),
        cut=st.integers(0, 10),
        tail=st.lists(st.integers(0, 5), min_size=1, max_size=6),
        way=st.sampled_from(list(WAYS)),
        tokens=st.integers(1, 12),
        priority=st.integers(-1, 2),
        honesty=st.sampled_from([None, 0, 2, 5]),
        marked=st.booleans(),
    )
    def submit(self, head, cut, tail, way, tokens, priority, honesty, marked):
        head = head if self.windowed else head[:70]
        ids = [*head[: len(head) - cut], *tail]
        points = (CachePoint(10, CacheRole.SYSTEM),) if marked else ()
        rows = 16 if len(ids) < 100 else 150
        wanted = request(ids, tokens, chunk_rows=rows, cache_points=points, **WAYS[way])
        self._submit(wanted, priority, honesty)

    def _submit(self, wanted, priority, honesty):
        drafted = None
        if honesty is not None:
            truth = [*wanted.prompt, *expected(self.model, wanted)[0]]

            def answer(ids, count):
                right = truth[len(ids) : len(ids) + count]
                return [t if i < honesty else (t + 1) % 320 for i, t in enumerate(right)]

            drafted = speculation(Scripted(answer), 4)
        self.made.append(self.engine.submit(wanted, priority=priority, speculation=drafted))

    @rule(count=st.integers(1, 4))
    def step(self, count):
        for _ in range(count):
            self.engine.step()

    @precondition(lambda self: self.made)
    @rule(which=st.integers(0, 99))
    def cancel(self, which):
        sequence = self.made[which % len(self.made)]
        if not sequence.done:
            sequence.cancel()
            self.cancelled.add(sequence)

    @precondition(lambda self: self.engine.running)
    @rule(which=st.integers(0, 99), way=st.sampled_from(list(WAYS)))
    def fork(self, which, way):
        """Another text goes on from where a running one stands."""
        parent = self.engine.running[which % len(self.engine.running)]
        self._submit(request(parent.ids, 5, **WAYS[way]), 0, None)

    @precondition(lambda self: self.engine.running)
    @rule(which=st.integers(0, 99), keep=st.integers(0, 470))
    def rewind(self, which, keep):
        """Rows are forgotten; at none of them the sequence has lost its place."""
        self.engine.preempt(self.engine.running[which % len(self.engine.running)], keep)

    @precondition(lambda self: self.cache)
    @rule()
    def evict(self):
        self.cache.evict()

    @invariant()
    def counters_are_the_states(self):
        for sequence in getattr(self, "made", ()):
            running = sequence in self.engine.running
            assert (sequence.state is not None) == running
            if running:
                assert sequence.state.length() == sequence.fed < len(sequence.ids)
                assert sequence.state.export().tokens.tolist() == sequence.ids[: sequence.fed]
            token_ids = sequence.output.token_ids
            assert sequence.ids == [*sequence.request.prompt, *token_ids]
            whole = expected(self.model, sequence.request)
            assert tuple(token_ids) == whole[0][: len(token_ids)]
            assert sequence.done == bool(sequence.output.finish_reason)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        # Docs/engine.md: a step feeds a row at least, and for each token all rows are lost once.
        bound = sum((s.request.max_tokens + 2) * (s.request.limit + 8) for s in self.made)
        steps = 0
        while self.engine.step():
            steps += 1
            assert steps <= bound
        for sequence in self.made:
            assert sequence.done
            if sequence.output.finish_reason == "cancelled":
                assert sequence in self.cancelled
            else:
                assert facts(sequence) == expected(self.model, sequence.request)
        if self.cache is not None:
            assert len(self.cache) <= self.cache.count
            self.cache.clear()
        assert self.on.free_bytes() == self.free
        self.on.close()


EngineMachine.TestCase.settings = settings(
    max_examples=30 * max(MORE, 1),
    stateful_step_count=25,
    derandomize=not MORE,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if MORE else [])],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestEngine = EngineMachine.TestCase
