"""The kit's commands; each imports what it needs when it runs."""

from __future__ import annotations

import click

from cortiq_conformance.cli.bisect import bisect
from cortiq_conformance.cli.conform import conform
from cortiq_conformance.cli.matrix import matrix
from cortiq_conformance.cli.new_backend import new_backend
from cortiq_conformance.cli.replay import replay

__all__ = ["COMMANDS", "bisect", "conform", "matrix", "new_backend", "replay"]

COMMANDS: dict[str, click.Command] = {
    str(command.name): command for command in (conform, replay, bisect, matrix, new_backend)
}
"""By name."""
