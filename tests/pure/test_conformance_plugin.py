"""Conformance as tests in somebody else's repository: three lines, run by their own pytest."""

from __future__ import annotations

import pytest

from cortiq_conformance.catalogue import cases

pytest_plugins = ["pytester"]

BACKEND = """
from cortiq.backend import Declined, Supported
from cortiq_reference.backend import ReferenceBackend

class Acme(ReferenceBackend):
    name = "acme"
    declines = ()

    def supports(self, node, graph, program):
        return Declined("not yet") if node.op.kind in self.declines else Supported()
"""
TESTS = """
from acme import Acme
from cortiq_conformance import conformance

Acme.declines = {declines}
test_conformance = conformance(Acme(), levels=(0,), allow_declined={allow})
"""


@pytest.fixture
def author(pytester, monkeypatch):
    """The author's repository; `run` writes its test file and runs pytest in a process."""
    # The plugin is named once, whether or not an installed entry point would load it too.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(acme=BACKEND)

    def run(declines="()", allow=False, select="they and not keys"):
        pytester.makepyfile(test_acme=TESTS.format(declines=declines, allow=allow))
        plugin = ("-p", "no:cacheprovider", "-p", "cortiq_conformance.pytest_plugin")
        return pytester.runpytest_subprocess(*plugin, "-k", select, "--junitxml=r.xml")

    return run


def test_cases_are_tests_named_by_their_ids(author):
    result = author()
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*cortiq conformance kit * cases *, 3 run: 3 same*"])


def test_a_decline_fails_by_name(author):
    result = author("('Concat',)")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*declined: Concat: not yet*"])


def test_an_allowed_decline_is_never_a_pass(author):
    author("('Concat',)", allow=True).assert_outcomes(passed=2, xfailed=1)


def test_an_expected_decline_is_an_expected_failure_and_a_healed_one_fails(author, pytester):
    (case,) = [case.id for case in cases((0,)) if case.op == "Concat" and "they are" in case.id]
    text = f'[[expect_declined]]\ncase = "{case}"\nreason = "next week"\n'
    (pytester.path / "conformance.toml").write_text(text)
    author("('Concat',)").assert_outcomes(passed=2, xfailed=1)
    healed = author()
    healed.assert_outcomes(passed=2, failed=1)
    healed.stdout.fnmatch_lines(["*remove its entry*"])


def test_a_level_in_which_nothing_was_computed_fails_the_session(author):
    result = author("('Concat', 'Slice', 'Reshape')", allow=True)
    result.assert_outcomes(xfailed=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*level 0: nothing was computed*"])


def test_a_difference_leaves_a_replay_file_where_that_is_asked_for(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_faulty=FAULTY)
    plugin = ("-p", "no:cacheprovider", "-p", "cortiq_conformance.pytest_plugin")
    chosen = ("-k", "Add and cancellation", "--conformance-out=out")
    result = pytester.runpytest_subprocess(*plugin, *chosen)
    result.stdout.fnmatch_lines(["*different: Add: y differs first*"])
    (line,) = [line for line in result.outlines if "replay: cortiq replay " in line][:1]
    assert (pytester.path / line.rpartition(" ")[2]).is_file()


FAULTY = """
from cortiq_conformance import conformance
from cortiq_conformance.faults import FaultyBackend

test_conformance = conformance(FaultyBackend("sums that are not snapped"), levels=(0,))
"""
