"""Groups of torch.distributed that their members alone make, by a store where they meet.

`new_group` is for ranks that were there from the beginning: all of them have to call it, also those
that are gone. These are made of the same parts, so that a rank may come later.
"""

from __future__ import annotations

import datetime
from typing import Any

from cortiq.ranks.connections import distributed, this_host

GLOO, NCCL = "gloo", "nccl"


def make_group(store: Any, name: str, seat: int, size: int, seconds: float, way: str) -> Any:
    """Return a group, once all of its members have called this with a name that no other has.

    Parameters
    ----------
    store : where they find one another. seat : this member, of `size`. seconds : that an exchange
        may take. way : `GLOO`, or `NCCL` between GPUs.
    """
    import torch

    dist, wait = distributed(), datetime.timedelta(seconds=seconds)
    meeting = dist.PrefixStore(name, store)
    made = dist.ProcessGroup(meeting, seat, size)
    if way == NCCL:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = wait
        engine = dist.ProcessGroupNCCL(meeting, seat, size, options)
        kind, device = dist.ProcessGroup.BackendType.NCCL, torch.device("cuda")
    else:
        engine = dist.ProcessGroupGloo(meeting, seat, size, wait)
        kind, device = dist.ProcessGroup.BackendType.GLOO, torch.device("cpu")
    made._set_default_backend(kind)
    engine._set_sequence_number_for_group()
    made._register_backend(device, kind, engine)
    return made


def told(group: Any, said: Any) -> list[Any]:
    """Return what every member of a group of gloo says; all of them call this at once."""
    found: list[Any] = [None] * group.size()
    distributed().all_gather_object(found, said, group=group)
    return found


def place_on_host(store: Any, rank: int) -> int:
    """Return how many ranks before this one run on its host; all ranks ask at once."""
    own = this_host()
    store.set(f"host of {rank}", own)
    return [store.get(f"host of {other}").decode() for other in range(rank)].count(own)
