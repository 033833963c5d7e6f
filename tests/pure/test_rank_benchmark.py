"""The benchmark of several devices, on ranks of the CPU, and the weights it makes on devices."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import formula_weights  # noqa: E402 - beside the script
import must_hold  # noqa: E402
import ranks as benchmark  # noqa: E402

NAME = "synthetic:tiny-llama?format=w8"


def test_weights_by_formula_are_those_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of rows, rows that are picked, and all of them."""
    plain = benchmark.weights_of(NAME)
    lazy = formula_weights.by_formula(plain)
    codes: list[Any] = [weight.parts.get("codes") for weight in lazy.values()]
    assert sum(isinstance(one, formula_weights.FormulaCodes) for one in codes) > 10
    ids = np.array([3, 0, 3])
    for name, whole in plain.items():
        for want, got in (
            (whole, lazy[name]),
            (whole.rows(0, 1), lazy[name].rows(0, 1)),
            (whole.rows(len(whole.row_numbers()) // 2, whole.shape[0]).rows(0, 1),
             lazy[name].rows(len(whole.row_numbers()) // 2, whole.shape[0]).rows(0, 1)),
            *([(whole.take(ids), lazy[name].take(ids))] if whole.shape[0] > 3 else []),
        ):  # fmt: skip
            assert want.nbytes == got.nbytes
            for part, values in want.parts.items():
                assert np.array_equal(values, np.asarray(got.parts[part]))


def test_other_bits_end_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured on devices whose digest differs, and the exit code says so."""
    digests = iter(["a", "b"])
    measured: list[Any] = []

    def measure(executable: Any, options: Any) -> dict[str, Any]:
        measured.append(executable)
        return {}

    made = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(benchmark, "place", lambda *given: made)
    monkeypatch.setattr(benchmark, "checked", lambda executable: next(digests))
    monkeypatch.setattr(benchmark, "measured", measure)
    options: Any = SimpleNamespace(prompt=8, context=8, steps=2, devices=2)
    ways: Any = [("one device", lambda: None), ("2", lambda: None)]
    assert benchmark.measure_ways(NAME, ways, benchmark.CompileOptions(), options) == 1
    assert len(measured) == 1
    assert "OTHER BITS" in capsys.readouterr().out


def test_rows_that_differ_end_a_run_of_real_ranks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences are alike, so that their digests are; a rank without others computes nobody's."""
    last = SimpleNamespace(rows=["b", "a"])
    monkeypatch.setattr(benchmark, "prompt", lambda *given: None)
    monkeypatch.setattr(benchmark, "completed", lambda result: last)
    monkeypatch.setattr(benchmark, "text_of", lambda row: row)
    ticket = SimpleNamespace(result=lambda: None)
    state = SimpleNamespace(release=lambda: None)
    made = SimpleNamespace(open=lambda length: state, forward=lambda batch: ticket)
    with pytest.raises(RuntimeError, match="rows of one batch differ: a b"):
        benchmark.stepped(made, 2, 8, 4)
    assert benchmark.stepped(made, 2, 8, 4, lone=True)[1] == "a"
    last.rows = ["a", "a"]
    assert benchmark.stepped(made, 2, 8, 4)[1] == "a"


def test_ways_of_a_lone_rank_are_checked_before_it_measures() -> None:
    """The test takes as long as PyTorch's import, where no other has imported it."""
    options: Any = SimpleNamespace(shard_of=2, ways=["memory", "copy"])
    with pytest.raises(SystemExit, match="no way to exchange: copy; there are memory, collective"):
        benchmark.shards(options)


@pytest.mark.parametrize(("other", "same"), [("d", True), ("e", False)])
def test_the_table(other: str, same: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """A ratio and whether digests are the same for each thing that was measured."""
    alone, together = {"x": (2.0, "tokens/s", "d")}, {"x": (3.0, "tokens/s", other)}
    assert benchmark.report(alone, together, 2) is same
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line[:4] == ["x", "2.0", "3.0", "1.50"]


@pytest.mark.slow
@pytest.mark.parametrize("split", ["tensor", "layer"])
def test_ranks_of_the_cpu(split: str) -> None:
    """The whole script with a tiny model."""
    flags = ["--backend", "cpu", "--model", "tiny-llama", "--prompt", "40", "--context", "16",
             "--steps", "4", "--batches", "1", "2", "--threads", "1", "--split", split]  # fmt: skip
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "ranks.py", *flags],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[-1] == lines[1].split()[-1]
    assert [line.split()[-1] for line in lines[3:]] == ["same"] * 3


ALONE = {
    "prompt of 8": (10.0, "tokens/s", "p"),
    "decoding, batch 1, after 4": (10.0, "tokens/s", "q"),
    "decoding, batch 2, after 4": (10.0, "tokens/s", "r"),
}


@pytest.mark.parametrize(
    ("digest", "prompt", "step", "fails"),
    [
        ("d", (17.0, "p"), (15.0, "q"), {}),
        ("d", (16.9, "p"), (15.0, "q"), {1: "below 1.7 times"}),
        ("d", (17.0, "x"), (14.9, "q"), {1: "other bits: p x", 2: "below 1.5 times"}),
        ("e", (17.0, "p"), (14.0, "x"), {0: "other bits: d e", 2: "other bits: q x"}),
    ],
)
def test_what_must_hold(
    digest: str, prompt: Any, step: Any, fails: dict[int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each; a model that is no more computed is one that fails, and others are."""
    closed: list[Any] = []
    together = dict(
        zip(ALONE, [(n, "tokens/s", d) for n, d in (prompt, step, (1, "r"))], strict=True)
    )
    answers: Any = {"one": ("d", ALONE), "several": (digest, together)}

    def compiled(backend: Any, model: str) -> Any:
        if model == "too large":
            raise MemoryError("no room\nfor it")
        return SimpleNamespace(answers=answers[backend], close=lambda: closed.append(backend))

    bench = must_hold.Bench(compiled, lambda on: on.answers[0], lambda on: on.answers[1])
    one: Any = "one"
    several: Any = "several"
    compared = ("a", lambda: must_hold.compared(bench, "a", one, several))
    whole = ("b", lambda: must_hold.large(bench, "b", several))
    broken = ("too large", lambda: must_hold.large(bench, "too large", several))
    assert must_hold.held([compared, whole]) == bool(fails)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == 8 and closed == ["one", "several", "several"]
    for at, line in enumerate(lines):
        assert line.endswith(f"FAIL: {fails[at]}" if at in fails else "pass"), line
    assert must_hold.held([broken, whole]) == 1
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines[0].endswith("FAIL: MemoryError: no room") and len(lines) == 5


@pytest.mark.slow
def test_what_must_hold_on_ranks_of_the_cpu() -> None:
    """The whole command with tiny models; the bits hold, whatever the speeds."""
    flags = ["--must-hold", "--backend", "cpu", "--model", "tiny-llama", "--large", "tiny-mixtral",
             "--prompt", "40", "--context", "16", "--steps", "4", "--threads", "1"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "ranks.py", *flags],
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    first, *lines = done.stdout.splitlines()
    assert len(lines) == 8 and first.split() == ["tokens/s", "one", "several", "ratio", "asked"]
    assert not any("other bits" in line for line in lines)
    assert {lines[n].split()[-1] for n in (0, 4, 5, 6, 7)} == {"pass"}, done.stdout + done.stderr
    assert done.returncode == any("FAIL" in line for line in lines)
