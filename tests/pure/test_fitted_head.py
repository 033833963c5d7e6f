"""A head fitted in closed form is worth its rounds; benchmarks/draft_heads.py measures the time."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path

import pytest

from cortiq.bench.head_acceptance import prefix_rates, teacher_forced
from cortiq.engine.drafters.heads import HeadDrafter
from cortiq.engine.drafting import FixedDepth, Speculation

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "draft_heads.py"


@cache
def script():
    spec = importlib.util.spec_from_file_location("draft_heads", SCRIPT)
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


@cache
def fitted():
    pytest.importorskip("cortiq_cpu")
    made = script()
    size = made.TrunkSize(layers=2, width=96, inner=128, vocabulary=64, heads=4)
    return size, made.made(size, "w16", True, 1, 1200)


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_a_fitted_head_accepts_half_a_token_a_round_and_more(depth):
    size, executable = fitted()
    speculation = Speculation(HeadDrafter(), lambda prompt_tokens: FixedDepth(depth))
    request = script().request_of(executable, size, 50, 60, temperature=0.0)
    plain, _, _ = script().generated(executable, request, None)
    drafted, _, tokens_a_round = script().generated(executable, request, speculation)
    assert drafted == plain
    assert tokens_a_round >= 1.5


def test_sampled_drafts_of_a_fitted_head_are_the_target_s_own():
    size, executable = fitted()
    speculation = Speculation(HeadDrafter(), lambda prompt_tokens: FixedDepth(2))
    request = script().request_of(executable, size, 51, 60, temperature=0.6)
    plain, _, _ = script().generated(executable, request, None)
    drafted, _, tokens_a_round = script().generated(executable, request, speculation)
    assert drafted == plain and len(set(plain)) > 5
    assert tokens_a_round >= 1.5


def test_the_probe_says_how_often_chains_hold():
    size, executable = fitted()
    ids = script().own_text(executable, 9, 60, size)
    rates = prefix_rates(teacher_forced(executable, ids, 3), ids)
    assert len(rates) == 3 and rates == sorted(rates, reverse=True)
    greedy = script().request_of(executable, size, 9, 60, temperature=0.0)
    text = [*greedy.prompt, *script().generated(executable, greedy, None)[0]]
    assert prefix_rates(teacher_forced(executable, text, 2), text)[0] > 0.5
