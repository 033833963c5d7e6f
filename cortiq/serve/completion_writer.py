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

MakeBuilder = Callable[[int, ParsedRequest], ChoiceBuilder]


class CompletionWriter:
    """Writes the completions of one request, several choices side by side; an `AnswerWriter`."""

    media_type = "text/event-stream"

    def __init__(
        self, parsed: ParsedRequest, job: GenerationJob, head: ResponseHead, make: MakeBuilder
    ) -> None:
        self.parsed, self.job, self.head = parsed, job, head
        self.choices = [make(index, parsed) for index in range(len(parsed.requests))]

    def begin(self) -> str:
        """Return the chunks that open the choices."""
        firsts = [one for choice in self.choices if (one := choice.first_chunk())]
        return "".join(self._event([one]) for one in firsts)

    def take(self, update: ChoiceUpdate) -> str:
        """Return the chunks of an update."""
        return "".join(self._event([one]) for one in self.choices[update.choice].chunks(update))

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
        made = self.head.object(self.head.kind, [choice.full_choice() for choice in self.choices])
        return made | {"usage": usage(self.parsed, self.job)}

    @property
    def _with_usage(self) -> bool:
        return self.parsed.params.include_usage

    def _event(self, choices: list[dict[str, Any]], used: Mapping[str, Any] | None = None) -> str:
        kind = self.head.kind + (".chunk" if self.head.kind.startswith("chat") else "")
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
