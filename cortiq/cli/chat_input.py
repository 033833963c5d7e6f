"""Input of a chat: a terminal with history and editing, or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cortiq.cli.inputs import decode

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings

QUOTES = '"""'
PROMPT, CONTINUATION = "> ", ". "


class PromptInterrupted(Exception):
    """The user pressed Ctrl-C at the prompt."""


class LineSource(Protocol):
    """A source of lines; those of a terminal may contain typed or pasted line breaks.

    Attributes
    ----------
    by_hand : whether a person types the lines.
    """

    by_hand: bool

    def line(self, prompt: str) -> str | None:
        """Return the next line, None at the end; raise PromptInterrupted on Ctrl-C."""


class PipeLines:
    """The lines of stdin."""

    by_hand = False

    def line(self, prompt: str) -> str | None:
        """Return the next line, decoded as UTF-8."""
        data = sys.stdin.buffer.readline()
        return decode(data, "stdin").rstrip("\r\n") if data else None


class TerminalLines:
    """A prompt with editing, history and completion of commands.

    Parameters
    ----------
    history : file of earlier messages, which can be written; None keeps none.
    words : completions offered by Tab.
    """

    by_hand = True

    def __init__(self, history: Path | None, words: Sequence[str]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.output.defaults import create_output
        from prompt_toolkit.output.vt100 import Vt100_Output

        output = create_output(always_prefer_tty=True)
        if isinstance(output, Vt100_Output):
            output.enable_cpr = False  # terminals that do not answer would be complained about
        self._session: PromptSession[str] = PromptSession(
            history=InMemoryHistory() if history is None else FileHistory(str(history)),
            completer=WordCompleter(list(words), sentence=True),
            complete_while_typing=False,
            key_bindings=_bindings(),
            multiline=True,
            prompt_continuation=CONTINUATION,
            output=output,
        )

    def line(self, prompt: str) -> str | None:
        """Return the text typed until Enter."""
        try:
            return self._session.prompt(prompt)
        except EOFError:
            return None
        except KeyboardInterrupt:
            raise PromptInterrupted from None


def _bindings() -> KeyBindings:
    """Return key bindings: Enter sends, Alt-Enter (or Escape, Enter) begins a new line."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def read_message(lines: LineSource) -> str | None:
    '''Read a message: a line, lines continued by a final backslash, or all between two """.'''
    line = lines.line(PROMPT)
    if line is None:
        return None
    if line.lstrip().startswith(QUOTES):
        return _quoted(line.lstrip()[len(QUOTES) :], lines)
    whole = []
    while line is not None and line.endswith("\\"):
        whole.append(line[:-1])
        line = lines.line(CONTINUATION)
    return "\n".join([*whole, line or ""])


def _quoted(line: str | None, lines: LineSource) -> str:
    whole = []
    while line is not None and not line.rstrip().endswith(QUOTES):
        whole.append(line)
        line = lines.line(CONTINUATION)
    return "\n".join([*whole, line.rstrip()[: -len(QUOTES)]] if line is not None else whole)
