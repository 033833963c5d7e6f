"""Command-line flags generated from the option classes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import click

from cortiq.options import (
    OptionSet,
    OptionSpec,
    defaults,
    environment_name,
    flag,
    parse_bias,
    specs,
)

Command = TypeVar("Command", bound=Callable[..., Any])

SHORT = {"max_tokens": "-n", "temperature": "-t", "backend": "-b"}
"""Options with a short flag."""


def options_of(
    *classes: type[OptionSet], without: Collection[str] = (), **usual: Any
) -> Callable[[Command], Command]:
    """Add a flag for every option of these classes, except some; a flag not given is None.

    Parameters
    ----------
    usual : the command's own defaults, which the help shows instead of the classes'.
    """
    made = [
        _flag(name, spec, usual.get(name, defaults(options)[name]))
        for options in classes
        for name, spec in specs(options).items()
        if name not in without
    ]

    def decorate(command: Command) -> Command:
        for decorator in reversed(made):
            command = decorator(command)
        return command

    return decorate


def _flag(name: str, spec: OptionSpec, default: Any) -> Callable[[Command], Command]:
    names = [flag(name), *([SHORT[name]] if name in SHORT else [])]
    details: dict[str, Any] = {"default": None, "metavar": spec.metavar}
    if spec.type is bool:
        names, details = [f"{flag(name)}/--no-{flag(name)[2:]}"], {"default": None}
    elif spec.choices:
        details["type"] = click.Choice(spec.choices)
    elif not spec.bias:
        details["type"] = spec.type
    if spec.repeated or spec.bias:
        details |= {"multiple": True, "callback": _bias_pairs if spec.bias else _multiple}
    return click.option(*names, name, help=_help(name, spec, default), **details)


def _help(name: str, spec: OptionSpec, default: Any) -> str:
    facts = [environment_name(name)]
    if default is not None and default is not False and default != ():
        facts.insert(0, f"default: {default:g}" if spec.type is float else f"default: {default}")
    return f"{spec.help}  [{'; '.join(facts)}]"


def _multiple(ctx: click.Context, parameter: click.Parameter, values: tuple) -> tuple | None:
    """Return the given values, texts as UTF-8, or None if there are none."""
    from cortiq.cli.inputs import argument_text

    name = parameter.opts[0]
    given = tuple(argument_text(v, name) if isinstance(v, str) else v for v in values)
    return given or None


def _bias_pairs(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[int, float] | None:
    try:
        return parse_bias(values) or None
    except ValueError:
        raise click.BadParameter("takes ID=VALUE, two numbers", ctx, parameter) from None
