"""Classes of options: their flags, variables of the environment, and checked values."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cortiq.errors import RequestError
from cortiq.option_names import option_hint
from cortiq.option_values import OptionSpec, checked_value, from_text, value_description

ENVIRONMENT_PREFIX = "CORTIQ_"
Options = TypeVar("Options", bound="OptionSet")
ONE_OF = {"adapters": "adapter"}
"""Flags of options that are repeated, where it is not the option's own name."""


def option(default: Any, help: str, type: type = str, **details: Any) -> Any:
    """Return a field of an option class."""
    return field(default=default, metadata={"spec": OptionSpec(help, type, **details)})


@dataclass(frozen=True)
class OptionSet:
    """Base of the option classes: checks every value against its `OptionSpec`.

    Raises
    ------
    OptionError : a value is of the wrong type or out of range; the message names the option.
    """

    def __post_init__(self) -> None:
        for name, spec in specs(type(self)).items():
            object.__setattr__(self, name, checked_value(name, spec, getattr(self, name)))


def documented(options: type[Options]) -> type[Options]:
    """Document every field of an option class in its docstring, from its specifications."""
    known = specs(options)
    fields = [f"    {name} : {_summary(name, spec, options)}" for name, spec in known.items()]
    head = [options.__doc__ or "", "", "    Attributes", "    ----------"]
    options.__doc__ = "\n".join([*head, *fields, "    "])
    return options


def _summary(name: str, spec: OptionSpec, options: type[OptionSet]) -> str:
    kind = "a mapping of token ids to numbers" if spec.bias else value_description(spec)
    several = "any number of values, each " if spec.repeated else ""
    return f"{several}{kind} (default {defaults(options)[name]!r}). {spec.help}"


def specs(options: type[OptionSet]) -> dict[str, OptionSpec]:
    """Return the `OptionSpec` of every option of a class, by name."""
    return {f.name: f.metadata["spec"] for f in dataclasses.fields(options)}


def defaults(options: type[OptionSet]) -> dict[str, Any]:
    """Return the default of every option of a class, by name."""
    return {f.name: f.default for f in dataclasses.fields(options)}


def flag(name: str) -> str:
    """Return an option's command-line flag; one of an option that is repeated names one value."""
    return "--" + ONE_OF.get(name, name).replace("_", "-")


def environment_name(name: str) -> str:
    """Return an option's environment variable."""
    return ENVIRONMENT_PREFIX + name.upper()


def resolve(
    options: type[Options],
    given: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
    usual: Mapping[str, Any] | None = None,
) -> Options:
    """Return options from given values (None: not given), the environment, and the defaults.

    Parameters
    ----------
    usual : values that take the place of defaults.

    Raises
    ------
    RequestError : an unknown name, or a value that is not allowed.
    """
    known = specs(options)
    for name in given:
        if name not in known:
            hint = option_hint(name, known, f"help(cortiq.{options.__name__})")
            raise RequestError(f"there is no option {name!r}", hint=hint)
    values = {name: value for name, value in given.items() if value is not None}
    for name, spec in known.items():
        text = environment.get(environment_name(name), "")
        if text and name not in values:
            values[name] = from_text(name, spec, text, environment_name(name))
    return options(**{**(usual or {}), **values})


def select(options: type[OptionSet], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are options of this class."""
    return {name: value for name, value in given.items() if name in specs(options)}
