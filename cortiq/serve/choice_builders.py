"""OpenAI's response objects: choices built from updates, whole or as stream chunks."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cortiq.dialects.dialect import ToolCall
from cortiq.dialects.splitter import AnswerPart, AnswerText, Splitter, ThinkingText
from cortiq.engine.output import TokenLogprobs
from cortiq.serve.generation_job import ChoiceUpdate, GenerationJob
from cortiq.serve.parsed_request import ParsedRequest
from cortiq.serve.token_entries import logprob_entry, token_key, token_text

FINISH_REASONS = {"loop": "stop", "cancelled": "stop"}
"""OpenAI's finish reasons for those that only we have."""


@dataclass
class ResponseHead:
    """Fields that every object of one response shares: id, time, model, fingerprint."""

    kind: str
    letters: str
    parsed: ParsedRequest
    id: str = ""
    created: int = 0

    def __post_init__(self) -> None:
        self.id = f"{self.letters}-{secrets.token_hex(12)}"
        self.created = int(time.time())

    def object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a response object with these choices."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.parsed.model_name,
            "system_fingerprint": self.parsed.served.fingerprint,
            "choices": choices,
        }


def usage(parsed: ParsedRequest, job: GenerationJob) -> dict[str, Any]:
    """Return the `usage` object; a prompt's cached tokens are those of its first choice."""
    stats = {choice: sequence.stats for choice, sequence in job.sequences.items()}
    made = sum(one.generated_tokens for one in stats.values())
    cached = sum(one.reused_tokens for n, one in stats.items() if n % parsed.params.n == 0)
    return {
        "prompt_tokens": parsed.prompt_tokens,
        "completion_tokens": made,
        "total_tokens": parsed.prompt_tokens + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class ChoiceBuilder(Protocol):
    """Builds one choice of a response from updates."""

    def first_chunk(self) -> dict[str, Any] | None:
        """Return the chunk that opens the choice, if there is one."""

    def chunks(self, update: ChoiceUpdate) -> list[dict[str, Any]]:
        """Return the chunk choices for an update."""

    def full_choice(self) -> dict[str, Any]:
        """Return the finished choice."""


@dataclass
class ChatChoiceBuilder:
    """Builds one choice of a chat completion."""

    index: int
    parsed: ParsedRequest
    splitter: Splitter = field(init=False)
    text: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str = ""

    def __post_init__(self) -> None:
        self.splitter = self.parsed.splitter()

    def chunks(self, update: ChoiceUpdate) -> list[dict[str, Any]]:
        """Return a delta per part, log-probabilities with the first, the finish reason last."""
        parts = self.splitter.feed(update.text)
        if update.finish:
            parts += self.splitter.finish()
        new = [logprob_entry(self.parsed.tokenizer, one) for one in update.logprobs]
        self.logprobs += new
        deltas = [self._delta(part) for part in merge_parts(parts)]
        chunks = [self._chunk(delta) for delta in deltas or ([{}] if new else [])]
        if chunks and self.parsed.params.top_logprobs is not None:
            chunks[0]["logprobs"] = {"content": new, "refusal": None}
        if update.finish:
            self.finish = self._reason(update.finish)
            chunks.append(self._chunk({}, self.finish))
        return chunks

    def first_chunk(self) -> dict[str, Any]:
        """Return the chunk that opens the choice."""
        return self._chunk({"role": "assistant", "content": ""})

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _delta(self, part: AnswerPart) -> dict[str, Any]:
        """Add a part of the answer and return its delta."""
        if isinstance(part, AnswerText):
            self.text.append(part.text)
            return {"content": part.text}
        if isinstance(part, ThinkingText):
            self.thinking.append(part.text)
            return {"reasoning_content": part.text}
        self.calls.append(call_object(part))
        return {"tool_calls": [{"index": len(self.calls) - 1, **self.calls[-1]}]}

    def _reason(self, finish: str) -> str:
        finish = FINISH_REASONS.get(finish, finish)
        return "tool_calls" if self.calls and finish == "stop" else finish

    def full_choice(self) -> dict[str, Any]:
        """Return the finished choice."""
        text = "".join(self.text)
        if self.calls:
            text = text.strip()
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not self.calls else None,
            "refusal": None,
        }
        if self.thinking:
            message["reasoning_content"] = "".join(self.thinking)
        if self.calls:
            message["tool_calls"] = self.calls
        with_logprobs = self.parsed.params.top_logprobs is not None
        logprobs = {"content": self.logprobs, "refusal": None} if with_logprobs else None
        return {
            "index": self.index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self.finish,
        }


def merge_parts(parts: Sequence[AnswerPart]) -> list[AnswerPart]:
    """Join neighbouring parts of one kind."""
    made: list[AnswerPart] = []
    for part in parts:
        last = made[-1] if made else None
        if isinstance(part, AnswerText) and isinstance(last, AnswerText):
            made[-1] = AnswerText(last.text + part.text)
        elif isinstance(part, ThinkingText) and isinstance(last, ThinkingText):
            made[-1] = ThinkingText(last.text + part.text)
        else:
            made.append(part)
    return made


def call_object(call: ToolCall) -> dict[str, Any]:
    """Return a tool call as OpenAI's object, its arguments as JSON text."""
    function = {"name": call.name, "arguments": arguments_text(call)}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def arguments_text(call: ToolCall) -> str:
    """Return a call's arguments as JSON text."""
    return json.dumps(call.arguments, ensure_ascii=False)


@dataclass
class TextChoiceBuilder:
    """Builds one choice of a text completion."""

    index: int
    parsed: ParsedRequest
    text: list[str] = field(default_factory=list)
    finish: str | None = None
    logprobs: dict[str, list[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.logprobs = _no_logprobs()
        self._offset = 0

    def first_chunk(self) -> dict[str, Any] | None:
        """Return the echoed prompt as the opening chunk, if `echo` was requested."""
        if not self.parsed.echo:
            return None
        self.text.append(self.parsed.echo[self.index])
        new = self._prompt_entries() if self.parsed.params.top_logprobs is not None else {}
        for name, values in new.items():
            self.logprobs[name] += values
        self._offset = len(self.text[0])
        return self._object(self.text[0], new or _no_logprobs())

    def _prompt_entries(self) -> dict[str, list[Any]]:
        """Return the entries of the echoed tokens; the first has no log-probability."""
        number = self.index // self.parsed.params.n
        first = token_text(self.parsed.tokenizer, self.parsed.prompts[number][0])
        key = token_key(self.parsed.tokenizer, self.parsed.prompts[number][0])
        new: dict[str, list[Any]] = {
            "tokens": [key], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [0],
        }  # fmt: skip
        self._offset = len(first)
        scored = [one.logprobs for one in self.parsed.prompt_tokens_scored[number]]
        for name, values in self._entries(scored).items():
            new[name] += values
        return new

    def chunks(self, update: ChoiceUpdate) -> list[dict[str, Any]]:
        """Return the new text and, at the end, the finish reason."""
        self.text.append(update.text)
        new = self._entries(update.logprobs)
        for name, values in new.items():
            self.logprobs[name] += values
        if update.finish:
            self.finish = FINISH_REASONS.get(update.finish, update.finish)
        if not (update.text or update.finish or update.logprobs):
            return []
        return [self._object(update.text, new)]

    def _entries(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, list[Any]]:
        new, tokenizer = _no_logprobs(), self.parsed.tokenizer
        for made in logprobs:
            text = token_text(tokenizer, made.token_id)
            new["tokens"].append(token_key(tokenizer, made.token_id))
            new["token_logprobs"].append(made.logprob)
            tops = {token_key(tokenizer, token): p for token, p in made.top}
            new["top_logprobs"].append(tops)
            new["text_offset"].append(self._offset)
            self._offset += len(text)
        return new

    def _object(self, text: str, logprobs: Mapping[str, Any]) -> dict[str, Any]:
        with_logprobs = self.parsed.params.top_logprobs is not None
        return {
            "index": self.index,
            "text": text,
            "logprobs": logprobs if with_logprobs else None,
            "finish_reason": self.finish,
        }

    def full_choice(self) -> dict[str, Any]:
        """Return the finished choice."""
        return self._object("".join(self.text), self.logprobs)


def _no_logprobs() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
