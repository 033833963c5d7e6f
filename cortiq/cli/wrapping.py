"""Answers on a terminal, broken between words."""

from __future__ import annotations

import os
import sys
import unicodedata

from cortiq.cli.render import echo_piece

NARROWEST = 20
"""Terminals of fewer columns break lines themselves."""
FENCE = "```"


class LineBreaker:
    """Puts line breaks between words of a text that arrives in pieces.

    A word waits until it is complete. Code between fences stays as it is, and so do words that are
    longer than a line.

    Parameters
    ----------
    columns : of the terminal.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._column, self._blanks, self._word = 0, "", ""
        self._line, self._code = "", False

    def add(self, piece: str) -> str:
        """Return what can be shown after a piece of text."""
        return "".join(map(self._character, piece))

    def finish(self) -> str:
        """Return what still waits."""
        return self._placed_word()

    def _character(self, character: str) -> str:
        if character == "\n":
            shown = self._placed_word() + character
            self._code ^= self._line.lstrip().startswith(FENCE)
            self._column, self._line = 0, ""
            return shown
        self._line = (self._line + character)[: self._columns]
        if self._code or self._line.lstrip().startswith(FENCE):
            shown = self._placed_word() + character
            self._column += width_of(character)
            return shown
        if character.isspace():
            shown = self._placed_word() if self._word else ""
            self._blanks += character
            return shown
        self._word += character
        if width_of(character) == 2 or width_of(self._word) >= self._columns:
            return self._placed_word()
        return ""

    def _placed_word(self) -> str:
        """Return the waiting blanks and word, on the next line if they do not fit on this one."""
        blanks, word = self._blanks, self._word
        self._blanks, self._word = "", ""
        wide = width_of(word)
        after = self._column + len(blanks) + wide
        if word and blanks and self._column and after > self._columns:
            self._column = wide
            return f"\n{word}"
        # Beyond the last column the terminal itself has broken a long word, or wide characters.
        self._column = (after - 1) % self._columns + 1 if after else 0
        return blanks + word


def width_of(text: str) -> int:
    """Return the columns that a text takes: two for wide characters, none for combining ones."""
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


class AnswerPrinter:
    """Prints the pieces of a text on stdout.

    Parameters
    ----------
    wraps : whether lines break between words on a terminal, as a person reads an answer.
    """

    def __init__(self, wraps: bool = True) -> None:
        columns = _columns() if wraps else 0
        self._breaker = LineBreaker(columns) if columns >= NARROWEST else None

    def add(self, piece: str) -> None:
        """Print what a piece completes."""
        echo_piece(piece if self._breaker is None else self._breaker.add(piece))

    def finish(self) -> None:
        """Print the rest."""
        if self._breaker is not None:
            echo_piece(self._breaker.finish())


def _columns() -> int:
    """Return the columns of the terminal that stdout is, 0 for none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0
    except (OSError, ValueError):
        return 0
