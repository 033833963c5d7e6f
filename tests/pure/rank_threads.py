"""Programs of ranks, run by threads that exchange in memory."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from cortiq.backend import Backend, Batch, CompileOptions, Digest, Kernel, Row, Status
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
    """Hold the parts that threads lay down, and wait for one another.

    One computes at a time, until it waits: Triton's interpreter is for one thread.
    """

    def __init__(self, ranks: int) -> None:
        self.parts: list[Any] = [None] * ranks
        self.barrier, self.turn = threading.Barrier(ranks, timeout=60), threading.Lock()

    def meet(self) -> None:
        """Wait for the others, while one of them computes."""
        self.turn.release()
        try:
            self.barrier.wait()
        finally:
            self.turn.acquire()


class Seat:
    """One thread's place at the table; see `cortiq.ranks.exchange.Exchange` and
    `cortiq.backend.peers.Peers`.
    """

    rows = None

    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank, self.size = table, rank, len(table.parts)

    def gather(self, part: Any) -> Any:
        """Return all parts."""
        self.table.parts[self.rank] = part
        self.table.meet()
        whole = torch.stack(self.table.parts)
        self.table.meet()
        return whole

    def add(self, bits: Any) -> Any:
        """Return the sum of all arrays."""
        return self.gather(bits).sum(dim=0, dtype=torch.int32)

    def any_of(self, flags: Sequence[bool]) -> Sequence[bool]:
        """Return for each flag whether a rank has set it."""
        found: list[bool] = self.gather(torch.tensor(flags, dtype=torch.bool)).any(dim=0).tolist()
        return found

    def launches(self, device: str) -> bool:
        """Return True: exchanges are calls."""
        return True

    def worst(self, flags: Any) -> Any:
        """Return the largest of all flags."""
        return self.gather(flags).amax(dim=0)

    def wait(self, event: Any) -> None:
        """Return at once: a call that was made is done."""
        assert event.query()


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
    spoil: Callable[[int, dict[Any, Kernel]], Any] = lambda rank, kernels: None,
    **extra: Any,
) -> Sequence[Streams]:
    """Return the streams that each rank computes.

    Parameters
    ----------
    spoil : changes kernels of a rank. extra : options of compiling.
    """
    table, found = Table(ranks), list[Any]([None] * ranks)

    def work(rank: int) -> None:
        table.turn.acquire()
        try:
            own: Any = copy.copy(backend)
            local = local_program(program, rank, ranks, by_expert)
            parts = LocalWeights(weights, tuple(local.program.weights), local.cuts)
            tables = {name: parts[name] for name in local.tables}
            seat = Seat(table, rank)
            own.given = {**own.given, **exchange_kernels(own, seat, tables)}
            spoil(rank, own.given)
            checked = CheckedWeights(local.program, parts)
            options = CompileOptions(threads=1, peers=seat, extra=extra)
            made = compile_checked(own, local.program, checked, options)
            found[rank] = feed(made, program)
            made.close()
        except BaseException as error:
            found[rank] = error
            table.barrier.abort()
        finally:
            table.turn.release()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found
