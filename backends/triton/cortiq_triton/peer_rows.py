"""Parts of rows put together by stores into peers' memory (`peer_memory`).

A program takes one row, or a tile of its columns. It stores what this rank has of it in every
peer's memory, at its place in the whole row, sets a flag there with the number of this exchange
(released to the system), waits until its peers have set theirs here (acquired), and goes on with
the whole row: keeps it, or norms and quantises it. It waits for the same program of its peers only,
and has stored its own part before, so that exchanges of any number of programs end.

Data of two exchanges lie beside each other. The flags of exchange k+1 say that whoever set them has
read what it was sent in exchange k, since its launches follow one another; so nobody overwrites
what another still reads, and no exchange needs a second round of flags.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import triton.language as tl

from cortiq.backend.fuse import NormChain
from cortiq.backend.plan import Step
from cortiq.ir import Node, ops
from cortiq.numerics.contract import F32
from cortiq_triton.fused import WIDEST, WIDEST_NORM, warps_of
from cortiq_triton.language import Tensor, begin, ceil_div, device, kernel, launch, pow2
from cortiq_triton.peer_memory import FLAGS, PROGRAMS, PeerMemory, data_at
from cortiq_triton.row_pieces import store_pieces
from cortiq_triton.rows import Rows, empty_rows
from cortiq_triton.scalar import fold, inverse_root, outside, snapped
from cortiq_triton.steps import Fused

WIDTH = 4096
"""Columns of a program that only keeps rows."""
LOOKS = 1 << 10
"""Polls between two looks at the host's word."""
PLAIN, QUANTISED, NORMED = range(3)
"""Forms of whole rows: kept, quantised, or normed and quantised."""
Columns = tuple[int, int, int]
"""Width of whole rows, a rank's first column, and its count of columns."""
Norm = tuple[float, torch.Tensor | None]
"""An RMSNorm's eps and weight."""


@device
def exchange_number(mine: Tensor, programs: Tensor) -> Tensor:
    """The number of this exchange, which its last program to ask counts up.

    One int64 holds it above the programs that have asked, so that none sees the next number.
    """
    one = tl.full((), 1, tl.int64)
    before = tl.atomic_add(mine, one, sem="acq_rel", scope="gpu")
    if (before & 0xFFFFF) == programs - 1:
        tl.atomic_add(mine, (one << 20) - programs, sem="relaxed", scope="gpu")
    return before >> 20


@device
def wait_for(
    flag: Tensor, number: Tensor, mine: Tensor, addresses: Tensor, most: Tensor,
    SIZE: tl.constexpr, LOOKS: tl.constexpr,
) -> None:  # fmt: skip
    """Wait until a flag says this exchange, or give the peer up: for good, and say so."""
    none = tl.full((), 0, tl.int64)
    stop = tl.load(addresses + SIZE).to(tl.pointer_type(tl.int32))
    left = tl.where(tl.load(mine + 1) != 0, 0, most)
    seen = tl.atomic_add(flag, none, sem="acquire", scope="sys")
    while (seen < number) & (left > 0):
        seen = tl.atomic_add(flag, none, sem="acquire", scope="sys")
        left -= 1
        told = tl.load(stop, mask=left % LOOKS == 0, other=0, volatile=True)
        left = tl.where(told != 0, 0, left)
    if seen < number:
        tl.store(mine + 1, none + 1)
        tl.store(stop, 1)


@device
def floats_of(addresses: Tensor, rank: Tensor, data: Tensor) -> Tensor:
    """Point to a rank's data."""
    return tl.multiple_of((tl.load(addresses + rank) + data).to(tl.pointer_type(tl.float32)), 16)


@kernel
def exchange_rows(
    part: Tensor, weight: Tensor, out: Tensor, high: Tensor, low: Tensor, exponent: Tensor,
    sums: Tensor, faults: Tensor, mine: Tensor, addresses: Tensor, M: Tensor, n: Tensor,
    first: Tensor, own: Tensor, padded: Tensor, room: Tensor, data: Tensor, polls: Tensor,
    one_over_n: Tensor, eps: Tensor, RANK: tl.constexpr, SIZE: tl.constexpr, FLAGS: tl.constexpr,
    PROGRAMS: tl.constexpr, LOOKS: tl.constexpr, END: tl.constexpr, WEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Rows [M, n] of parts, of which `part` [M, own] begins at column `first`."""
    m, tile = tl.program_id(1), tl.program_id(0)
    i = tile * WIDTH + tl.arange(0, WIDTH)
    scale = tl.full((WIDTH,), 1.0, tl.float32)
    if WEIGHT:
        scale = tl.load(weight + i, mask=i < n, other=0.0)
    begin()
    number = exchange_number(mine, tl.num_programs(0) * tl.num_programs(1)) + 1
    place = (number & 1) * room + m.to(tl.int64) * n
    ours = (i >= first) & (i < first + own)
    row = part + m.to(tl.int64) * own - first
    y = tl.load(row + i, mask=ours, other=0.0)
    flag = FLAGS + (number & 1) * (SIZE * PROGRAMS) + m * tl.num_programs(0) + tile
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            tl.store(floats_of(addresses, peer, data) + place + i, y, mask=ours)
    tl.debug_barrier()
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            there = tl.load(addresses + peer).to(tl.pointer_type(tl.int64))
            tl.atomic_xchg(there + flag + RANK * PROGRAMS, number, sem="release", scope="sys")
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            wait_for(mine + flag + peer * PROGRAMS, number, mine, addresses, polls, SIZE, LOOKS)
    tl.debug_barrier()
    sent = floats_of(addresses, RANK, data) + place
    y = tl.where(ours, y, tl.load(sent + i, mask=(i < n) & (ours == 0), other=0.0))
    if END == 0:
        tl.store(out + m.to(tl.int64) * n + i, y, mask=i < n)
    else:
        if END == 2:
            lanes = tl.full((1, 256), 0.0, tl.float32)
            for chunk in tl.static_range(WIDTH // 256):
                column = chunk * 256 + tl.arange(0, 256)
                here = (column >= first) & (column < first + own)
                term = tl.load(row + column, mask=here, other=0.0)
                other = tl.load(sent + column, mask=(column < n) & (here == 0), other=0.0)
                term = tl.where(here, term, other)
                lanes += (term * term)[None, :]
            y = y * tl.reshape(inverse_root(fold(lanes, 1) * one_over_n + eps), (1,))
            if WEIGHT:
                y = y * scale
            bad = tl.max(((i < n) & outside(y)).to(tl.int32), 0)
            tl.store(faults + m, 1, mask=bad > 0)
            y = snapped(y)
        store_pieces(
            (y[None, :],), m + tl.arange(0, 1), M, high, low, exponent, sums, padded, 1, 1, WIDTH
        )


class RowExchange(PeerMemory):
    """Exchanges through peers' memory; see `cortiq.backend.peers.PeerRows`."""

    def kernel(self, other: Callable[..., Any]) -> GatheredRows:
        """Return the kernel that puts parts of rows together; `other` does what this does not."""
        return GatheredRows(self, other)

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """Return every rank's numbers of 32 bits, [ranks, ...]."""
        flat = part.contiguous().view(torch.float32).view(1, -1)
        faults, each = torch.zeros(1, dtype=torch.int32, device=part.device), self.room // self.size
        pieces = []
        for start in range(0, flat.shape[1], each):
            own = flat[:, start : start + each]
            count = own.shape[1]
            out = torch.empty((1, self.size * count), device=part.device)
            self.exchange((out.shape[1], self.rank * count, count), own, faults, out=out)
            pieces.append(out.view(self.size, count))
        whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)
        return whole.view(part.dtype).view(self.size, *part.shape)

    def exchange(
        self, columns: Columns, part: torch.Tensor, faults: torch.Tensor, out: Any = None,
        rows: Rows | None = None, norm: Norm | None = None,
    ) -> None:  # fmt: skip
        """Exchange as many rows at once as find room: kept as `out`, or quantised as `rows`."""
        n, _, own = columns
        width = max(256, pow2(n)) if rows is not None else min(WIDTH, max(256, pow2(n)))
        each = max(1, min(self.room // n, PROGRAMS // ceil_div(n, width)))
        given = part.reshape(len(part), own)
        for start in range(0, len(part), each):
            cut = slice(start, start + each)
            kept = given if out is None else out[cut]
            planes = None if rows is None else rows.take(cut)
            self._launch(columns, given[cut].contiguous(), faults[cut], kept, planes, norm, width)

    def _launch(
        self, columns: Columns, part: torch.Tensor, faults: torch.Tensor, out: torch.Tensor,
        rows: Rows | None, norm: Norm | None, width: int,
    ) -> None:  # fmt: skip
        count, n = len(part), columns[0]
        eps, weight = norm or (0.0, None)
        end = PLAIN if rows is None else QUANTISED if norm is None else NORMED
        planes: Sequence[torch.Tensor] = [faults] * 4 if rows is None else rows[:4]
        launch(
            exchange_rows, (ceil_div(n, width), count), part, part if weight is None else weight,
            out, *planes, faults, self.words, self.addresses, count, *columns,
            0 if rows is None else rows.high.shape[-1], self.room, data_at(self.size), self.polls,
            float(F32(1) / F32(n)), float(F32(eps)), RANK=self.rank, SIZE=self.size,
            FLAGS=FLAGS // 8, PROGRAMS=PROGRAMS, LOOKS=LOOKS, END=end, WEIGHT=weight is not None,
            WIDTH=width, warps=4 if rows is None else warps_of(n), early=True,
        )  # fmt: skip


class GatheredRows:
    """Kernel of the operator by which ranks put their parts of rows together.

    Attributes
    ----------
    peers : through whose memory. other : the kernel of parts that are not neighbouring columns.
    """

    def __init__(self, peers: RowExchange, other: Callable[..., Any]) -> None:
        self.peers, self.other = peers, other

    def columns(self, op: Any) -> Columns | None:
        """Return how wide rows are, this rank's first column and how many it has; None where this
        is not the kernel.
        """
        pieces, inner = op.split.pieces(self.peers.rank), op.inner
        width = op.split.length * inner
        if op.split.axis != 0 or len(pieces) != 1 or width > self.peers.room:
            return None
        ((start, stop),) = pieces
        return width, start * inner, (stop - start) * inner

    def __call__(self, call: Any, part: torch.Tensor) -> torch.Tensor:
        """Return whole rows."""
        columns = self.columns(call.op)
        if columns is None:
            found: torch.Tensor = self.other(call, part)
            return found
        out = torch.empty((len(part), columns[0]), device=part.device)
        self.peers.exchange(columns, part, call.faults, out=out)
        return out.view(len(part), *call.op.shape)

    def quantised(self, op: Any, eps: float | None) -> Callable[..., Rows] | None:
        """Return the kernel of whole rows, normed if there is an eps, and quantised; None where
        they are too wide.
        """
        columns = self.columns(op)
        if columns is None or columns[0] > (WIDEST if eps is None else WIDEST_NORM):
            return None

        def kernel(call: Any, part: torch.Tensor) -> Rows:
            rows = empty_rows((len(part),), columns[0], part.device)
            norm = None if eps is None else (eps, call.weights.get("weight"))
            self.peers.exchange(columns, part, call.faults, rows=rows, norm=norm)
            return rows

        return kernel


def with_exchanges(steps: list[Step], exposed: Collection[str]) -> list[Step]:
    """The steps, with exchanges whose rows are only quantised, or normed before, as one each."""
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.node.inputs:
            readers.setdefault(name, []).append(step)
    found: dict[str, Step | None] = {}
    for step in steps:
        name = step.node.outputs[0] if step.node.outputs else ""
        if not isinstance(step.kernel, GatheredRows) or name in exposed:
            continue
        (*others, reader) = readers.get(name, [step])
        taken = None if others or reader.late != step.late else _together(step, reader)
        if taken is not None:
            found |= {step.node.name: taken, reader.node.name: None}
    kept = (found.get(step.node.name, step) for step in steps)
    return [step for step in kept if step is not None]


def _together(step: Step, reader: Step) -> Step | None:
    """Return the step of an exchange and of what reads it; None if there is none."""
    op: Any = reader.node.op
    chain = op.detail if isinstance(op, Fused) else None
    eps = None
    if isinstance(chain, NormChain) and chain.norm is not None:
        norm: Any = chain.norm.op
        eps = norm.eps
        if chain.out is not None or chain.residual is not None or chain.after is not None:
            return None
        if not isinstance(norm, ops.RMSNorm):
            return None
    elif not isinstance(op, ops.Quantise):
        return None
    kernel = step.kernel.quantised(step.node.op, eps)  # type: ignore[attr-defined]
    if kernel is None or len(step.node.op.shape) != 1:  # type: ignore[attr-defined]
        return None
    said = Fused("Exchange", step.node.op)
    node = Node(step.node.name, said, step.node.inputs, reader.node.outputs)
    return Step(node, kernel, reader.weights, step.late)
