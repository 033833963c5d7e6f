"""`cortiq serve`."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.flags import grouped_command, options_of
from cortiq.cli.generate import load_model, with_draft_heads
from cortiq.cli.inputs import MODEL
from cortiq.cli.questions import fetched
from cortiq.cli.render import note
from cortiq.cli.warm import warm_model
from cortiq.errors import CortiqError, RequestError
from cortiq.options import LoadOptions, resolve, select
from cortiq.serve.authority import is_loopback
from cortiq.serve.options import ServeOptions

if TYPE_CHECKING:
    from cortiq.model.model import Model
    from cortiq.serve.service import Service

NEEDED = ("starlette", "uvicorn", "prometheus_client", "llguidance")

INTERRUPTED_RESPONSES = 1
"""Exit code if shutdown interrupted responses."""


@grouped_command()
@click.argument("models", type=MODEL, metavar="MODEL...", nargs=-1, required=True)
@options_of(ServeOptions, LoadOptions)
def serve(models: tuple[str, ...], **options: Any) -> None:
    """Serve models to the clients of OpenAI, Anthropic and Ollama, and a page.

    The base URL for clients is http://HOST:PORT/v1, for those of Anthropic and Ollama
    http://HOST:PORT. The server listens on this machine only, unless
    --host says otherwise; then set an --api-key.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        from cortiq.plugins.extras import extra_command

        hint = extra_command("serve")
        raise CortiqError(f"the server needs {', '.join(missing)}", hint=hint)
    from cortiq.serve.logs import configure_logging
    from cortiq.serve.start import first_models, serve_models

    chosen = resolve(ServeOptions, select(ServeOptions, options))
    configure_logging(chosen.log_format, chosen.access_log)
    options = with_draft_heads(options, chosen.draft)
    check_address(chosen)
    models = tuple(dict.fromkeys(map(fetched, models)))  # all of them, before anybody waits for one
    if len(models) > 1 and resolve(LoadOptions, select(LoadOptions, options)).adapters:
        hint = "load adapters of several models while they are served: POST /v1/load_lora_adapter"
        raise RequestError("goes with one model", where="--adapter", hint=hint)
    loaded: dict[str, Model] = {}
    try:
        for name in first_models(models, chosen):
            loaded[name] = _loaded(name, options)
        load = partial(_load_quietly, options=options)
        interrupted = serve_models(models, loaded, load, chosen, _announce)
    finally:
        for model in loaded.values():
            model.close()
    if interrupted:
        raise click.exceptions.Exit(INTERRUPTED_RESPONSES)


def check_address(options: ServeOptions) -> None:
    """Refuse an address that others can reach without a key, unless that is asked for twice."""
    without = options.api_key is None and options.api_keys is None
    if is_loopback(options.host) or not without:
        return
    if not options.without_key:
        what = f"anybody who can reach {options.host} could use the models"
        hint = "set --api-key or --api-keys, or say --without-key, too"
        raise RequestError(what, where="--host", hint=hint)
    note("anybody who can reach this address can use the models")


def _loaded(name: str, options: dict[str, Any]) -> Model:
    """Load and warm a model, with progress bars."""
    model = load_model(name, options)
    warm_model(model)
    return model


def _load_quietly(name: str, options: dict[str, Any]) -> Model:
    """Load and warm a model while the server runs."""
    import cortiq

    model = cortiq.load(name, **select(LoadOptions, options))
    model.executable.warm(lambda done, total: None)
    return model


def _announce(url: str, service: Service) -> None:
    """Print on stderr that requests are accepted, and the address."""
    for offered in service.models.values():
        note(offered.summary)
    note(f"serving on {url} (clients: {url}/v1){_all_addresses_note(service.options.host, url)}")


def _all_addresses_note(host: str, url: str) -> str:
    """Return a remark if the server listens on all addresses of this machine."""
    port = url.rpartition(":")[2]
    try:
        everywhere = ip_address(host).is_unspecified
    except ValueError:  # a name
        everywhere = host == ""
    if not everywhere:
        return ""
    return f"; it listens on all addresses of this machine, port {port}"
