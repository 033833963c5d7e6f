"""Setting up a server from models and options."""

from __future__ import annotations

import gc
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from cortiq.engine.scheduler import EngineOptions
from cortiq.formats.strict_json import read_text
from cortiq.model.model import Model
from cortiq.options import RECOMMENDED, GenerateOptions
from cortiq.plugins import default_plugins
from cortiq.serve.app import COUNTED_PATHS, application
from cortiq.serve.metrics import Metrics
from cortiq.serve.model_mover import PoolLimits
from cortiq.serve.model_pool import ModelPool, check_names
from cortiq.serve.offered_model import OfferedModel, file_bytes, is_pullable
from cortiq.serve.options import ServeOptions
from cortiq.serve.run import bind_socket, serve
from cortiq.serve.served_model import ServedModel, client_name, make_served_model
from cortiq.serve.service import Service
from cortiq.serve.worker import Worker


def serve_models(
    names: Sequence[str],
    loaded: MutableMapping[str, Model],
    load: Callable[[str], Model],
    options: ServeOptions,
    ready: Callable[[str, Service], None] = lambda url, service: None,
) -> int:
    """Serve models until the process is told to end; return how many responses were interrupted.

    Parameters
    ----------
    names : what the operator offers, as `cortiq.load` takes it.
    loaded : models that are loaded already, by these names; they are taken out, and closed at last.
    load : loads a model by such a name, when a request asks for it.
    ready : called when requests are accepted, with an address that this machine reaches them at.

    Raises
    ------
    RequestError : the address is taken, or two models have one name.
    """
    check_names([client_name(name) for name in names])
    listener = bind_socket(options)
    metrics = Metrics(COUNTED_PATHS)
    pool = make_pool(names, load, options, metrics)
    try:
        for name in list(loaded):
            pool.put(client_name(name), served_model(loaded.pop(name), options, metrics))
        _forget_loading()
        metrics.watch_pool(pool)
        service = Service(pool, options, metrics)
        host, port = listener.getsockname()[:2]
        app = application(service, host)
        if ip_address(host).is_unspecified:  # an address to listen on, not one to ask at
            host = "::1" if ":" in host else "127.0.0.1"
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return serve(app, service, options, listener, lambda: ready(url, service))
    finally:
        pool.close()


def first_models(names: Sequence[str], options: ServeOptions) -> list[str]:
    """Return the models to load before requests are accepted: the first that there is room for."""
    found: list[str] = []
    size = 0
    for name in names[: options.max_loaded]:
        size += file_bytes(name)
        if found and options.model_bytes and size > options.model_bytes:
            break
        found.append(name)
    return found


def make_pool(
    names: Sequence[str], load: Callable[[str], Model], options: ServeOptions, metrics: Metrics
) -> ModelPool:
    """Return the pool of the offered models; none of them is loaded yet."""

    def load_served(name: str) -> ServedModel:
        made = served_model(load(name), options, metrics)
        _forget_loading()
        return made

    def changed(model: OfferedModel, loaded: bool) -> None:
        if loaded and model.served is not None:
            metrics.watch(model.served)
        else:
            metrics.unwatch(model.name)

    limits = PoolLimits(
        loaded=options.max_loaded or len(names),
        size=options.model_bytes,
        keep_seconds=options.idle_seconds or None,
        wait_seconds=options.load_wait_seconds,
        waiting=options.waiting,
    )
    sources = {client_name(name): name for name in names}
    may_pull = is_pullable if options.allow_pull else lambda name: False
    return ModelPool(sources, load_served, close_served, limits, may_pull, changed)


def close_served(served: ServedModel) -> None:
    """Free a model, and what it left behind: objects in cycles among them."""
    served.model.close()
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _forget_loading() -> None:
    """Let no collection walk over what is loaded until something is unloaded."""
    gc.collect()
    gc.freeze()


def served_model(model: Model, options: ServeOptions, metrics: Metrics) -> ServedModel:
    """Return a model with its worker, which is not started yet."""
    if options.chat_template is not None:
        template = read_text(Path(options.chat_template))
        model.tokenizer.chat_templates.clear()
        model.tokenizer.chat_templates["default"] = template
    if options.kept_prefixes:
        model.keep_prefixes(options.kept_prefixes, options.kept_bytes or None)
    bounds = EngineOptions(options.batch_rows, options.sequences)
    speculation = model.drafts.speculation(GenerateOptions(draft=options.draft))
    on_step = partial(metrics.step, client_name(model.name))
    worker = Worker(model, bounds, options.waiting, speculation, on_step)
    sampling = {name: getattr(options, name) for name in RECOMMENDED}
    return make_served_model(model, worker, default_plugins().tool_dialects, sampling)
