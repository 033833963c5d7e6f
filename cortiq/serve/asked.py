"""A request that was read: what the engine is to do, and how its answers are taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cortiq.dialects.splitter import AnswerSplitter
from cortiq.engine.output import TokenLogprobs
from cortiq.engine.request import Request, make_request
from cortiq.errors import RequestError
from cortiq.model.chat import chat_ids
from cortiq.serve.errors import as_api_error, invalid, too_long
from cortiq.serve.fields import Fields
from cortiq.serve.forms import read_form
from cortiq.serve.messages import NO_TOOLS, Tools, read_messages, read_tools
from cortiq.serve.served import Served
from cortiq.serve.wanted import (
    MOST_TOKENS,
    Wanted,
    chat_logprobs,
    read_wanted,
    text_logprobs,
)
from cortiq.tokenizer.tokenizer import Tokenizer

TAIL = 32
"""Last ids of a prompt that are looked at for an opened thinking block."""
TEXT_TOKENS = 16
"""Tokens of a text completion where a request names none: OpenAI's number."""
MOST_PROMPTS = 256


@dataclass(frozen=True)
class Asked:
    """A request, ready to be computed.

    Attributes
    ----------
    requests : one for each choice.
    tools : that may be called.
    opened : whether the prompt ended inside a thinking block.
    echo : text to put before each choice.
    """

    served: Served
    wanted: Wanted
    requests: Sequence[Request]
    tools: Tools = NO_TOOLS
    opened: bool = False
    echo: Sequence[str] = ()

    def splitter(self) -> AnswerSplitter:
        """Takes one answer apart."""
        served = self.served
        return AnswerSplitter(served.thinking, served.dialect, self.tools.schemas, self.opened)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return self.served.model.tokenizer

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once however many choices it has."""
        return sum(len(request.prompt) for request in self.requests[:: self.wanted.n])


def read_chat(served: Served, fields: Fields, answer_tokens: int) -> Asked:
    """A chat request. Everything that can be wrong with it is said here, before it is queued."""
    fields.belongs("messages")
    newer, older = (
        fields.integer(name, 1, MOST_TOKENS) for name in ("max_completion_tokens", "max_tokens")
    )
    wanted = read_wanted(fields, chat_logprobs(fields), newer or older or answer_tokens)
    _check_count(served, fields)
    messages, tools = read_messages(fields), read_tools(fields)
    options, form = _template_options(fields), read_form(served, fields, tools)
    for name, why in (("audio", "answers are text"), ("functions", "use 'tools'"),
                      ("function_call", "use 'tool_choice'"),
                      ("web_search_options", "nothing is searched")):  # fmt: skip
        fields.refuse(name, why)
    if fields.items("modalities") not in (None, ["text"]):
        raise invalid("'modalities': answers are text.", "modalities")
    fields.close()
    if tools.offered and served.dialect is None:
        message = "The model's chat template takes no tools."
        raise invalid(message, "tools", "unsupported_parameter")
    ids = chat_ids(
        served.model.tokenizer, messages, options, served.name, tools.offered,
        check=lambda text: served.check_size(text, "messages"),
    )  # fmt: skip
    if form is not None and wanted.options.ignore_eos:
        raise invalid("'ignore_eos' cannot be with a form that the answer must have.", "ignore_eos")
    opened = _opened(served, ids)
    requests = _requests(served, [ids], wanted, "messages")
    if form is not None:
        requests = [replace(request, masks=form(ids, opened)) for request in requests]
    return Asked(served, wanted, requests, tools, opened)


def _check_count(served: Served, fields: Fields) -> None:
    """Refuse more messages than the context has tokens, before any is looked at."""
    count, context = len(fields.items("messages") or ()), served.model.context
    if count > context:
        message = f"There are {count} messages, more than the context has tokens ({context})."
        raise invalid(message, "messages", "context_length_exceeded")


def _template_options(fields: Fields) -> dict[str, Any]:
    """Variables of the template: `chat_template_kwargs`, and OpenAI's `reasoning_effort`."""
    given = fields.fields("chat_template_kwargs")
    options = given.values if given else {}
    effort = fields.text("reasoning_effort")
    return options if effort is None else {"reasoning_effort": effort, **options}


def _opened(served: Served, ids: Sequence[int]) -> bool:
    """Whether a prompt ends with what opens a thinking block."""
    if served.thinking is None:
        return False
    text = served.model.tokenizer.decode(ids[-TAIL:], skip_special=False)
    return text.rstrip().endswith(served.thinking.opens.rstrip())


def read_text(served: Served, fields: Fields) -> Asked:
    """A text request: one or several prompts, as texts or token ids."""
    fields.belongs("prompt")
    max_tokens = fields.integer("max_tokens", 1, MOST_TOKENS) or TEXT_TOKENS
    wanted = read_wanted(fields, text_logprobs(fields), max_tokens)
    fields.refuse("suffix", "models go on from the end of a text")
    best = fields.integer("best_of", 1, MOST_TOKENS)
    if best not in (None, wanted.n):
        raise invalid("'best_of' must be 'n'.", "best_of")
    prompts = read_prompts(fields, "prompt")
    echo = fields.flag("echo")
    if echo and wanted.top_logprobs is not None:
        raise invalid("'echo' with 'logprobs' is not supported.", "echo")
    fields.close()
    tokenizer = served.model.tokenizer
    for prompt in prompts:
        if isinstance(prompt, str):
            served.check_size(prompt, "prompt")
    ids = [tokenizer.encode(p) if isinstance(p, str) else p for p in prompts]
    texts = [p if isinstance(p, str) else tokenizer.decode(p) for p in prompts] if echo else []
    echoed = [text for text in texts for _ in range(wanted.n)]
    return Asked(served, wanted, _requests(served, ids, wanted, "prompt"), echo=echoed)


def read_prompts(fields: Fields, name: str) -> list[str | list[int]]:
    """A field of one or several prompts, each a text or token ids."""
    wanted = "a string, an array of strings, of token ids, or of arrays of token ids"
    value = fields.get(name, (str, list), wanted)
    items = [value] if isinstance(value, str) or _are_ids(value) else value
    proper = items and all((isinstance(p, str) and p) or _are_ids(p) for p in items)
    if not proper or len(items) > MOST_PROMPTS:
        raise fields.wrong(name, f"{wanted}, not empty, at most {MOST_PROMPTS} of them")
    return items


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _requests(
    served: Served, prompts: Sequence[Sequence[int]], wanted: Wanted, param: str
) -> list[Request]:
    """One request for each choice of each prompt.

    Parameters
    ----------
    param : the field that the prompts come from.
    """
    model, made = served.model, []
    for ids in prompts:
        if len(ids) >= model.context:
            raise too_long(len(ids), model.context, param)
        try:
            first = make_request(ids, wanted.options, model.program, model.eos_ids)
        except RequestError as error:
            raise as_api_error(error) from None
        first = replace(first, top_logprobs=wanted.top_logprobs, shown_ids=served.shown_ids)
        made += [replace(first, choice=choice) for choice in range(wanted.n)]
    return made


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token's text; bytes that are no characters by themselves as U+FFFD."""
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def logprob_entry(tokenizer: Tokenizer, made: TokenLogprobs) -> dict[str, Any]:
    """A token's entry in a chat answer's `logprobs`."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        text = data.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(data)}

    top = [entry(token, logprob) for token, logprob in made.top]
    return entry(made.token_id, made.logprob) | {"top_logprobs": top}
