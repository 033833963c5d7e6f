"""Which device each rank takes, and how many of a host share one."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from cortiq.backend import CompileOptions, Device
from cortiq.errors import BackendError, OptionError
from cortiq.model import follower
from cortiq.ranks import ray_actors, start
from cortiq.ranks.group import World
from cortiq.ranks.member import Member, StagePlan
from cortiq.ranks.own_device import own_device, why_no_nccl
from cortiq.ranks.rank_group import RankGroup
from cortiq.ranks.start import device_count, launched, start_ranks
from cortiq_conformance.on_ranks import subject_on

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
    found = [own_device(there, named, n, ranks) for n in range(ranks)]
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

    monkeypatch.setattr("cortiq.ranks.member.use_gpu", lambda device: None)
    backend: Any = SimpleNamespace(name="gpus", devices=lambda: GPUS, compile=compiled)
    (rank,) = members
    world = World(rank, 3, 1.0, 3, rank)
    monkeypatch.setattr(World, "group", lambda self, ranks: RankGroup(self, tuple(ranks), None))
    program: Any = SimpleNamespace(weights={}, graphs={}, slots={})
    plan = StagePlan(program, members, "gpus", CompileOptions())
    with pytest.raises(KeyboardInterrupt):
        Member(world, lambda name: backend, lambda source: {}).do_compile(0, plan)
    assert asked == [f"cuda:{rank}"]


def test_commands_use_the_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever thread executes one; models of one rank are on one device."""
    used: list[str] = []
    monkeypatch.setattr("cortiq.ranks.member.use_gpu", used.append)
    monkeypatch.setattr(World, "make_group", lambda self, number, members, device, rows: device)
    backend: Any = SimpleNamespace(devices=lambda: GPUS)
    member = Member(World(1, 2, 1.0, 2, 1), lambda name: backend, lambda source: {})
    member.execute(("nothing",))
    assert used == []
    assert member.execute(("group", 0, (0, 1), "gpus", None)) == "cuda:1"
    member.execute(("nothing",))
    assert used == ["cuda:1", "cuda:1"]
    member._executables[0] = None
    with pytest.raises(BackendError, match="rank 1 are on cuda:1, and this is for cuda:3"):
        member.execute(("group", 1, (0, 1), "gpus", "cuda:2"))


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ({0: "a", 2: "b"}, ""),
        ({0: "a", 1: "b", 2: "a"}, "ranks [0, 2] share a GPU"),
        ({0: "a", 1: ""}, "without NCCL on ranks [1]"),
    ],
)
def test_why_gpus_exchange_through_the_host(gpus: dict[int, str], said: str) -> None:
    """Only ranks with a GPU each exchange by NCCL."""
    why = why_no_nccl(gpus)
    assert said in why and bool(said) == bool(why)


class Device0(torch.Tensor):
    """A tensor that says it is on a device, whose copy in the host's memory is another one."""

    copied: ClassVar[list[int]] = []

    @property
    def device(self) -> Any:  # type: ignore[override]
        """Say that it is not the host's."""
        return torch.device("meta")

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        """Return a copy that is."""
        self.copied.append(self.numel())
        return self.as_subclass(torch.Tensor).clone()


@pytest.mark.parametrize("own", [torch.Tensor, Device0])
def test_exchanges(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the host are exchanged where they are, those of a device as copies of them."""

    def gather(whole: torch.Tensor, part: torch.Tensor, group: Any) -> None:
        assert type(whole) is type(part) is torch.Tensor
        whole.copy_(torch.cat([part, part + 1]))

    def reduce(total: torch.Tensor, group: Any) -> None:
        assert type(total) is torch.Tensor
        total.mul_(2)

    made = SimpleNamespace(all_gather_single=gather, all_reduce=reduce)
    monkeypatch.setattr("cortiq.ranks.rank_group.distributed", lambda: made)
    Device0.copied.clear()
    world = World(1, 2, 1.0, 2, 1)
    group = RankGroup(world, (0, 1), None)
    part = torch.arange(6, dtype=torch.int32).reshape(2, 3).as_subclass(own)
    whole, total = group.gather(part), group.add(part)
    assert whole.tolist() == [part.tolist(), (part + 1).tolist()]
    assert total.tolist() == (2 * part).tolist()
    assert part.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (world.lost, world.exchanges) == ("", 2)
    assert Device0.copied == ([12, 6, 6] if own is Device0 else [])


def test_torchrun_says_which_rank_of_its_host_this_is() -> None:
    """LOCAL_RANK, or where it is not set the place among neighbours."""
    given = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for more, place in (({"LOCAL_RANK": "3"}, 3), ({}, 1)):
        found = launched({**given, "LOCAL_WORLD_SIZE": "4", **more})
        assert found is not None
        assert (found.ranks_here, found.rank_here) == (4, place)


@pytest.mark.parametrize("count", [65, 10**6, 10**20])
def test_no_host_starts_ranks_without_limit(count: int) -> None:
    with pytest.raises(OptionError, match=f"devices is {count}, and 64 can be started"):
        device_count(count)
    with pytest.raises(OptionError, match="64 can be started"), subject_on("cpu", count, "mixed"):
        pass
    assert device_count(64) == 64


@pytest.mark.parametrize("stopped_by", [OSError(11, "no more processes"), KeyboardInterrupt()])
def test_ranks_that_were_started_end_where_the_next_is_not(
    stopped_by: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that waits for others that never come is one that nobody ends."""
    made: list[Any] = []
    popen = start.subprocess.Popen

    def started(command: list[str], **options: Any) -> Any:
        if len(made) == 2:
            raise stopped_by
        made.append(popen(["sleep", "60"], **options))
        return made[-1]

    monkeypatch.setattr(start.subprocess, "Popen", started)
    expected = BackendError if isinstance(stopped_by, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        start_ranks(4, lambda *_: None, lambda *_: None)
    assert [process.poll() for process in made] == [-9, -9]


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(BackendError, match="there is no device 'cuda:9'"):
        own_device(GPUS, "cuda:9", 0, 2)


def test_started_ranks_load_the_same_plugin_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whole paths: an actor has another working directory."""
    started: list[list[str]] = []
    used: list[Any] = []
    monkeypatch.setattr(start.subprocess, "Popen", lambda command, **how: started.append(command))
    start.start_follower(1, 2, "host:1", 1, ("mine.py",))
    monkeypatch.setattr(follower, "use_files", used.append)
    monkeypatch.setattr(follower, "check_requested", lambda plugins: None)
    monkeypatch.setattr(follower.World, "join", lambda *given, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        follower.main(started[0][3:])
    assert used == [[os.path.abspath("mine.py")]]


class Ray:
    """Record what `start_actors` asks Ray for."""

    def __init__(self, gpus: int) -> None:
        self.asked: list[dict[str, Any]] = []
        self.gpus = gpus
        affinity = lambda node, soft: f"on {node}"  # noqa: E731
        scheduling = SimpleNamespace(NodeAffinitySchedulingStrategy=affinity)
        self.util = SimpleNamespace(
            scheduling_strategies=scheduling, get_node_ip_address=lambda: "127.0.0.1"
        )
        self.is_initialized, self.nodes = lambda: True, lambda: [{"Alive": True}]
        self.get_runtime_context = lambda: SimpleNamespace(get_node_id=lambda: "this")
        self.get = self.kill = lambda one: None
        self.wait = lambda working, **how: None

    def cluster_resources(self) -> dict[str, int]:
        return {"CPU": 8, "GPU": self.gpus}

    def remote(self, **options: Any) -> Any:
        self.asked.append(options)
        method = SimpleNamespace(remote=lambda *given: None)
        made = SimpleNamespace(work=method, ready=method)
        return lambda kind: SimpleNamespace(remote=lambda: made)


@pytest.mark.parametrize(("gpus", "asked"), [(True, [1, 1]), (False, [None])])
def test_actors_ask_for_gpus(gpus: bool, asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """One each, and one on this host for rank 0, which is no actor; none without need."""
    ray = Ray(3)
    monkeypatch.setattr(ray_actors, "ray_module", lambda: ray)
    monkeypatch.setattr(World, "join", lambda *given, **more: World(0, 1, 1.0))
    monkeypatch.setattr(ray_actors, "free_port", lambda: 1)
    find: Any = lambda name: None  # noqa: E731
    ray_actors.start_actors(3, find, find, gpus=gpus)
    assert [one.get("num_gpus") for one in ray.asked] == asked
    assert ray.asked[-1]["scheduling_strategy"] == "SPREAD"
    assert not gpus or ray.asked[0]["scheduling_strategy"] == "on this"
    ray.gpus = 2
    if gpus:
        with pytest.raises(BackendError, match="too few GPUs for 3 ranks"):
            ray_actors.start_actors(3, find, find, gpus=True)
