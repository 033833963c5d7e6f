"""The device of a rank, and what it shares it with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from cortiq.backend import Device
from cortiq.errors import BackendError


def own_device(
    there: Sequence[Device], named: str | None, rank_here: int, ranks_here: int
) -> tuple[str, int]:
    """Return a rank's device, and how many ranks of its host share it.

    Ranks of a host take the devices of one kind (what stands before the colon) in turn; the first
    takes the one that is named, or a backend's first.
    """
    names = [device.name for device in there]
    first = names[0] if named is None else named
    alike = [name for name in names if name.partition(":")[0] == first.partition(":")[0]]
    if first not in alike:
        there_are = ", ".join(names)
        raise BackendError(f"there is no device {first!r}", hint=f"There are {there_are}")
    mine = (alike.index(first) + rank_here) % len(alike)
    return alike[mine], len(range(rank_here % len(alike), ranks_here, len(alike)))


def use_gpu(device: str) -> None:
    """Launch what this thread launches on a GPU."""
    import torch

    torch.cuda.set_device(device)


def free_memory(device: str) -> int:
    """Return the bytes that a GPU, or the host, has free."""
    if device.startswith("cuda"):
        import torch

        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def gpu_of(device: str) -> str:
    """Return what names a GPU everywhere; nothing where NCCL is not there."""
    import torch
    import torch.distributed

    if not torch.distributed.is_nccl_available():
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def why_no_nccl(gpus: Mapping[int, str]) -> str:
    """Say why ranks do not exchange by NCCL; empty if they do.

    Parameters
    ----------
    gpus : what `gpu_of` says on each of them.
    """
    without = [rank for rank, gpu in gpus.items() if not gpu]
    if without:
        return f"PyTorch was built without NCCL on ranks {without}"
    for gpu in gpus.values():
        sharing = [rank for rank, other in gpus.items() if other == gpu]
        if len(sharing) > 1:
            return f"ranks {sharing} share a GPU, which NCCL does not take"
    return ""
