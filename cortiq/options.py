"""Every option of loading, generating and scoring, defined once.

A field of these classes is an argument of the Python API, a flag of the command line, and a
variable of the environment (`CORTIQ_` and its name in capitals). What is given explicitly wins
over the environment, which wins over the default.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from cortiq.errors import OptionError, RequestError, shown
from cortiq.option_names import advice
from cortiq.option_values import Spec, checked, described

if TYPE_CHECKING:
    from cortiq.backend import Backend

ENVIRONMENT_PREFIX = "CORTIQ_"
TRUE_WORDS = ("1", "true", "yes", "on")
FALSE_WORDS = ("0", "false", "no", "off")

Options = TypeVar("Options", bound="OptionSet")


def option(default: Any, help: str, type: type = str, **details: Any) -> Any:
    """A field of an option class."""
    return field(default=default, metadata={"spec": Spec(help, type, **details)})


@dataclass(frozen=True)
class OptionSet:
    """Base of the option classes: checks every value against its `Spec`.

    Raises
    ------
    OptionError : a value is of the wrong type or out of range; the message names the option.
    """

    def __post_init__(self) -> None:
        for name, spec in specs(type(self)).items():
            object.__setattr__(self, name, checked(name, spec, getattr(self, name)))


def documented(options: type[Options]) -> type[Options]:
    """Name every field of an option class in its docstring, from the table its flags come from."""
    known = specs(options)
    fields = [f"    {name} : {_summary(name, spec, options)}" for name, spec in known.items()]
    head = [options.__doc__ or "", "", "    Attributes", "    ----------"]
    options.__doc__ = "\n".join([*head, *fields, "    "])
    return options


def _summary(name: str, spec: Spec, options: type[OptionSet]) -> str:
    kind = "a mapping of token ids to numbers" if spec.bias else described(spec)
    several = "any number of values, each " if spec.repeated else ""
    return f"{several}{kind} (default {defaults(options)[name]!r}). {spec.help}"


def specs(options: type[OptionSet]) -> dict[str, Spec]:
    """The `Spec` of every option of a class, by name."""
    return {f.name: f.metadata["spec"] for f in dataclasses.fields(options)}


def defaults(options: type[OptionSet]) -> dict[str, Any]:
    """The default of every option of a class, by name."""
    return {f.name: f.default for f in dataclasses.fields(options)}


def flag(name: str) -> str:
    """The command line's flag of an option."""
    return "--" + name.replace("_", "-")


def environment_name(name: str) -> str:
    """The environment's variable of an option."""
    return ENVIRONMENT_PREFIX + name.upper()


def resolve(
    options: type[Options],
    given: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
) -> Options:
    """Options from what was given (None counts as not given), the environment, and the defaults.

    Raises
    ------
    RequestError : an unknown name, or a value that is not allowed.
    """
    known = specs(options)
    for name in given:
        if name not in known:
            hint = advice(name, known, f"help(cortiq.{options.__name__})")
            raise RequestError(f"there is no option {name!r}", hint=hint)
    values = {name: value for name, value in given.items() if value is not None}
    for name, spec in known.items():
        text = environment.get(environment_name(name), "")
        if text and name not in values:
            values[name] = from_text(name, spec, text, environment_name(name))
    return options(**values)


def select(options: type[OptionSet], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given arguments that are options of this class."""
    return {name: value for name, value in given.items() if name in specs(options)}


def from_text(name: str, spec: Spec, text: str, where: str) -> Any:
    """The value that a text stands for, such as a variable of the environment.

    Parameters
    ----------
    where : what gave the text, for the message.

    Raises
    ------
    RequestError : it stands for none that the option can have.
    """
    parts = text.split(",") if spec.repeated or spec.bias else [text]
    try:
        values = parse_bias(parts) if spec.bias else tuple(_word(spec, part) for part in parts)
        return checked(name, spec, values if spec.repeated or spec.bias else values[0])
    except (ValueError, OptionError):
        raise RequestError(f"{shown(text)} is not {described(spec)}", where=where) from None


def _word(spec: Spec, text: str) -> Any:
    if spec.type is not bool:
        return spec.type(text)
    word = text.strip().lower()
    if word not in (*TRUE_WORDS, *FALSE_WORDS):
        raise ValueError(text)
    return word in TRUE_WORDS


def parse_bias(pairs: Sequence[str]) -> dict[int, float]:
    """`ID=VALUE` pairs as a mapping; ValueError when one of them is not a pair of numbers."""
    split = (pair.partition("=") for pair in pairs)
    return {int(token): float(value) for token, _, value in split}


@documented
@dataclass(frozen=True)
class LoadOptions(OptionSet):
    """How a model is opened and compiled."""

    backend: str | Backend | None = option(  # noqa: RUF009 - as every other field
        None, "Backend, and its device after a colon; without it the best available.",
        metavar="NAME[:DEVICE]", instead=("a backend", ("devices", "supports", "compile")),
    )  # fmt: skip
    device: str | None = option(None, "Device of the backend.", metavar="NAME")
    context: int | None = option(
        None, "Longest sequence in tokens; without it what the model declares.", int, least=1,
        bits=True,
    )  # fmt: skip
    weight_format: str | None = option(
        None, "Format for weights that the file stores as floats: w8, w8b256, w16 or f32.",
        bits=True, choices=("w8", "w8b256", "w16", "f32"),
    )  # fmt: skip
    threads: int = option(0, "Host threads; 0 is one per core.", int, least=0, most=1024)
    heads: str = option(
        "off", "Draft head to load beside the model: off, auto (its own, if it has one), mtp, mimo "
        "(behind a colon, post or raw: which hidden rows it takes), dflash:PATH, or both with a "
        "comma between.",
        metavar="NAME[:ARGUMENT]",
    )  # fmt: skip
    draft_vocabulary: int = option(
        65536, "Ids, from the first on, that a draft head looks at; 0 for all. Changes no token.",
        int, least=0,
    )  # fmt: skip
    strict_placement: bool = option(
        False, "Fail when the backend declines a node, instead of using the reference for it.", bool
    )
    full_windows: bool = option(
        False, "Keep all rows behind attention windows: more memory, prompts can be cut anywhere.",
        bool,
    )  # fmt: skip


@documented
@dataclass(frozen=True)
class GenerateOptions(OptionSet):
    """How text is generated. The sampling chain's order is fixed: `cortiq.numerics.sampling`."""

    max_tokens: int = option(256, "Tokens to generate at most.", int, least=1, ends=True)
    temperature: float = option(
        0.0, "0 takes the most likely token; higher values draw more freely.", float, least=0.0,
        bits=True,
    )  # fmt: skip
    top_k: int = option(0, "Draw among this many tokens; 0 for all.", int, least=0, bits=True)
    top_p: float = option(
        1.0, "Draw among the most likely tokens that add up to this probability.", float,
        above=0.0, most=1.0, bits=True,
    )  # fmt: skip
    min_p: float = option(
        0.0, "Draw among tokens at least this likely, relative to the most likely.", float,
        least=0.0, most=1.0, bits=True,
    )  # fmt: skip
    repetition_penalty: float = option(
        1.0, "Divide the logits of tokens seen before (multiply negative ones).", float,
        above=0.0, bits=True,
    )  # fmt: skip
    presence_penalty: float = option(
        0.0, "Subtract from the logits of tokens seen before.", float, bits=True
    )
    frequency_penalty: float = option(
        0.0, "Subtract from a token's logit for every time it was seen.", float, bits=True
    )
    logit_bias: Mapping[int, float] = option(
        None, "Add to the logit of a token.", bias=True, bits=True, metavar="ID=VALUE"
    )
    seed: int | None = option(
        None, "Seed of the draws; without it one is drawn and reported.", int, least=0,
        most=2**53 - 1, bits=True,
    )  # fmt: skip
    choice: int = option(
        0, "Which of the completions that one prompt has with one seed.", int, least=0,
        most=2**32 - 1, bits=True,
    )  # fmt: skip
    stop: tuple[str, ...] = option(
        (), "End before this text; may be repeated.", repeated=True, ends=True
    )
    stop_ids: tuple[int, ...] = option(
        (), "End after this token id; may be repeated.", int, least=0, repeated=True, ends=True
    )
    ignore_eos: bool = option(False, "Go on after the model's own end tokens.", bool, ends=True)
    chunk_rows: int = option(
        256, "Prompt tokens computed at a time; changes no token.", int, least=1
    )
    draft: str = option(
        "off", "Drafter of tokens to verify together; changes no token: off, auto, lookup, mtp, "
        "mimo, dflash:PATH, model:PATH, what a plugin brings, or several with commas between.",
        metavar="NAME[:ARGUMENT]",
    )  # fmt: skip
    draft_depth: int | None = option(
        None, "Tokens drafted at a time; without it as many as pay, none where none do.", int,
        least=1, most=64,
    )  # fmt: skip
    confidence: bool = option(False, "Keep the probability of every token.", bool)
    calibration: float = option(
        1.0, "Temperature of the softmax that confidence is taken from.", float, least=0.001,
    )  # fmt: skip
    trace: bool = option(False, "Keep a row about every token.", bool)
    loop_tokens: int = option(
        0, "End when so many last tokens are one block, three times or more; 0 is never.", int,
        least=0, most=4096, ends=True,
    )  # fmt: skip


@documented
@dataclass(frozen=True)
class ScoreOptions(OptionSet):
    """How a text is scored."""

    window: int = option(512, "Input tokens of a window.", int, least=2)
    windows: int | None = option(None, "Windows scored at most; without it all.", int, least=1)
    bos: str = option(
        "auto", "Put the start token before each window; auto: where the tokenizer does.",
        choices=("auto", "yes", "no"),
    )  # fmt: skip


@documented
@dataclass(frozen=True)
class EmbedOptions(OptionSet):
    """How a text becomes one vector: `cortiq.model.embed`."""

    pooling: str = option(
        "mean", "Mean of the hidden states of all tokens, or that of the last one.",
        choices=("mean", "last"), bits=True,
    )  # fmt: skip
    normalise: bool = option(True, "Scale the vector to length 1.", bool, bits=True)
