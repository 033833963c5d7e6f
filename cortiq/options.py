"""Every option of loading, generating and scoring, defined once.

A field of these classes is an argument of the Python API, a flag of the command line, and a
variable of the environment (`CORTIQ_` and its name in capitals). An explicit value wins over the
environment, which wins over the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cortiq.option_sets import OptionSet as OptionSet
from cortiq.option_sets import defaults as defaults
from cortiq.option_sets import documented, option
from cortiq.option_sets import environment_name as environment_name
from cortiq.option_sets import flag as flag
from cortiq.option_sets import resolve as resolve
from cortiq.option_sets import select as select
from cortiq.option_sets import specs as specs

if TYPE_CHECKING:
    from cortiq.backend import Backend

RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Options that models recommend values of; where nobody gives one, those are taken."""
ANSWER_TOKENS = 1024
ANSWER_DEFAULTS: Mapping[str, Any] = {"max_tokens": ANSWER_TOKENS, "loop_tokens": 96}
"""Defaults for an answer that a person reads: it mostly ends by itself, or else repeats itself."""


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
    replicas: int = option(
        1, "Copies of the model, to which the devices and the requests are divided.", int,
        least=1, most=1024)  # fmt: skip
    prefill_replicas: int = option(
        0, "How many of the replicas compute prompts only; the others continue with the answers.",
        int, least=0, most=1023)  # fmt: skip
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
    adapters: tuple[str, ...] = option(
        (), "Load an adapter (a PEFT folder or a GGUF file, times a scale) beside the model, for "
        "requests that name it; may be repeated.",
        repeated=True, metavar="NAME=PATH[:SCALE]")  # fmt: skip
    adapter_memory: int | None = option(
        None, "Most MiB of loaded adapters; by default what the machine has free.", int, least=1
    )
    rewrite: tuple[str, ...] = option(
        (), "Rewrite the program by a package of this name before it is compiled; may be repeated. "
        "The fingerprint names it.",
        repeated=True, bits=True, metavar="NAME[:ARGUMENT]")  # fmt: skip
    threads: int = option(0, "Host threads; 0 is one per core.", int, least=0, most=1024)
    heads: str = option(
        "off", "Draft head to load beside the model: off, auto (its own, if any), mtp, mimo (after "
        "a colon, post or raw: the hidden rows it takes), eagle3:PATH, dspark[:PATH], dflash:PATH, "
        "or two with a comma between.",
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
    images: bool = option(False, "Load the vision encoder; a model without one is refused.", bool)
    sounds: bool = option(
        False, "Load the audio encoder of models that have several encoders.", bool
    )
    lenient: bool = option(
        False, "Of a CMF file: refuse only what the original engine refuses, too.", bool
    )


def on_one_device() -> dict[str, Any]:
    """Return the options that concern several devices only, as they are for one."""
    names = ("split", "split_at", "replicas", "prefill_replicas", "ray")
    return {name: getattr(LoadOptions(), name) for name in names}


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
        "eagle3:PATH, dspark[:PATH], dflash:PATH, model:PATH, a plugin's, or several with commas.",
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
    adapter: str | None = option(
        None, "Name of the loaded adapter to generate with; by default none.", hidden=True
    )
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
        "auto", "How hidden states of tokens become one: their mean, the first, the last, the "
        "largest of each column, a mean that weighs later ones more, or the sum by the root of "
        "their number; auto: as the files say.",
        choices=("auto", "mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len"), bits=True,
    )  # fmt: skip
    prompt_name: str = option(
        "auto", "Put a prompt of the model's files, by its name, before each text; auto: the one "
        "that they name as usual, if any; empty: none.", bits=True,
    )  # fmt: skip
    dimensions: int | None = option(
        None, "Values of the vector, of which the first are kept; by default all.", int, least=1,
        bits=True,
    )  # fmt: skip
    normalise: bool = option(True, "Scale the vector to length 1.", bool, bits=True)
