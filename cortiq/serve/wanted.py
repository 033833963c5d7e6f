"""What chat and text requests have in common: how to draw, how often, and how to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cortiq.options import GenerateOptions
from cortiq.serve.errors import invalid
from cortiq.serve.fields import Fields

MOST_CHOICES = 128
MOST_STOPS = 16
MOST_TOP = 20
SEED_MODULUS = 2**53
MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class Wanted:
    """How a request wants to be answered.

    Attributes
    ----------
    options : how tokens are drawn, and where the text ends.
    n : choices of each prompt.
    top_logprobs : tokens to give log-probabilities of beside each drawn one; None gives none.
    stream, include_usage : whether pieces are sent as they come, and usage at their end.
    """

    options: GenerateOptions
    n: int
    top_logprobs: int | None
    stream: bool
    include_usage: bool


def read_wanted(fields: Fields, top_logprobs: int | None, max_tokens: int) -> Wanted:
    """The common fields; `model` is taken as read."""
    fields.text("model")
    stream = fields.flag("stream")
    options = {
        "max_tokens": max_tokens,
        "temperature": fields.number("temperature", 0, 2, 1.0),
        "top_k": fields.integer("top_k", 0, MOST_TOKENS) or 0,
        "min_p": fields.number("min_p", 0, 1, 0.0),
        "repetition_penalty": fields.number("repetition_penalty", 0.01, 100, 1.0),
        "presence_penalty": fields.number("presence_penalty", -2, 2, 0.0),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2, 0.0),
        "logit_bias": _bias(fields),
        "seed": _seed(fields),
        "stop": _stops(fields),
        "ignore_eos": fields.flag("ignore_eos"),
        **_nucleus(fields),
    }
    return Wanted(
        GenerateOptions(**options),
        fields.integer("n", 1, MOST_CHOICES) or 1,
        top_logprobs,
        stream,
        _include_usage(fields, stream),
    )


def _nucleus(fields: Fields) -> dict[str, Any]:
    """`top_p`; at 0 nothing but the most likely token is left."""
    top_p = fields.number("top_p", 0, 1, 1.0)
    return {"top_p": top_p} if top_p > 0 else {"top_k": 1}


def _seed(fields: Fields) -> int | None:
    """A seed, modulo 2^53; OpenAI allows any 64-bit integer."""
    seed = fields.integer("seed", -(2**63), 2**63 - 1)
    return None if seed is None else seed % SEED_MODULUS


def _stops(fields: Fields) -> tuple[str, ...]:
    wanted = f"a string or an array of at most {MOST_STOPS} strings, none of them empty"
    value = fields.get("stop", (str, list), wanted)
    stops = [value] if isinstance(value, str) else value or []
    if len(stops) > MOST_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise fields.wrong("stop", wanted)
    return tuple(stops)


def _bias(fields: Fields) -> dict[int, float]:
    wanted = "an object of token ids and numbers from -100 to 100"
    made = {}
    given = fields.fields("logit_bias")
    for token, bias in (given.values if given else {}).items():
        number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        if not (token.isascii() and token.isdigit() and len(token) < 10 and number):
            raise fields.wrong("logit_bias", wanted)
        if not -100 <= bias <= 100:
            raise fields.wrong("logit_bias", wanted)
        made[int(token)] = float(bias)
    return made


def _include_usage(fields: Fields, stream: bool) -> bool:
    inner = fields.fields("stream_options")
    if inner is None:
        return False
    if not stream:
        raise invalid("'stream_options' is only allowed with 'stream'.", "stream_options")
    wanted = inner.flag("include_usage")
    inner.flag("include_obfuscation")
    inner.close()
    return wanted


def chat_logprobs(fields: Fields) -> int | None:
    """`logprobs` and `top_logprobs` of a chat request."""
    top = fields.integer("top_logprobs", 0, MOST_TOP)
    if not fields.flag("logprobs"):
        if top:
            raise invalid("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
        return None
    return top or 0


def text_logprobs(fields: Fields) -> int | None:
    """`logprobs` of a text request: a number of tokens."""
    return fields.integer("logprobs", 0, MOST_TOP)


def model_name(fields: Fields) -> str:
    """The model that a request names."""
    name = fields.text("model")
    if not name:
        raise fields.wrong("model", "the name of a model, as /v1/models lists them")
    return name
