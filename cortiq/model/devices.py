"""Models on several devices: the ranks of this process, shared by all models that it loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from cortiq.backend import Backend
from cortiq.errors import OptionError
from cortiq.model.source import open_source
from cortiq.numerics.layouts import Weight
from cortiq.options import LoadOptions, on_one_device
from cortiq.plugins import used_files
from cortiq.plugins.selection import find_backend
from cortiq.ranks.backend import DeviceSplit, RanksBackend
from cortiq.ranks.ray_actors import start_actors
from cortiq.ranks.start import (
    MOST_ANYWHERE,
    MOST_HERE,
    Ranks,
    device_count,
    launched,
    start_ranks,
)


class _Running:
    """The ranks of this process, and how many models they hold."""

    ranks: Ranks | None = None
    models: int = 0


def shared_backend(
    name: str, backend: Backend, options: LoadOptions
) -> tuple[Backend, Backend, Callable[[], None]]:
    """Return a backend over the ranks that the options ask for, that of a model's tower, and what
    lets go of the ranks.

    In a rank that torchrun started it does not return: it works until rank 0 has ended.

    Raises
    ------
    BackendError : the ranks did not meet.
    OptionError : models with another number of devices are loaded; or the split is none.
    """
    count = device_count(options.devices, MOST_ANYWHERE if options.ray else MOST_HERE)
    if count == 1:
        return backend, backend, lambda: None
    split = _split(options, count)
    plain = dataclasses.replace(options, backend=None, devices=1, **on_one_device())
    ranks = _ranks(count, options.ray, backend)
    _Running.models += 1
    whole = RanksBackend(ranks.driver, backend, split, (name, plain))
    return whole, whole.for_tower(), _let_go


def _split(options: LoadOptions, count: int) -> DeviceSplit:
    launch = launched()
    hosts = launch.hosts if launch else 1
    kind = "tensor" if options.split == "auto" and hosts == 1 else options.split
    kind = "layer" if options.split == "auto" and options.split_at else kind
    if options.replicas == 1 and not options.prefill_replicas:
        return DeviceSplit.of(kind, count, options.split_at, hosts)
    if options.split_at:
        raise OptionError("split_at", "needs a layer split", hint="leave out --replicas")
    return DeviceSplit.of_replicas(kind, count, options.replicas, options.prefill_replicas)


def _ranks(count: int, ray: bool, backend: Backend) -> Ranks:
    running = _Running.ranks
    if running is not None and not (_Running.models and running.renew()):
        running.close()
        running = _Running.ranks = None
    if running is None:
        given = count, backend_named, weights_of, used_files()
        if ray:
            gpus = backend.devices()[0].name.startswith("cuda")
            running = _Running.ranks = start_actors(*given, gpus=gpus)
        else:
            running = _Running.ranks = start_ranks(*given)
    size = running.driver.world.size
    if size != count:
        what = f"is {count}, and a model on {size} devices is loaded"
        raise OptionError("devices", what, hint="close that model first")
    return running


def _let_go() -> None:
    """Let one model go; with the last one the ranks end."""
    _Running.models -= 1
    if not _Running.models and _Running.ranks is not None:
        _Running.ranks.close()
        _Running.ranks = None


def backend_named(name: str) -> Backend:
    """Return a backend of this rank."""
    return find_backend(name)[0]


def weights_of(source: Any) -> Mapping[str, Weight]:
    """Open a model's weights on this rank."""
    name, options = source
    return open_source(name, options).weights
