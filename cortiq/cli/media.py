"""Flags of commands whose prompts have images and sounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from cortiq.cli.inputs import GIVEN_FILE


def media_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags for images and sounds of a prompt to a command."""
    for flag, name, thing in (
        ("--audio", "recordings", "A sound"),
        ("--image", "pictures", "An image"),
    ):
        said = f"{thing} for the prompt, which comes before it; may be repeated."
        command = click.option(
            flag, name, type=GIVEN_FILE, multiple=True, metavar="FILE", help=said,
        )(command)  # fmt: skip
    return command


def needed_senses(asked: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the load options of the senses that files are given for."""
    return {sense: True for sense, files in asked.items() if files}
