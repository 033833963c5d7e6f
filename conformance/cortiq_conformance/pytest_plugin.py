"""Conformance as tests in somebody else's repository.

A whole test file::

    from cortiq_conformance import conformance

    test_conformance = conformance("acme")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import pytest

PROPERTY = "cortiq_conformance"
"""User property of a test: `LEVEL OUTCOME`."""


def conformance(
    backend: Any,
    levels: Iterable[int] = (0, 1),
    *,
    profile: str = "quick",
    models: Sequence[str] | None = None,
    allow_declined: bool = False,
    use_golden: bool = True,
) -> Callable[..., None]:
    """A test that runs every case; arguments as for `cortiq_conformance.run`.

    A declined case fails, or is reported as an expected failure with `allow_declined`; a case that
    cannot be run here is skipped with its reason.
    """
    from cortiq_conformance.catalogue import cases
    from cortiq_conformance.runner import make_subject, run_case

    listed = list(cases(levels, profile, models))

    @cache
    def subject() -> Any:
        return make_subject(backend)

    @pytest.mark.parametrize("case", listed, ids=[case.id for case in listed])
    def test_conformance(case: Any, record_property: Callable[[str, object], None]) -> None:
        result = run_case(case, subject(), use_golden=use_golden)
        record_property(PROPERTY, f"{case.level} {result.outcome.value}")
        _report(result, allow_declined)

    return test_conformance


def _report(result: Any, allow_declined: bool) -> None:
    from cortiq_conformance.report import Outcome

    message = f"{result.outcome.value}: {result.reason}"
    if result.outcome is Outcome.NOT_RUN:
        pytest.skip(message)
    if result.outcome is Outcome.DECLINED and allow_declined:
        pytest.xfail(message)
    if result.outcome is not Outcome.SAME:
        pytest.fail(message, pytrace=False)


class _Tally:
    """Counts outcomes by level, whichever process the tests ran in."""

    def __init__(self) -> None:
        self.outcomes: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a case."""
        if report.when == "call":
            for name, value in report.user_properties:
                if name == PROPERTY:
                    level, _, outcome = str(value).partition(" ")
                    self.outcomes.setdefault(level, []).append(outcome)

    def empty_levels(self) -> list[str]:
        """Levels of which cases ran and none was the same."""
        return [level for level, found in self.outcomes.items() if "same" not in found]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A level in which nothing was computed fails the session."""
        if self.empty_levels() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """One line: the kit, and outcomes counted apart."""
        if not self.outcomes:
            return
        from cortiq_conformance import KIT_VERSION

        found = [outcome for outcomes in self.outcomes.values() for outcome in outcomes]
        counts = ", ".join(f"{found.count(o)} {o}" for o in sorted(set(found)))
        terminalreporter.write_line(f"cortiq conformance kit {KIT_VERSION}: {counts}")
        for level in self.empty_levels():
            terminalreporter.write_line(f"level {level}: nothing was computed and found the same")


def pytest_configure(config: pytest.Config) -> None:
    """Register the tally."""
    config.pluginmanager.register(_Tally(), "cortiq-conformance-tally")
