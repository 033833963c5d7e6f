"""OpenAI's chat and text completions, whole or as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from cortiq.serve.choice_builders import (
    ChatChoiceBuilder,
    ChoiceBuilder,
    ResponseHead,
    TextChoiceBuilder,
    usage,
)
from cortiq.serve.errors import ApiError
from cortiq.serve.generation_job import ChoiceUpdate, GenerationJob
from cortiq.serve.parsed_request import ParsedRequest
from cortiq.serve.token_entries import prompt_entry

MakeBuilder = Callable[[int, ParsedRequest], ChoiceBuilder]


class CompletionWriter:
    """Writes the completions of one request, several choices side by side; an `AnswerWriter`."""

    media_type = "text/event-stream"

    def __init__(
        self, parsed: ParsedRequest, job: GenerationJob, head: ResponseHead, make: MakeBuilder
    ) -> None:
        self.parsed, self.job, self.head = parsed, job, head
        self.choices = [make(index, parsed) for index in range(len(parsed.requests))]
        self._token_ids: list[list[int]] = [[] for _ in self.choices]
        self._endings: dict[int, dict[str, Any]] = {}
        self._unsent: list[list[int]] = [[] for _ in self.choices]

    def begin(self) -> str:
        """Return the chunks that open the choices."""
        made = []
        for index, choice in enumerate(self.choices):
            if first := choice.first_chunk():
                made.append(self._event([first | self._prompt_ids(index)]))
        return "".join(made)

    def take(self, update: ChoiceUpdate) -> str:
        """Return the chunks of an update."""
        chunks = self.choices[update.choice].chunks(update)
        self._token_ids[update.choice] += update.token_ids
        if self.parsed.params.token_ids:
            unsent = self._unsent[update.choice]
            unsent += update.token_ids
            if chunks:  # of tokens whose text is held back the ids are, too
                chunks[0]["token_ids"], self._unsent[update.choice] = unsent, []
        if update.finish:
            self._endings[update.choice] = self._ending(update)
            chunks[-1] |= self._endings[update.choice]
        return "".join(self._event([one]) for one in chunks)

    def _ending(self, update: ChoiceUpdate) -> dict[str, Any]:
        """Return what is said with a choice's end and is not OpenAI's: a loop, a receipt."""
        made: dict[str, Any] = {"stop_reason": "loop"} if update.finish == "loop" else {}
        receipt = self.job.issue(update.choice)
        return made if receipt is None else made | {"receipt": receipt}

    def end(self) -> str:
        """Return the usage, if it was asked for, and the end's mark."""
        last = self._event([], usage(self.parsed, self.job)) if self._with_usage else ""
        return f"{last}data: [DONE]\n\n"

    def fail(self, error: ApiError) -> str:
        """Return an error as an event; nothing follows it."""
        return event(error.as_dict())

    def idle(self, note: str) -> str:
        """Return a comment, which clients skip."""
        return f": {note}\n\n"

    def whole(self) -> dict[str, Any]:
        """Return the response as one object."""
        choices = [self._full_choice(index) for index in range(len(self.choices))]
        made = self.head.object(self.head.kind, choices)
        if self._is_chat:  # has one prompt, and what is about it beside the choices
            made |= self._about_prompt(0)
        return made | {"usage": usage(self.parsed, self.job)}

    def _full_choice(self, index: int) -> dict[str, Any]:
        made = self.choices[index].full_choice()
        if self.parsed.params.token_ids:
            made["token_ids"] = self._token_ids[index]
        made |= self._endings.get(index, {})
        return made if self._is_chat else made | self._about_prompt(index)

    def _about_prompt(self, index: int) -> dict[str, Any]:
        """Return the log-probabilities and ids of a choice's prompt, where they are asked for."""
        scored = {}
        if self.parsed.params.prompt_logprobs is not None:
            tokens = self.parsed.prompt_tokens_scored[index // self.parsed.params.n]
            tokenizer = self.parsed.tokenizer
            scored["prompt_logprobs"] = [None, *(prompt_entry(tokenizer, one) for one in tokens)]
        return scored | self._prompt_ids(index)

    def _prompt_ids(self, index: int) -> dict[str, Any]:
        ids = self.parsed.requests[index].prompt
        return {"prompt_token_ids": list(ids)} if self.parsed.params.token_ids else {}

    @property
    def _is_chat(self) -> bool:
        return self.head.kind.startswith("chat")

    @property
    def _with_usage(self) -> bool:
        return self.parsed.params.include_usage

    def _event(self, choices: list[dict[str, Any]], used: Mapping[str, Any] | None = None) -> str:
        kind = self.head.kind + (".chunk" if self._is_chat else "")
        made = self.head.object(kind, choices)
        if self._with_usage:
            made["usage"] = used
        return event(made)


def event(made: Mapping[str, Any], name: str = "") -> str:
    """Return an object as a server-sent event, with a name if it has one."""
    data = json.dumps(made, ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n"


def chat_writer(parsed: ParsedRequest, job: GenerationJob) -> CompletionWriter:
    """Return the writer of a chat completion."""
    head = ResponseHead("chat.completion", "chatcmpl", parsed)
    return CompletionWriter(parsed, job, head, ChatChoiceBuilder)


def text_writer(parsed: ParsedRequest, job: GenerationJob) -> CompletionWriter:
    """Return the writer of a text completion."""
    head = ResponseHead("text_completion", "cmpl", parsed)
    return CompletionWriter(parsed, job, head, TextChoiceBuilder)
