"""Batches on ranks of the Triton backend, launched as they are captured, in its interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

from rank_threads import by_ranks

from cortiq.backend import Argmax, Batch, CompileOptions, Digest, Kernel, Row, Status
from cortiq.ranks.exchange import GatherParts
from cortiq_conformance import models
from cortiq_reference.backend import ReferenceBackend
from cortiq_triton.backend import TritonBackend

WANTS = (Argmax(), Digest("logits"))
Fed = tuple[int, range, tuple[int, ...]]
BATCHES: list[list[Fed]] = [
    [(0, range(3), (2,)), (1, range(5), (4,))],  # prompts of a shape that may not come again
    [(0, range(3, 4), (3,)), (1, range(5, 6), (5,))],  # a step, which makes a shape
    [(0, range(4, 5), (4,)), (1, range(6, 7), (6,))],  # one that uses it again
    [(2, range(17), (16,))],  # a prompt that is captured
]
"""Sequences of batches, with their positions and those that want something."""
MODEL = models.load("tiny-llama")
Answers = list[dict[int, Any]]


def fed(on: Any, batches: Sequence[list[Fed]] = BATCHES) -> Answers:
    """Feed batches; return of each sequence its status, and what its rows brought."""
    states, found = [on.open(64) for _ in range(3)], []
    for batch in batches:
        rows = [
            Row(states[n], at, (7 * n + 3 * at) % 60, WANTS if at in wanting else ())
            for n, positions, wanting in batch
            for at in positions
        ]
        result = on.forward(Batch(rows)).result()
        statuses = {n: result.outcomes[states[n]].status for n, _, _ in batch}
        brought: dict[int, Any] = {n: [] for n, _, _ in batch}
        for row, answers in zip(rows, result.rows, strict=True):
            brought[states.index(row.state)] += [answers[want] for want in row.wants if answers]
        found.append({n: (statuses[n], brought[n]) for n in brought})
    return found


@cache
def defined() -> Answers:
    """Return what the definitions give."""
    on = ReferenceBackend().compile(MODEL.program, MODEL.weights, CompileOptions())
    return fed(on)


def failing(faults: set[int]) -> Answers:
    """Return what they give where rows at these positions are at fault."""
    gone, found = set(), []
    for batch, known in zip(BATCHES, defined(), strict=True):
        expected = dict(known)
        for n, positions, _ in batch:
            if n in gone:
                expected[n] = Status.DECLINED, []
            elif faults & {*positions}:
                gone.add(n)
                expected[n] = Status.FAILED, []
        found.append(expected)
    return found


def on_two(feed: Any = lambda on, program: fed(on), **spoil: Any) -> Any:
    """Return what two ranks give."""
    backend = TritonBackend()
    return by_ranks(backend, MODEL.program, MODEL.weights, 2, feed=feed, graphs=True, **spoil)


@pytest.mark.parametrize(
    ("faults", "steps"), [({6, 12}, True), pytest.param({4}, False, marks=pytest.mark.slow)]
)
def test_a_fault_of_one_rank_is_every_ranks(faults: set[int], steps: bool) -> None:
    """In prompts, captured or not, and a captured step; other sequences have the definition's bits.

    It takes five seconds, since the interpreter computes every batch twice.
    """

    def spoil(rank: int, kernels: dict[Any, Kernel]) -> None:
        plain = kernels[GatherParts]

        def faulty(call: Any, part: Any) -> Any:
            for at in faults:
                call.faults |= call.rows.positions == at
            return plain.function(call, part)

        if rank == 1:
            kernels[GatherParts] = replace(plain, function=faulty)

    shapes: list[Any] = []

    def feed(on: Any, program: Any) -> Any:
        found = fed(on)
        shapes.append((on.asynchronous, len(on.inner.decoder.shapes)))
        return found

    assert on_two(feed, spoil=spoil) == [failing(faults)] * 2
    assert [(ahead, held > 0) for ahead, held in shapes] == [(False, steps)] * 2


def test_a_rank_without_room_declines_for_all() -> None:
    """Before anything is launched: both ranks say so, and other sequences are computed.

    It takes four seconds in the interpreter.
    """

    def feed(on: Any, program: Any) -> Any:
        inner, rank = on.inner, on.inner.options.peers.rank
        found = inner.refusal, inner.lets_in
        if rank == 1:
            full = lambda position: position == 5  # noqa: E731 - the second sequence's first step
            inner.refusal = lambda plan, batch, asked: (
                "no room"
                if full(batch.rows[asked.indices.start].position)
                else found[0](plan, batch, asked)
            )
            inner.lets_in = lambda plan, entry, row, token: (
                not full(row.position) and found[1](plan, entry, row, token)
            )
        return fed(on, BATCHES[:3])

    expected = [dict(known) for known in defined()[:3]]
    expected[1][1] = expected[2][1] = Status.DECLINED, []
    assert on_two(feed) == [expected] * 2
