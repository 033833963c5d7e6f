"""A rank's connections to the others, by torch.distributed."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cortiq.errors import BackendError
from cortiq.ranks.connections import (
    COMPILE_SECONDS,
    SPIN_SECONDS,
    TIMEOUT_VARIABLE,
    RankLostError,
    all_gather_of,
    distributed,
    first_sentence,
    lost_error,
    place_on_host,
    timeout_seconds,
)
from cortiq.ranks.own_device import gpu_of, why_no_nccl

Tensor = Any
"""A tensor of torch, which is imported where ranks are."""
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

    def make_group(self, ranks: Sequence[int], device: str = "cpu") -> str:
        """Connect some ranks, as all ranks of the world do in one order; return what there is to
        say of it: why GPUs exchange by the host's memory.

        Parameters
        ----------
        device : what this rank computes on. Members that have a GPU each exchange by NCCL.
        """
        members, dist = tuple(ranks), distributed()
        seconds = datetime.timedelta(seconds=self.timeout)
        made = self._groups.get(members)
        if made is None:
            made = RankGroup(self, members, dist.new_group(list(members), seconds, "gloo"))
            self._groups[members] = made
        if len(members) == 1 or not device.startswith("cuda"):
            return ""
        found: list[str] = [""] * self.size
        dist.all_gather_object(found, gpu_of(device))
        why = why_no_nccl({member: found[member] for member in members})
        if not why and made.nccl is None:
            os.environ.setdefault(NCCL_ERRORS, NCCL_CLEANS_UP)
            made.nccl = dist.new_group(list(members), seconds, "nccl")
        return f"{why}: they exchange through the host's memory, slowly" if why else ""

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
        self.lost = self.lost or "this rank has left the others"
        self._groups.clear()
        self._pairs.clear()
        if dist.is_initialized():
            dist.destroy_process_group()


@dataclass
class RankGroup:
    """Ranks that compute one program together.

    Attributes
    ----------
    members : their numbers in the world, ascending.
    handle : their group of gloo. nccl : of NCCL, where each has a GPU of its own.
    """

    world: World
    members: tuple[int, ...]
    handle: Any
    nccl: Any = None

    @property
    def rank(self) -> int:
        """This rank's number within the group."""
        return self.members.index(self.world.rank)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.members)

    def gather(self, part: Tensor) -> Tensor:
        """Return every rank's tensor, [ranks, ...]; see `_exchange`."""
        if self.size == 1:
            return part.contiguous()[None].clone()
        whole = part.new_empty((self.size, *part.shape))
        flat = whole.view(self.size * part.shape[0], *part.shape[1:])
        self._exchange(all_gather_of(distributed()), flat, part.contiguous())
        return whole

    def add(self, bits: Tensor) -> Tensor:
        """Return the sum of every rank's tensor of int32; see `_exchange`."""
        total = bits.clone()
        if self.size > 1:
            self._exchange(distributed().all_reduce, total)
        return total

    def launches(self, device: str) -> bool:
        """Check whether exchanges on a device are launched: by NCCL, or on the CPU, as calls."""
        return device == "cpu" or self.nccl is not None

    def worst(self, flags: Tensor) -> Tensor:
        """Return the largest of every rank's flags, int32; see `_exchange`."""
        most = flags.clone()
        if self.size > 1:
            dist = distributed()
            self._exchange(partial(dist.all_reduce, op=dist.ReduceOp.MAX), most)
        return most

    def wait(self, event: Any) -> None:
        """Wait for an event of the device: captured exchanges have no timeout of their own.

        Raises
        ------
        RankLostError : it has not happened in time, so that another rank is gone.
        """
        if self.size == 1:
            event.synchronize()
            return
        start = time.monotonic()
        while not event.query():
            waited = time.monotonic() - start
            if waited > self.world.timeout:
                what = f"a step was not done after {self.world.timeout:g} seconds"
                raise self.world.lose(what, ranks=self.members)
            time.sleep(0 if waited < SPIN_SECONDS else SPIN_SECONDS / 50)
        self.world.check(self.members)

    def abort(self) -> None:
        """End exchanges that wait on a GPU for a rank that is gone: nothing else ends those of a
        captured step.
        """
        if self.nccl is not None:
            self.nccl.abort()

    def _exchange(self, together: Callable[..., Any], result: Tensor, *given: Tensor) -> None:
        """Exchange tensors: on GPUs by NCCL, where they are, or copies in the host's memory.

        It does not raise, since kernels call it: after a rank was lost the result means nothing,
        which `any_of` says at the end of the batch.
        """
        try:
            if self.world.why(self.members):
                return
            self.world.exchanges += 1
            tensors = result, *given
            if self._copies(result):
                tensors = tuple(tensor.cpu() for tensor in tensors)
            together(*tensors, group=self.nccl if tensors[0].is_cuda else self.handle)
            if tensors[0] is not result:
                result.copy_(tensors[0])
        except BaseException as error:  # an interrupt, too, is raised where kernels are done
            self.world.lose("an exchange failed", error, self.members)

    def _copies(self, tensor: Tensor) -> bool:
        """Say whether a tensor is exchanged as a copy in the host's memory."""
        return tensor.device.type != "cpu" and self.nccl is None

    def any_of(self, flags: Sequence[bool]) -> Sequence[bool]:
        """Return for each flag whether a rank has set it; see `cortiq.backend.peers.Peers`."""
        import torch

        found = self.gather(torch.tensor([*flags, False], dtype=torch.uint8))
        self.world.check(self.members)
        together: list[bool] = found.amax(dim=0).bool().tolist()
        return together[: len(flags)]
