"""Parameters shared by both completion endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cortiq.engine.overlay import ChosenOverlay
from cortiq.model.default_sampling import CORTIQ_SAMPLING, DefaultSampling
from cortiq.options import GenerateOptions
from cortiq.serve.api_keys import PRIORITIES
from cortiq.serve.errors import invalid
from cortiq.serve.fields import Fields

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20
SEED_MODULUS = 2**53
MAX_TOKENS = 2**31 - 1
MAX_LOOP = 4096


@dataclass(frozen=True)
class CompletionParams:
    """Sampling and response parameters of a completion request.

    Attributes
    ----------
    options : sampling parameters and stop conditions. overlay : the adapter that was chosen.
    n : choices per prompt.
    top_logprobs : alternatives to report log-probabilities of, beside each drawn token; None
        reports no log-probabilities.
    stream, include_usage : whether to stream the response, and to end the stream with usage.
    prompt_logprobs : as `top_logprobs`, of the prompt's own tokens.
    token_ids : whether the response has the ids of the prompt and of each choice.
    receipt : whether the response has a receipt of each choice.
    silent : whether nothing is generated: a text request for its prompt only.
    priority : of its sequences among the waiting ones; None if the request says none.
    """

    options: GenerateOptions
    overlay: ChosenOverlay | None
    n: int
    top_logprobs: int | None
    stream: bool
    include_usage: bool
    prompt_logprobs: int | None = None
    token_ids: bool = False
    receipt: bool = False
    silent: bool = False
    priority: int | None = None


def read_params(
    fields: Fields,
    top_logprobs: int | None,
    max_tokens: int,
    usual: DefaultSampling = CORTIQ_SAMPLING,
    adapter: ChosenOverlay | None = None,
) -> CompletionParams:
    """Read the fields shared by both completion endpoints.

    Parameters
    ----------
    usual : sampling for a request that names none. adapter : that the request chooses.
    """
    stream = fields.flag("stream")
    options = {
        "max_tokens": max_tokens,
        "temperature": fields.number("temperature", 0, 2),
        "top_k": fields.integer("top_k", 0, MAX_TOKENS),
        "min_p": fields.number("min_p", 0, 1),
        "repetition_penalty": fields.number("repetition_penalty", 0.01, 100),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "logit_bias": _logit_bias(fields),
        "seed": _seed(fields),
        "stop": _stops(fields),
        "ignore_eos": fields.flag("ignore_eos"),
        "adapter": None if adapter is None else adapter.name,
        "loop_tokens": fields.integer("loop_tokens", 0, MAX_LOOP),
        **_top_p(fields),
    }
    prompt_logprobs = fields.integer("prompt_logprobs", 0, MAX_TOP_LOGPROBS)
    if stream and prompt_logprobs is not None:
        message = "'prompt_logprobs' is only there for responses that are not streamed."
        raise invalid(message, "prompt_logprobs")
    return CompletionParams(
        usual.options(options, environment={}),
        adapter,
        fields.integer("n", 1, MAX_CHOICES) or 1,
        top_logprobs,
        stream,
        _include_usage(fields, stream),
        prompt_logprobs,
        fields.flag("return_token_ids"),
        fields.flag("receipt"),
        priority=fields.integer("priority", *PRIORITIES),
    )


def _top_p(fields: Fields) -> dict[str, Any]:
    """Return the options for `top_p`; 0 keeps only the most likely token."""
    top_p = fields.number("top_p", 0, 1)
    return {"top_k": 1} if top_p == 0 else {"top_p": top_p}


def _seed(fields: Fields) -> int | None:
    """Return the seed modulo 2^53; OpenAI allows any 64-bit integer."""
    seed = fields.integer("seed", -(2**63), 2**63 - 1)
    return None if seed is None else seed % SEED_MODULUS


def _stops(fields: Fields) -> tuple[str, ...]:
    expected = f"a string or an array of at most {MAX_STOPS} strings, none of them empty"
    value = fields.get("stop", (str, list), expected)
    stops = [value] if isinstance(value, str) else value or []
    if len(stops) > MAX_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise fields.wrong("stop", expected)
    return tuple(stops)


def _logit_bias(fields: Fields) -> dict[int, float]:
    expected = "an object of token ids and numbers from -100 to 100"
    made = {}
    given = fields.fields("logit_bias")
    for token, bias in (given.values if given else {}).items():
        number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        if not (token.isascii() and token.isdigit() and len(token) < 10 and number):
            raise fields.wrong("logit_bias", expected)
        if not -100 <= bias <= 100:
            raise fields.wrong("logit_bias", expected)
        made[int(token)] = float(bias)
    return made


def _include_usage(fields: Fields, stream: bool) -> bool:
    inner = fields.fields("stream_options")
    if inner is None:
        return False
    if not stream:
        raise invalid("'stream_options' is only allowed with 'stream'.", "stream_options")
    included = inner.flag("include_usage")
    inner.flag("include_obfuscation")
    inner.close()
    return included


def chat_logprobs(fields: Fields) -> int | None:
    """Read `logprobs` and `top_logprobs` of a chat request."""
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if not fields.flag("logprobs"):
        if top:
            raise invalid("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
        return None
    return top or 0


def text_logprobs(fields: Fields) -> int | None:
    """Read `logprobs` of a text request: a number of tokens."""
    return fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)


def model_name(fields: Fields) -> str:
    """Return the name of the requested model."""
    name = fields.text("model")
    if not name:
        raise fields.wrong("model", "the name of a model listed by /v1/models")
    return name
