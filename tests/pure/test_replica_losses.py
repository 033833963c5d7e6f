"""A replica whose rank is lost: its own sequences end, the others go on with the same bits."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engines import engine, facts, request

import cortiq
from cortiq.backend import Argmax, Batch, CompileOptions, Digest, Row, Status
from cortiq.engine.cache_roles import CacheRole
from cortiq.engine.prefixes import PrefixCache
from cortiq.errors import BackendError, RequestError
from cortiq.model import devices
from cortiq.model.devices import backend_named, weights_of
from cortiq.model.source import open_source
from cortiq.options import LoadOptions
from cortiq.placement.place import place
from cortiq.ranks.backend import DeviceSplit, RanksBackend
from cortiq.ranks.start import Ranks, start_ranks

MODEL, CPU = "synthetic:tiny-llama", backend_named("cpu")
SOURCE = open_source(MODEL, LoadOptions())
IDS = [[(37 * n + 11 + 5 * which) % 300 for n in range(30)] for which in range(3)]
WANTS = (Digest("hidden"), Argmax())
Process = subprocess.Popen[bytes]


def killed(process: Process) -> None:
    process.kill()
    process.wait()


def stopped(process: Process) -> None:
    process.send_signal(19)  # SIGSTOP


@pytest.fixture(params=[killed, pytest.param(stopped, marks=pytest.mark.slow)])
def fail(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what ends a rank, which is missed after a minute if it only hangs."""
    if request.param is stopped:
        monkeypatch.setenv("CORTIQ_RANK_TIMEOUT", "60")
    return request.param


@pytest.fixture
def ranks(fail: Callable[[Process], None]) -> Iterator[Ranks]:
    made = start_ranks(3, backend_named, weights_of)
    yield made
    made.close()


@pytest.fixture
def replicas(ranks: Ranks) -> Any:
    split = DeviceSplit.of_replicas("tensor", 3, 3)
    backend = RanksBackend(ranks.driver, CPU, split, (MODEL, LoadOptions()))
    return backend.compile(SOURCE.program, SOURCE.weights, CompileOptions(threads=1))


def fed(on: Any, states: list[Any], start: int, stop: int) -> list[tuple[Status, list[Any]]]:
    """Feed sequences in one batch; return of each its status, and what its rows brought."""
    rows = [
        Row(state, at, IDS[which][at], WANTS)
        for which, state in enumerate(states)
        for at in range(start, stop)
    ]
    result = on.forward(Batch(rows)).result()
    each, found = stop - start, []
    for which, state in enumerate(states):
        brought = [tuple(row.values()) for row in result.rows[which * each : (which + 1) * each]]
        found.append((result.outcomes[state].status, [row for row in brought if row]))
    return found


def test_other_replicas_go_on(ranks: Ranks, replicas: Any, fail: Callable[[Process], None]) -> None:
    """Until one is left; copies of what was lost are none, and new sequences go elsewhere.

    It takes two seconds: three processes are started.
    """
    one = place(CPU, SOURCE.program, SOURCE.weights, CompileOptions(threads=1))
    alone = [one.open(64) for _ in IDS]
    expected = [fed(one, alone, start, stop) for start, stop in ((0, 10), (10, 20), (20, 30))]
    on, (first, second, third) = replicas, (replicas.open(64) for _ in IDS)
    states = [first, second, third]
    assert fed(on, states, 0, 10) == expected[0]
    copy, cache = second.snapshot(), PrefixCache(on)
    cache.put(IDS[1][:10], second.fork(), CacheRole.TURN)
    fail(ranks.processes[0])
    lost = Status.LOST, []
    assert fed(on, states, 10, 20) == [expected[1][0], lost, expected[1][2]]
    assert (second.length(), second.rewind(0), len(on.living)) == (0, 0, 2)
    assert cache.take(IDS[1]) is None and len(cache) == 0
    with pytest.raises(RequestError, match="rows of this sequence are lost"):
        second.fork()
    with pytest.raises(BackendError, match="holds a copy of a sequence is lost"):
        second.restore(copy)
    assert {on.open(64).place for _ in range(4)} == {0, 2}
    assert on.free_bytes() > 0 and on.state_bytes(8) > 0
    fail(ranks.processes[1])
    assert fed(on, states[:1], 20, 30) == expected[2][:1]
    assert fed(on, [third], 20, 30) == [lost]
    assert fed(on, [second], 0, 10) == [(Status.COMPLETED, fed(one, [one.open(64)], 0, 10)[0][1])]
    assert on.living == [0]
    on.close()


def test_requests_of_a_lost_replica_fail_and_no_others(
    ranks: Ranks, replicas: Any, fail: Callable[[Process], None]
) -> None:
    """Their error says what happened, and is not that of a model which cannot go on."""
    one = place(CPU, SOURCE.program, SOURCE.weights, CompileOptions(threads=1))
    asked = [request(ids[:12], 8) for ids in IDS]
    with engine(one) as mine:
        whole = [mine.submit(wanted) for wanted in asked]
        mine.run()
    with engine(replicas, prefixes=PrefixCache(replicas)) as served:
        running = [served.submit(wanted) for wanted in asked]
        for _ in range(3):
            served.step()
        at = [sequence.state.place for sequence in running]  # type: ignore[union-attr]
        fail(ranks.processes[0])
        served.run()
        later = [served.submit(wanted) for wanted in asked]
        served.run()
    assert sorted(at) == [0, 1, 2]
    failed = running[at.index(1)].error
    assert type(failed) is BackendError
    assert "a device that computed this sequence is gone: the connection" in str(failed)
    for which, sequence in enumerate(running):
        if at[which] != 1:
            assert facts(sequence) == facts(whole[which])
    assert [*map(facts, later)] == [*map(facts, whole)]
    replicas.close()


@pytest.mark.parametrize(
    ("count", "copies", "seat", "left"),
    [
        (3, 3, 1, [0, 2]),
        pytest.param(4, 2, 3, [0], marks=pytest.mark.slow),
        pytest.param(4, 2, 1, [1], marks=pytest.mark.slow),
    ],
)
def test_another_model_takes_a_new_rank_and_the_others(
    count: int, copies: int, seat: int, left: list[int], fail: Callable[[Process], None]
) -> None:
    """The process of a lost rank is started anew and no other, and what a model had on others goes
    on. It takes five seconds: four processes are started, and two models loaded.
    """
    given: Any = {"backend": "cpu", "threads": 1, "devices": count, "replicas": copies}
    with cortiq.load(MODEL, backend="cpu", threads=1) as alone:
        expected = digests(alone)
    with cortiq.load(MODEL, **given) as first:
        assert digests(first) == expected
        before = list(running().processes)
        fail(before[seat - 1])
        with cortiq.load(MODEL, **given) as second:
            now = running().processes
            assert [at for at, one in enumerate(now, 1) if one is not before[at - 1]] == [seat]
            assert before[seat - 1].poll() is not None
            on: Any = first.executable
            other: Any = second.executable
            assert (on.living, other.living) == (left, list(range(copies)))
            assert digests(second) == expected == digests(first)
            assert {other.open(8).place for _ in range(copies)} == {*range(copies)}
            first.close()
            assert digests(second) == expected
        assert [one.poll() for one in now] == [0] * (count - 1)


def digests(model: cortiq.Model) -> list[str]:
    """Return what three requests at once are answered."""
    return [made.digest for made in model.generate_many(IDS, max_tokens=5)]


def running() -> Ranks:
    found = devices._Running.ranks
    assert found is not None
    return found
