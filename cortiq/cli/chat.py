"""`cortiq chat`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.chat_commands import COMMANDS, run_command, summary
from cortiq.cli.chat_lines import Interrupted, Lines, Pipe, Terminal, read_message
from cortiq.cli.flags import options_of
from cortiq.cli.generate import check_options, load_model, with_heads
from cortiq.cli.inputs import MODEL, argument_text, template_options
from cortiq.cli.render import echo, echo_piece, note, progress_bar
from cortiq.errors import CortiqError
from cortiq.options import GenerateOptions, LoadOptions, environment_name, resolve, select

if TYPE_CHECKING:
    from cortiq.model.conversation import Conversation
    from cortiq.model.model import Model

LONGEST = 1024
"""Tokens of an answer at most, unless something else is asked for."""


class Chat:
    """A chat under way: messages in, answers out.

    Attributes
    ----------
    talk : the conversation.
    lines : where messages come from.
    over : whether somebody has left.
    """

    def __init__(self, talk: Conversation, lines: Lines, *, stats: bool) -> None:
        self.talk, self.lines, self.stats, self.over = talk, lines, stats, False
        self._held = ""

    def run(self) -> None:
        """Answer until the input ends or somebody leaves."""
        while not self.over:
            try:
                text = read_message(self.lines)
            except Interrupted:
                self.say("(Ctrl-D or /bye leaves, /help shows what else there is)")
                continue
            if text is None:
                return
            if text.strip():
                self._take(text)

    def _take(self, text: str) -> None:
        """One message or command; what goes wrong is said, and by hand the chat goes on."""
        try:
            if text.startswith("/"):
                run_command(self, text.strip())
            else:
                self.answer(text)
        except CortiqError as error:
            if not self.lines.by_hand:
                raise
            self.say(f"error: {error}")

    def answer(self, text: str | None) -> None:
        """Have a message answered, or the last answer gone on with; Ctrl-C stops it."""
        before = self.talk.left_out
        if text is not None:
            self._held = ""
        with _stopped_by_interrupt() as cancel, progress_bar() as bar:
            calls: dict[str, Any] = {"cancel": cancel, "on_text": self._show(bar.stop, cancel)}
            calls["progress"] = lambda done, rows: bar("Reading", done, rows)
            try:
                made = self.talk.more(**calls) if text is None else self.talk.ask(text, **calls)
            finally:
                echo()
        if self.talk.left_out > before:
            self.say(f"[the first {self.talk.left_out} messages no longer fit and are left out]")
        if made.finish_reason == "cancelled":
            self.say("[stopped; /more goes on]")
        elif made.finish_reason in ("length", "loop"):
            self.say(f"[ended by {made.finish_reason}; /more goes on]")
        if self.stats:
            self.say(f"[{summary(made)}]")

    def _show(self, first: Any, cancel: threading.Event) -> Any:
        """Shows pieces; what still comes after Ctrl-C is held until the answer is gone on with."""

        def show(piece: str) -> None:
            first()
            piece, self._held = self._held + piece, ""
            if cancel.is_set():
                self._held = piece
                return
            echo_piece(piece)

        return show

    def say(self, text: str) -> None:
        """Something that is no answer: beside them, on stderr."""
        note(text)


@contextmanager
def _stopped_by_interrupt() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; a second Ctrl-C interrupts as it does elsewhere."""
    cancel = threading.Event()

    def stop(number: int, frame: object) -> None:
        if cancel.is_set():
            raise KeyboardInterrupt
        cancel.set()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)


@click.command()
@click.argument("model", type=MODEL)
@click.option("--system", metavar="TEXT", help="System message.")
@click.option(
    "--template-option", "template_pairs", multiple=True, metavar="NAME=JSON",
    help="Variable for the chat template, such as enable_thinking=false; may be repeated.",
)  # fmt: skip
@click.option("--load", "saved", metavar="FILE", help="Go on from what /save wrote.")
@click.option(
    "--history/--no-history", default=True,
    help="Keep what is typed in the cache folder, for the arrow keys of later chats.",
)  # fmt: skip
@click.option(
    "--stats/--no-stats", default=None,
    help="Show tokens per second after each answer; without it when a person types.",
)  # fmt: skip
@options_of(GenerateOptions, LoadOptions, max_tokens=LONGEST)
def chat(
    model: str,
    system: str | None,
    template_pairs: tuple[str, ...],
    saved: str | None,
    history: bool,
    stats: bool | None,
    **options: Any,
) -> None:
    """Chat with a model.

    Answers go to stdout, everything else to stderr. /help says what there is besides messages. From
    a pipe each line is a message, and the chat ends with it. What an earlier turn has read is not
    read again.
    """
    from cortiq.model.conversation import Conversation

    variables = template_options(template_pairs)
    system = None if system is None else argument_text(system, "--system")
    chosen = select(GenerateOptions, options)
    usual = {environment_name("max_tokens"): str(LONGEST)}
    resolved = resolve(GenerateOptions, chosen, usual | dict(os.environ))
    check_options(resolved)
    given = {name: value for name, value in chosen.items() if value is not None}
    given["max_tokens"] = resolved.max_tokens
    with load_model(model, with_heads(options, resolved.draft)) as opened:
        talk = Conversation(opened, system=system, template_options=variables, **given)
        if saved is not None:
            talk.load(saved)
        lines = _lines(history)
        if lines.by_hand:
            note(_welcome(opened))
        Chat(talk, lines, stats=lines.by_hand if stats is None else stats).run()


def _welcome(model: Model) -> str:
    where = f"{model.backend}:{model.device}"
    return f"{model.name} on {where}, context {model.context} tokens. /help for help."


def _lines(history: bool) -> Lines:
    if not (sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())):
        return Pipe()
    return Terminal(_history_file() if history else None, [f"/{name}" for name in COMMANDS])


def _history_file() -> Path:
    from cortiq.formats.cache import models_folder

    return models_folder().parent / "chat-history"
