"""Rows that ranks put together through memory of one another, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

import torch

from cortiq.backend.fuse import NormChain
from cortiq.backend.plan import Step
from cortiq.ir import Node, ops
from cortiq.ranks.exchange import GatherParts
from cortiq.ranks.shares import Split, divided
from cortiq_triton import fused, peer_rows
from cortiq_triton.peer_rows import RowExchange, with_exchanges
from cortiq_triton.rows import RMS, quantise_rows
from cortiq_triton.steps import Fused

ROOM = 1 << 13


@pytest.fixture(params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[list[RowExchange]]:
    """Ranks of this process."""
    made = [RowExchange("cpu", rank, request.param, 1.0, ROOM) for rank in range(request.param)]
    for one in made:
        one.connect([other.handle for other in made])
    yield made
    for one in made:
        one.close()


def together(ranks: list[RowExchange], work: Callable[[RowExchange], Any]) -> list[Any]:
    """Return what each rank computes, one after the other.

    First they store their parts and give the others up at once, then each does it again as if it
    never had. Each has room for the data of two exchanges.

    """
    for one in ranks:
        before = one.words.clone()
        polls, one.polls = one.polls, 0
        work(one)
        assert one.lost == (one is not ranks[-1])
        one.words.copy_(before)
        one.polls, one.stop[0] = polls, 0
    found = [work(one) for one in ranks]
    assert not any(one.lost for one in ranks)
    return found


def operator(width: int, ranks: int, rank: int, inner: int = 1) -> GatherParts:
    """Return the operator of rows of so many columns."""
    shape = (width,) if inner == 1 else (width, inner)
    return GatherParts(shape, Split(0, width, (divided(width, ranks),)), rank)


def rows_of(count: int, width: int) -> Any:
    """Return rows of numbers, zeros of both signs among them."""
    torch.manual_seed(count + width)
    x = torch.randn(count, width) * 3
    x[0, :4] = torch.tensor([0.0, -0.0, 1e-30, -5.0])
    return x


def part_of(x: Any, op: GatherParts) -> Any:
    """Return a rank's columns of whole rows."""
    start, stop = op.split.only(op.rank)
    return x[:, start * op.inner : stop * op.inner].contiguous()


def call(op: Any, count: int, **weights: Any) -> Any:
    """Return what a kernel is called with."""
    faults = torch.zeros(count, dtype=torch.int32)
    return SimpleNamespace(op=op, faults=faults, weights=weights)


@pytest.mark.parametrize(("count", "width", "inner"), [(1, 100, 1), (5, 7, 3), (2, 5000, 1)])
def test_rows_are_whole(ranks: list[RowExchange], count: int, width: int, inner: int) -> None:
    """To the bit, whatever the shares: of one program a row, of several, more than find room."""
    x = rows_of(count, width * inner)

    def work(one: RowExchange) -> Any:
        op = operator(width, one.size, one.rank, inner)
        return one.kernel(None)(call(op, count), part_of(x, op))  # type: ignore[arg-type]

    for _ in range(3):
        for whole in together(ranks, work):
            assert whole.view(count, -1).view(torch.int32).equal(x.view(torch.int32))


@pytest.mark.parametrize(("count", "width"), [(2, 100), (1, 1000)])
@pytest.mark.parametrize("weighted", [None, False, True])
def test_rows_are_quantised(
    ranks: list[RowExchange], count: int, width: int, weighted: bool | None
) -> None:
    """As whole rows are, normed before or not; faults are flagged."""
    x, weight = rows_of(count, width), None
    if weighted:
        weight = torch.rand(width)
        x[:, 5], x[-1, 5], weight[5] = 0.0, 30.0, 2.0**50
    faults, eps = torch.zeros(count, dtype=torch.int32), None if weighted is None else 1e-5
    expected = quantise_rows(x) if eps is None else None
    weights = {} if weight is None else {"weight": weight}
    if eps is not None:
        expected = fused.normed_rows(RMS, x, weights, eps, faults, False)[1]
    assert expected is not None

    def work(one: RowExchange) -> Any:
        op = operator(width, one.size, one.rank)
        given = call(op, count, **weights)
        kernel = one.kernel(lambda: None).quantised(op, eps)
        assert kernel is not None
        return kernel(given, part_of(x, op)), given.faults

    for rows, flags in together(ranks, work):
        assert all(mine.equal(theirs) for mine, theirs in zip(rows[:4], expected[:4], strict=True))
        assert flags.equal(faults)
    assert int(faults.sum()) == (1 if weighted else 0)


def test_numbers_are_gathered_in_pieces(ranks: list[RowExchange]) -> None:
    """Whatever their type and shape, more than find room at once."""
    given = [torch.arange(5000, dtype=torch.int32).view(50, 100) - 5 * n for n in range(3)]
    expected = torch.stack(given[: len(ranks)])
    for whole in together(ranks, lambda one: one.gather(given[one.rank])):
        assert whole.equal(expected)


def test_a_peer_that_does_not_come_is_given_up(ranks: list[RowExchange]) -> None:
    """After a number of polls, and at once from then on; or when the host says so."""
    one, part = ranks[0], torch.zeros(4)
    one.polls = 300
    one.gather(part)
    assert one.lost and int(one.words[1]) == 1
    one.polls = 1 << 30
    one.gather(part)  # would take hours
    one.words[1] = one.stop[0] = 0
    one.give_up()
    one.gather(part)
    assert one.lost


def test_what_is_not_one_stretch_of_columns_goes_another_way(ranks: list[RowExchange]) -> None:
    """Parts of several sections, of a last axis, of rows that find no room."""
    size, rank = len(ranks), ranks[0].rank
    sections = tuple(tuple((start + a, start + b) for a, b in divided(6, size)) for start in (0, 6))
    kernel = ranks[0].kernel(lambda call, part: "other")
    for op in (
        GatherParts((12,), Split(0, 12, sections), rank),
        GatherParts((2, 6), Split(1, 6, (divided(6, size),)), rank),
        operator(2 * ROOM, size, rank),
    ):
        assert kernel(call(op, 1), torch.zeros(1, 1)) == "other"
        assert kernel.quantised(op, None) is None
    wide = operator(peer_rows.WIDEST_NORM + 64, size, rank)
    assert kernel.quantised(wide, 1e-5) is None


WIDE = peer_rows.WIDEST_NORM + 64
NORM = Node("norm", ops.RMSNorm(100, 1e-5), ("whole",), ("normed",), {"weight": "w"})
"""What may follow an exchange, of rows of any width."""


def exchange(exchanger: RowExchange, shape: tuple[int, ...] = (100,), late: bool = False) -> Step:
    """Return the step that puts rows together."""
    op = GatherParts(shape, Split(0, shape[0], (divided(shape[0], 2),)), exchanger.rank)
    kernel = exchanger.kernel(lambda call, part: "other")
    return Step(Node("gather", op, ("part",), ("whole",)), kernel, {}, late)


def reader(what: Any = None, late: bool = False, name: str = "planes") -> Step:
    """Return a step that reads whole rows: it quantises them, or what a chain says."""
    op = ops.Quantise() if what is None else Fused("Norm", what)
    return Step(Node(name, op, ("whole",), (name,)), "own kernel", {"weight": "w"}, late)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("readers", "given", "together"),
    [
        ([reader()], {}, True),
        ([reader(NormChain("whole", norm=NORM, record="planes"))], {}, True),
        ([reader(late=True)], {"late": True}, True),
        ([reader()], {"shape": (WIDE,)}, True),
        ([], {}, False),
        ([reader(), reader(name="others")], {}, False),
        ([reader()], {"late": True}, False),
        ([reader()], {"shape": (10, 10)}, False),
        ([reader(NormChain("whole", norm=NORM, record="planes"))], {"shape": (WIDE,)}, False),
        ([reader(NormChain("whole", norm=NORM, out="normed", record="planes"))], {}, False),
        ([reader(NormChain("whole", "x", norm=NORM, total="sum", record="planes"))], {}, False),
        ([reader(NormChain("whole", after=NORM, norm=NORM, record="planes"))], {}, False),
        ([reader(NormChain("whole", record="planes"))], {}, False),
    ],
)
def test_plans_of_exchanges(readers: list[Step], given: dict[str, Any], together: bool) -> None:
    """An exchange goes with its only reader, at that one's place in the plan; all else stays."""
    one = RowExchange("cpu", 0, 2, 1.0, 1 << 17)
    step, before = exchange(one, **given), reader(name="before")
    before = replace(before, node=replace(before.node, inputs=("x",)))
    steps = [before, step, *readers]
    for exposed, joined in (((), together), (("whole",), False), (("planes",), together)):
        found = with_exchanges(steps, exposed)
        if not joined:
            assert found == steps
            continue
        kept, made = found
        assert kept is before
        assert (made.node.inputs, made.node.outputs) == (("part",), readers[0].node.outputs)
        assert (made.weights, made.late) == (readers[0].weights, step.late)
        assert made.node.op == Fused("Exchange", step.node.op)
    plain = replace(step, kernel="NCCL's")  # type: ignore[arg-type]
    assert with_exchanges([plain, *readers], ()) == [plain, *readers]
    one.close()
