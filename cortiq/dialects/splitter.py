"""Split a streamed answer into thinking, tool calls and text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.dialects.dialect import CallReader, ToolCall, ToolDialect, Tools, Unfinished
from cortiq.dialects.json_text import object_reader
from cortiq.dialects.thinking import Thinking


@dataclass(frozen=True)
class AnswerText:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class ThinkingText:
    """A piece of thinking."""

    text: str


AnswerPart = AnswerText | ThinkingText | ToolCall

MOST_READ = 1 << 24
"""Characters of one answer that are read as calls, those read again counted again: an answer that
opens calls without end would cost the square of its length. Past them all of it is text."""

BARE = ("{", "[{")
"""Beginnings of answers that may be calls without a marker."""

_OBJECTS = object_reader("", "")


class Splitter:
    """Splits an answer into parts; the parts do not depend on how the text is chunked.

    A call inside a thinking block is thinking. What looks like a call and cannot be parsed is text.
    An answer that is nothing but JSON objects of offered tools is calls too, without any marker.

    Parameters
    ----------
    thinking, dialect : the model's markers; None for none.
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
        self._looked = self._read = 0

    def feed(self, piece: str) -> list[AnswerPart]:
        """Take a piece of text and return the parts that are now certain."""
        self._held += piece
        return list(self._run(final=False))

    def finish(self) -> list[AnswerPart]:
        """End the answer and return the parts that were still held back."""
        return list(self._run(final=True))

    def _run(self, final: bool) -> Iterator[AnswerPart]:
        while True:
            before, held = self._state, self._held
            yield from self._state(final)
            if self._state == before and self._held == held:
                return

    def _start(self, final: bool) -> Iterator[AnswerPart]:
        """Read the start of an answer: a thinking block, or an object that is a call."""
        text = self._held.lstrip()
        opens = self.thinking.opens if self.thinking else ""
        if opens and text.startswith(opens):
            self._held, self._state = text[len(opens) :], self._open
            yield from ()
            return
        bare = (*BARE, *(self.dialect.bare if self.dialect else ())) if self.tools else ()
        packed = text[:1] + text[1:].lstrip() if text[:1] == "[" else text
        if bare and packed.startswith(bare):
            self._state = self._bare
        elif final or (text and not any(mark.startswith(packed) for mark in (opens, *bare))):
            self._state = self._say

    def _open(self, final: bool) -> Iterator[AnswerPart]:
        """Skip newlines after the opening marker of a thinking block."""
        self._held = self._held.lstrip("\n")
        if self._held:
            self._state = self._think
        yield from ()

    def _think(self, final: bool) -> Iterator[AnswerPart]:
        assert self.thinking is not None
        inside, found, after = self._cut((self.thinking.closes,), final)
        if inside:
            yield ThinkingText(inside)
        if found:
            self._held, self._state = after, self._after
        else:
            self._held = after

    def _after(self, final: bool) -> Iterator[AnswerPart]:
        """Skip newlines between thinking and answer."""
        self._held = self._held.lstrip("\n")
        if self._held or final:
            self._state = self._start
        yield from ()

    def _say(self, final: bool) -> Iterator[AnswerPart]:
        thinking, dialect = self.thinking, self.dialect
        openings = (dialect.opens, *dialect.openings) if dialect else ()
        frames = (thinking.opens, *thinking.frames) if thinking and thinking.frames else ()
        text, found, after = self._cut((*openings, *frames), final)
        if text:
            yield AnswerText(text)
        self._held = after
        if found and found in openings:
            self._held, self._opening = found + after, found
            self._looked, self._state = len(found), self._call
        elif thinking and found == thinking.opens:
            self._state = self._open

    def _call(self, final: bool) -> Iterator[AnswerPart]:
        """Read a call from its opening marker on; yield nothing before a marker closes it."""
        dialect, opening = self.dialect, self._opening
        assert dialect is not None
        ends = dialect.openings.get(opening, (dialect.closes,))
        calls: list[ToolCall] = []
        while not calls:
            hits = [(at, mark) for mark in ends if mark
                    and (at := self._held.find(mark, self._looked)) >= 0]  # fmt: skip
            if not hits and not final:
                self._looked = max(self._looked, len(self._held) - max(map(len, ends)) + 1)
                return
            at, mark = min(hits) if hits else (len(self._held), "")
            try:
                calls, end = self._calls(self._held[: at + len(mark)], self.tools, not hits)
            except Unfinished:
                if not hits:
                    break
                self._looked = at + len(mark)
            except (ValueError, RecursionError, TypeError):
                break
        if calls:
            self._held, self._state = self._held[end:], self._called
            yield from calls
        else:
            self._held, self._state = self._held[len(opening) :], self._say
            yield AnswerText(opening)

    def _called(self, final: bool) -> Iterator[AnswerPart]:
        """Skip closing markers that are repeated after calls."""
        text = self._held.lstrip()
        closes = self.dialect.closes if self.dialect else ""
        if closes and text.startswith(closes):
            self._held = text[len(closes) :]
        elif final or not closes.startswith(text):
            self._state = self._say
        yield from ()

    def _bare(self, final: bool) -> Iterator[AnswerPart]:
        """Read an answer that begins like calls without a marker: as calls if all of it is."""
        if not final:
            return
        self._state = self._say
        opens = self.dialect.opens if self.dialect else ""
        calls = self._whole(_OBJECTS, self._held) or self._whole(self._calls, opens + self._held)
        if calls:
            self._held = ""
            yield from calls

    def _whole(self, read: CallReader, text: str) -> list[ToolCall]:
        """Return the calls of offered tools that make up a whole text; none otherwise."""
        try:
            calls, end = read(text, self.tools, True)
        except (ValueError, RecursionError, TypeError):
            return []
        known = all(call.name in self.tools for call in calls)
        return calls if known and not text[end:].strip() else []

    def _calls(self, text: str, tools: Tools, final: bool) -> tuple[list[ToolCall], int]:
        """Return the calls that begin a text, and where they end."""
        self._read += len(text)
        if self.dialect is None or self._read > MOST_READ:
            raise ValueError("no calls")
        return self.dialect.calls(text, tools, final)

    def _cut(self, markers: tuple[str, ...], final: bool) -> tuple[str, str, str]:
        """Return the text before the first marker, that marker, and the rest. Without a marker: the
        text that cannot belong to one, nothing, and the text that has to wait.
        """
        text = self._held
        hits = [(at, -len(m), m) for m in markers if m and (at := text.find(m)) >= 0]
        if hits:
            start, _, marker = min(hits)
            longer = any(m != marker and m.startswith(text[start:]) for m in markers)
            if longer and not final:
                return text[:start], "", text[start:]
            return text[:start], marker, text[start + len(marker) :]
        keep = 0 if final else max((_overlap(text, m) for m in markers if m), default=0)
        return text[: len(text) - keep], "", text[len(text) - keep :]


def _overlap(text: str, marker: str) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `marker`."""
    longest = min(len(marker) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if marker.startswith(text[-n:])), 0)
