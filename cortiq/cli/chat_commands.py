"""What can be said in a chat that is not for the model: `/help` and the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from cortiq.errors import RequestError
from cortiq.option_names import advice
from cortiq.options import GenerateOptions, from_text, resolve, specs

if TYPE_CHECKING:
    from cortiq.cli.chat import Chat


class Command(NamedTuple):
    """A command: what it takes, what it does, and the function that does it."""

    takes: str
    help: str
    run: Callable[[Chat, str], None]


def _help(chat: Chat, argument: str) -> None:
    width = max(len(f"/{name} {command.takes}") for name, command in COMMANDS.items())
    for name, command in COMMANDS.items():
        chat.say(f"{f'/{name} {command.takes}'.ljust(width)}  {command.help}")
    chat.say('A line is a message. Alt-Enter, a \\ at the end, or """ around it make it longer.')
    chat.say("Ctrl-C stops an answer, Ctrl-D leaves.")


def _system(chat: Chat, argument: str) -> None:
    if argument:
        chat.talk.system = argument
    chat.say(chat.talk.system if chat.talk.system is not None else "there is no system message")


def _reset(chat: Chat, argument: str) -> None:
    chat.talk.reset()
    chat.say("all messages are forgotten; the system message stays")


def _undo(chat: Chat, argument: str) -> None:
    if not chat.talk.messages:
        raise RequestError("nothing has been said yet", where="/undo")
    chat.say(f"forgotten: {chat.talk.undo()}")


def _retry(chat: Chat, argument: str) -> None:
    if not chat.talk.messages:
        raise RequestError("nothing has been said yet", where="/retry")
    chat.answer(chat.talk.undo())


def _more(chat: Chat, argument: str) -> None:
    chat.answer(None)


def _save(chat: Chat, argument: str) -> None:
    chat.talk.save(_file(argument, "/save"))
    chat.say(f"{len(chat.talk.messages)} messages in {argument}")


def _load(chat: Chat, argument: str) -> None:
    chat.talk.load(_file(argument, "/load"))
    chat.say(f"{len(chat.talk.messages)} messages of {argument}")


def _file(argument: str, where: str) -> str:
    if not argument:
        raise RequestError("needs the name of a file", where=where)
    return argument


def _stats(chat: Chat, argument: str) -> None:
    talk, model = chat.talk, chat.talk.model
    used, last = talk.used, talk.last
    chat.say(f"model {model.name} on {model.backend}:{model.device}")
    held = 0 if last is None else len(last.prompt_ids) + len(last.token_ids)
    chat.say(f"context {held} of {model.context} tokens, {len(talk.messages)} messages")
    chat.say(
        f"answers {used['answers']}: {used['prompt_tokens']} prompt tokens, of them"
        f" {used['reused_tokens']} cached; {used['generated_tokens']} generated"
    )
    if talk.decode_seconds:
        chat.say(f"decode {used['decoded_tokens'] / talk.decode_seconds:.1f} tokens/s")
    if last is not None:
        chat.say(f"last answer: {summary(last)}")
        seed = "" if last.seed is None else f"its seed {last.seed}; "
        chat.say(f"{seed}its digest, the same on every backend: {last.digest}")


def _set(chat: Chat, argument: str) -> None:
    name, _, value = argument.replace("=", " ", 1).partition(" ")
    if name:
        known = specs(GenerateOptions)
        if name not in known:
            hint = advice(name, known, "cortiq chat --help")
            raise RequestError(f"there is no option {name!r}", where="/set", hint=hint)
        if not value.strip():
            chat.say(f"{name} {_current(chat, name)}")
            return
        changed = {**chat.talk.options, name: from_text(name, known[name], value.strip(), "/set")}
        resolve(GenerateOptions, changed)
        chat.talk.options = changed
    given = {name: value for name, value in chat.talk.options.items() if value is not None}
    chat.say(", ".join(f"{name} {value}" for name, value in given.items()) or "nothing is set")


def _current(chat: Chat, name: str) -> str:
    """What an option is now, for people."""
    value = getattr(resolve(GenerateOptions, chat.talk.options), name)
    return "is not set" if value is None else str(value)


def _bye(chat: Chat, argument: str) -> None:
    chat.over = True


COMMANDS: Mapping[str, Command] = {
    "help": Command("", "Show this.", _help),
    "system": Command("[TEXT]", "Show the system message, or say another one.", _system),
    "set": Command("[OPTION VALUE]", "Show what is set, or set temperature, seed, ...", _set),
    "stats": Command("", "Show tokens, cached tokens, and tokens per second.", _stats),
    "more": Command("", "Go on with an answer that was cut short.", _more),
    "retry": Command("", "Have the last message answered again.", _retry),
    "undo": Command("", "Forget the last message and its answer.", _undo),
    "reset": Command("", "Forget all messages.", _reset),
    "save": Command("FILE", "Write the conversation to a file.", _save),
    "load": Command("FILE", "Go on from a file that was saved.", _load),
    "bye": Command("", "Leave.", _bye),
}
"""By name, in the order in which they are shown."""


def run_command(chat: Chat, text: str) -> None:
    """Do what `/name argument` says.

    Raises
    ------
    RequestError : there is no such command, or it could not be done.
    """
    name, _, argument = text[1:].partition(" ")
    name = {"exit": "bye", "quit": "bye", "?": "help"}.get(name, name)
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists them"
        raise RequestError(f"there is no command /{name}", hint=hint)
    COMMANDS[name].run(chat, argument.strip())


def summary(made: Any) -> str:
    """Tokens and times of an answer, in one line."""
    stats = made.stats
    numbers = stats.as_dict()
    rate = numbers["decode_tokens_per_second"]
    speed = "" if rate is None else f" at {rate:.1f} tokens/s"
    cached = f"{stats.reused_tokens} of {stats.prompt_tokens} prompt tokens cached"
    first = f"first after {stats.prompt_seconds:.2f} s"
    return f"{stats.generated_tokens} tokens{speed}, {cached}, {first}"
