"""The list of mutants is whole: every test of the acceptance list has some, and every edit fits."""

from __future__ import annotations

import pytest
from mutants import MUTANTS, cited


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_an_edit_occurs_once_and_gives_other_code(mutant):
    assert mutant.old != mutant.new
    compile(mutant.source(), mutant.file, "exec")


def test_every_test_of_the_acceptance_list_has_a_mutant_and_no_other_test_has():
    named = {(row, test) for row, tests in cited().items() for test in tests}
    assert len(named) > 50
    assert {(m.row, m.test.partition("[")[0]) for m in MUTANTS} == named
