"""Which device each rank takes, and how many of a host share one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cortiq.backend import CompileOptions, Device
from cortiq.ranks.group import RankGroup, World
from cortiq.ranks.member import Member, StagePlan, own_device
from cortiq.ranks.start import launched

GPUS = [Device(f"cuda:{n}", "a GPU") for n in range(4)]
TWO_KINDS = [Device("igpu:0", "of the processor"), *GPUS[:2]]


@pytest.mark.parametrize(
    ("there", "named", "ranks", "taken"),
    [
        (GPUS, None, 4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        (GPUS, "cuda:2", 3, ["cuda:2", "cuda:3", "cuda:0"]),
        (GPUS[:2], None, 3, ["cuda:0", "cuda:1", "cuda:0"]),
        (TWO_KINDS, "cuda:0", 2, ["cuda:0", "cuda:1"]),
        (TWO_KINDS, None, 2, ["igpu:0", "igpu:0"]),
        ([Device("cpu", "cores")], None, 2, ["cpu", "cpu"]),
    ],
)
def test_ranks_take_devices_in_turn(
    there: list[Device], named: str | None, ranks: int, taken: list[str]
) -> None:
    """The first takes what is named; each knows how many take the same one."""
    worlds = [World(8 + n, 16, 1.0, ranks, n) for n in range(ranks)]
    found = [own_device(there, named, world) for world in worlds]
    assert found == [(name, taken.count(name)) for name in taken]


@pytest.mark.parametrize("members", [(0,), (1,), (2,)])
def test_programs_are_compiled_for_the_own_device(
    members: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank of a layer split gives its backend another device."""
    asked: list[Any] = []

    def compiled(program: Any, weights: Any, options: CompileOptions) -> Any:
        asked.append(options.device)
        raise KeyboardInterrupt

    backend: Any = SimpleNamespace(name="gpus", devices=lambda: GPUS, compile=compiled)
    (rank,) = members
    world = World(rank, 3, 1.0, 3, rank)
    monkeypatch.setattr(World, "group", lambda self, ranks: RankGroup(self, tuple(ranks), None))
    program: Any = SimpleNamespace(weights={}, graphs={}, slots={})
    plan = StagePlan(program, members, "gpus", CompileOptions())
    with pytest.raises(KeyboardInterrupt):
        Member(world, lambda name: backend, lambda source: {}).do_compile(0, plan)
    assert asked == [f"cuda:{rank}"]


def test_torchrun_says_which_rank_of_its_host_this_is() -> None:
    """LOCAL_RANK, or where it is not set the place among neighbours."""
    given = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for more, place in (({"LOCAL_RANK": "3"}, 3), ({}, 1)):
        found = launched({**given, "LOCAL_WORLD_SIZE": "4", **more})
        assert found is not None
        assert (found.ranks_here, found.rank_here) == (4, place)
