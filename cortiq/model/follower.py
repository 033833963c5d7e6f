"""`python -m cortiq.model.follower RANK SIZE ADDRESS SEAT [FILE...]`: a rank that another process
of this host started, with the plugins of these files.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from cortiq.errors import CortiqError
from cortiq.model.devices import backend_named, weights_of
from cortiq.plugins import check_requested, default_plugins, use_files
from cortiq.ranks.driver import follow
from cortiq.ranks.group import World
from cortiq.ranks.member import Member


def main(arguments: Sequence[str]) -> int:
    """Work for rank 0 until it ends; return the exit status."""
    rank, size, address, seat = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides what an interrupt ends
    return work(rank, size, address, size, arguments[4:], int(seat))


def work(
    rank: int,
    size: int,
    address: str,
    ranks_here: int,
    files: Sequence[str | Path] = (),
    seat: int | None = None,
) -> int:
    """Meet the other ranks and work for rank 0 until it ends; return an exit status.

    Parameters
    ----------
    seat : place among the `ranks_here` of this host; None where the ranks find out.
    """
    try:
        if files:
            use_files(files)
            check_requested(default_plugins())
        world = World.join(rank, size, address, ranks_here=ranks_here, rank_here=seat)
        gc.freeze()  # what was imported stays: no collection walks over it
        follow(Member(world, backend_named, weights_of))
    except CortiqError as error:
        print(f"rank {rank}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
