"""Messages between rank 0 and the others: one object at a time, over the connection of the two."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.ranks.connections import COMPILE_SECONDS
from cortiq.ranks.group import World

FIRST_BYTES = 8192
"""Bytes of a message's first part, which most messages fit."""
HEAD_BYTES = 8
"""Of which these hold the message's length."""


def send(world: World, rank: int, message: Any) -> None:
    """Send an object to a rank, which takes it at once if it is one that rank 0 commands: such wait
    for commands. Rank 0 may be at its own share of the work.

    Raises
    ------
    RankLostError : it is not there any more.
    """
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    first = np.zeros(FIRST_BYTES, np.uint8)
    first[:HEAD_BYTES].view(np.int64)[0] = len(data)
    whole = np.frombuffer(data, np.uint8)
    rest = whole[FIRST_BYTES - HEAD_BYTES :]
    first[HEAD_BYTES : HEAD_BYTES + len(whole) - len(rest)] = whole[: len(whole) - len(rest)]
    seconds = COMPILE_SECONDS if world.rank else world.timeout
    _transfer(world, "send", first, rank, seconds)
    if len(rest):
        _transfer(world, "send", rest.copy(), rank)


def receive(world: World, rank: int, seconds: float = COMPILE_SECONDS) -> Any:
    """Wait for an object of a rank; it is one of this program's own, as torch.distributed's are.

    Raises
    ------
    RankLostError : it is not there any more, or has not answered for so many seconds.
    """
    first = np.zeros(FIRST_BYTES, np.uint8)
    _transfer(world, "recv", first, rank, seconds)
    length = int(first[:HEAD_BYTES].view(np.int64)[0])
    data = first[HEAD_BYTES : HEAD_BYTES + length].tobytes()
    if length > len(data):
        rest = np.zeros(length - len(data), np.uint8)
        _transfer(world, "recv", rest, rank, seconds)
        data += rest.tobytes()
    return pickle.loads(data)


def _transfer(
    world: World,
    way: str,
    block: npt.NDArray[np.uint8],
    rank: int,
    seconds: float = COMPILE_SECONDS,
) -> None:
    import torch

    world.check((rank,))
    try:
        pair = world.pair(rank)
        under_way = getattr(pair, way)([torch.from_numpy(block)], 1 - pair.rank(), 0)
        under_way.wait(datetime.timedelta(seconds=seconds))
    except RuntimeError as error:
        raise world.lose(f"rank {rank} is gone or hangs", error, (rank,)) from None
