"""Conformance as tests in another repository.

A whole test file::

    from cortiq_conformance import conformance

    test_conformance = conformance("acme")

Every case is a test with the marker of its level (`-m level0`). Cases that are known to fail are
listed in `conformance.toml`, beside the test file or in a folder above it, up to that of
`pyproject.toml`.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PROPERTY = "cortiq_conformance"
"""User property of a test: `LEVEL OUTCOME`."""
OUT = "--conformance-out"
"""Option of pytest."""
LIST = "cortiq_conformance_list"
"""User property of a test: `KIT COUNT HASH` of the list it is of; no case drops out unseen."""


def conformance(
    backend: Any,
    levels: Iterable[int] = (0, 1),
    *,
    profile: str = "quick",
    models: Sequence[str] | None = None,
    allow_declined: bool = False,
    use_golden: bool = True,
    expectations: str | Path | None = None,
) -> Callable[..., None]:
    """Make a test that runs every case; arguments as for `cortiq_conformance.run`.

    A declined case fails, or is reported as an expected failure with `allow_declined`; a case that
    cannot be run here is skipped with its reason. `expectations` is another file than the
    `conformance.toml` that is found.
    """
    from cortiq_conformance import KIT_VERSION
    from cortiq_conformance.catalogue import cases, list_hash
    from cortiq_conformance.expectations import apply_expectation, read
    from cortiq_conformance.runner import make_subject, run_case, select

    listed = select(cases(levels, profile, models), None)
    found = expectations or _found_beside(inspect.stack()[1].filename)
    known = read(found) if found else {}
    whole = f"{KIT_VERSION} {len(listed)} {list_hash(listed)}"
    parameters = [
        pytest.param(case, id=case.id, marks=getattr(pytest.mark, f"level{case.level}"))
        for case in listed
    ]

    @cache
    def subject() -> Any:
        return make_subject(backend)

    @pytest.mark.parametrize("case", parameters)
    def test_conformance(case: Any, request: pytest.FixtureRequest) -> None:
        out = request.config.getoption(OUT, None)
        ran = run_case(case, subject(), use_golden=use_golden, out=out)
        result = apply_expectation(ran, known)
        # The fixture `record_property` would warn of the default kind of JUnit XML at every case.
        outcome = (PROPERTY, f"{case.level} {result.outcome.value}")
        request.node.user_properties.extend([outcome, (LIST, whole)])
        _report(result, allow_declined)

    return test_conformance


def _found_beside(file: str) -> Path | None:
    """Find the expectations of the repository that a test file lies in."""
    from cortiq_conformance.expectations import FILE

    for folder in Path(file).resolve().parents:
        if (folder / FILE).is_file():
            return folder / FILE
        if (folder / "pyproject.toml").is_file():
            break
    return None


def _report(result: Any, allow_declined: bool) -> None:
    from cortiq_conformance.report import CaseOutcome

    message = f"{result.outcome.value}: {result.reason}"
    if result.replay:
        message += f"\n  replay: cortiq replay {shlex.quote(result.replay)}"
    if result.outcome is CaseOutcome.NOT_RUN:
        pytest.skip(message)
    if result.excused:
        pytest.xfail(f"{message} (expected: {result.excused})")
    if result.outcome is CaseOutcome.DECLINED and allow_declined:
        pytest.xfail(message)
    if result.outcome is not CaseOutcome.SAME:
        pytest.fail(message, pytrace=False)


class _Tally:
    """Counts outcomes by level, across the processes that run the tests."""

    def __init__(self) -> None:
        self.outcomes: dict[str, list[str]] = {}
        self.lists: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a case."""
        if report.when == "call":
            for name, value in report.user_properties:
                if name == PROPERTY:
                    level, _, outcome = str(value).partition(" ")
                    self.outcomes.setdefault(level, []).append(outcome)
                elif name == LIST:
                    self.lists.add(str(value))

    def empty_levels(self) -> list[str]:
        """Return the levels that ran cases of which none was the same."""
        return [level for level, found in self.outcomes.items() if "same" not in found]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the session for a level in which nothing was computed."""
        if self.empty_levels() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write one line: the kit, and outcomes counted apart."""
        if not self.outcomes:
            return
        found = [outcome for outcomes in self.outcomes.values() for outcome in outcomes]
        counts = ", ".join(f"{found.count(o)} {o}" for o in sorted(set(found)))
        for kit, count, digest in (whole.split() for whole in sorted(self.lists)):
            text = (
                f"cortiq conformance kit {kit}, {count} cases {digest}, {len(found)} run: {counts}"
            )
            terminalreporter.write_line(text)
        for level in self.empty_levels():
            terminalreporter.write_line(f"level {level}: nothing was computed and found the same")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the folder of replay files."""
    group = parser.getgroup("cortiq", "conformance of a cortiq backend")
    what = "folder for a replay file of each difference (cortiq replay FILE)"
    group.addoption(OUT, metavar="DIR", help=what)


def pytest_configure(config: pytest.Config) -> None:
    """Register the tally and the markers."""
    config.pluginmanager.register(_Tally(), "cortiq-conformance-tally")
    for level in range(5):
        config.addinivalue_line("markers", f"level{level}: conformance cases of level {level}")
