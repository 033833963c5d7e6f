"""Tells the parts of an answer apart while it streams: thinking, tool calls, and text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.dialects.dialect import ToolCall, ToolDialect, from_json, typed
from cortiq.dialects.thinking import Thinking


@dataclass(frozen=True)
class Said:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class Thought:
    """A piece of thinking."""

    text: str


Part = Said | Thought | ToolCall


class Splitter:
    """Cuts an answer into parts; what they are does not depend on the pieces it comes in.

    A call inside a thinking block is thinking. What looks like a call and cannot be parsed is text.
    An answer that is one JSON object naming an offered tool is a call too.

    Parameters
    ----------
    thinking, dialect : how the model marks both; None for not at all.
    tools : JSON schema of each tool's arguments by name; without any no calls are looked for.
    opened : whether the prompt ended inside a thinking block.
    """

    def __init__(
        self,
        thinking: Thinking | None = None,
        dialect: ToolDialect | None = None,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        opened: bool = False,
    ) -> None:
        self.thinking, self.tools = thinking, tools or {}
        self.dialect = dialect if tools else None
        self._state = self._open if opened and thinking else self._start
        self._held = ""

    def feed(self, piece: str) -> list[Part]:
        """Take a piece; the parts that are now certain."""
        self._held += piece
        return list(self._run(final=False))

    def finish(self) -> list[Part]:
        """The end of the answer; the parts that were still held back."""
        return list(self._run(final=True))

    def _run(self, final: bool) -> Iterator[Part]:
        while True:
            before, held = self._state, self._held
            yield from self._state(final)
            if self._state == before and self._held == held:
                return

    def _start(self, final: bool) -> Iterator[Part]:
        """Before anything was said: a thinking block may open, or an object that is a call."""
        text = self._held.lstrip()
        opens = self.thinking.opens if self.thinking else ""
        if opens and text.startswith(opens):
            self._held, self._state = text[len(opens) :], self._open
        elif not final and (not text or opens.startswith(text)):
            return
        else:
            whole = bool(self.tools) and text.startswith("{")
            self._state = self._object if whole else self._say
        yield from ()

    def _open(self, final: bool) -> Iterator[Part]:
        """Newlines after the opening marker are no part of the thinking."""
        self._held = self._held.lstrip("\n")
        if self._held:
            self._state = self._think
        yield from ()

    def _think(self, final: bool) -> Iterator[Part]:
        assert self.thinking is not None
        inside, found, after = self._cut((self.thinking.closes,), final)
        if inside:
            yield Thought(inside)
        if found:
            self._held, self._state = after, self._after
        else:
            self._held = after

    def _after(self, final: bool) -> Iterator[Part]:
        """Between thinking and answer: newlines there belong to neither."""
        self._held = self._held.lstrip("\n")
        if self._held or final:
            self._state = self._start
        yield from ()

    def _say(self, final: bool) -> Iterator[Part]:
        thinking = self.thinking
        opens = self.dialect.opens if self.dialect else ""
        frames = (thinking.opens, *thinking.frames) if thinking and thinking.frames else ()
        text, found, after = self._cut((opens, *frames), final)
        if text:
            yield Said(text)
        self._held = after
        if found and found == opens:
            self._state = self._call
        elif thinking and found == thinking.opens:
            self._state = self._open

    def _call(self, final: bool) -> Iterator[Part]:
        """Inside a call's markers; nothing comes out before the closing one."""
        dialect = self.dialect
        assert dialect is not None
        body, closed, after = self._held, False, ""
        if dialect.closes and dialect.closes in self._held:
            body, _, after = self._held.partition(dialect.closes)
            closed = True
        elif not final:
            return
        self._held, self._state = after, self._say
        calls = self._parsed(body) if closed or dialect.at_end else []
        if calls:
            yield from calls
        else:
            yield Said(dialect.opens + body + (dialect.closes if closed else ""))

    def _object(self, final: bool) -> Iterator[Part]:
        """An answer that began as a JSON object: a call if all of it is one, else text."""
        if not final:
            return
        try:
            calls = [call for call in from_json(self._held) if call.name in self.tools]
        except ValueError:
            calls = []
        if calls:
            self._held = ""
            yield from calls
        self._state = self._say

    def _parsed(self, body: str) -> list[ToolCall]:
        """The calls of a body; none where it cannot be parsed."""
        assert self.dialect is not None
        try:
            calls = self.dialect.parse(body)
            if self.dialect.texts:
                calls = [typed(call, self.tools.get(call.name, {})) for call in calls]
            return calls
        except (ValueError, RecursionError, TypeError):
            return []

    def _cut(self, markers: tuple[str, ...], final: bool) -> tuple[str, str, str]:
        """Text before the first marker, that marker, and what follows; without one, the text that
        cannot belong to a marker, nothing, and what has to wait.
        """
        text = self._held
        hits = [(at, -len(m), m) for m in markers if m and (at := text.find(m)) >= 0]
        if hits:
            start, _, marker = min(hits)
            return text[:start], marker, text[start + len(marker) :]
        keep = 0 if final else max((_overlap(text, m) for m in markers if m), default=0)
        return text[: len(text) - keep], "", text[len(text) - keep :]


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker`."""
    longest = min(len(marker) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if marker.startswith(text[-n:])), 0)
