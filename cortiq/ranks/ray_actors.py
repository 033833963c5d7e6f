"""Ranks as actors of a Ray cluster."""

from __future__ import annotations

import importlib
from typing import Any

from cortiq.errors import BackendError
from cortiq.ranks.driver import Driver
from cortiq.ranks.group import World
from cortiq.ranks.member import FindBackend, Member, OpenWeights
from cortiq.ranks.start import END_SECONDS, FOLLOWER, Ranks, free_port


def ray_module() -> Any:
    """Return Ray.

    Raises
    ------
    BackendError : it is not installed.
    """
    try:
        import ray  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        what = "ranks of a Ray cluster need Ray"
        raise BackendError(what, hint="pip install ray, on every node") from None
    return ray


def start_actors(count: int, find_backend: FindBackend, open_weights: OpenWeights) -> Ranks:
    """Start all ranks but this one as actors, spread over the nodes of a cluster.

    The cluster is the one that `RAY_ADDRESS` names or that runs on this host, else a new one here.

    Raises
    ------
    BackendError : Ray is not installed or has no room, or the ranks did not meet.
    """
    ray = ray_module()
    if not ray.is_initialized():
        ray.init(log_to_driver=False, configure_logging=False)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if ray.cluster_resources().get("CPU", 0) < count - 1:
        what = f"the Ray cluster has too few CPUs for {count - 1} ranks besides this one"
        raise BackendError(what, hint="Add nodes, or take fewer devices.")
    here = -(-count // len(nodes))
    address = f"{ray.util.get_node_ip_address()}:{free_port()}"
    actor = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(RankActor)
    actors = [actor.remote() for _ in range(1, count)]
    working = [one.work.remote(rank, count, address, here) for rank, one in enumerate(actors, 1)]

    def end() -> None:
        ray.wait(working, num_returns=len(working), timeout=END_SECONDS)
        for one in actors:
            ray.kill(one)

    try:
        world = World.join(0, count, address, ranks_here=here)
    except BaseException:
        end()
        raise
    return Ranks(Driver(Member(world, find_backend, open_weights)), end=end)


class RankActor:
    """A rank in a process of Ray's."""

    def work(self, rank: int, count: int, address: str, here: int) -> int:
        """Work for rank 0 until it ends; return the exit status of a process that would."""
        return importlib.import_module(FOLLOWER).work(rank, count, address, here)
