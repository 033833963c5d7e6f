"""Exchanges on a GPU that wait for a rank which is gone: ended, with our error, by whoever notices.

A communicator stands for NCCL's: what waits for it goes on only once it is aborted.
"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="ranks are connected by PyTorch")

import torch

from cortiq.ranks import rank_group
from cortiq.ranks.connections import RankLostError
from cortiq.ranks.driver import Driver, follow
from cortiq.ranks.group import World
from cortiq.ranks.member import Member
from cortiq.ranks.rank_group import RankGroup

TIMEOUT = 0.3
MEMBERS = (0, 1)


class Communicator:
    """Stands for NCCL's; `hangs` says that even its end does not come back."""

    def __init__(self, hangs: bool = False) -> None:
        self.hangs, self.aborts, self.shutdowns = hangs, 0, 0
        self.ended = threading.Event()

    def abort(self) -> None:
        """End what waits."""
        self.aborts += 1
        self.ended.set()
        if self.hangs:
            threading.Event().wait(60)
        raise RuntimeError("the communicator was aborted already")

    def shutdown(self) -> None:
        """End when nothing waits."""
        assert not self.ended.is_set()
        self.shutdowns += 1


class Pair:
    """Stands for the connection with a rank that hangs: it takes commands and never answers."""

    def rank(self) -> int:
        return 0

    def send(self, *given: Any) -> Any:
        return SimpleNamespace(wait=lambda seconds: None)

    def recv(self, *given: Any) -> Any:
        def wait(seconds: Any) -> None:
            raise RuntimeError(f"Timed out waiting {seconds} for recv operation")

        return SimpleNamespace(wait=wait)


class Waiting:
    """Stands for an executable with a captured step, whose exchange waits for the other rank."""

    asynchronous = False

    def __init__(self, group: RankGroup, ended: threading.Event) -> None:
        self.group, self.ended, self.closed = group, ended, False

    def forward(self, batch: Any) -> Any:
        self.group.wait(SimpleNamespace(query=self.ended.is_set))

    def close(self) -> None:
        """Free memory, for which a device first ends what was launched."""
        assert self.ended.wait(5)
        self.closed = True


def world_of(rank: int, hangs: bool = False) -> tuple[World, RankGroup, Communicator]:
    """Return a rank of two that exchange by NCCL."""
    world, nccl = World(rank, 2, TIMEOUT), Communicator(hangs)
    group = world._groups[MEMBERS] = RankGroup(world, MEMBERS, None, nccl)
    world._pairs[1 - rank] = Pair()
    return world, group, nccl


def member_of(world: World, executable: Any) -> Member:
    member = Member(world, lambda name: None, lambda source: {})  # type: ignore[arg-type,return-value]
    member._executables[0], member._members[0], member._splits[0] = executable, MEMBERS, {}
    return member


@pytest.mark.parametrize("hangs", [False, True])
def test_a_step_that_waits_is_ended(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On rank 0, which then gives the memory back without waiting for the GPU."""
    monkeypatch.setattr(rank_group, "END_SECONDS", 0.2)
    world, group, nccl = world_of(0, hangs)
    executable = Waiting(group, nccl.ended)
    driver = Driver(member_of(world, executable))
    start = time.monotonic()
    with pytest.raises(RankLostError, match="a step was not done"):
        driver.ask(MEMBERS, ("forward", 0, "trunk", [], []))
    assert time.monotonic() - start < 20
    assert (nccl.aborts, world.lost, [*world.gone]) == (1, "", [1])
    with pytest.raises(RankLostError):
        driver.ask(MEMBERS, ("forward", 0, "trunk", [], []))
    driver.ask((0,), ("forget", [1]))
    assert executable.closed and not world._groups
    driver.close()
    assert nccl.aborts == 1


def test_a_rank_that_follows_ends_what_waits_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process ends with the error, which closes the connection that rank 0 listens at."""
    world, group, nccl = world_of(1)
    commands = [("forward", 0, "trunk", [], [])]
    monkeypatch.setattr("cortiq.ranks.driver.receive", lambda world, rank: commands.pop())
    with pytest.raises(RankLostError, match="a step was not done"):
        follow(member_of(world, Waiting(group, nccl.ended)))
    assert nccl.aborts == 1 and not world._groups and not world._pairs


def test_what_rank_0_hears_elsewhere_ends_what_waits() -> None:
    """A rank that is missed between two batches: the step that is under way does not wait on."""
    world, group, nccl = world_of(0)
    waiting = threading.Thread(target=nccl.ended.wait, args=(60,))
    waiting.start()
    world.timeout = 60
    driver = Driver(member_of(world, None))
    assert driver.look() == [1]
    waiting.join(20)
    assert not waiting.is_alive() and group.aborted
    with pytest.raises(RankLostError, match="rank 1 is gone or hangs"):
        group.wait(SimpleNamespace(query=lambda: True))
    driver.member._executables.clear()
    driver.close()


def test_a_rank_of_another_group_ends_nothing_here() -> None:
    """Replicas go on: the group without the lost rank keeps its communicator."""
    world, group, nccl = world_of(0)
    other = world._groups[2, 3] = RankGroup(world, (2, 3), None, Communicator())
    world.lose("rank 3 is gone", ranks=(3,))
    assert (group.aborted, nccl.aborts, other.aborted) == (False, 0, True)
    group.wait(SimpleNamespace(query=lambda: True))
    world.leave()
    assert (nccl.aborts, nccl.shutdowns, other.handle) == (0, 1, None)


def test_an_exchange_that_fails_by_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not raise, since kernels call it; the batch's end says our error."""

    def broken(*tensors: Any, group: Any) -> None:
        raise RuntimeError("[rank 0] NCCL communicator was aborted. More about it.")

    made = SimpleNamespace(all_gather_single=broken, all_reduce=broken)
    monkeypatch.setattr(rank_group, "distributed", lambda: made)
    _, group, nccl = world_of(0)
    group.gather(torch.zeros(3))
    assert nccl.aborts == 1
    with pytest.raises(RankLostError, match=r"an exchange failed: NCCL communicator was aborted"):
        group.any_of([False])
