"""Parsing of completion requests: engine requests, and how answers are split into parts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cortiq.dialects.splitter import Splitter
from cortiq.dialects.thinking import Thinking
from cortiq.engine.request import Request, make_request
from cortiq.errors import RequestError
from cortiq.model.chat import chat_ids
from cortiq.model.prompt_logprobs import PromptToken, prompt_logprob_steps
from cortiq.model.sight import ImagePrompt, chat_prompt
from cortiq.serve.adapter_names import adapter_of, full_name
from cortiq.serve.completion_params import (
    MAX_TOKENS,
    CompletionParams,
    chat_logprobs,
    read_params,
    text_logprobs,
)
from cortiq.serve.errors import as_api_error, invalid, too_long
from cortiq.serve.fields import Fields
from cortiq.serve.messages import NO_TOOLS, RequestTools, read_messages, read_tools
from cortiq.serve.prompt_fields import parse_prompts
from cortiq.serve.served_model import ServedModel
from cortiq.serve.structured_output import AnswerForm, read_form
from cortiq.tokenizer.tokenizer import Tokenizer

THINKING_TAIL = 32
"""Last ids of a prompt that are searched for an opened thinking block."""
COMPLETION_TOKENS = 16
"""Default `max_tokens` of a text completion, as OpenAI's."""


@dataclass(frozen=True)
class ParsedRequest:
    """A parsed completion request, ready to be computed.

    Attributes
    ----------
    requests : one for each choice.
    tools : tools that may be called.
    opened : whether the prompt ended inside a thinking block.
    echo : text to put before each choice.
    prompt_tokens_scored : entries of the tokens of each prompt but its first, once computed.
    """

    served: ServedModel
    params: CompletionParams
    requests: Sequence[Request]
    tools: RequestTools = NO_TOOLS
    opened: bool = False
    echo: Sequence[str] = ()
    prompt_tokens_scored: Sequence[Sequence[PromptToken]] = ()

    def splitter(self) -> Splitter:
        """Return a splitter for one answer."""
        served = self.served
        return Splitter(served.thinking, served.dialect, self.tools.schemas, self.opened)

    @property
    def model_name(self) -> str:
        """The name of the model, and of the adapter that the request chose."""
        return full_name(self.served, self.params.options.adapter)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.served.model.tokenizer

    @property
    def prompts(self) -> list[Sequence[int]]:
        """Token ids of the prompts, each once however many choices it has."""
        return [request.prompt for request in self.requests[:: self.params.n]]

    def prompt_steps(self) -> Generator[list[list[PromptToken]] | None, None, None]:
        """Compute the log-probabilities of the prompts; yield None between steps, all at last."""
        found = []
        for one in self.requests[:: self.params.n]:
            executable, top = self.served.model.executable, self.params.prompt_logprobs or 0
            self.served.model.adapters.sync(one.overlay)
            steps = prompt_logprob_steps(executable, one.prompt, top, one.overlay, one.images)
            for scored in steps:
                if scored is None:
                    yield None
                else:
                    found.append(scored)
        yield found

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once however many choices it has."""
        return sum(map(len, self.prompts))


def parse_chat(served: ServedModel, fields: Fields, answer_tokens: int) -> ParsedRequest:
    """Parse a chat request; all its errors are raised here, before it is queued."""
    fields.belongs("messages")
    newer, older = (
        fields.integer(name, 1, MAX_TOKENS) for name in ("max_completion_tokens", "max_tokens")
    )
    params = read_params(
        fields, chat_logprobs(fields), newer or older or answer_tokens, served.usual,
        adapter_of(served, fields),
    )  # fmt: skip
    _check_count(served, fields)
    messages, tools = read_messages(fields), read_tools(fields)
    options, form = _template_options(fields), read_form(served, fields, tools)
    for name, why in (("audio", "answers are text"), ("functions", "use 'tools'"),
                      ("function_call", "use 'tool_choice'"),
                      ("web_search_options", "nothing is searched")):  # fmt: skip
        fields.refuse(name, why)
    if fields.items("modalities") not in (None, ["text"]):
        raise invalid("'modalities': answers are text.", "modalities")
    continued = fields.flag("continue_final_message")
    if not fields.flag("add_generation_prompt", True) and not continued:
        message = "'add_generation_prompt' can only be false with 'continue_final_message'."
        raise invalid(message, "add_generation_prompt")
    fields.close()
    if tools.offered and served.dialect is None:
        message = "The model's chat template takes no tools."
        raise invalid(message, "tools", "unsupported_parameter")
    begun = _begun(messages) if continued else None
    rendered = partial(conversation_prompt, served, messages, options, tools.offered)
    prompt = rendered()
    opened = opens_thinking(served.model.tokenizer, served.thinking, prompt.ids)
    if begun is not None:
        text, opened = _continued(served, begun, opened)
        prompt = rendered(begun=text)
    requests = _requests(served, [prompt.ids], params, "messages", form, opened)
    try:
        requests = [served.model.with_media(r, prompt.spans, params.overlay) for r in requests]
    except RequestError as error:
        raise as_api_error(error) from None
    return ParsedRequest(served, params, requests, tools, opened)


def conversation_prompt(
    served: ServedModel,
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any] | None,
    tools: Sequence[Mapping[str, Any]],
    begun: str = "",
) -> ImagePrompt:
    """Return the ids of a conversation, and the images in it; ApiError where there can be none."""

    def ids_of(given: Sequence[Mapping[str, Any]], expanded: Callable[[str], str]) -> list[int]:
        return chat_ids(
            served.model.tokenizer, given, options, served.name, served.model.program, tools,
            check=lambda text: served.check_size(text, "messages"), begun=begun, expanded=expanded,
        )  # fmt: skip

    try:
        prompt = chat_prompt(served.model.senses, served.name, messages, ids_of)
    except RequestError as error:
        raise as_api_error(error) from None
    return prompt if isinstance(prompt, ImagePrompt) else ImagePrompt(prompt, ())


def _begun(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Take the final message, an answer to continue, from a conversation."""
    last = messages.pop()
    if last["role"] != "assistant" or last.get("tool_calls") or not messages:
        what = "'continue_final_message' needs a final text of the assistant after other messages."
        raise invalid(what, "continue_final_message")
    return last


def _continued(served: ServedModel, begun: Mapping[str, Any], opened: bool) -> tuple[str, bool]:
    """Return the text to continue, and whether that is inside a thinking block.

    Parameters
    ----------
    opened : whether the prompt before it ends inside one.
    """
    text, thought = str(begun["content"]), str(begun.get("reasoning_content") or "")
    if not opened or served.thinking is None:
        return text, False
    return (thought + served.thinking.closes + "\n\n" + text, False) if text else (thought, True)


def _check_count(served: ServedModel, fields: Fields) -> None:
    """Refuse more messages than the context has tokens, before any is parsed."""
    count, context = len(fields.items("messages") or ()), served.model.context
    if count > context:
        message = f"There are {count} messages, more than the context has tokens ({context})."
        raise invalid(message, "messages", "context_length_exceeded")


def _template_options(fields: Fields) -> dict[str, Any]:
    """Return template variables: `chat_template_kwargs` and OpenAI's `reasoning_effort`."""
    given = fields.fields("chat_template_kwargs")
    options = given.values if given else {}
    effort = fields.text("reasoning_effort")
    return options if effort is None else {"reasoning_effort": effort, **options}


def opens_thinking(tokenizer: Tokenizer, thinking: Thinking | None, ids: Sequence[int]) -> bool:
    """Return whether a prompt ends with the opening marker of a thinking block."""
    if thinking is None:
        return False
    text = tokenizer.decode(ids[-THINKING_TAIL:], skip_special=False)
    return text.rstrip().endswith(thinking.opens.rstrip())


def parse_completion(served: ServedModel, fields: Fields) -> ParsedRequest:
    """Parse a text request: one or several prompts, as texts or token ids."""
    fields.belongs("prompt")
    echo = fields.flag("echo")
    max_tokens = fields.integer("max_tokens", 0 if echo else 1, MAX_TOKENS)
    silent = max_tokens == 0
    max_tokens = 1 if silent else max_tokens or COMPLETION_TOKENS
    adapter = adapter_of(served, fields)
    params = read_params(fields, text_logprobs(fields), max_tokens, served.usual, adapter)
    fields.refuse("suffix", "text is only continued at its end")
    best = fields.integer("best_of", 1, MAX_TOKENS)
    if best not in (None, params.n):
        raise invalid("'best_of' must be 'n'.", "best_of")
    prompts = parse_prompts(fields, "prompt")
    if echo and params.top_logprobs is not None and params.prompt_logprobs is None:
        params = replace(params, prompt_logprobs=params.top_logprobs)
    params = replace(params, silent=silent)
    form = read_form(served, fields, thinks=False)
    fields.close()
    tokenizer = served.model.tokenizer
    for prompt in prompts:
        if isinstance(prompt, str):
            served.check_size(prompt, "prompt")
    ids = [tokenizer.encode(p) if isinstance(p, str) else p for p in prompts]
    texts = [p if isinstance(p, str) else tokenizer.decode(p) for p in prompts] if echo else []
    echoed = [text for text in texts for _ in range(params.n)]
    requests = _requests(served, ids, params, "prompt", form)
    return ParsedRequest(served, params, requests, echo=echoed)


def _requests(
    served: ServedModel,
    prompts: Sequence[Sequence[int]],
    params: CompletionParams,
    param: str,
    form: AnswerForm | None = None,
    opened: bool = False,
) -> list[Request]:
    """Return one request for each choice of each prompt.

    Parameters
    ----------
    param : the field that the prompts come from.
    form : that answers have to have. opened : whether the prompt ends inside a thinking block.
    """
    model, made = served.model, []
    if form is not None:
        _check_form(params)
    shown = served.shown_ids | (form.shown_ids if form else frozenset())
    for ids in prompts:
        if len(ids) >= model.context:
            raise too_long(len(ids), model.context, param)
        try:
            first = make_request(ids, params.options, model.program, model.eos_ids)
        except RequestError as error:
            raise as_api_error(error) from None
        first = replace(
            first, top_logprobs=params.top_logprobs, shown_ids=shown, overlay=params.overlay
        )
        choices = [replace(first, choice=choice) for choice in range(params.n)]
        if form is not None:
            choices = [replace(one, masks=form.make_masks(ids, opened)) for one in choices]
        made += choices
    return made


def _check_form(params: CompletionParams) -> None:
    """Refuse what an answer of a form cannot have."""
    if params.options.ignore_eos:
        raise invalid("'ignore_eos' cannot be combined with structured output.", "ignore_eos")
    if params.receipt:
        message = "'receipt': an answer that a format or a forced tool restricts has none."
        raise invalid(message, "receipt")
