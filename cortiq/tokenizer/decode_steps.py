"""The steps of decoders: each takes tokens, which may come in parts, and gives tokens."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from typing import Any

from cortiq.tokenizer.byte_level import piece_bytes
from cortiq.tokenizer.decode_base import DecodeStep, StepPosition, literal_of

__all__ = ["MAKERS"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")
_CLEANUP = (
    *((f" {sign}", sign) for sign in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m")),
    (" do not", " don't"),
    *((f" {end}", end) for end in ("'s", "'ve", "'re")),
)


class _Gather(DecodeStep):
    """Buffers a token until it is complete, and passes it to `turn` whole."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def part(self, text: str) -> None:
        self._parts.append(text)

    def end(self) -> None:
        token = "".join(self._parts)
        self._parts.clear()
        self.turn(token)

    def turn(self, token: str) -> None:
        raise NotImplementedError

    def emit(self, token: str) -> None:
        self.after.part(token)
        self.after.end()


class _Fuse(DecodeStep):
    """Joins all tokens into one."""

    def end(self) -> None:
        pass

    def close(self) -> None:
        self.after.end()
        self.after.close()


class _ByteLevel(_Gather):
    """Joins all tokens into one of bytes, shown as far as they form whole characters."""

    def __init__(self, errors: str) -> None:
        super().__init__()
        self._characters = codecs.getincrementaldecoder("utf-8")(errors)

    def turn(self, token: str) -> None:
        self.after.part(self._characters.decode(piece_bytes(token)))

    def close(self) -> None:
        self.emit(self._characters.decode(b"", final=True))
        self.after.close()


class _ByteFallback(_Gather):
    """Joins consecutive tokens called `<0xXX>` into characters."""

    def __init__(self, errors: str) -> None:
        super().__init__()
        self._characters = codecs.getincrementaldecoder("utf-8")(errors)
        self._run = False

    def turn(self, token: str) -> None:
        byte = _BYTE.fullmatch(token)
        if byte:
            self._run = True
            self.after.part(self._characters.decode(bytes([int(byte[1], 16)])))
            return
        self._end_run()
        self.emit(token)

    def _end_run(self) -> None:
        if self._run:
            self.emit(self._characters.decode(b"", final=True))
        self._run = False

    def close(self) -> None:
        self._end_run()
        self.after.close()


class _Replace(DecodeStep):
    """Replaces a text inside every token, also where it lies across two parts."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new, self._held = old, new, ""

    def part(self, text: str) -> None:
        *done, rest = (self._held + text).split(self._old)
        keep = _partial_suffix(rest, self._old)
        self._held = rest[len(rest) - keep :]
        self.after.part(self._new.join([*done, rest[: len(rest) - keep]]))

    def end(self) -> None:
        held, self._held = self._held, ""
        self.after.part(held)
        self.after.end()


class _Strip(DecodeStep):
    """Cuts up to `start` characters `content` off a token's beginning, `stop` off its end."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content, self._start, self._stop = content, start, stop
        self._left, self._held = start, 0

    def part(self, text: str) -> None:
        if self._left and text:
            shorter = text.lstrip(self._content)
            cut = min(self._left, len(text) - len(shorter))
            text = text[cut:]
            self._left = 0 if shorter else self._left - cut
        text = self._content * self._held + text
        self._held = min(self._stop, len(text) - len(text.rstrip(self._content)))
        self.after.part(text[: len(text) - self._held])

    def end(self) -> None:
        self._left, self._held = self._start, 0
        self.after.end()


class _Metaspace(DecodeStep):
    """Writes the sign as a space; in the first token it is left out, unless never put there."""

    def __init__(self, sign: str, leaves_out: bool) -> None:
        self._sign, self._leaves_out = sign, leaves_out

    def part(self, text: str) -> None:
        self.after.part(text.replace(self._sign, "" if self._leaves_out else " "))

    def end(self) -> None:
        self._leaves_out = False
        self.after.end()


class _WordPiece(_Gather):
    """Joins tokens by spaces, but for those that go on inside a word."""

    def __init__(self, prefix: str, cleanup: bool, first: bool) -> None:
        super().__init__()
        self._prefix, self._cleanup, self._first = prefix, cleanup, first

    def turn(self, token: str) -> None:
        if not self._first:
            inside = token.startswith(self._prefix)
            token = token[len(self._prefix) :] if inside else " " + token
        self._first = False
        self.emit(_clean(token) if self._cleanup else token)


class _CTC(_Gather):
    """Drops padding and tokens that repeat the previous one."""

    def __init__(self, pad: str, delimiter: str, cleanup: bool) -> None:
        super().__init__()
        self._pad, self._delimiter, self._cleanup = pad, delimiter, cleanup
        self._last: str | None = None

    def turn(self, token: str) -> None:
        again, self._last = token == self._last, token
        text = token.replace(self._pad, "")
        if self._cleanup:
            text = _clean(text).replace(self._delimiter, " ")
        if text and not again:
            self.emit(text)

    def close(self) -> None:
        self._last = None
        self.after.close()


class _Suffix(_Gather):
    """Writes the suffix that ends words as a space, but for the last token's."""

    def __init__(self, suffix: str, last: bool) -> None:
        super().__init__()
        self._suffix, self._at_end = suffix, "" if last else " "
        self._held: str | None = None

    def part(self, text: str) -> None:
        self._release(" ")
        super().part(text)

    def turn(self, token: str) -> None:
        self._release(" ")  # of a token before an empty one
        head, *_ = token.partition(self._suffix)
        self.after.part(head)
        self._held = token[len(head) :]

    def _release(self, space: str) -> None:
        if self._held is not None:
            self.emit(self._held.replace(self._suffix, space))
        self._held = None

    def close(self) -> None:
        self._release(self._at_end)
        self.after.close()


class _Spaced(DecodeStep):
    """Joins tokens by spaces: what the library does where a file has no decoder."""

    def __init__(self, first: bool) -> None:
        self._begins, self._first = True, first

    def part(self, text: str) -> None:
        space = " " if self._begins and not self._first else ""
        self._begins = False
        self.after.part(space + text)

    def end(self) -> None:
        if self._begins:
            self.part("")
        self._begins, self._first = True, False
        self.after.end()


def _strip(step: Mapping[str, Any], place: StepPosition) -> DecodeStep:
    begun, unending = (place.joined and not e for e in (place.edges.first, place.edges.last))
    return _Strip(step["content"], 0 if begun else step["start"], 0 if unending else step["stop"])


MAKERS: dict[str, Callable[[Mapping[str, Any], StepPosition], DecodeStep]] = {
    "BPEDecoder": lambda step, place: _Suffix(step["suffix"], place.last),
    "ByteFallback": lambda step, place: _ByteFallback(place.errors),
    "ByteLevel": lambda step, place: _ByteLevel(place.errors),
    "CTC": lambda step, place: _CTC(
        step["pad_token"], step["word_delimiter_token"], step["cleanup"]
    ),
    "Fuse": lambda step, place: _Fuse(),
    "Metaspace": lambda step, place: _Metaspace(
        step["replacement"], place.first and step["prepend_scheme"] != "never"
    ),
    "Replace": lambda step, place: _Replace(literal_of(step["pattern"]) or "", step["content"]),
    "Spaced": lambda step, place: _Spaced(place.first),
    "Strip": _strip,
    "WordPiece": lambda step, place: _WordPiece(step["prefix"], step["cleanup"], place.first),
}
"""Type of a step -> what makes it. The library knows these, and `Spaced` stands for none."""


def _partial_suffix(text: str, pattern: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `pattern`."""
    for length in range(min(len(pattern) - 1, len(text)), 0, -1):
        if text.endswith(pattern[:length]):
            return length
    return 0


def _clean(text: str) -> str:
    for old, new in _CLEANUP:
        text = text.replace(old, new)
    return text
