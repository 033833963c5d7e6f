"""Every option of loading, generating and scoring, defined once.

A field of these classes is an argument of the Python API, a flag of the command line, and a
variable of the environment (`CORTIQ_` and its name in capitals). An explicit value wins over the
environment, which wins over the default.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from cortiq.errors import RequestError
from cortiq.option_names import option_hint
from cortiq.option_values import OptionSpec, checked_value, from_text, value_description

if TYPE_CHECKING:
    from cortiq.backend import Backend

ENVIRONMENT_PREFIX = "CORTIQ_"
RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Options that models recommend values of; where nobody gives one, those are taken."""
ANSWER_TOKENS = 1024
ANSWER_DEFAULTS: Mapping[str, Any] = {"max_tokens": ANSWER_TOKENS, "loop_tokens": 96}
"""Defaults for an answer that a person reads: it mostly ends by itself, or else repeats itself."""

Options = TypeVar("Options", bound="OptionSet")


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
    """Return an option's command-line flag."""
    return "--" + name.replace("_", "-")


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


@documented
@dataclass(frozen=True)
class LoadOptions(OptionSet):
    """Options of loading: how a model is opened and compiled."""

    backend: str | Backend | None = option(  # noqa: RUF009 - as every other field
        None, "Backend, and its device after a colon; by default the best available.",
        metavar="NAME[:DEVICE]", instead=("a backend", ("devices", "supports", "compile")),
    )  # fmt: skip
    device: str | None = option(None, "Device of the backend.", metavar="NAME")
    devices: int = option(
        0, "Devices, or processes on CPUs, that compute the model together; 0: one, or as many as "
        "torchrun started.", int, least=0, most=1024)  # fmt: skip
    split: str = option(
        "auto", "How devices divide it: each its heads and columns (tensor), as that with whole "
        "experts (expert), or a stretch of layers (layer). auto: tensor on one host, layers "
        "between hosts.",
        choices=("auto", "tensor", "expert", "layer"))  # fmt: skip
    split_at: tuple[int, ...] = option(
        (), "First layer of the second device of a layer split, of the third, and so on; may be "
        "repeated.", int, least=1, repeated=True)  # fmt: skip
    ray: bool = option(False, "Start the ranks as actors of a Ray cluster (pip install ray).", bool)
    context: int | None = option(
        None, "Longest sequence in tokens; by default the model's own.", int, least=1,
        bits=True)  # fmt: skip
    weight_format: str | None = option(
        None, "Format of all matrices: w4, w4-5, w8, w8b256, w16, or f32 (only of floats).",
        bits=True, choices=("w4", "w4-5", "w8", "w8b256", "w16", "f32"),
    )  # fmt: skip
    ignore_unknown_config: tuple[str, ...] = option(
        (), "Leave out this key of the configuration, which cortiq does not know; may be repeated. "
        "The fingerprint names it.",
        repeated=True, bits=True, metavar="KEY",
    )  # fmt: skip
    lora: tuple[str, ...] = option(
        (), "Merge a LoRA adapter, a PEFT folder or a GGUF file, times a scale; may be repeated.",
        repeated=True, bits=True, metavar="PATH[:SCALE]")  # fmt: skip
    threads: int = option(0, "Host threads; 0 is one per core.", int, least=0, most=1024)
    heads: str = option(
        "off", "Draft head to load beside the model: off, auto (its own, if any), mtp, mimo (after "
        "a colon, post or raw: the hidden rows it takes), eagle3:PATH, dflash:PATH, or two with a "
        "comma between.",
        metavar="NAME[:ARGUMENT]",
    )  # fmt: skip
    draft_vocabulary: int = option(
        65536, "Vocabulary of a draft head: its first ids, this many; 0 for all. Changes no token.",
        int, least=0,
    )  # fmt: skip
    strict_placement: bool = option(
        False, "Fail if the backend declines a node instead of using the reference.", bool
    )
    keep_weights: bool = option(True, "Keep weights in the cache as the backend packs them.", bool)
    weights: str = option(
        "auto", "Where kept weights are: auto maps their file if it is large, or in huge pages.",
        choices=("auto", "mapped", "memory"))  # fmt: skip
    full_windows: bool = option(
        False, "Keep all rows behind attention windows: more memory, prefixes of any length.", bool
    )
    lenient: bool = option(
        False, "Of a CMF file: refuse only what the original engine refuses, too.", bool
    )


@documented
@dataclass(frozen=True)
class GenerateOptions(OptionSet):
    """Options of generation. The sampling chain's order is fixed: `cortiq.numerics.sampling`."""

    max_tokens: int = option(256, "Most tokens to generate.", int, least=1, ends=True)
    temperature: float = option(
        0.0, "0 takes the most likely token; higher values sample more freely.", float, least=0.0,
        bits=True,
    )  # fmt: skip
    top_k: int = option(
        0, "Sample from this many most likely tokens; 0 for all.", int, least=0, bits=True
    )
    top_p: float = option(
        1.0, "Sample from the most likely tokens that add up to this probability.", float,
        above=0.0, most=1.0, bits=True,
    )  # fmt: skip
    min_p: float = option(
        0.0, "Sample from tokens at least this likely, relative to the most likely.", float,
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
        None, "Seed of sampling; by default a random one, which is reported.", int, least=0,
        most=2**53 - 1, bits=True,
    )  # fmt: skip
    choice: int = option(
        0, "Index of the completion among those of one prompt and one seed.", int, least=0,
        most=2**32 - 1, bits=True,
    )  # fmt: skip
    stop: tuple[str, ...] = option(
        (), "End before this text; may be repeated.", repeated=True, ends=True
    )
    stop_ids: tuple[int, ...] = option(
        (), "End after this token id; may be repeated.", int, least=0, repeated=True, ends=True
    )
    ignore_eos: bool = option(False, "Continue after the model's own end tokens.", bool, ends=True)
    chunk_rows: int | None = option(
        None, "Most prompt tokens computed at a time; changes no token. By default as many as suit "
        "the device.", int, least=1,
    )  # fmt: skip
    draft: str = option(
        "off", "Drafter for speculative decoding; changes no token: off, auto, lookup, mtp, mimo, "
        "eagle3:PATH, dflash:PATH, model:PATH, a plugin's, or several, separated by commas.",
        metavar="NAME[:ARGUMENT]",
    )  # fmt: skip
    draft_depth: int | None = option(
        None, "Tokens drafted at a time; by default chosen automatically from measured gain.", int,
        least=1, most=64,
    )  # fmt: skip
    confidence: bool = option(False, "Keep the probability of every token.", bool)
    calibration: float = option(
        1.0, "Softmax temperature of confidence.", float, least=0.001,
    )  # fmt: skip
    trace: bool = option(False, "Keep a row of facts about every token.", bool)
    loop_tokens: int = option(
        0, "End when this many last tokens repeat one block, three times or more; 0 is never.", int,
        least=0, most=4096, ends=True,
    )  # fmt: skip


@documented
@dataclass(frozen=True)
class ScoreOptions(OptionSet):
    """Options of scoring."""

    window: int = option(512, "Input tokens of a window.", int, least=2)
    windows: int | None = option(None, "Most windows to score; by default all.", int, least=1)
    bos: str = option(
        "auto", "Put the start token before each window; auto: as the tokenizer does.",
        choices=("auto", "yes", "no"),
    )  # fmt: skip


@documented
@dataclass(frozen=True)
class EmbedOptions(OptionSet):
    """Options of embedding: `cortiq.model.embed`."""

    pooling: str = option(
        "auto", "Mean of all tokens' hidden states, the first or the last; auto: as the files say.",
        choices=("auto", "mean", "cls", "last"), bits=True,
    )  # fmt: skip
    normalise: bool = option(True, "Scale the vector to length 1.", bool, bits=True)
