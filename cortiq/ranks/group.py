"""A rank's connections to the others, by torch.distributed."""

from __future__ import annotations

import datetime
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cortiq.errors import BackendError
from cortiq.ranks.connections import (
    COMPILE_SECONDS,
    TIMEOUT_VARIABLE,
    RankLostError,
    distributed,
    first_sentence,
    lost_error,
    timeout_seconds,
)
from cortiq.ranks.own_device import gpu_of, why_no_nccl
from cortiq.ranks.process_groups import GLOO, NCCL, make_group, place_on_host, told
from cortiq.ranks.rank_group import RankGroup
from cortiq.ranks.shared_rows import (
    EXCHANGE_VARIABLE,
    HOST,
    MEMORY,
    OpenRows,
    asked_exchange,
    no_rows,
    shared_rows,
)

NCCL_ERRORS, NCCL_CLEANS_UP = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"
"""Variable, and its value by which PyTorch ends an exchange that hangs, and not the process."""


@dataclass
class World:
    """All ranks, connected.

    Attributes
    ----------
    rank, size : this rank, and how many there are at a time; one that takes the place of a lost one
        has a number of its own, from `size` on. timeout : seconds until one counts as lost.
    ranks_here : how many of them run on this host. rank_here : which of these this one is.
    lost : why this rank cannot go on, once it cannot. gone : other ranks that rank 0 has lost, and
        why; those without them go on. exchanges : how many there were. store : where ranks meet.
    """

    rank: int
    size: int
    timeout: float
    ranks_here: int = 1
    rank_here: int = 0
    lost: str = ""
    gone: dict[int, str] = field(default_factory=dict)
    exchanges: int = 0
    store: Any = None
    _groups: dict[tuple[int, ...], RankGroup] = field(default_factory=dict)
    _pairs: dict[int, Any] = field(default_factory=dict)

    @staticmethod
    def join(
        rank: int,
        size: int,
        address: str | None,
        timeout: float | None = None,
        ranks_here: int = 1,
        rank_here: int | None = None,
    ) -> World:
        """Connect with the other ranks; waits until all are there, however late they start.

        Parameters
        ----------
        address : HOST:PORT where rank 0 listens; None where torchrun's variables say it.
        ranks_here : how many ranks run on this host. rank_here : which of these this one is; None
            where the ranks find out.

        Raises
        ------
        BackendError : they did not all come in time.
        """
        seconds = timeout or timeout_seconds()
        try:
            store = _meeting_place(rank, size, address, seconds)
            if rank_here is None:
                rank_here = place_on_host(store, rank) if ranks_here < size else rank
            world = World(rank, size, seconds, ranks_here, rank_here, store=store)
            for other in range(1, size) if rank == 0 else (rank,):
                world.meet(other)
        except (RuntimeError, ValueError) as error:
            what = f"rank {rank} of {size} did not meet the others at {address}: {error}"
            hint = f"start all ranks within {seconds:g} seconds, or set {TIMEOUT_VARIABLE}"
            raise BackendError(what, hint=hint) from None
        return world

    def meet(self, rank: int) -> None:
        """Connect rank 0 and another one, which both call this; that one may have come later.

        Raises
        ------
        RuntimeError : it did not come in time.
        """
        if self.rank:
            self.store.set(f"came {rank}", "")
        else:
            self.store.wait([f"came {rank}"], datetime.timedelta(seconds=self.timeout))
        seconds = max(self.timeout, COMPILE_SECONDS)
        seat = int(self.rank > 0)
        self._pairs[rank if seat == 0 else 0] = make_group(
            self.store, f"pair {rank}", seat, 2, seconds, GLOO
        )

    @property
    def here(self) -> tuple[int, int]:
        """Return which rank of its host this is, and of how many."""
        return self.rank_here, self.ranks_here

    @property
    def threads(self) -> int:
        """Threads of this rank: its share of the host's cores; 0, all, where it is alone there."""
        if self.ranks_here < 2:
            return 0
        return max(1, (os.cpu_count() or 1) // self.ranks_here)

    def make_group(
        self,
        number: int,
        ranks: Sequence[int],
        device: str = "cpu",
        open_rows: OpenRows = no_rows,
    ) -> str:
        """Connect some ranks, as all of these do in one order; return what there is to say of it:
        why GPUs exchange by the host's memory.

        Parameters
        ----------
        number : of this call, the same on all of them. device : what this rank computes on.
        open_rows : makes its memory that peers write to.

        Raises
        ------
        BackendError : ranks cannot exchange as the environment says.
        """
        members = tuple(ranks)
        made = self._groups.get(members)
        if made is None:
            made = RankGroup(self, members, None)
            if made.size > 1:
                made.handle = self._connect(number, made, GLOO)
            self._groups[members] = made
        way, gpus = asked_exchange(), device.startswith("cuda")
        if len(members) == 1 or (not gpus and way != MEMORY) or way == HOST:
            return ""
        ask = partial(told, made.handle)
        if way == MEMORY:
            if made.rows is None:
                make = partial(open_rows, device, made.rank, made.size, self.timeout)
                made.rows, why = shared_rows(make, ask)
                if why:
                    raise BackendError(f"ranks share no memory: {why}", where=EXCHANGE_VARIABLE)
            return ""
        if why := why_no_nccl(dict(zip(members, ask(gpu_of(device)), strict=True))):
            return f"{why}: they exchange through the host's memory, slowly"
        if made.nccl is None:
            os.environ.setdefault(NCCL_ERRORS, NCCL_CLEANS_UP)
            made.nccl = self._connect(number, made, NCCL)
        return ""

    def _connect(self, number: int, made: RankGroup, way: str) -> Any:
        name = f"{way} group {number}"
        return make_group(self.store, name, made.rank, made.size, self.timeout, way)

    def pair(self, rank: int) -> Any:
        """Return the group of rank 0 and another one: gloo closes whole groups after a timeout."""
        return self._pairs[rank]

    def group(self, ranks: Sequence[int]) -> RankGroup:
        """Return the group of these ranks, which was made."""
        return self._groups[tuple(ranks)]

    def lose(
        self, what: str, error: BaseException | None = None, ranks: Sequence[int] = ()
    ) -> RankLostError:
        """Note that ranks are gone, end what waits for them, and return the error that says so.

        Parameters
        ----------
        what : what happened. error : what torch.distributed, or a kernel, raised about it.
        ranks : those that are gone, of which only rank 0 can do without; none: all are.
        """
        reason = f": {first_sentence(error)}" if error is not None else ""
        said = f"the connection between the devices broke: {what}{reason}"
        others = [rank for rank in ranks if rank != self.rank]
        if self.rank == 0 and others:
            self.gone = dict.fromkeys(others, said) | self.gone
        else:
            self.lost = self.lost or said
        for members, group in list(self._groups.items()):
            if self.why(members):
                group.abort()
        return lost_error(self.why(ranks))

    def why(self, ranks: Sequence[int]) -> str:
        """Return why some ranks cannot compute together; empty if they can."""
        return self.lost or next((self.gone[rank] for rank in ranks if rank in self.gone), "")

    def check(self, ranks: Sequence[int]) -> None:
        """Raise the error of a lost rank, if one of these was lost."""
        if why := self.why(ranks):
            raise lost_error(why)

    @property
    def living(self) -> list[int]:
        """Ranks that rank 0 reaches, itself the first."""
        return [rank for rank in (0, *sorted(self._pairs)) if rank not in self.gone]

    def forget(self, ranks: Collection[int]) -> None:
        """Close the groups of ranks that are gone."""
        for members in [members for members in self._groups if not {*members}.isdisjoint(ranks)]:
            self._groups.pop(members).close()
        for rank in ranks:
            self._pairs.pop(rank, None)

    def leave(self) -> None:
        """Close all connections: ranks that wait for this one see at once that it is gone."""
        for group in self._groups.values():
            if self.why(group.members):
                group.abort()
            group.close()
        self.lost = self.lost or "this rank has left the others"
        self._groups.clear()
        self._pairs.clear()


def _meeting_place(rank: int, size: int, address: str | None, seconds: float) -> Any:
    """Return the store by which ranks find one another; rank 0 keeps it, and waits for the others.

    Parameters
    ----------
    address : HOST:PORT where rank 0 listens; None where torchrun's variables say it.
    """
    dist, wait = distributed(), datetime.timedelta(seconds=seconds)
    if address is None:
        found = next(dist.rendezvous("env://", rank, size, timeout=wait))[0]
        return dist.PrefixStore("cortiq", found)
    host, _, port = address.rpartition(":")
    first = size if rank < size else None
    return dist.TCPStore(host, int(port), first, rank == 0, wait)
