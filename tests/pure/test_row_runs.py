"""Rows as runs are the rows that they stand for, and answered as these are."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from engines import executable, prompt

from cortiq.backend import Argmax, Batch, Digest, Drawn, Named, Row, Status
from cortiq.backend.admission import groups_of
from cortiq.backend.columns import columns_of
from cortiq.backend.row_runs import RowRun, RowRuns, asking_rows, known_ids, stretches_of, supplies
from cortiq.errors import BackendError

WANTS = (Argmax(), Digest())
STATES = ("one", "two", "three")
RUNS = [
    RowRun("one", 4, [5, 6, 7], [WANTS]),
    RowRun("one", 7, [1]),
    RowRun("two", 0, [8], [WANTS]),
    RowRun("two", 1, []),
    RowRun("three", 9, [3, 2, 1, 0], [(), WANTS]),
]
ROWS = [
    Row("one", 4, 5), Row("one", 5, 6), Row("one", 6, 7, WANTS), Row("one", 7, 1),
    Row("two", 0, 8, WANTS),
    Row("three", 9, 3), Row("three", 10, 2), Row("three", 11, 1), Row("three", 12, 0, WANTS),
]  # fmt: skip


def test_runs_are_their_rows():
    runs = RowRuns(RUNS)
    assert len(runs) == len(ROWS) and list(runs) == ROWS
    assert [runs[at] for at in range(-9, 9)] == ROWS + ROWS
    with pytest.raises(IndexError):
        runs[9]
    for start in range(10):
        for stop in range(10):
            assert list(runs[start:stop]) == ROWS[start:stop], (start, stop)
    assert list(runs[::2]) == ROWS[::2] and list(runs[::-1]) == ROWS[::-1]
    assert list(runs[1:8][2:6]) == ROWS[3:7]
    assert list(RowRuns([])) == [] and not RowRuns([RowRun("one", 0, [])])


class Looked(list):
    """Runs that count how often one is looked at, and cannot be walked over."""

    looks = 0

    def __getitem__(self, at):
        self.looks += 1
        return super().__getitem__(at)

    def __iter__(self):
        raise AssertionError("all runs were walked over")


def test_a_slice_looks_at_its_own_runs_only():
    runs = RowRuns([RowRun(f"{number}", 0, [1, 2, 3]) for number in range(1000)])
    runs.runs = looked = Looked(runs.runs)
    assert len(runs[300:306]) == 6 and looked.looks == 2
    assert len(runs[301:304]) == 3 and looked.looks == 4


def test_what_is_found_of_runs_is_what_is_found_of_rows():
    runs = RowRuns(RUNS)
    owns = STATES.__contains__
    assert groups_of(Batch(runs), owns) == groups_of(Batch(ROWS), owns)
    assert asking_rows(runs) == asking_rows(ROWS)
    assert not supplies(runs) and not supplies(ROWS)
    assert supplies([*ROWS, Row("one", 8, 0, (), {"embed": 0})])
    for given in (runs, ROWS):
        found = [(at, state, wants) for part, state, wants in stretches_of(given) for at in part]
        assert found == [(at, row.state, row.wants) for at, row in enumerate(ROWS)]
    apart = RowRuns([RUNS[0], RUNS[2], RUNS[1]])
    for given in (apart, list(apart)):
        with pytest.raises(BackendError, match="neighbours"):
            groups_of(Batch(given), owns)
        with pytest.raises(BackendError, match="not ours"):
            groups_of(Batch(given), lambda state: state != "one")


def test_ids_are_known_unless_one_is_drawn_or_none():
    assert known_ids(RowRuns(RUNS)) == [row.token for row in ROWS]
    assert known_ids(RowRuns(RUNS)[2:6]) == [7, 1, 8, 3]
    assert known_ids(ROWS) is None
    for token in (Drawn(0), 1.0, "1", None):
        assert known_ids(RowRuns([RowRun("one", 0, [1, token, 2])])) is None


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_runs_are_answered_and_refused_as_rows(backend):
    on, ids = executable(backend), prompt(7, 9)
    found = []
    for form in (RowRuns, lambda runs: list(RowRuns(runs))):
        one, two = on.open(64), on.open(64)
        runs = [RowRun(one, 0, ids[:5], [WANTS]), RowRun(two, 0, ids[5:], [WANTS, (), WANTS])]
        result = on.forward(Batch(form(runs))).result()
        assert {o.status for o in result.outcomes.values()} == {Status.COMPLETED}
        brought = [dict(row) for row in result.rows]
        assert [len(row) for row in brought] == [0, 0, 0, 0, 2, 0, 2, 0, 2]
        drawn = on.forward(Batch(form([RowRun(one, 5, [Drawn(4)], [WANTS])]))).result()
        brought.append(dict(drawn.rows[0]))
        reasons = []
        for run in (
            RowRun(one, 7, [1, 2]), RowRun(one, 6, [1, 320, 2]), RowRun(one, 6, [-1, 2]),
            RowRun(one, 6, [1, "2"]), RowRun(one, 6, [1, 2], [(Argmax("nothing"),)]),
            RowRun(one, 6, [1, 2], [(Argmax("nothing"),), ()]), RowRun(one, 6, [1] * 99),
        ):  # fmt: skip
            outcome = on.forward(Batch(form([run]))).result().outcomes[one]
            assert outcome.status is Status.DECLINED
            reasons.append(outcome.reason)
        assert one.length() == 6
        found.append((brought, reasons))
        one.release()
        two.release()
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "wants", [("layers.0.out",), ("token", "logits", "layers.0.out", "position")]
)
def test_pieces_of_a_batch_bring_their_arrays_in_its_order(wants, monkeypatch):
    plan = pytest.importorskip("cortiq_cpu.plan")
    monkeypatch.setattr(plan, "TRUNK_ROWS", 4)
    monkeypatch.setattr(plan, "TAIL_BYTES", 3 * 4 * 320)  # three rows of logits
    wanted = tuple(map(Named, wants))
    found = []
    for backend in ("cpu", "reference"):
        with closing(executable.__wrapped__(backend)) as on:  # made anew, for these pieces
            runs, ids = [], prompt(9, 18)
            for start, stop in ((0, 11), (11, 12), (12, 18)):
                own = ids[start:stop]
                runs.append(RowRun(on.open(64), 0, own, [wanted] * len(own)))
            rows = on.forward(Batch(RowRuns(runs))).result().rows
            assert columns_of(rows, range(11)) is not None
            found.append([{want: np.asarray(value) for want, value in row.items()} for row in rows])
    for mine, other in zip(*found, strict=True):
        assert [*mine] == [*wanted] and {*other} == {*wanted}
        for want in wanted:
            assert mine[want].dtype == other[want].dtype
            np.testing.assert_array_equal(mine[want], other[want])
