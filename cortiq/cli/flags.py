"""Command-line flags generated from the option classes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from cortiq.option_values import OptionSpec, parse_bias
from cortiq.options import (
    RECOMMENDED,
    OptionSet,
    defaults,
    environment_name,
    flag,
    specs,
)


class GroupedOption(click.Option):
    """A flag with the heading that it stands under in the help."""

    heading = ""


class GroupedCommand(click.Command):
    """A command whose help shows its own flags first, then those of each option class."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags under their headings."""
        listed: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and not isinstance(parameter, click.Argument):
                heading = getattr(parameter, "heading", "") or "Options"
                listed.setdefault(heading, []).append(record)
        for heading in sorted(listed, key=lambda one: one != "Options"):
            with formatter.section(heading):
                formatter.write_dl(listed[heading])


grouped_command = partial(click.command, cls=GroupedCommand)
"""Decorator of commands that take `options_of`."""

Command = TypeVar("Command", bound=Callable[..., Any])

PER_TOKEN = ("trace", "confidence", "calibration")
"""Options of what is kept about every token, which only `generate --json` prints."""
ADAPTERS = ("adapters", "adapter_memory")
"""Options of adapters that requests choose, which other commands than those that generate lack."""
HEADINGS = {
    "GenerateOptions": "Generation", "LoadOptions": "Loading", "ServeOptions": "Server",
    "ScoreOptions": "Scoring",
}  # fmt: skip
"""Headings of the help, by option class."""
CALIBRATED = "cortiq.calibration"
"""Entry of a command's `meta`: a file of `cortiq calibrate`, and the hash of the model it is of."""
SHORT = {"max_tokens": "-n", "temperature": "-t", "backend": "-b"}
"""Options with a short flag."""


def options_of(
    *classes: type[OptionSet],
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    **usual: Any,
) -> Callable[[Command], Command]:
    """Add a flag for every option of these classes, or some of them; a flag not given is None.

    Parameters
    ----------
    usual : the command's own defaults, which the help shows instead of the classes'.
    """
    made = [
        _flag(name, spec, usual.get(name, defaults(options)[name]), HEADINGS[options.__name__])
        for options in classes
        for name, spec in specs(options).items()
        if not spec.hidden and name not in without and (only is None or name in only)
    ]

    def decorate(command: Command) -> Command:
        for decorator in reversed(made):
            command = decorator(command)
        return command

    return decorate


def _flag(name: str, spec: OptionSpec, default: Any, heading: str) -> Callable[[Command], Command]:
    names = [flag(name), *([SHORT[name]] if name in SHORT else [])]
    details: dict[str, Any] = {"default": None, "metavar": spec.metavar}
    if spec.type is bool:
        names, details = [f"{flag(name)}/--no-{flag(name)[2:]}"], {"default": None}
    elif spec.choices:
        details["type"] = click.Choice(spec.choices)
    elif name == "calibration":
        details |= {"type": Temperature(), "metavar": "FLOAT|FILE"}
    elif not spec.bias:
        details["type"] = spec.type
    if spec.repeated or spec.bias:
        details |= {"multiple": True, "callback": _bias_pairs if spec.bias else _multiple}
    kind = type("HeadedOption", (GroupedOption,), {"heading": heading})
    return click.option(*names, name, help=_help(name, spec, default), cls=kind, **details)


def _help(name: str, spec: OptionSpec, default: Any) -> str:
    facts = [environment_name(name)]
    if name in RECOMMENDED and default is not None:
        facts.insert(0, "default: the model's")
    elif default is not None and default is not False and default != ():
        facts.insert(0, f"default: {default:g}" if spec.type is float else f"default: {default}")
    return f"{spec.help}  [{'; '.join(facts)}]"


class Temperature(click.ParamType):
    """A number, or a file of `cortiq calibrate`, of which it is the temperature."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; raise FormatError for a file that holds none."""
        if not isinstance(value, str) or not Path(value).is_file():
            return click.FLOAT.convert(value, param, ctx)
        from cortiq.explain.calibrate import read_calibration

        held = read_calibration(value)
        if ctx is not None:
            ctx.meta[CALIBRATED] = value, held.model_hash
        return held.temperature


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
