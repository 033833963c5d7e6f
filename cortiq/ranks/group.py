"""A rank's connections to the others, by torch.distributed."""

from __future__ import annotations

import datetime
import os
import platform
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import BackendError, ExecutableLostError

TIMEOUT_VARIABLE = "CORTIQ_RANK_TIMEOUT"
TIMEOUT_SECONDS = 300.0
"""Seconds that a rank waits for another in a batch before it counts as lost, by default."""
COMPILE_SECONDS = 3600.0
"""Seconds to wait for a command or its answer: preparing a large model's weights takes a while.
A rank whose process ends is missed at once."""


def timeout_seconds() -> float:
    """Return how long a rank waits for another.

    Raises
    ------
    BackendError : the variable is no positive number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text or TIMEOUT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        what = f"{text!r} is no number of seconds above 0"
        raise BackendError(what, where=TIMEOUT_VARIABLE, hint="how long ranks wait for one another")
    return seconds


def distributed() -> Any:
    """Return torch.distributed.

    Raises
    ------
    BackendError : PyTorch is not installed, or was built without it.
    """
    try:
        import torch.distributed as found
    except ImportError:
        what = "several devices need PyTorch, which connects them"
        raise BackendError(what, hint="pip install torch") from None
    if not (found.is_available() and found.is_gloo_available()):
        raise BackendError("this PyTorch was built without torch.distributed, or without gloo")
    return found


class RankLostError(ExecutableLostError):
    """A rank does not answer any more; requests that were under way cannot go on."""


@dataclass
class World:
    """All ranks, connected.

    Attributes
    ----------
    rank, size : this rank, and how many there are. timeout : seconds until one counts as lost.
    ranks_here : how many of them run on this host. rank_here : which of these this one is.
    lost : why the ranks cannot go on, once they cannot. exchanges : how many there were.
    """

    rank: int
    size: int
    timeout: float
    ranks_here: int = 1
    rank_here: int = 0
    lost: str = ""
    exchanges: int = 0
    _groups: dict[tuple[int, ...], Any] = field(default_factory=dict)

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
            rank_here = _place_on_host(rank, size) if ranks_here < size else rank
        return World(rank, size, seconds, ranks_here, rank_here)

    @property
    def threads(self) -> int:
        """Threads of this rank: its share of the host's cores; 0, all, where it is alone there."""
        if self.ranks_here < 2:
            return 0
        return max(1, (os.cpu_count() or 1) // self.ranks_here)

    def group(self, ranks: Sequence[int]) -> RankGroup:
        """Return the group of these ranks; all ranks of the world call this in one order."""
        members, dist = tuple(ranks), distributed()
        if members not in self._groups:
            seconds = datetime.timedelta(seconds=self.timeout)
            self._groups[members] = dist.new_group(list(members), seconds, "gloo")
        return RankGroup(self, members, self._groups[members])

    def lose(self, what: str, error: BaseException | None = None) -> RankLostError:
        """Note that the ranks cannot go on, and return the error that says so.

        Parameters
        ----------
        what : what happened. error : what torch.distributed, or a kernel, raised about it.
        """
        reason = f": {_first_sentence(error)}" if error is not None else ""
        self.lost = self.lost or f"the connection between the devices broke: {what}{reason}"
        return self.error()

    def error(self) -> RankLostError:
        """Return the error of a lost rank."""
        return RankLostError(self.lost, hint="Start all ranks again; no answer was changed by it.")

    def check(self) -> None:
        """Raise the error of a lost rank, if one was lost."""
        if self.lost:
            raise self.error()

    def leave(self) -> None:
        """Close all connections: ranks that wait for this one see at once that it is gone."""
        dist = distributed()
        self.lost = self.lost or "this rank has left the others"
        self._groups.clear()
        if dist.is_initialized():
            dist.destroy_process_group()


def _place_on_host(rank: int, size: int) -> int:
    """Return how many ranks before this one run on its host; all ranks ask at once."""
    hosts: list[str] = [""] * size
    distributed().all_gather_object(hosts, f"{platform.node()} {uuid.getnode()}")
    return hosts[:rank].count(hosts[rank])


def _first_sentence(error: BaseException) -> str:
    """Return what an error says, without the place in its source."""
    said = str(error).strip().split("\n")[0] or type(error).__name__
    return re.sub(r"^\[[^\]]*\]\s*", "", said).split(". ")[0]


@dataclass
class RankGroup:
    """Ranks that compute one program together.

    Attributes
    ----------
    members : their numbers in the world, ascending.
    """

    world: World
    members: tuple[int, ...]
    handle: Any

    @property
    def rank(self) -> int:
        """This rank's number within the group."""
        return self.members.index(self.world.rank)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.members)

    def gather(self, part: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return every rank's array, [ranks, ...]; after a rank was lost, zeros.

        It does not raise, since kernels call it; `any_of` does at the end of the batch.
        """
        whole = np.zeros((self.size, *part.shape), part.dtype)
        try:
            self._gather(part, whole)
        except BaseException as error:  # an interrupt, too, is raised where kernels are done
            self.world.lose("an exchange failed", error)
        return whole

    def _gather(self, part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> None:
        if self.world.lost:
            return
        self.world.exchanges += 1
        if self.size == 1:
            whole[0] = part
            return
        import torch

        parts = [torch.from_numpy(one) for one in whole.reshape(self.size, -1)]
        own = torch.from_numpy(np.ascontiguousarray(part).reshape(-1))
        distributed().all_gather(parts, own, group=self.handle)

    def add(self, bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the sum of every rank's array; it does not raise, as `gather`."""
        total = np.ascontiguousarray(bits)
        try:
            if not self.world.lost:
                self.world.exchanges += 1
                self._add(total)
        except BaseException as error:
            self.world.lose("an exchange failed", error)
        return total

    def _add(self, total: npt.NDArray[np.int32]) -> None:
        if self.size > 1:
            import torch

            distributed().all_reduce(torch.from_numpy(total.reshape(-1)), group=self.handle)

    def any_of(self, flags: Sequence[bool]) -> Sequence[bool]:
        """Return for each flag whether a rank has set it; see `cortiq.backend.peers.Peers`."""
        found = self.gather(np.array([*flags, False], np.uint8).astype(np.float32))
        self.world.check()
        together: npt.NDArray[np.bool_] = np.any(found != 0, axis=0)
        return together[: len(flags)].tolist()
