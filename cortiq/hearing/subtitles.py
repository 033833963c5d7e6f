"""Parts of what is said, with their times: lines for people, SubRip and WebVTT files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class TimedText(Protocol):
    """A text from one second of a sound to another."""

    @property
    def start(self) -> float:
        """Second at which it begins."""

    @property
    def end(self) -> float:
        """Second at which it ends."""

    @property
    def text(self) -> str:
        """The text."""


def srt(parts: Iterable[TimedText]) -> str:
    """Return a SubRip file."""
    return "".join(
        f"{number}\n{clock(part.start, ',')} --> {clock(part.end, ',')}\n{line(part.text)}\n\n"
        for number, part in enumerate(parts, 1)
    )


def vtt(parts: Iterable[TimedText]) -> str:
    """Return a WebVTT file."""
    blocks = (
        f"{clock(part.start, '.')} --> {clock(part.end, '.')}\n{line(part.text)}\n\n"
        for part in parts
    )
    return "WEBVTT\n\n" + "".join(blocks)


def timed_lines(parts: Iterable[TimedText]) -> str:
    """Return a line for each part, its times in brackets before the text."""
    return "".join(
        f"[{clock(part.start, '.')} --> {clock(part.end, '.')}] {line(part.text)}\n"
        for part in parts
    )


def clock(seconds: float, point: str) -> str:
    """Return a time as hours, minutes, seconds and thousandths."""
    whole = round(seconds * 1000)
    minutes, rest = divmod(whole, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"


def line(text: str) -> str:
    """Return a text in one line that no reader takes for a time."""
    return " ".join(text.split()).replace("-->", "->")
