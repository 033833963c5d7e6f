"""`cortiq serve`."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.flags import options_of
from cortiq.cli.generate import load_model, with_heads
from cortiq.cli.render import note
from cortiq.errors import CortiqError
from cortiq.options import LoadOptions, resolve, select
from cortiq.serve.authority import is_loopback
from cortiq.serve.options import ServeOptions

if TYPE_CHECKING:
    from cortiq.serve.app import Service

NEEDED = ("starlette", "uvicorn", "prometheus_client", "llguidance")

CUT_OFF = 1
"""Exit code where answers were cut off."""


@click.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@options_of(ServeOptions, LoadOptions)
def serve(models: tuple[str, ...], **options: Any) -> None:
    """Serve models to OpenAI's clients, and a page to chat on.

    The base address for clients is http://HOST:PORT/v1. The server listens on this machine only,
    unless --host says otherwise; then give it an --api-key.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        hint = "pip install 'cortiq[serve]'"
        raise CortiqError(f"the server needs {', '.join(missing)}", hint=hint)
    from cortiq.serve.logs import configure_logging
    from cortiq.serve.start import serve_models

    chosen = resolve(ServeOptions, select(ServeOptions, options))
    configure_logging(chosen.log_format)
    options = with_heads(options, chosen.draft)
    with ExitStack() as stack:
        loaded = [stack.enter_context(load_model(name, options)) for name in models]
        if not is_loopback(chosen.host) and chosen.api_key is None:
            note("anybody who reaches this address can use the models: --api-key sets a key")
        cut = serve_models(loaded, chosen, _tell)
    if cut:
        raise click.exceptions.Exit(CUT_OFF)


def _tell(url: str, service: Service) -> None:
    """Say on stderr that requests are accepted, and where."""
    for served in service.models.values():
        model = served.model
        note(f"{served.name} on {model.backend}:{model.device}, {served.fingerprint}")
    note(f"serving on {url} (clients: {url}/v1){_everywhere(service.options.host, url)}")


def _everywhere(host: str, url: str) -> str:
    """What to add where it listens on every address of this machine."""
    port = url.rpartition(":")[2]
    try:
        everywhere = ip_address(host).is_unspecified
    except ValueError:  # a name
        everywhere = host == ""
    if not everywhere:
        return ""
    return (
        f"; it listens on all addresses of this machine: others reach it at its name, port {port}"
    )
