"""`cortiq bench`: who is measured when, what is fed, and what is printed."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from cortiq.bench.measure import TokenRates, Workload, cores, measure
from cortiq.cli.main import cli
from cortiq.errors import RequestError


class Recorder:
    """A runner that notes its calls in a list it shares."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def prefill(self, prompt):
        self.calls.append((self.name, "prefill", len(prompt)))

    def decode(self, steps):
        self.calls.append((self.name, "decode", steps))

    def close(self):
        pass


def test_runners_take_turns_and_the_first_round_only_warms_up():
    calls = []
    runners = {name: Recorder(name, calls) for name in ("ours", "theirs")}
    speeds = measure(runners, Workload(7, 3, repeats=2), vocabulary=50)
    one_round = [(n, *part) for n in runners for part in (("prefill", 7), ("decode", 3))]
    assert calls == one_round * 3
    assert {len(speeds[name].decode.values) for name in runners} == {2}


def test_prompt_ids_are_of_the_vocabulary_and_differ():
    ids = Workload(300).prompt(1000)
    assert len(ids) == 300 == len(set(ids)) and min(ids) >= 0 and max(ids) < 1000


def test_spread():
    shown = TokenRates((3.0, 9.0, 4.0)).as_dict()
    assert shown == {"median": 4.0, "least": 3.0, "most": 9.0}


def bench(*arguments):
    small = ["--prompt-tokens", "5", "--new-tokens", "2", "--repeats", "1"]
    return CliRunner().invoke(cli, ["bench", "synthetic:tiny-llama", *small, *arguments])


@pytest.mark.parametrize("batch", ["1", "3"])
def test_one_object_with_facts_and_speeds(batch):
    done = bench("--backend", "reference", "--batch", batch, "--json")
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    assert made["backend"] == "reference:cpu" and made["batch"] == int(batch)
    assert set(made["tokens_per_second"]["cortiq"]) == {"prefill", "decode"}
    assert made["tokens_per_second"]["cortiq"]["decode"]["median"] > 0 and made["ratio"] == {}


def test_short_flags_are_those_of_llama_bench():
    asked = ["bench", "synthetic:tiny-llama", "-p", "5", "-n", "2", "-r", "1", "--json"]
    found = json.loads(CliRunner().invoke(cli, asked).stdout)
    assert (found["prompt_tokens"], found["new_tokens"], found["repeats"]) == (5, 2, 1)
    assert len(found["tokens_per_second"]["cortiq"]) == 2


def test_a_profile_needs_a_backend_that_records():
    done = bench("--backend", "reference", "--profile")
    assert done.exit_code != 0 and "records no times" in str(done.exception)


def test_the_cpu_backend_profiles():
    pytest.importorskip("cortiq_cpu")
    done = bench("--backend", "cpu", "--profile", "--json", "--threads", "1")
    assert done.exit_code == 0, done.output
    profile = json.loads(done.stdout)["profile"]
    assert sum(row["share"] for row in profile["decode"]) == pytest.approx(1, abs=0.01)
    (gate,) = [row for row in profile["decode"] if row["op"] == "MatMul gate up"]
    assert gate["ms"] > 0 and gate["memory_ms"] > 0 and gate["calls"] == 2 * 3
    assert all(row["of_bound"] > 0 for row in (*profile["prefill"], *profile["decode"]))


def test_threads_are_those_that_work():
    done = bench("--backend", "reference", "--json", "--threads", "3")
    assert json.loads(done.stdout)["threads"] == 3
    done = bench("--backend", "reference", "--json")
    assert json.loads(done.stdout)["threads"] == cores()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_attention_costs_what_its_rows_see(window, ahead):
    costs = pytest.importorskip("cortiq_cpu.profile_costs")
    stretches = [(0, 4, 0), (4, 5, 7), (5, 8, 70)]  # first and last row, first position
    positions = [p + i for start, stop, p in stretches for i in range(stop - start)]
    last = positions
    if ahead:  # rows of a sequence see one another, as those of an image do
        last = [p + stop - start - 1 for start, stop, p in stretches for _ in range(stop - start)]
    firsts = [max(0, p + 1 - (window or p + 1)) for p in positions]
    seen = [set(range(first, stop + 1)) for first, stop in zip(firsts, last, strict=True)]
    read = sum(len(set.union(*seen[start:stop])) for start, stop, _ in stretches)
    rows = SimpleNamespace(
        segments=np.array(stretches, [(n, np.int32) for n in ("start", "stop", "position")]),
        segment_count=[3],
        positions=np.array(positions, np.int32),
    )
    given = np.array([*last, 0], np.int32) if ahead else None
    cost = costs.attended(rows, window, 10, 7, len(positions), given)
    assert cost == (10 * read, 7 * sum(map(len, seen)), 0)


def test_what_the_context_has_no_room_for_is_refused_and_the_last_position_is_measured():
    Workload(prompt_tokens=60, new_tokens=4).check(64)
    with pytest.raises(RequestError, match="the context is 64"):
        Workload(prompt_tokens=60, new_tokens=5).check(64)
    done = bench("--backend", "reference", "--context", "6")
    assert isinstance(done.exception, RequestError) and not done.stdout


def test_experts_cost_once_in_a_batch():
    costs = pytest.importorskip("cortiq_cpu.profile_costs")
    choice = np.array([0, 3, 3, 5, 0, 5, 7, 7], np.int32)  # of three rows; the rest is old
    assert costs.chosen(choice, 2, 100, 10, 3) == (3 * 100, 6 * 10, 0)


@pytest.mark.parametrize("model", ["mini-qwen3_next", "mini-granitemoehybrid", "mini-lfm2_moe"])
def test_every_kind_of_layer_has_a_bound(model):
    pytest.importorskip("cortiq_cpu")
    arguments = ["--backend", "cpu", "--profile", "--json", "--threads", "1"]
    lines = ["--prompt-tokens", "8", "--new-tokens", "3", "--repeats", "1"]
    done = CliRunner().invoke(cli, ["bench", f"synthetic:{model}", *arguments, *lines])
    assert done.exit_code == 0, done.output
    decode = {row["op"].split()[0]: row for row in json.loads(done.stdout)["profile"]["decode"]}
    kinds = {"DeltaRule", "StateSpace", "ExpertMatMul", "CausalConv"} & set(decode)
    assert "CausalConv" in kinds and "ExpertMatMul" in kinds
    assert all(decode[kind]["of_bound"] > 0 for kind in kinds)
