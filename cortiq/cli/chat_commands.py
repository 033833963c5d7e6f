"""Commands of a chat: `/help` and the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from cortiq.cli.render import counted, note
from cortiq.errors import RequestError
from cortiq.option_names import option_hint
from cortiq.option_values import from_text
from cortiq.options import GenerateOptions, specs

if TYPE_CHECKING:
    from cortiq.cli.chat import ChatSession
    from cortiq.model.conversation import Conversation


class ChatCommand(NamedTuple):
    """A chat command: its argument, its help, and its function."""

    takes: str
    help: str
    run: Callable[[ChatSession, str], None]


def _help(chat: ChatSession, argument: str) -> None:
    width = max(len(f"/{name} {command.takes}") for name, command in CHAT_COMMANDS.items())
    for name, command in CHAT_COMMANDS.items():
        chat.say(f"{f'/{name} {command.takes}'.ljust(width)}  {command.help}")
    chat.say('A line is a message. Alt-Enter, a \\ at the end, or """ around it make it longer.')
    chat.say("Ctrl-C stops an answer, Ctrl-D leaves.")


def _system(chat: ChatSession, argument: str) -> None:
    if argument:
        chat.conversation.system = argument
    chat.say(
        chat.conversation.system
        if chat.conversation.system is not None
        else "there is no system message"
    )


def _reset(chat: ChatSession, argument: str) -> None:
    chat.conversation.reset()
    chat.say("all messages are forgotten; the system message stays")


def _image(chat: ChatSession, argument: str) -> None:
    """Keep an image for the next message; it is read now, so that errors come now."""
    path, model = _file(argument, "/image"), chat.conversation.model
    model.senses.of("image", "/image").prepared([path])
    chat.images.append(path)
    chat.say(f"{counted(len(chat.images), 'image')} for the next message")


def _audio(chat: ChatSession, argument: str) -> None:
    """Keep a sound for the next message; it is read now, so that errors come now."""
    path, model = _file(argument, "/audio"), chat.conversation.model
    model.senses.of("audio", "/audio").prepared([path])
    chat.sounds.append(path)
    chat.say(f"{counted(len(chat.sounds), 'sound')} for the next message")


def _undo(chat: ChatSession, argument: str) -> None:
    if not chat.conversation.messages:
        raise RequestError("nothing has been said yet", where="/undo")
    chat.say(f"forgotten: {chat.conversation.undo()}")


def _retry(chat: ChatSession, argument: str) -> None:
    if not chat.conversation.messages:
        raise RequestError("nothing has been said yet", where="/retry")
    asked = [m["content"] for m in chat.conversation.messages if m["role"] == "user"][-1]
    parts = [] if isinstance(asked, str) else asked
    chat.images = [part["image"] for part in parts if "image" in part]
    chat.sounds = [part["audio"] for part in parts if "audio" in part]
    chat.answer(chat.conversation.undo())


def _more(chat: ChatSession, argument: str) -> None:
    chat.answer(None)


def _save(chat: ChatSession, argument: str) -> None:
    chat.conversation.save(_file(argument, "/save"))
    chat.say(f"{counted(len(chat.conversation.messages), 'message')} in {argument}")


def _load(chat: ChatSession, argument: str) -> None:
    chat.conversation.load(_file(argument, "/load"))
    chat.say(f"{counted(len(chat.conversation.messages), 'message')} of {argument}")
    show_last_turn(chat.conversation)


SHOWN = 400
"""Characters of the last message that are shown where a conversation goes on."""


def show_last_turn(conversation: Conversation) -> None:
    """Show the last message of a loaded conversation on stderr, its end if it is long."""
    from cortiq.model.conversation import text_of

    if not conversation.messages:
        return
    last = conversation.messages[-1]
    text = text_of(last["content"])
    begin = "... " if len(text) > SHOWN else ""
    note(f"{last['role']}: {begin}{text[-SHOWN:]}")


def _file(argument: str, where: str) -> str:
    if not argument:
        raise RequestError("needs the name of a file", where=where)
    quoted = len(argument) > 2 and argument[0] == argument[-1] and argument[0] in "\"'"
    return argument[1:-1] if quoted else argument  # as a terminal puts a file that is dropped on it


def _stats(chat: ChatSession, argument: str) -> None:
    conversation, model = chat.conversation, chat.conversation.model
    used, last = conversation.used, conversation.last
    chat.say(f"model {model.name} on {model.backend}:{model.device}")
    held = 0 if last is None else len(last.prompt_ids) + len(last.token_ids)
    messages = counted(len(conversation.messages), "message")
    chat.say(f"context {held} of {model.context} tokens, {messages}")
    chat.say(
        f"answers {used['answers']}: {used['prompt_tokens']} prompt tokens, of them"
        f" {used['reused_tokens']} cached; {used['generated_tokens']} generated"
    )
    if conversation.decode_seconds:
        chat.say(f"decode {used['decoded_tokens'] / conversation.decode_seconds:.1f} tokens/s")
    if last is not None:
        chat.say(f"last answer: {answer_summary(last)}")
        seed = "" if last.seed is None else f"its seed {last.seed}; "
        chat.say(f"{seed}its digest, the same on every backend: {last.digest}")


def _set(chat: ChatSession, argument: str) -> None:
    name, _, value = argument.replace("=", " ", 1).partition(" ")
    name = name.removeprefix("--").replace("-", "_")  # as on the command line
    if name:
        known = specs(GenerateOptions)
        if name not in known:
            hint = option_hint(name, known, "cortiq chat --help")
            raise RequestError(f"there is no option {name!r}", where="/set", hint=hint)
        if not value.strip():
            chat.say(f"{name} {_current(chat, name)}")
            return
        changed = {**chat.conversation.options, name: _read(chat, name, value.strip())}
        chat.conversation.model.usual.options(changed)
        chat.conversation.options = changed
    given = {**chat.conversation.model.usual.values, **chat.conversation.options}
    given = {name: value for name, value in given.items() if value is not None}
    chat.say(", ".join(f"{name} {value}" for name, value in given.items()) or "nothing is set")


def _read(chat: ChatSession, name: str, value: str) -> Any:
    """Return an option's value; adapter `none` is none, unless one of that name is loaded."""
    if (name, value) == ("adapter", "none") and value not in chat.conversation.model.adapters:
        return None
    return from_text(name, specs(GenerateOptions)[name], value, "/set")


def _current(chat: ChatSession, name: str) -> str:
    """Return an option's current value as text."""
    talk = chat.conversation
    value = getattr(talk.model.usual.options(talk.options), name)
    return "is not set" if value is None else str(value)


def _bye(chat: ChatSession, argument: str) -> None:
    chat.ended = True


CHAT_COMMANDS: Mapping[str, ChatCommand] = {
    "help": ChatCommand("", "Show this.", _help),
    "system": ChatCommand("[TEXT]", "Show or set the system message.", _system),
    "set": ChatCommand(
        "[OPTION VALUE]", "Show the options set, or set one: temperature, seed, ...", _set
    ),
    "stats": ChatCommand("", "Show tokens, cached tokens, and tokens per second.", _stats),
    "more": ChatCommand("", "Continue an answer that was cut short.", _more),
    "retry": ChatCommand("", "Answer the last message again.", _retry),
    "undo": ChatCommand("", "Forget the last message and its answer.", _undo),
    "reset": ChatCommand("", "Forget all messages.", _reset),
    "audio": ChatCommand("FILE", "Add a sound to the next message.", _audio),
    "image": ChatCommand("FILE", "Add an image to the next message (with --images).", _image),
    "save": ChatCommand("FILE", "Write the conversation to a file.", _save),
    "load": ChatCommand("FILE", "Continue a saved conversation.", _load),
    "bye": ChatCommand("", "Leave.", _bye),
}
"""Commands by name, in the order in which `/help` shows them."""


def run_command(chat: ChatSession, text: str) -> None:
    """Run the command `/name argument`.

    Raises
    ------
    RequestError : there is no such command, or it failed.
    """
    name, _, argument = text[1:].partition(" ")
    name = {"exit": "bye", "quit": "bye", "?": "help"}.get(name, name)
    if name not in CHAT_COMMANDS:
        near = get_close_matches(name, CHAT_COMMANDS, 1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists them"
        raise RequestError(f"there is no command /{name}", hint=hint)
    CHAT_COMMANDS[name].run(chat, argument.strip())


def answer_summary(made: Any) -> str:
    """Return an answer's token counts and times on one line."""
    stats = made.stats
    numbers = stats.as_dict()
    rate = numbers["decode_tokens_per_second"]
    speed = "" if rate is None else f" at {rate:.1f} tokens/s"
    cached = f"{stats.reused_tokens} of {stats.prompt_tokens} prompt tokens cached"
    first = f"first after {stats.prompt_seconds:.2f} s"
    return f"{counted(stats.generated_tokens, 'token')}{speed}, {cached}, {first}"
