"""`cortiq bench --draft`: a drafter beside plain tokens, on the same texts."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import cortiq
from cortiq.bench import drafts as bench_drafts
from cortiq.bench.drafts import DraftComparison, compare
from cortiq.cli.main import cli
from cortiq.errors import BackendError

TINY = "synthetic:tiny-llama"


def test_tasks_are_measured_in_pairs_and_the_texts_compared():
    with cortiq.load(TINY, backend="cpu", threads=1) as model:
        found = compare(model, f"model:{TINY}", 3, 20, 2)
    assert set(found) == {"copy", "prose"}
    for compared in found.values():
        assert len(compared.plain) == len(compared.drafted) == 2
        assert compared.tokens_per_step > 2
        assert compared.as_dict()["ratio"] > 0


def test_ratio_is_the_median_of_pairs():
    compared = DraftComparison((10.0, 20.0, 10.0), (20.0, 30.0, 40.0), 10, 30, 10)
    assert compared.ratio == 2.0
    assert compared.tokens_per_step == 50 / 20


def test_a_text_that_differs_is_an_error(monkeypatch):
    with cortiq.load(TINY, backend="cpu", threads=1) as model:
        plain = model.generate

        def wrong(ids, draft="off", draft_depth=None, **options):
            return plain(ids, **options | ({"logit_bias": {5: 90.0}} if draft != "off" else {}))

        monkeypatch.setattr(model, "generate", wrong)
        monkeypatch.setattr(bench_drafts, "TASKS", bench_drafts.TASKS[1:])
        with pytest.raises(BackendError, match="the text of prose differs with the drafter"):
            compare(model, "lookup", None, 20, 1)


def test_command_line():
    arguments = ["bench", TINY, "--backend", "cpu", "--threads", "1", "--draft", "lookup"]
    sizes = ["--new-tokens", "8", "--repeats", "1"]
    done = CliRunner().invoke(cli, [*arguments, *sizes, "--json"])
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.output)["tasks"]["copy"]) >= {"plain", "drafted", "ratio"}
    shown = CliRunner().invoke(cli, [*arguments, *sizes, "--draft-depth", "2"])
    assert "tokens/step" in shown.output
    refused = CliRunner().invoke(cli, [*arguments[:-1], "nothing", *sizes])
    assert "there is no drafter 'nothing'" in str(refused.exception)
