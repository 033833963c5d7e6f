"""A rank's connections to the others, by torch.distributed."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
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
    place_on_host,
    timeout_seconds,
)
from cortiq.ranks.own_device import gpu_of, why_no_nccl
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
    rank, size : this rank, and how many there are. timeout : seconds until one counts as lost.
    ranks_here : how many of them run on this host. rank_here : which of these this one is.
    lost : why this rank cannot go on, once it cannot. gone : other ranks that rank 0 has lost, and
        why; those without them go on. exchanges : how many there were.
    """

    rank: int
    size: int
    timeout: float
    ranks_here: int = 1
    rank_here: int = 0
    lost: str = ""
    gone: dict[int, str] = field(default_factory=dict)
    exchanges: int = 0
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
        dist, seconds = distributed(), timeout or timeout_seconds()
        store = None
        try:
            if address is not None:
                host, _, port = address.rpartition(":")
                meeting = datetime.timedelta(seconds=seconds)
                store = dist.TCPStore(host, int(port), size, rank == 0, meeting)
            wait = datetime.timedelta(seconds=max(seconds, COMPILE_SECONDS))
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=wait)
        except Exception as error:
            what = f"rank {rank} of {size} did not meet the others at {address}: {error}"
            hint = f"start all ranks within {seconds:g} seconds, or set {TIMEOUT_VARIABLE}"
            raise BackendError(what, hint=hint) from None
        if rank_here is None:
            rank_here = place_on_host(rank, size) if ranks_here < size else rank
        world = World(rank, size, seconds, ranks_here, rank_here)
        for other in range(1, size):
            pair = dist.new_group([0, other], wait, "gloo")
            if rank in (0, other):
                world._pairs[0 if rank else other] = pair
        return world

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
        self, ranks: Sequence[int], device: str = "cpu", open_rows: OpenRows = no_rows
    ) -> str:
        """Connect some ranks, as all ranks of the world do in one order; return what there is to
        say of it: why GPUs exchange by the host's memory.

        Parameters
        ----------
        device : what this rank computes on. open_rows : makes its memory that peers write to.

        Raises
        ------
        BackendError : ranks cannot exchange as the environment says.
        """
        members, dist = tuple(ranks), distributed()
        seconds = datetime.timedelta(seconds=self.timeout)
        made = self._groups.get(members)
        if made is None:
            made = RankGroup(self, members, dist.new_group(list(members), seconds, "gloo"))
            self._groups[members] = made
        way, gpus = asked_exchange(), device.startswith("cuda")
        if len(members) == 1 or (not gpus and way != MEMORY) or way == HOST:
            return ""
        if way == MEMORY:
            if why := self._share_rows(made, device, open_rows):
                raise BackendError(f"ranks share no memory: {why}", where=EXCHANGE_VARIABLE)
            return ""
        found = self.told(gpu_of(device))
        if why := why_no_nccl({member: found[member] for member in members}):
            return f"{why}: they exchange through the host's memory, slowly"
        if made.nccl is None:
            os.environ.setdefault(NCCL_ERRORS, NCCL_CLEANS_UP)
            made.nccl = dist.new_group(list(members), seconds, "nccl")
        return ""

    def _share_rows(self, made: RankGroup, device: str, open_rows: OpenRows) -> str:
        """Have members write rows to one another's memory; return why they do not."""
        if made.rows is None:
            seat = made.rank if self.rank in made.members else None
            make = partial(open_rows, device, seat or 0, made.size, self.timeout)
            made.rows, why = shared_rows(None if seat is None else make, made.members, self.told)
            return why
        return ""

    def told(self, said: Any) -> list[Any]:
        """Return what every rank says; all of them call this at once."""
        found: list[Any] = [None] * self.size
        distributed().all_gather_object(found, said)
        return found

    def pair(self, rank: int) -> Any:
        """Return the group of rank 0 and another one: gloo closes whole groups after a timeout."""
        return self._pairs[rank]

    def group(self, ranks: Sequence[int]) -> RankGroup:
        """Return the group of these ranks, which was made."""
        return self._groups[tuple(ranks)]

    def lose(
        self, what: str, error: BaseException | None = None, ranks: Sequence[int] = ()
    ) -> RankLostError:
        """Note that ranks are gone, and return the error that says so.

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
        """Ranks that are not gone."""
        return [rank for rank in range(self.size) if rank not in self.gone]

    def leave(self) -> None:
        """Close all connections: ranks that wait for this one see at once that it is gone."""
        dist = distributed()
        if self.lost or self.gone:
            for group in self._groups.values():
                group.abort()
        for group in self._groups.values():
            group.close()
        self.lost = self.lost or "this rank has left the others"
        self._groups.clear()
        self._pairs.clear()
        if dist.is_initialized():
            dist.destroy_process_group()
