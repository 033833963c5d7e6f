"""Calls in elements: a name, then keys with values that are texts, as several dialects have them.

A value may contain anything, also text like a closing tag. The position decides: a tag that closes
a value is followed by the next key or by the end of the call, and a value that opens elements of
the same kind closes them too. If a model left a tag out, the tool's schema distinguishes a key from
similar text. Ambiguous text is not a call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from cortiq.dialects.dialect import CallReader, ToolCall, Tools, Unfinished
from cortiq.dialects.json_text import ending, object_reader, skip
from cortiq.dialects.schema import Schema

_SPACES = re.compile(r"\s*")


@dataclass(frozen=True)
class MarkupReader:
    """The elements of a dialect.

    Attributes
    ----------
    opens, closes : markers around calls.
    head : pattern up to the first key; group 1 is the name.
    key : pattern up to the value; group 1 is the key. close : marker behind a value.
    tail : marker behind the last value; empty where there is none.
    lines : whether values stand between line breaks that are not theirs.
    """

    opens: str
    closes: str
    head: str
    key: str
    close: str
    tail: str = ""
    lines: bool = False

    @cached_property
    def _head(self) -> re.Pattern[str]:
        return re.compile(self.head)

    @cached_property
    def _objects(self) -> CallReader:
        return object_reader(self.opens, self.closes)

    @cached_property
    def _key(self) -> re.Pattern[str]:
        return re.compile(rf"\s*{self.key}")

    @cached_property
    def _around(self) -> re.Pattern[str]:
        return re.compile(rf"(?:\s|{re.escape(self.opens)}|{re.escape(self.closes)})*")

    @cached_property
    def _closing(self) -> re.Pattern[str]:
        return re.compile(rf"\s*{re.escape(self.closes)}")

    @cached_property
    def _tags(self) -> re.Pattern[str]:
        marks = [re.escape(self.close)] + ([re.escape(self.tail)] if self.tail else [])
        return re.compile(rf"(?P<key>{self.key})|{'|'.join(marks)}")

    @cached_property
    def _follows(self) -> re.Pattern[str]:
        """Pattern of what may follow a complete value in a complete call."""
        over = rf"(?:{self.head}|{re.escape(self.closes)}|{re.escape(self.opens)}|\Z)"
        return re.compile(rf"\s*(?:{self.key}|{re.escape(self.tail)}\s*{over})")

    @cached_property
    def _follows_loosely(self) -> re.Pattern[str]:
        tail = rf"{re.escape(self.tail)}|" if self.tail else ""
        return re.compile(rf"\s*(?:{self.key}|{tail}{re.escape(self.closes)}|\Z)")

    @cached_property
    def _over(self) -> re.Pattern[str]:
        """Pattern of what may follow a complete call."""
        opens, closes = re.escape(self.opens), re.escape(self.closes)
        return re.compile(rf"\s*(?:{closes}\s*)*(?:{opens}|{self.head}|\Z)")

    def _again(self, loosely: bool) -> re.Pattern[str]:
        """Return a value's closing tags that are repeated, and what has to follow them."""
        behind = [self.key] + ([re.escape(self.tail)] if self.tail else [])
        if loosely or not self.tail:
            behind += [re.escape(self.closes), r"\Z"]
        return re.compile(rf"(?:\s*{re.escape(self.close)})+(?=\s*(?:{'|'.join(behind)}))")

    def read(self, text: str, tools: Tools, final: bool) -> tuple[list[ToolCall], int]:
        """Read a block (`dialect.CallReader`) strictly, or loosely at the end of an answer.

        Models that were trained on several dialects write JSON objects between the same markers.
        """
        if text.startswith(self.opens) and text[len(self.opens) :].lstrip().startswith("{"):
            return self._objects(text, tools, final)
        try:
            return self._read(text, tools, final, loosely=False)
        except ValueError:
            if not final:
                raise
        return self._read(text, tools, final, loosely=True)

    def _read(
        self, text: str, tools: Tools, final: bool, loosely: bool
    ) -> tuple[list[ToolCall], int]:
        calls: list[ToolCall] = []
        end = 0
        while head := self._head.match(text, skip(self._around, text, end)):
            name = head[1].strip()
            if final and name not in tools:
                break  # without its closing marker only a tool that there is makes it a call
            arguments, end = self._arguments(text, head.end(), Schema(tools.get(name)), loosely)
            calls.append(ToolCall(name, arguments))
        if not calls:
            raise ValueError("no call")
        return calls, ending(text, end, self._closing, final)

    def _arguments(
        self, text: str, at: int, schema: Schema, loosely: bool
    ) -> tuple[dict[str, str], int]:
        """Return the arguments of one call, and where they end."""
        made: dict[str, str] = {}
        while key := self._key.match(text, at):
            name = key[1].strip()
            if name in made:
                raise ValueError("an argument that is given twice")
            open_keys = schema.names() - made.keys() - {name} if loosely else frozenset()
            made[name], at = self._value(text, key.end(), open_keys, loosely)
        after = skip(_SPACES, text, at)
        if self.tail and text.startswith(self.tail, after):
            return made, after + len(self.tail)
        if text.startswith(self.closes, after) and (loosely or not self.tail):
            return made, at
        if loosely and made and after == len(text) and schema.names() <= made.keys():
            return made, at  # nothing that was cut off could have been an argument
        raise Unfinished("the call does not end")

    def _value(
        self, text: str, at: int, open_keys: frozenset[str], loosely: bool
    ) -> tuple[str, int]:
        """Return a value, and where the text after it begins."""
        inside = 0
        follows = self._follows_loosely if loosely else self._follows
        for tag in self._tags.finditer(text, at):
            start, end = tag.span()
            if tag["key"] is not None:
                found = re.match(self.key, tag["key"])
                if loosely and found and found[1].strip() in open_keys:
                    return self._plain(text[at:start]), start
                inside += not loosely
            elif tag[0] != self.close:
                if loosely and self._over.match(text, end):
                    return self._plain(text[at:start]), start
            elif inside:
                inside -= 1
            elif follows.match(text, end):
                return self._plain(text[at:start]), end
            elif (again := self._again(loosely).match(text, end)) and self._twice(
                text, start, again
            ):
                return self._plain(text[at:start]), again.end()
        raise Unfinished("the value does not end")

    def _twice(self, text: str, start: int, again: re.Match[str]) -> bool:
        """Return whether the tag at `start` closes a value although it occurs again behind it.

        A tag on its own line does; inside a line it is text if the tag on the next line closes.
        """
        if self.lines and text[start - 1] == "\n":
            return True
        if self.lines and "\n" in again[0]:
            return False
        raise ValueError("a closing tag twice, and either may be text")

    def _plain(self, value: str) -> str:
        return value.removeprefix("\n").removesuffix("\n") if self.lines else value
