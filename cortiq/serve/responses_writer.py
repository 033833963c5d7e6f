"""OpenAI's Responses API: answers as `response` objects and as their events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from cortiq.serve.block_writer import AnswerBlock, BlockWriter
from cortiq.serve.completion_writer import event
from cortiq.serve.errors import ApiError
from cortiq.serve.fields import Fields
from cortiq.serve.generation_job import ChoiceUpdate, GenerationJob
from cortiq.serve.parsed_request import ParsedRequest
from cortiq.serve.responses_request import HOSTED, hosted_warnings, namespaces
from cortiq.serve.token_entries import logprob_entry

PREFIXES = {"thinking": "rs", "text": "msg", "call": "fc"}
EVENTS = {
    "thinking": "response.reasoning_text", "text": "response.output_text",
    "call": "response.function_call_arguments",
}  # fmt: skip
"""Beginnings of the names of a block's events."""
REPEATED = ("instructions", "metadata", "tools", "tool_choice", "text", "reasoning", "user")
"""Fields of the request that the response has too."""


class ResponsesWriter(BlockWriter):
    """Writes one response; an `AnswerWriter`.

    Parameters
    ----------
    fields : the request, parts of which a response repeats.
    """

    def __init__(self, parsed: ParsedRequest, job: GenerationJob, fields: Fields) -> None:
        super().__init__(parsed, job)
        self.id, self.created = f"resp_{secrets.token_hex(16)}", int(time.time())
        tools = fields.values.get("tools") or []
        offered = [tool for tool in tools if tool.get("type") not in HOSTED]
        self._asked, self._sent = {**fields.values, "tools": offered}, 0
        self._namespaces, self._warnings = namespaces(tools), hosted_warnings(tools)
        self._logprobs: list[dict[str, Any]] = []

    def begin(self) -> str:
        """Return the events that announce the response."""
        made = self._response("in_progress", [])
        return self._event("response.created", response=made) + self._event(
            "response.in_progress", response=made
        )

    def take(self, update: ChoiceUpdate) -> str:
        """Return the events of an update."""
        tokenizer = self.parsed.tokenizer
        self._logprobs += [logprob_entry(tokenizer, one) for one in update.logprobs]
        return super().take(update)

    def end(self) -> str:
        """Return the event with the whole response."""
        made = self.whole()
        return self._event(f"response.{made['status']}", response=made)

    def fail(self, error: ApiError) -> str:
        """Return the event of a response that failed."""
        made = self._response("failed", self._items())
        code = error.code or "server_error"
        return self._event(
            "response.failed", response={**made, "error": {"code": code, "message": error.message}}
        )

    def idle(self, note: str) -> str:
        """Return a comment, which clients skip."""
        return f": {note}\n\n"

    def whole(self) -> dict[str, Any]:
        """Return the response as one object."""
        status = "incomplete" if self.finish == "length" else "completed"
        return self._response(status, self._items())

    def opened(self, block: AnswerBlock) -> str:
        """Return the events that add an item, and the part in it."""
        item = self._item(block, "in_progress")
        made = self._event("response.output_item.added", output_index=block.number, item=item)
        if block.kind == "call":
            return made
        return made + self._on(block, "response.content_part.added", part=self._part_of(block, ""))

    def grown(self, block: AnswerBlock, piece: str) -> str:
        """Return the event of a piece."""
        return self._on(block, f"{EVENTS[block.kind]}.delta", delta=piece, **_logprobs(block))

    def closed(self, block: AnswerBlock) -> str:
        """Return the events that complete an item."""
        item = self._item(block, "completed")
        name = f"{EVENTS[block.kind]}.done"
        if block.kind == "call":
            made = self._on(block, name, name=item["name"], arguments=block.text)
        else:
            made = self._on(block, name, text=block.text, **_logprobs(block))
            part = self._part_of(block, block.text)
            made += self._on(block, "response.content_part.done", part=part)
        done = {"output_index": block.number, "item": item}
        return made + self._event("response.output_item.done", **done)

    def _on(self, block: AnswerBlock, event_name: str, **about: Any) -> str:
        """Return an event about an item."""
        place = {"item_id": f"{PREFIXES[block.kind]}_{block.id}", "output_index": block.number}
        if block.kind != "call":
            place["content_index"] = 0
        return self._event(event_name, **place, **about)

    def _event(self, event_name: str, **about: Any) -> str:
        self._sent += 1
        made = {"type": event_name, "sequence_number": self._sent - 1, **about}
        return event(made, event_name)

    def _items(self) -> list[dict[str, Any]]:
        made = [self._item(block, "completed") for block in self.blocks]
        if made and self.finish == "length":
            made[-1]["status"] = "incomplete"
        return made

    def _item(self, block: AnswerBlock, status: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": f"{PREFIXES[block.kind]}_{block.id}", "status": status}
        if block.kind == "call":
            assert block.call is not None
            name, call = block.call.name, f"call_{block.id}"
            about = {"call_id": call, "name": name, "arguments": block.text}
            if name in self._namespaces:
                about["namespace"] = self._namespaces[name]
            return {**item, "type": "function_call", **about}
        parts = [self._part_of(block, block.text)] if block.pieces else []
        if block.kind == "thinking":
            return {**item, "type": "reasoning", "summary": [], "content": parts}
        return {**item, "type": "message", "role": "assistant", "content": parts}

    def _part_of(self, block: AnswerBlock, text: str) -> dict[str, Any]:
        if block.kind == "thinking":
            return {"type": "reasoning_text", "text": text}
        logprobs = self._logprobs if text else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _response(self, status: str, items: list[dict[str, Any]]) -> dict[str, Any]:
        options, served = self.parsed.params.options, self.parsed.served
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        warned = {"warnings": self._warnings} if self._warnings else {}
        usual: Mapping[str, Any] = {
            "instructions": None, "metadata": {}, "tools": [], "tool_choice": "auto",
            "text": {"format": {"type": "text"}}, "reasoning": {"effort": None, "summary": None},
            "user": None,
        }  # fmt: skip
        return {
            "id": self.id, "object": "response", "created_at": self.created, "status": status,
            "background": False, "error": None, "incomplete_details": cut,
            "max_output_tokens": options.max_tokens, "model": self.parsed.model_name,
            "output": items,
            "parallel_tool_calls": True, "previous_response_id": None, "store": False,
            "temperature": options.temperature, "top_p": options.top_p, "truncation": "disabled",
            "usage": None if status == "in_progress" else self._usage(),
            "system_fingerprint": served.fingerprint,
            **{name: self._asked.get(name, usual[name]) for name in REPEATED},
            **warned, **self.receipt,
        }  # fmt: skip

    def _usage(self) -> dict[str, Any]:
        used = self.usage
        thought = "".join(block.text for block in self.blocks if block.kind == "thinking")
        ids = self.parsed.tokenizer.encode(thought, add_bos=False) if thought else []
        return {
            "input_tokens": used.prompt,
            "input_tokens_details": {"cached_tokens": used.cached},
            "output_tokens": used.new,
            "output_tokens_details": {"reasoning_tokens": min(len(ids), used.new)},
            "total_tokens": used.prompt + used.new,
        }


def _logprobs(block: AnswerBlock) -> dict[str, Any]:
    """Return the field that events of texts have, empty: the whole item has them."""
    return {"logprobs": []} if block.kind == "text" else {}
