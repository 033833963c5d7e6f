"""`cortiq chat`."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.chat_commands import (
    CHAT_COMMANDS,
    answer_summary,
    run_command,
    show_last_turn,
)
from cortiq.cli.chat_input import (
    LineSource,
    PipeLines,
    PromptInterrupted,
    TerminalLines,
    read_message,
)
from cortiq.cli.flags import PER_TOKEN, grouped_command, options_of
from cortiq.cli.generate import check_options, load_model, with_adapter, with_draft_heads
from cortiq.cli.inputs import MODEL, argument_text, template_options
from cortiq.cli.render import counted, echo, note, progress_bar
from cortiq.cli.wrapping import AnswerPrinter
from cortiq.errors import CortiqError
from cortiq.options import ANSWER_DEFAULTS, GenerateOptions, LoadOptions, resolve

if TYPE_CHECKING:
    from cortiq.model.conversation import Conversation
    from cortiq.model.model import Model


class ChatSession:
    """An interactive chat: reads messages and writes answers.

    Attributes
    ----------
    conversation : the conversation.
    lines : source of messages.
    ended : whether the user has left the chat.
    images, sounds : files for the next message.
    """

    def __init__(self, conversation: Conversation, lines: LineSource, *, stats: bool) -> None:
        self.conversation, self.lines, self.stats, self.ended = conversation, lines, stats, False
        self._pending = ""
        self.images: list[str] = []
        self.sounds: list[str] = []

    def run(self) -> None:
        """Answer messages until the input ends or the user leaves."""
        while not self.ended:
            try:
                text = read_message(self.lines)
            except PromptInterrupted:
                self.say("(Ctrl-D or /bye leaves, /help lists the commands)")
                continue
            if text is None:
                return
            if text.strip():
                self._take(text)

    def _take(self, text: str) -> None:
        """Handle one message or command; an error ends the chat only if input comes from a pipe."""
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
        """Answer a message, or continue the last answer if there is none; Ctrl-C stops it."""
        before = self.conversation.left_out
        if text is not None:
            self._pending = ""
        printer = AnswerPrinter()
        with _cancel_on_interrupt() as cancel, progress_bar() as bar:
            calls: dict[str, Any] = {"cancel": cancel}
            calls["on_text"] = self._show(bar.stop, cancel, printer)
            calls["progress"] = lambda done, rows: bar("Reading", done, rows)
            try:
                made = (
                    self.conversation.more(**calls)
                    if text is None
                    else self.conversation.ask(
                        text, images=self.images, sounds=self.sounds, **calls
                    )
                )
                self.images, self.sounds = [], []
            finally:
                printer.finish()
                echo()
        if self.conversation.left_out > before:
            left_out = counted(self.conversation.left_out, "message")
            self.say(f"[the context is full: the first {left_out} are left out]")
        if made.finish_reason == "cancelled":
            self.say("[stopped; /more continues]")
        elif made.finish_reason == "length":
            self.say(f"[cut after {counted(len(made.token_ids), 'token')}; /more continues]")
        elif made.finish_reason == "loop":
            self.say("[stopped: the text repeats itself; /more continues, /retry asks again]")
        if self.stats:
            self.say(f"[{answer_summary(made)}]")

    def _show(self, first: Any, cancel: threading.Event, printer: AnswerPrinter) -> Any:
        """Return a function that shows pieces; those after Ctrl-C are held back until `/more`."""

        def show(piece: str) -> None:
            first()
            piece, self._pending = self._pending + piece, ""
            if cancel.is_set():
                self._pending = piece
                return
            printer.add(piece)

        return show

    def say(self, text: str) -> None:
        """Print a remark on stderr."""
        note(text)


@contextmanager
def _cancel_on_interrupt() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C sets; a second Ctrl-C interrupts the program."""
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


@grouped_command()
@click.argument("model", type=MODEL)
@click.option("--system", metavar="TEXT", help="System message.")
@click.option(
    "--template-option", "template_pairs", multiple=True, metavar="NAME=JSON",
    help="Variable for the chat template, such as enable_thinking=false; may be repeated.",
)  # fmt: skip
@click.option("--load", "saved", metavar="FILE", help="Continue a conversation saved by /save.")
@click.option(
    "--history/--no-history", default=True,
    help="Keep an input history in the cache folder, for later chats.",
)  # fmt: skip
@click.option(
    "--stats/--no-stats", default=None,
    help="Show tokens per second after each answer; by default on a terminal only.",
)  # fmt: skip
@options_of(GenerateOptions, LoadOptions, without=PER_TOKEN, **ANSWER_DEFAULTS)
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

    Answers go to stdout, everything else to stderr. /help lists the commands. From a pipe each line
    is a message, and the chat ends with the input. The tokens of earlier turns are not computed
    again.
    """
    from cortiq.model.conversation import Conversation

    variables = template_options(template_pairs)
    system = None if system is None else argument_text(system, "--system")
    chosen = with_adapter(options)
    resolved = resolve(GenerateOptions, chosen, usual=ANSWER_DEFAULTS)
    check_options(resolved)
    given = {name: value for name, value in chosen.items() if value is not None}
    given |= {name: getattr(resolved, name) for name in ANSWER_DEFAULTS}
    with load_model(model, with_draft_heads(options, resolved.draft)) as opened:
        conversation = Conversation(opened, system=system, template_options=variables, **given)
        if saved is not None:
            conversation.load(saved)
            show_last_turn(conversation)
        lines = _line_source(history)
        if lines.by_hand:
            note(_welcome(opened))
        ChatSession(conversation, lines, stats=lines.by_hand if stats is None else stats).run()


def _welcome(model: Model) -> str:
    where = f"{model.backend}:{model.device}"
    return f"{model.name} on {where}, context {model.context} tokens. /help for help."


def _line_source(history: bool) -> LineSource:
    if not (sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())):
        return PipeLines()
    return TerminalLines(
        _history_file() if history else None, [f"/{name}" for name in CHAT_COMMANDS]
    )


def _history_file() -> Path | None:
    """Return the file of earlier messages; None, and a warning, if it cannot be written."""
    from cortiq.formats.cache import models_folder

    history = models_folder().parent / "chat-history"
    try:
        history.parent.mkdir(parents=True, exist_ok=True)
        history.touch(0o600)
        with history.open("ab"):
            return history
    except OSError as error:
        note(f"{history}: {error.strerror or error}: messages of this chat are not kept")
        return None
