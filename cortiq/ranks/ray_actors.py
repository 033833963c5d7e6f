"""Ranks as actors of a Ray cluster."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from cortiq.errors import BackendError
from cortiq.ranks.driver import Driver
from cortiq.ranks.group import World
from cortiq.ranks.member import FindBackend, Member, OpenWeights
from cortiq.ranks.start import END_SECONDS, FOLLOWER, Ranks, free_port

GPU_EACH: Mapping[str, Any] = {
    "num_gpus": 1,
    "runtime_env": {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}},
}
"""Resources of a rank with a GPU, as Ray takes them. It sees all GPUs of its host, which
ranks take in turn."""


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


def start_actors(
    count: int,
    find_backend: FindBackend,
    open_weights: OpenWeights,
    files: Sequence[Any] = (),
    gpus: bool = False,
) -> Ranks:
    """Start all ranks but this one as actors, spread over the nodes of a cluster.

    The cluster is the one that `RAY_ADDRESS` names or that runs on this host, else a new one here.

    Parameters
    ----------
    files : plugins that they load. gpus : whether each needs a GPU, this rank one of this host.

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
    if gpus and ray.cluster_resources().get("GPU", 0) < count:
        what = f"the Ray cluster has too few GPUs for {count} ranks"
        raise BackendError(what, hint="Add nodes, or take fewer devices.")
    here = -(-count // len(nodes))
    address = f"{ray.util.get_node_ip_address()}:{free_port()}"
    needs = GPU_EACH if gpus else {}
    kept = [_keep_gpu(ray)] if gpus else []
    actor = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD", **needs)(RankActor)
    actors = [actor.remote() for _ in range(1, count)]
    given = count, address, here, [os.path.abspath(file) for file in files]
    working = [one.work.remote(rank, *given) for rank, one in enumerate(actors, 1)]

    def end() -> None:
        ray.wait(working, num_returns=len(working), timeout=END_SECONDS)
        for one in [*actors, *kept]:
            ray.kill(one)

    try:
        world = World.join(0, count, address, ranks_here=here)
    except BaseException:
        end()
        raise
    return Ranks(Driver(Member(world, find_backend, open_weights)), end=end)


def _keep_gpu(ray: Any) -> Any:
    """Have Ray count one GPU of this host as taken, by rank 0, which is none of its actors."""
    node = ray.get_runtime_context().get_node_id()
    where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    holder = ray.remote(num_cpus=0, scheduling_strategy=where, **GPU_EACH)(GpuHolder).remote()
    ray.get(holder.ready.remote())
    return holder


class GpuHolder:
    """Holds a GPU, and does nothing with it."""

    def ready(self) -> None:
        """Return once it does."""


class RankActor:
    """A rank in a process of Ray's."""

    def work(self, rank: int, count: int, address: str, here: int, files: Sequence[str]) -> int:
        """Work for rank 0 until it ends; return the exit status of a process that would."""
        return importlib.import_module(FOLLOWER).work(rank, count, address, here, files)
