"""One rank's share of a program on one device, without the other ranks: a bound of what they give.

The rank computes its heads, columns and part of the vocabulary. Where it exchanges, its own part
stands for those of the others: a collective operation among one process, which is captured as
among several, and copies of the part. So steps take what a rank computes and launches; what a link
between devices takes comes on top, and the bits are nobody's.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from cortiq.backend import Backend, CompileOptions
from cortiq.backend.compiling import CheckedWeights, compile_checked
from cortiq.ir import Program
from cortiq.numerics.layouts import Weight
from cortiq.ranks.connections import all_gather_of
from cortiq.ranks.exchange import exchange_kernels
from cortiq.ranks.local_program import local_program
from cortiq.ranks.local_weights import LocalWeights
from cortiq.ranks.start import free_port

Tensor = torch.Tensor
WAYS = ("memory", "collective", "copies")


class LoneRank:
    """Rank 0 of several that are not there; see `cortiq.ranks.exchange.Exchange` and
    `cortiq.backend.peers.Peers`.

    Attributes
    ----------
    collective : whether exchanges are collective operations, too, not copies only.
    rows : memory that it writes to as its own peer, if it exchanges through memory.
    """

    rank = 0

    def __init__(self, size: int, collective: bool, device: str, rows: Any = None) -> None:
        self.size, self.collective, self.rows = size, collective, rows
        if rows is not None:
            rows.mirror()
        if collective and not dist.is_initialized():
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            kind = "nccl" if device.startswith("cuda") else "gloo"
            dist.init_process_group(kind, rank=0, world_size=1)

    def gather(self, part: Tensor) -> Tensor:
        """Return the own part in place of every rank's."""
        if self.rows is not None:
            whole: Tensor = self.rows.gather(part)
            return whole
        whole = part.new_empty((self.size, *part.shape))
        if self.collective:
            all_gather_of(dist)(whole[:1].view(part.shape), part.contiguous())
            whole[1:] = part
        else:
            whole[:] = part
        return whole

    def add(self, bits: Tensor) -> Tensor:
        """Return the own numbers in place of the sum."""
        return self._reduced(bits, dist.ReduceOp.SUM)

    def worst(self, flags: Tensor) -> Tensor:
        """Return the own flags."""
        return self._reduced(flags, dist.ReduceOp.MAX)

    def _reduced(self, numbers: Tensor, how: Any) -> Tensor:
        if self.rows is not None:
            return self.gather(numbers)[0]
        total = numbers.clone()
        if self.collective:
            dist.all_reduce(total, op=how)
        return total

    def any_of(self, flags: Sequence[bool]) -> Sequence[bool]:
        """Return the flags: what agreeing on the host takes is not measured."""
        return flags

    def launches(self, device: str) -> bool:
        """Return True: batches are captured."""
        return True

    def wait(self, event: Any) -> None:
        """Wait for the device."""
        event.synchronize()


def compiled_shard(
    backend: Backend,
    program: Program,
    weights: Mapping[str, Weight],
    options: CompileOptions,
    ranks: int,
    way: str,
) -> Any:
    """Compile the first rank's share of a program, which exchanges in one of `WAYS`."""
    device = options.device or backend.devices()[0].name
    offered: Any = backend
    rows = offered.peer_rows(device, 0, ranks, 10.0) if way == "memory" else None
    peers = LoneRank(ranks, way == "collective", device, rows)
    local = local_program(program, 0, ranks)
    parts = LocalWeights(weights, tuple(local.program.weights), local.cuts)
    own: Any = copy.copy(backend)
    tables = {name: parts[name] for name in local.tables}
    own.given = {**own.given, **exchange_kernels(own, peers, tables)}
    options = CompileOptions(device=device, threads=options.threads, peers=peers)
    return compile_checked(own, local.program, CheckedWeights(local.program, parts), options)
