"""A few seconds of the fuzzers of `tests.fuzz`: requests to a server, files of models."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from tests.fuzz import mutants

CHANGED = {"a": [1, {"b": "c"}], "d": {"e": None}}


def test_requests_get_an_answer_and_no_500():
    from tests.fuzz.http import run

    outcomes = run(3, count=250)
    assert outcomes["200"] > 5 and outcomes["400"] > 100 and outcomes.total() == 250


def test_files_are_read_or_refused():
    pytest.importorskip("gguf")
    from tests.fuzz.files import run

    outcomes = run(3, count=120)
    assert outcomes["read"] > 10 and outcomes["FormatError"] > 50 and outcomes.total() == 120


def test_images_are_pixels_or_refused():
    pytest.importorskip("PIL")
    from tests.fuzz.images import run

    outcomes = run(4, count=150)
    assert outcomes["read"] > 15 and outcomes["RequestError"] > 60 and outcomes.total() == 150


def test_a_finding_is_made_again_by_its_seed_and_round():
    def fails(rng):
        made = mutants.mutated_json(CHANGED, rng)
        assert isinstance(made.get("d"), dict)
        return "fine"

    with pytest.raises((AssertionError, AttributeError)) as caught:
        mutants.rounds(fails, 5, count=1000)
    (note,) = caught.value.__notes__
    _, seed, _, first = note.split()
    with pytest.raises((AssertionError, AttributeError)):
        mutants.rounds(fails, int(seed), count=1, first=int(first))


def test_mutants_differ_and_leave_their_seed_alone():
    made = [repr(mutants.mutated_json(CHANGED, random.Random(n))) for n in range(200)]
    assert len(set(made)) > 150 and CHANGED == {"a": [1, {"b": "c"}], "d": {"e": None}}
