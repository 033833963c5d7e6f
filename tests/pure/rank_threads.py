"""Programs of ranks, run by threads that exchange in memory."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from cortiq.backend import Backend, Batch, CompileOptions, Digest, Row, Status
from cortiq.backend.compiling import CheckedWeights, compile_checked
from cortiq.ir import Program
from cortiq.numerics.layouts import Weight
from cortiq.ranks.exchange import exchange_kernels
from cortiq.ranks.local_program import local_program
from cortiq.ranks.local_weights import LocalWeights

CHUNKS = (5, 1, 1)
IDS = [(37 * n + 11) % 60 for n in range(sum(CHUNKS))]
Streams = list[list[tuple[int, ...]]]
Feed = Callable[[Any, Program], Streams]


class Table:
    """Where threads lay their parts, and wait for one another."""

    def __init__(self, ranks: int) -> None:
        self.parts: list[Any] = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=60)


class Seat:
    """One thread's place at the table; see `cortiq.ranks.exchange.Exchange`."""

    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank, self.size = table, rank, len(table.parts)

    def gather(self, part: Any) -> Any:
        """Return all parts."""
        self.table.parts[self.rank] = part
        self.table.barrier.wait()
        whole = torch.stack(self.table.parts)
        self.table.barrier.wait()
        return whole

    def add(self, bits: Any) -> Any:
        """Return the sum of all arrays."""
        return self.gather(bits).sum(dim=0, dtype=torch.int32)


def streams(executable: Any, program: Program) -> Streams:
    """Return the digests of hidden states and logits of every row, fed in chunks."""
    state, done, found = executable.open(64), 0, []
    wants = tuple(Digest(name) for name in ("hidden", "logits") if name in program.trunk.values)
    for count in CHUNKS:
        rows = [Row(state, at, IDS[at], wants) for at in range(done, done + count)]
        result = executable.forward(Batch(rows)).result()
        assert result.outcomes[state].status is Status.COMPLETED
        found += [[tuple(row[want]) for want in wants] for row in result.rows]
        done += count
    return found


def by_ranks(
    backend: Backend,
    program: Program,
    weights: Mapping[str, Weight],
    ranks: int,
    by_expert: bool = False,
    feed: Feed = streams,
) -> Sequence[Streams]:
    """Return the streams that each rank computes."""
    table, found = Table(ranks), list[Any]([None] * ranks)

    def work(rank: int) -> None:
        try:
            own: Any = copy.copy(backend)
            local = local_program(program, rank, ranks, by_expert)
            parts = LocalWeights(weights, tuple(local.program.weights), local.cuts)
            tables = {name: parts[name] for name in local.tables}
            own.given = {**own.given, **exchange_kernels(own, Seat(table, rank), tables)}
            checked = CheckedWeights(local.program, parts)
            made = compile_checked(own, local.program, checked, CompileOptions(threads=1))
            found[rank] = feed(made, program)
            made.close()
        except BaseException as error:
            found[rank] = error
            table.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found
