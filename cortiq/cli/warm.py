"""`cortiq warm`."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.flags import ADAPTERS, grouped_command, options_of
from cortiq.cli.generate import load_model
from cortiq.cli.inputs import MODEL
from cortiq.cli.render import echo, progress_bar
from cortiq.options import LoadOptions

if TYPE_CHECKING:
    from cortiq.model.model import Model


@grouped_command()
@click.argument("name", metavar="MODEL", type=MODEL)
@options_of(LoadOptions, without=ADAPTERS)
def warm(name: str, **options: Any) -> None:
    """Compile the kernels of a model ahead of time.

    The compiled kernels stay on the disk: later starts read them. Backends that compile nothing
    need none of it.
    """
    with load_model(name, options) as model:
        started = time.perf_counter()
        if warm_model(model):
            echo(f"{model.backend}: ready in {time.perf_counter() - started:.1f} s")
        else:
            echo(f"{model.backend} compiles nothing ahead")


def warm_model(model: Model) -> bool:
    """Compile ahead, with a progress bar; return whether the backend does that."""
    with progress_bar() as bar:
        return model.executable.warm(partial(bar, "compiling kernels"))
