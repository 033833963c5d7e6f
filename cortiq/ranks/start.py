"""Starting ranks: processes on this host, or those that torchrun has started."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cortiq.errors import BackendError, OptionError
from cortiq.ranks.driver import Driver, follow
from cortiq.ranks.group import World
from cortiq.ranks.member import FindBackend, Member, OpenWeights

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets."""
FOLLOWER = "cortiq.model.follower"
"""The module that a process of this host runs as a rank: `python -m`, rank, size, address, seat."""
INTERFACE, LOOPBACK = "GLOO_SOCKET_IFNAME", "lo"
MOST_HERE = 64
"""Ranks that one host is asked to start at most: each is a process with a model of its own."""
MOST_ANYWHERE = 1024
"""Ranks of several hosts."""
END_SECONDS = 10.0
"""Seconds that a rank may take to end before it is killed."""


@dataclass(frozen=True)
class TorchrunRank:
    """A process of torchrun's, as its variables say."""

    rank: int
    size: int
    ranks_here: int
    rank_here: int

    @property
    def hosts(self) -> int:
        """Number of hosts, if all have as many ranks."""
        return max(1, self.size // max(1, self.ranks_here))


def launched(environment: Mapping[str, str] = os.environ) -> TorchrunRank | None:
    """Return what torchrun says; None where it did not start this process.

    Raises
    ------
    BackendError : its variables are not what it sets.
    """
    if not all(environment.get(name) for name in LAUNCHED):
        return None
    try:
        rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        here = int(environment.get("LOCAL_WORLD_SIZE", "1"))
        place = int(environment.get("LOCAL_RANK", str(rank % max(1, here))))
    except ValueError:
        what = "one of RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE is no number"
        raise BackendError(what, hint="start the ranks by torchrun") from None
    return TorchrunRank(rank, size, here, place) if size > 1 else None


def device_count(devices: int, most: int = MOST_HERE) -> int:
    """Return how many ranks there are to be; 0 stands for what torchrun started, or one.

    Parameters
    ----------
    most : that cortiq itself may start.

    Raises
    ------
    OptionError : there are to be more, or torchrun started another number.
    """
    launch = launched()
    if launch is None:
        if devices > most:
            hint = f"name at most {most}, or start the ranks by torchrun"
            raise OptionError("devices", f"is {devices}, and {most} can be started", hint=hint)
        return devices or 1
    if devices not in (0, launch.size):
        what = f"is {devices}, and torchrun started {launch.size} ranks"
        raise OptionError("devices", what, hint="leave it out, or name that number")
    return launch.size


@dataclass
class Ranks:
    """Ranks that were started, and rank 0's hold on them.

    Attributes
    ----------
    hosts : on how many hosts they run. processes : those that were started here, by their seats.
    end : ends what else was started, once rank 0 has told it to.
    start_one : starts a process with a number, for a seat; None where single ones cannot be.
    """

    driver: Driver
    hosts: int = 1
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    end: Callable[[], None] = lambda: None
    start_one: Callable[[int, int], subprocess.Popen[bytes]] | None = None

    def renew(self) -> bool:
        """Start ranks in place of those that are gone; return False if that cannot be.

        The others keep what they have, but for what they shared with a rank that is gone.

        Raises
        ------
        BackendError : one cannot be started, or does not come.
        """
        lost, start = self.driver.look(), self.start_one
        if self.driver.world.lost or (lost and start is None):
            return False
        if lost:
            self.driver.forget()
        for seat in lost:
            before = self.processes[seat - 1]
            before.kill()
            before.wait()
            self.driver.replace(seat, partial(self._seat, seat))
        return True

    def _seat(self, seat: int, rank: int) -> None:
        assert self.start_one is not None
        self.processes[seat - 1] = self.start_one(rank, seat)

    def close(self) -> None:
        """End all ranks; one that does not end is killed."""
        self.driver.close()
        for process in self.processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.end()


def start_ranks(
    count: int, find_backend: FindBackend, open_weights: OpenWeights, files: Sequence[Any] = ()
) -> Ranks:
    """Start ranks, or meet those that torchrun started; in a rank of these but rank 0, work.

    Parameters
    ----------
    files : plugins that started ranks load; those of torchrun's have them by their own command.

    Raises
    ------
    SystemExit : this process was a rank, and rank 0 has ended it.
    BackendError : the ranks did not meet.
    """
    launch = launched()
    if launch is None:
        return _start_here(count, find_backend, open_weights, files)
    here = {"ranks_here": launch.ranks_here, "rank_here": launch.rank_here}
    world = World.join(launch.rank, launch.size, None, **here)
    member = Member(world, find_backend, open_weights)
    if launch.rank:
        follow(member)
        raise SystemExit(0)
    return Ranks(Driver(member), launch.hosts)


def _start_here(
    count: int, find_backend: FindBackend, open_weights: OpenWeights, files: Sequence[Any]
) -> Ranks:
    os.environ.setdefault(INTERFACE, LOOPBACK)
    address = f"127.0.0.1:{free_port()}"
    processes: list[subprocess.Popen[bytes]] = []

    def start_one(rank: int, seat: int) -> subprocess.Popen[bytes]:
        return start_follower(rank, count, address, seat, files)

    try:
        for rank in range(1, count):
            processes.append(start_one(rank, rank))
        world = World.join(0, count, address, ranks_here=count)
    except BaseException:
        for process in processes:
            process.kill()
            process.wait()
        raise
    driver = Driver(Member(world, find_backend, open_weights))
    return Ranks(driver, 1, processes, start_one=start_one)


def start_follower(
    rank: int, count: int, address: str, seat: int, files: Sequence[Any] = ()
) -> subprocess.Popen[bytes]:
    """Start a rank on this host, which ends when rank 0 does; BackendError if it cannot be.

    Parameters
    ----------
    seat : its place among the ranks of this host.
    """
    paths = map(os.path.abspath, files)
    command = [sys.executable, "-m", FOLLOWER, str(rank), str(count), address, str(seat), *paths]
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    except OSError as error:
        what = f"rank {rank} of {count} cannot be started: {error.strerror}"
        raise BackendError(what, hint="name fewer: devices=2, --devices 2") from error


def free_port() -> int:
    """Return a port of this host that nobody listens at now."""
    with contextlib.closing(socket.socket()) as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]
