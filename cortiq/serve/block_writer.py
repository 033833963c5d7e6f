"""Answers of APIs whose one answer is a list of blocks: thinking, text, and calls of tools."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, Literal

from cortiq.dialects.dialect import ToolCall
from cortiq.dialects.splitter import AnswerPart, AnswerText, ThinkingText
from cortiq.serve.choice_builders import arguments_text, merge_parts
from cortiq.serve.generation_job import ChoiceUpdate, GenerationJob
from cortiq.serve.parsed_request import ParsedRequest

BlockKind = Literal["thinking", "text", "call"]


@dataclass
class AnswerBlock:
    """A block of an answer.

    Attributes
    ----------
    number : its index among the blocks. id : a random name.
    pieces : its text so far, or a call's arguments. call : the call, of a call's block.
    """

    number: int
    kind: BlockKind
    id: str
    pieces: list[str] = field(default_factory=list)
    call: ToolCall | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)


@dataclass(frozen=True)
class AnswerUsage:
    """Token counts of an answer: the prompt's, those of it that were cached, and the new ones."""

    prompt: int
    cached: int
    new: int


class BlockWriter:
    """Cuts one answer into blocks; subclasses say how blocks open, grow and close.

    White space that no text follows, as around calls, opens no block.
    """

    media_type = "text/event-stream"

    def __init__(self, parsed: ParsedRequest, job: GenerationJob) -> None:
        self.parsed, self.job = parsed, job
        self.blocks: list[AnswerBlock] = []
        self.finish = ""
        self.receipt: dict[str, Any] = {}  # a field of the answer, if there is one
        self._splitter = parsed.splitter()
        self._open: AnswerBlock | None = None
        self._space = ""

    def opened(self, block: AnswerBlock) -> str:
        """Return what opens a block in the stream."""
        raise NotImplementedError

    def grown(self, block: AnswerBlock, piece: str) -> str:
        """Return what adds a piece to a block in the stream."""
        raise NotImplementedError

    def closed(self, block: AnswerBlock) -> str:
        """Return what closes a block in the stream."""
        raise NotImplementedError

    def take(self, update: ChoiceUpdate) -> str:
        """Return what an update adds to the stream."""
        parts = self._splitter.feed(update.text)
        if update.finish:
            parts += self._splitter.finish()
        made = "".join(self._part(part) for part in merge_parts(parts))
        if update.finish:
            made += self._close()
            self.finish = update.finish
            if (receipt := self.job.issue(0)) is not None:
                self.receipt = {"receipt": receipt}
        return made

    def _part(self, part: AnswerPart) -> str:
        if isinstance(part, ToolCall):
            return self._call(part)
        kind: BlockKind = "thinking" if isinstance(part, ThinkingText) else "text"
        piece = part.text
        made = ""
        if self._open is None or self._open.kind != kind:
            made, piece = self._close(), self._space + piece
            if isinstance(part, AnswerText) and piece.isspace():
                self._space = piece
                return made
            self._space = ""
            made += self._new(kind)
        assert self._open is not None
        self._open.pieces.append(piece)
        return made + self.grown(self._open, piece)

    def _call(self, call: ToolCall) -> str:
        made, self._space = self._close() + self._new("call", call), ""
        assert self._open is not None
        self._open.pieces.append(arguments_text(call))
        return made + self.grown(self._open, self._open.text) + self._close()

    def _new(self, kind: BlockKind, call: ToolCall | None = None) -> str:
        self._open = AnswerBlock(len(self.blocks), kind, secrets.token_hex(12), call=call)
        self.blocks.append(self._open)
        return self.opened(self._open)

    def _close(self) -> str:
        block, self._open = self._open, None
        return "" if block is None else self.closed(block)

    @property
    def usage(self) -> AnswerUsage:
        """Token counts so far."""
        sequence = self.job.sequences.get(0)
        if sequence is None:
            return AnswerUsage(self.parsed.prompt_tokens, 0, 0)
        stats = sequence.stats
        return AnswerUsage(self.parsed.prompt_tokens, stats.reused_tokens, stats.generated_tokens)

    @property
    def called(self) -> bool:
        """Whether the answer calls a tool."""
        return any(block.kind == "call" for block in self.blocks)
