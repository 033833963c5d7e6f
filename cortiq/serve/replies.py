"""Answers as OpenAI's objects, whole and in chunks."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cortiq.dialects.dialect import ToolCall
from cortiq.dialects.splitter import AnswerPart, AnswerSplitter, AnswerText, ThinkingText
from cortiq.serve.asked import Asked, logprob_entry, token_text
from cortiq.serve.job import Job, Update

FINISH = {"loop": "stop", "cancelled": "stop"}
"""Our reasons to end that OpenAI has no word for."""


@dataclass
class Head:
    """What every object of one answer begins with."""

    kind: str
    letters: str
    asked: Asked
    id: str = ""
    created: int = 0

    def __post_init__(self) -> None:
        self.id = f"{self.letters}-{secrets.token_hex(12)}"
        self.created = int(time.time())

    def object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An object with these choices."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.asked.served.name,
            "system_fingerprint": self.asked.served.fingerprint,
            "choices": choices,
        }


def usage(asked: Asked, job: Job) -> dict[str, Any]:
    """Token counts of a job; cached ones are those of each prompt's first choice."""
    stats = {choice: sequence.stats for choice, sequence in job.sequences.items()}
    made = sum(one.generated_tokens for one in stats.values())
    cached = sum(one.reused_tokens for n, one in stats.items() if n % asked.wanted.n == 0)
    return {
        "prompt_tokens": asked.prompt_tokens,
        "completion_tokens": made,
        "total_tokens": asked.prompt_tokens + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Choice(Protocol):
    """Makes one choice of an answer out of updates."""

    def first(self) -> dict[str, Any] | None:
        """The chunk that opens the choice, if there is one."""

    def chunk(self, update: Update) -> list[dict[str, Any]]:
        """Choices of the chunks that an update brings."""

    def whole(self) -> dict[str, Any]:
        """The choice, when it has ended."""


@dataclass
class ChatChoice:
    """One choice of a chat answer."""

    index: int
    asked: Asked
    splitter: AnswerSplitter = field(init=False)
    text: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str = ""

    def __post_init__(self) -> None:
        self.splitter = self.asked.splitter()

    def chunk(self, update: Update) -> list[dict[str, Any]]:
        """Deltas: one for each part, the log-probabilities with the first, the end by itself."""
        parts = self.splitter.feed(update.text)
        if update.finish:
            parts += self.splitter.finish()
        new = [logprob_entry(self.asked.tokenizer, one) for one in update.logprobs]
        self.logprobs += new
        deltas = [self._delta(part) for part in merged(parts)]
        chunks = [self._chunk(delta) for delta in deltas or ([{}] if new else [])]
        if chunks and self.asked.wanted.top_logprobs is not None:
            chunks[0]["logprobs"] = {"content": new, "refusal": None}
        if update.finish:
            self.finish = self._reason(update.finish)
            chunks.append(self._chunk({}, self.finish))
        return chunks

    def first(self) -> dict[str, Any]:
        """The chunk that opens the choice."""
        return self._chunk({"role": "assistant", "content": ""})

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _delta(self, part: AnswerPart) -> dict[str, Any]:
        """Take a part of the answer; its delta."""
        if isinstance(part, AnswerText):
            self.text.append(part.text)
            return {"content": part.text}
        if isinstance(part, ThinkingText):
            self.thinking.append(part.text)
            return {"reasoning_content": part.text}
        self.calls.append(call_object(part))
        return {"tool_calls": [{"index": len(self.calls) - 1, **self.calls[-1]}]}

    def _reason(self, finish: str) -> str:
        finish = FINISH.get(finish, finish)
        return "tool_calls" if self.calls and finish == "stop" else finish

    def whole(self) -> dict[str, Any]:
        """The choice, when it has ended."""
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
        asked_for = self.asked.wanted.top_logprobs is not None
        logprobs = {"content": self.logprobs, "refusal": None} if asked_for else None
        return {
            "index": self.index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self.finish,
        }


def merged(parts: Sequence[AnswerPart]) -> list[AnswerPart]:
    """Neighbouring pieces of one kind as one."""
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
    """A tool call, its arguments as a JSON text."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


@dataclass
class TextChoice:
    """One choice of a text completion."""

    index: int
    asked: Asked
    text: list[str] = field(default_factory=list)
    finish: str | None = None
    logprobs: dict[str, list[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.logprobs = _no_logprobs()
        self._offset = 0

    def first(self) -> dict[str, Any] | None:
        """The chunk that opens the choice: what is echoed of its prompt."""
        if not self.asked.echo:
            return None
        self.text.append(self.asked.echo[self.index])
        self._offset = len(self.text[0])
        return self._object(self.text[0], _no_logprobs())

    def chunk(self, update: Update) -> list[dict[str, Any]]:
        """The new text, and why it ended."""
        self.text.append(update.text)
        new = self._entries(update)
        for name, values in new.items():
            self.logprobs[name] += values
        if update.finish:
            self.finish = FINISH.get(update.finish, update.finish)
        if not (update.text or update.finish or update.logprobs):
            return []
        return [self._object(update.text, new)]

    def _entries(self, update: Update) -> dict[str, list[Any]]:
        new, tokenizer = _no_logprobs(), self.asked.tokenizer
        for made in update.logprobs:
            text = token_text(tokenizer, made.token_id)
            new["tokens"].append(text)
            new["token_logprobs"].append(made.logprob)
            new["top_logprobs"].append({token_text(tokenizer, t): p for t, p in made.top})
            new["text_offset"].append(self._offset)
            self._offset += len(text)
        return new

    def _object(self, text: str, logprobs: Mapping[str, Any]) -> dict[str, Any]:
        wanted = self.asked.wanted.top_logprobs is not None
        return {
            "index": self.index,
            "text": text,
            "logprobs": logprobs if wanted else None,
            "finish_reason": self.finish,
        }

    def whole(self) -> dict[str, Any]:
        """The choice, when it has ended."""
        return self._object("".join(self.text), self.logprobs)


def _no_logprobs() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
