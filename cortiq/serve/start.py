"""Setting up a server from models and options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from cortiq.serve.options import ServeOptions
from cortiq.serve.run import bind_socket, serve
from cortiq.serve.served_model import ServedModel, client_name, make_served_model, models_by_name
from cortiq.serve.service import Service
from cortiq.serve.worker import Worker


def serve_models(
    models: Sequence[Model],
    options: ServeOptions,
    ready: Callable[[str, Service], None] = lambda url, service: None,
) -> int:
    """Serve models until the process is told to end; return how many responses were interrupted.

    Parameters
    ----------
    ready : called when requests are accepted, with an address that this machine reaches them at.

    Raises
    ------
    RequestError : the address is taken, or two models have one name.
    """
    listener = bind_socket(options)
    metrics = Metrics(COUNTED_PATHS)
    found = models_by_name([_served(model, options, metrics) for model in models])
    metrics.watch(found.values())
    service = Service(found, options, metrics)
    host, port = listener.getsockname()[:2]
    app = application(service, host)
    if ip_address(host).is_unspecified:  # an address to listen on, not one to ask at
        host = "::1" if ":" in host else "127.0.0.1"
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return serve(app, service, options, listener, lambda: ready(url, service))


def _served(model: Model, options: ServeOptions, metrics: Metrics) -> ServedModel:
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
