"""Ranks that compute one program together, and how they exchange."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from cortiq.backend.peers import PeerRows
from cortiq.ranks.connections import SPIN_SECONDS, RankLostError, all_gather_of, distributed

Tensor = Any
"""A tensor of torch, which is imported where ranks are."""
END_SECONDS = 10.0
"""Seconds that the end of a communicator may take before nobody waits for it."""


class AllRanks(Protocol):
    """All ranks, as far as a group needs them; see `cortiq.ranks.group.World`."""

    rank: int
    timeout: float
    exchanges: int

    def lose(
        self, what: str, error: BaseException | None = None, ranks: Sequence[int] = ()
    ) -> RankLostError:
        """Note that ranks are gone, and return the error that says so."""

    def why(self, ranks: Sequence[int]) -> str:
        """Return why some ranks cannot compute together; empty if they can."""

    def check(self, ranks: Sequence[int]) -> None:
        """Raise the error of a lost rank, if one of these was lost."""


@dataclass
class RankGroup:
    """Ranks that compute one program together.

    Attributes
    ----------
    members : their numbers in the world, in the order of their shares.
    handle : their group of gloo. nccl : of NCCL, where each has a GPU of its own.
    rows : memory that they write rows to, where each has opened that of the others.
    aborted : whether its exchanges were ended.
    """

    world: AllRanks
    members: tuple[int, ...]
    handle: Any
    nccl: Any = None
    rows: PeerRows | None = None
    aborted: bool = False

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
        if self._by_rows(part):
            return self.through_rows(part)
        whole = part.new_empty((self.size, *part.shape))
        flat = whole.view(self.size * part.shape[0], *part.shape[1:])
        self._exchange(all_gather_of(distributed()), flat, part.contiguous())
        return whole

    def add(self, bits: Tensor) -> Tensor:
        """Return the sum of every rank's tensor of int32; see `_exchange`."""
        if self._by_rows(bits):
            return self.through_rows(bits).sum(dim=0, dtype=bits.dtype)
        total = bits.clone()
        if self.size > 1:
            self._exchange(distributed().all_reduce, total)
        return total

    def launches(self, device: str) -> bool:
        """Check whether exchanges on a device are launched: by NCCL, or on the CPU, as calls."""
        return device == "cpu" or self.nccl is not None or self.rows is not None

    def worst(self, flags: Tensor) -> Tensor:
        """Return the largest of every rank's flags, int32; see `_exchange`."""
        if self._by_rows(flags):
            return self.through_rows(flags).amax(dim=0)
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
        if self.rows is not None and self.rows.lost:
            raise self.world.lose("rows of another rank did not come in time", ranks=self.members)
        self.world.check(self.members)

    def abort(self) -> None:
        """End exchanges that wait on a GPU for a rank that is gone, once: nothing else ends those
        of a captured step, for which whatever frees the device's memory would wait.
        """
        before, self.aborted = self.aborted, True
        if self.rows is not None:
            self.rows.give_up()
        if self.nccl is not None and not before:
            _end(self.nccl.abort)

    def close(self) -> None:
        """Give memory back that the ranks share, and close what connects them."""
        if self.rows is not None:
            self.rows.close()
        if self.nccl is not None and not self.aborted:
            _end(self.nccl.shutdown)
        self.rows = self.handle = self.nccl = None

    def _by_rows(self, tensor: Tensor) -> bool:
        """Check whether a tensor, of numbers of 32 bits, goes through memory that ranks share."""
        shared = self.rows is not None and self.size > 1 and tensor.numel() > 0
        return shared and tensor.element_size() == 4

    def through_rows(self, part: Tensor) -> Tensor:
        """Return every rank's tensor, through memory that they share."""
        assert self.rows is not None
        self.world.exchanges += 1
        return self.rows.gather(part)

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


def _end(how: Callable[[], None]) -> None:
    """Have a communicator end, but do not wait for ever: that may need others."""

    def ended() -> None:
        with suppress(RuntimeError):  # it may have ended by itself meanwhile
            how()

    ending = threading.Thread(target=ended, daemon=True)
    ending.start()
    ending.join(END_SECONDS)
