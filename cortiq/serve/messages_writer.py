"""Anthropic's Messages API: answers as `message` objects and as their events."""

from __future__ import annotations

import secrets
from typing import Any

from cortiq.serve.block_writer import AnswerBlock, BlockWriter
from cortiq.serve.completion_writer import event
from cortiq.serve.errors import ApiError, anthropic_error
from cortiq.serve.generation_job import GenerationJob
from cortiq.serve.parsed_request import ParsedRequest


class MessagesWriter(BlockWriter):
    """Writes one message; an `AnswerWriter`."""

    def __init__(self, parsed: ParsedRequest, job: GenerationJob) -> None:
        super().__init__(parsed, job)
        self.id = f"msg_{secrets.token_hex(12)}"

    def begin(self) -> str:
        """Return the event that announces the message."""
        message = self._message([], None)
        return _event("message_start", message=message)

    def end(self) -> str:
        """Return the events that end the message."""
        delta = {"stop_reason": self._reason(), "stop_sequence": self._stop()}
        used = {"usage": self._usage(), **self.receipt}
        return _event("message_delta", delta=delta, **used) + _event("message_stop")

    def fail(self, error: ApiError) -> str:
        """Return an error as an event; nothing follows it."""
        return event(anthropic_error(error), "error")

    def idle(self, note: str) -> str:
        """Return a ping."""
        return _event("ping")

    def whole(self) -> dict[str, Any]:
        """Return the message as one object."""
        return self._message([_content(block) for block in self.blocks], self._reason())

    def opened(self, block: AnswerBlock) -> str:
        """Return the event that opens a block."""
        content = _content(AnswerBlock(block.number, block.kind, block.id, [], block.call))
        if block.kind == "call":
            content["input"] = {}
        return _event("content_block_start", index=block.number, content_block=content)

    def grown(self, block: AnswerBlock, piece: str) -> str:
        """Return the event of a piece."""
        kind, name = DELTAS[block.kind]
        return self._delta(block, {"type": kind, name: piece})

    def closed(self, block: AnswerBlock) -> str:
        """Return the events that close a block."""
        signed = block.kind == "thinking"
        made = self._delta(block, {"type": "signature_delta", "signature": ""}) if signed else ""
        return made + _event("content_block_stop", index=block.number)

    def _delta(self, block: AnswerBlock, delta: dict[str, Any]) -> str:
        return _event("content_block_delta", index=block.number, delta=delta)

    def _message(self, content: list[dict[str, Any]], reason: str | None) -> dict[str, Any]:
        served = self.parsed.served
        return {
            "id": self.id, "type": "message", "role": "assistant",
            "model": self.parsed.model_name, "content": content, "stop_reason": reason,
            "stop_sequence": self._stop(), "usage": self._usage(),
            "system_fingerprint": served.fingerprint, **self.receipt,
        }  # fmt: skip

    def _stop(self) -> str | None:
        sequence = self.job.sequences.get(0)
        return sequence.output.matched_stop if sequence is not None and self.finish else None

    def _reason(self) -> str:
        if self.finish == "length":
            return "max_tokens"
        if self._stop() is not None:
            return "stop_sequence"
        return "tool_use" if self.called else "end_turn"

    def _usage(self) -> dict[str, Any]:
        used = self.usage
        return {
            "input_tokens": used.prompt - used.cached, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": used.cached, "output_tokens": used.new,
        }  # fmt: skip


DELTAS = {
    "thinking": ("thinking_delta", "thinking"), "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}  # fmt: skip
"""Type of the delta of each kind of block, and the field that the piece is in."""


def _content(block: AnswerBlock) -> dict[str, Any]:
    """Return a block of the message."""
    if block.call is not None:
        call = block.call
        about = {"name": call.name, "input": call.arguments}
        return {"type": "tool_use", "id": f"toolu_{block.id}", **about}
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    return {"type": "text", "text": block.text}


def _event(name: str, **about: Any) -> str:
    return event({"type": name, **about}, name)
