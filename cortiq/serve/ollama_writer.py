"""Ollama's API: answers as lines of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from cortiq.serve.block_writer import AnswerBlock, BlockWriter
from cortiq.serve.errors import ApiError
from cortiq.serve.generation_job import GenerationJob
from cortiq.serve.ollama_models import timestamp
from cortiq.serve.parsed_request import ParsedRequest

NANOSECONDS = 1e9


class OllamaWriter(BlockWriter):
    """Writes one answer; an `AnswerWriter`.

    Parameters
    ----------
    asked : name of the model, as the request has it.
    chat : whether it is a chat's: a message instead of a text.
    """

    media_type = "application/x-ndjson"

    def __init__(self, parsed: ParsedRequest, job: GenerationJob, asked: str, chat: bool) -> None:
        super().__init__(parsed, job)
        self._asked, self._chat, self._started = asked, chat, time.monotonic()

    def begin(self) -> str:
        """Return nothing: the first piece is the first line."""
        return ""

    def end(self) -> str:
        """Return the last line, with counts and times."""
        return _line(self._last({}))

    def fail(self, error: ApiError) -> str:
        """Return an error as a line; nothing follows it."""
        return _line({"error": error.message})

    def idle(self, note: str) -> str:
        """Return nothing: every line is a piece of the answer."""
        return ""

    def whole(self) -> dict[str, Any]:
        """Return the answer as one object."""
        text = "".join(block.text for block in self.blocks if block.kind == "text")
        thought = "".join(block.text for block in self.blocks if block.kind == "thinking")
        calls = [_call(block) for block in self.blocks if block.call is not None]
        return self._last(self._piece(text, thought, calls))

    def opened(self, block: AnswerBlock) -> str:
        """Return nothing: blocks have no beginnings here."""
        return ""

    def grown(self, block: AnswerBlock, piece: str) -> str:
        """Return the line of a piece."""
        calls = [_call(block)] if block.call is not None else []
        text, thought = piece if block.kind == "text" else "", ""
        if block.kind == "thinking":
            thought = piece
        return _line({**self._head(done=False), **self._piece(text, thought, calls)})

    def closed(self, block: AnswerBlock) -> str:
        """Return nothing: blocks have no ends here."""
        return ""

    def _head(self, *, done: bool) -> dict[str, Any]:
        return {"model": self._asked, "created_at": timestamp(time.time()), "done": done}

    def _piece(self, text: str, thought: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        more: dict[str, Any] = {"thinking": thought} if thought else {}
        if not self._chat:
            return {"response": text, **more}
        more |= {"tool_calls": calls} if calls else {}
        return {"message": {"role": "assistant", "content": text, **more}}

    def _last(self, piece: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object that ends an answer."""
        used, sequence = self.usage, self.job.sequences.get(0)
        prompt = sequence.stats.prompt_seconds if sequence is not None else 0.0
        decode = sequence.stats.decode_seconds if sequence is not None else 0.0
        return {
            **self._head(done=True), **(piece or self._piece("", "", [])),
            "done_reason": "length" if self.finish == "length" else "stop",
            "total_duration": _nanoseconds(time.monotonic() - self._started), "load_duration": 0,
            "prompt_eval_count": used.prompt, "prompt_eval_duration": _nanoseconds(prompt),
            "eval_count": used.new, "eval_duration": _nanoseconds(decode),
            **self.receipt,
        }  # fmt: skip


def loaded_object(asked: str, chat: bool) -> dict[str, Any]:
    """Return the answer to a request without a prompt, which only loads a model."""
    piece = {"message": {"role": "assistant", "content": ""}} if chat else {"response": ""}
    head = {"model": asked, "created_at": timestamp(time.time())}
    return {**head, **piece, "done": True, "done_reason": "load"}


def _call(block: AnswerBlock) -> dict[str, Any]:
    assert block.call is not None
    return {"function": {"name": block.call.name, "arguments": block.call.arguments}}


def _line(made: Mapping[str, Any]) -> str:
    return json.dumps(made, ensure_ascii=False, separators=(",", ":")) + "\n"


def _nanoseconds(seconds: float) -> int:
    return int(seconds * NANOSECONDS)
