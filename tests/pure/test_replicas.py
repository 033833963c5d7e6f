"""Replicas of a model on ranks of this host: where sequences are computed changes no bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import cortiq
from cortiq.backend import Argmax, Batch, CompileOptions, Digest, Executable, Row, Status
from cortiq.backend.row_runs import RowRun, RowRuns
from cortiq.errors import BackendError, OptionError
from cortiq.model.devices import backend_named, weights_of
from cortiq.model.source import ModelSource, open_source
from cortiq.options import LoadOptions
from cortiq.placement.place import place
from cortiq.ranks.backend import DeviceSplit, RanksBackend
from cortiq.ranks.replicas import PROMPT_ROWS, ReplicasExecutable
from cortiq.ranks.start import Ranks, start_ranks
from cortiq_conformance import run

MODEL = "synthetic:tiny-llama"
CPU = backend_named("cpu")
IDS = [[(37 * n + 11 + 5 * which) % 300 for n in range(30)] for which in range(5)]
WANTS = (Digest("hidden"), Digest(), Argmax())


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    made = start_ranks(3, backend_named, weights_of)
    yield made
    made.close()


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return open_source(MODEL, LoadOptions())


@pytest.fixture(scope="module")
def expected(source: ModelSource) -> list[list[Any]]:
    """Compute each sequence on one device; the rows of each."""
    one = place(CPU, source.program, source.weights, CompileOptions(threads=1))
    return [_fed(one, {0: one.open(64)}, [(0, ids, 0)])[0] for ids in IDS]


def _replicas(ranks: Ranks, source: ModelSource, split: DeviceSplit) -> ReplicasExecutable:
    backend = RanksBackend(ranks.driver, CPU, split, (MODEL, LoadOptions()))
    made = backend.compile(source.program, source.weights, CompileOptions(threads=1))
    assert isinstance(made, ReplicasExecutable)
    return made


def _fed(
    executable: Executable, states: Any, parts: list[tuple[int, list[int], int]], runs: bool = False
) -> dict[int, list[Any]]:
    """Feed each named sequence its ids from a position on, in one batch; return its rows."""
    rows: Any = [
        Row(states[which], start + n, token, WANTS)
        for which, ids, start in parts
        for n, token in enumerate(ids)
    ]
    if runs:
        rows = RowRuns([RowRun(states[w], at, ids, [WANTS] * len(ids)) for w, ids, at in parts])
    result = executable.forward(Batch(rows)).result()
    assert {o.status for o in result.outcomes.values()} == {Status.COMPLETED}
    assert set(result.outcomes) == {states[which] for which, _, _ in parts}
    brought = [[_plain(row[want]) for want in WANTS] for row in result.rows]
    found = {}
    for which, ids, _ in parts:
        found[which], brought = brought[: len(ids)], brought[len(ids) :]
    return found


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("runs", [False, True])
def test_sequences_are_divided_and_their_bits_are_those_of_one_device(
    ranks: Ranks, source: ModelSource, expected: list[list[Any]], runs: bool
) -> None:
    on = _replicas(ranks, source, DeviceSplit.of_replicas("tensor", 3, 3))
    states = {which: on.open(64) for which in range(5)}
    assert [states[which].place for which in range(5)] == [0, 1, 2, 0, 1]
    got: dict[int, list[Any]] = {which: [] for which in range(5)}
    for start, stop in ((0, 7), (7, 8), (8, 30)):  # sequences in an order that mixes replicas
        parts = [(which, IDS[which][start:stop], start) for which in (4, 0, 2, 1, 3)]
        for which, rows in _fed(on, states, parts, runs).items():
            got[which] += rows
    assert [got[which] for which in range(5)] == expected
    on.close()


def test_forks_move_away_from_a_busy_replica_and_copies_bring_them_back(
    ranks: Ranks, source: ModelSource, expected: list[list[Any]]
) -> None:
    on = _replicas(ranks, source, DeviceSplit.of_replicas("tensor", 3, 3))
    first = on.open(64)
    _fed(on, {0: first}, [(0, IDS[0][:20], 0)])
    copy = first.snapshot()
    forks = [first.fork(n) for n in (20, 15, 12, 9, 6)]
    assert {fork.place for fork in forks} == {first.place}
    assert all(fork.reserve(30) for fork in forks)
    lengths = [fork.length() for fork in forks]
    parts = [(n, IDS[0][at:], at) for n, at in enumerate(lengths)]
    for n, rows in _fed(on, dict(enumerate(forks)), parts).items():
        assert rows == expected[0][lengths[n] :]
    assert {fork.place for fork in forks} == {0, 1, 2}
    moved = next(fork for fork in forks if fork.place != first.place)
    moved.restore(copy)
    assert (moved.place, moved.length()) == (first.place, 20)
    assert _fed(on, {0: moved}, [(0, IDS[0][20:], 20)])[0] == expected[0][20:]
    moved.release()
    with pytest.raises(BackendError, match="no living sequence"):
        _fed(on, {0: moved}, [(0, IDS[0][:1], 0)])
    on.close()


def test_prompts_and_answers_on_different_replicas(
    ranks: Ranks, source: ModelSource, expected: list[list[Any]]
) -> None:
    """A prompt's rows are computed on the first replica; then its sequence moves."""
    on = _replicas(ranks, source, DeviceSplit.of_replicas("tensor", 3, 3, prefill=1))
    states = {which: on.open(64) for which in range(3)}
    got: dict[int, list[Any]] = {which: [] for which in range(3)}
    places = []
    for start, stop in ((0, PROMPT_ROWS + 4), (PROMPT_ROWS + 4, PROMPT_ROWS + 5), (21, 30)):
        parts = [(which, IDS[which][start:stop], start) for which in range(3)]
        for which, rows in _fed(on, states, parts).items():
            got[which] += rows
        places.append([states[which].place for which in range(3)])
    assert places[0] == [0, 0, 0]
    assert sorted(places[1]) in ([1, 1, 2], [1, 2, 2]) and places[2] == places[1]
    assert [got[which] for which in range(3)] == expected[:3]
    on.close()


def test_a_full_replica_leaves_a_sequence_where_it_is(
    ranks: Ranks, source: ModelSource, expected: list[list[Any]]
) -> None:
    backend = RanksBackend(
        ranks.driver, CPU, DeviceSplit.of_replicas("tensor", 3, 3, 1), (MODEL, LoadOptions())
    )
    room = place(CPU, source.program, source.weights, CompileOptions()).state_bytes(64)
    options = CompileOptions(threads=1, memory_limit=2 * room)
    on = backend.compile(source.program, source.weights, options)
    held = [on.import_(on.open(64).export(), 64) for _ in range(4)]
    assert all(state.reserve(64) for state in held)
    state: Any = on.open(64)
    assert state.reserve(64) and state.place == 0
    got = _fed(on, {0: state}, [(0, IDS[0][:20], 0)])[0]
    got += _fed(on, {0: state}, [(0, IDS[0][20:21], 20)])[0]
    assert (state.place, got) == (0, expected[0][:21])
    held[0].release()
    assert _fed(on, {0: state}, [(0, IDS[0][21:22], 21)])[0] == expected[0][21:22]
    assert state.place == held[0].place
    on.close()


QUICK = ("level3/cancel[tiny-llama", "level4/together[tiny-llama, other")


@pytest.mark.parametrize("only", [QUICK, pytest.param("", marks=pytest.mark.slow)])
@pytest.mark.parametrize("prefill", [0, 1])
def test_conformance(ranks: Ranks, only: str | tuple[str, ...], prefill: int) -> None:
    """Golden digests, whichever replica computes a sequence."""
    backend = RanksBackend(ranks.driver, CPU, DeviceSplit.of_replicas("tensor", 3, 3, prefill))
    report = run(backend, levels=(2, 3, 4), only=only)
    assert {str(result.outcome) for result in report.results} <= {"same", "not run"}
    assert len(report.results) >= 2


def test_a_model_with_replicas() -> None:
    """One engine for all: several requests at once, and cached prefixes."""
    command = [sys.executable, "-c", SCRIPT.format(model=MODEL)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    alone, replicas, divided = done.stdout.splitlines()
    assert json.loads(alone)["reused"] > 0
    assert replicas == divided == alone


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"devices": 3, "replicas": 2}, "does not divide 3 devices"),
        ({"devices": 2, "replicas": 2, "prefill_replicas": 2}, "none is left"),
        ({"devices": 4, "replicas": 2, "split": "layer"}, "tensors or experts only"),
        ({"replicas": 2}, "several devices"),
        ({"devices": 2, "replicas": 2, "split_at": (1,)}, "layer split"),
    ],
)
def test_numbers_that_do_not_go_together(given: dict[str, Any], what: str) -> None:
    with pytest.raises(OptionError, match=what):
        cortiq.load(MODEL, backend="cpu", **given)


SCRIPT = """
import json, cortiq
asked = [[(37 * n + 11 + (n > 80) * which) % 300 for n in range(120)] for which in range(4)]
for options in ({{}}, dict(devices=2, replicas=2), dict(devices=2, replicas=2, prefill_replicas=1)):
    with cortiq.load({model!r}, backend="cpu", threads=1, **options) as model:
        model.keep_prefixes()
        made = model.generate_many(asked, max_tokens=12, temperature=0.8, seed=5)
        again = [model.generate(ids, max_tokens=12, temperature=0.8, seed=5) for ids in asked[1:]]
        found = [one.digest for one in (*made, *again)]
        print(json.dumps({{"digests": found, "reused": again[0].stats.reused_tokens}}))
"""
