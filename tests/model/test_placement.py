"""Models of every family and a real one: declined nodes and split layers change no bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cortiq.backend import Argmax, Backend, Batch, CompileOptions, Digest, Drawn, Executable, Row
from cortiq.model.source import ModelSource, open_source
from cortiq.options import LoadOptions
from cortiq.placement.place import declined_nodes, place, place_split
from cortiq.plugins import fallback_backend, load_plugins

TINY = ["tiny-llama", "tiny-gemma3", "tiny-mixtral", "tiny-lfm2"]
PARTIAL = Path(__file__).parents[1] / "plugins" / "partial-backend" / "cortiq_partial.py"
WANTS = (Digest("logits"), Digest("hidden"), Argmax())
OPTIONS = CompileOptions(threads=2)
PROMPT = [11 + (7 * i) % 83 for i in range(70)]
STEPS = 3


@pytest.fixture(scope="module", params=[*TINY, "smollm2"])
def source(request: pytest.FixtureRequest) -> Iterator[ModelSource]:
    real = request.param == "smollm2"
    name = request.getfixturevalue("smollm2_path") if real else f"synthetic:{request.param}"
    opened = open_source(str(name), LoadOptions())
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def partial() -> Backend:
    return load_plugins(only=[], files=[PARTIAL]).backends["partial"]


@pytest.fixture(scope="module")
def expected(source: ModelSource) -> list[dict]:
    return answers(fallback_backend().compile(source.program, source.weights, OPTIONS), 70)


def answers(executable: Executable, chunk: int) -> list[dict]:
    """Return the results of the prompt's last row and of three steps chained by drawn tokens."""
    state = executable.open(len(PROMPT) + STEPS)
    last = len(PROMPT) - 1
    for start in range(0, len(PROMPT), chunk):
        rows = [
            Row(state, i, PROMPT[i], WANTS if i == last else ())
            for i in range(start, min(start + chunk, len(PROMPT)))
        ]
        tickets = [executable.forward(Batch(rows))]
    drawn = len(rows) - 1
    for step in range(STEPS):
        row = Row(state, len(PROMPT) + step, Drawn(drawn), WANTS)
        tickets.append(executable.forward(Batch([row])))
        drawn = 0
    brought = [dict(ticket.result().rows[-1]) for ticket in tickets]
    executable.close()
    return brought


@pytest.mark.parametrize("parts", [2, 3])
def test_layers_split_over_executables(
    source: ModelSource, expected: list[dict], parts: int
) -> None:
    layers = source.program.facts["layers"]
    cuts = [f"layers.{part * layers // parts}" for part in range(1, parts)]
    assignments = [(fallback_backend(), OPTIONS)] * parts
    executable = place_split(assignments, source.program, source.weights, cuts)
    assert answers(executable, 23) == expected


def test_two_layers_on_a_backend_and_the_rest_on_the_reference(
    source: ModelSource, partial: Backend, expected: list[dict]
) -> None:
    executable = place(partial, source.program, source.weights, OPTIONS)
    assert any(reason == "Attend is not written yet" or "slot" in reason
               for reason in declined_nodes(executable).values())  # fmt: skip
    assert {"partial", "reference"} == set(executable.placement.values())
    assert answers(executable, 70) == expected
