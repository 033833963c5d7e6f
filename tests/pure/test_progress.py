"""Progress of a run on stderr."""

from __future__ import annotations

from typing import ClassVar

from cortiq_conformance.case import Case
from cortiq_conformance.progress import SECONDS, Progress
from cortiq_conformance.report import CaseOutcome, CaseResult

LISTED = [Case(f"level{n // 3}/x[{n}]", n // 3, "x", "X", lambda source: None) for n in range(6)]


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self):
        return self.now


def test_without_a_terminal_there_is_a_line_now_and_then(capsys):
    clock = Clock()
    with Progress(LISTED, clock) as progress:
        for number, case in enumerate(LISTED):
            clock.now += SECONDS if number == 1 else 1
            outcome = CaseOutcome.ERROR if number == 4 else CaseOutcome.SAME
            progress.step(CaseResult(case, outcome))
    assert capsys.readouterr().err.splitlines() == [
        "level 0: 2 of 3 cases, 0 not passed so far, 11 s",
        "level 0: 3 of 3 cases, 0 not passed so far, 12 s",
        "level 1: 3 of 3 cases, 1 not passed so far, 15 s",
    ]


def test_on_a_terminal_one_line_moves(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress(LISTED, Clock()) as progress:
        progress.step(CaseResult(LISTED[0], CaseOutcome.SAME))
    assert capsys.readouterr().err == "\r\x1b[K1 level0/x[0]\r\x1b[K"


class FakeTimer:
    """A timer that ends when it is told to, unless it was cancelled."""

    made: ClassVar[list[FakeTimer]] = []

    def __init__(self, seconds, function, args):
        self.ends, self.cancelled = (lambda: function(*args)), False
        assert seconds == SECONDS
        FakeTimer.made.append(self)

    def start(self):
        """Begin: nothing happens by itself."""

    def cancel(self):
        """Do not end."""
        self.cancelled = True


def test_a_case_that_takes_long_is_named_while_it_runs(capsys, monkeypatch):
    monkeypatch.setattr("threading.Timer", FakeTimer)
    monkeypatch.setattr(FakeTimer, "made", [])
    with Progress(LISTED, Clock()) as progress:
        for case in LISTED[:3]:
            progress.running([case.id])
        assert [timer.cancelled for timer in FakeTimer.made] == [True, True, False]
        FakeTimer.made[2].ends()
        assert capsys.readouterr().err == "running level0/x[2]: 10 s so far\n"
    assert FakeTimer.made[2].cancelled
