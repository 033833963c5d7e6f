"""A conversation: messages, the model that answers, and files that keep it."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cortiq.arguments import path_of
from cortiq.atomic import write_atomically
from cortiq.errors import FormatError, RequestError, shown
from cortiq.model.chat import ROLES
from cortiq.model.sight import ImagePrompt
from cortiq.options import GenerateOptions, resolve

if TYPE_CHECKING:
    from cortiq.engine.prompt_images import ImageSpan
    from cortiq.engine.session import Progress
    from cortiq.model.chat import Message
    from cortiq.model.generation import Generation
    from cortiq.model.model import Model

FORMAT = "cortiq-chat"
VERSION = 1
KEPT_SEQUENCES = 4
LEAST_ROOM = 4
"""An answer has room for `max_tokens`, or for the context divided by this, if that is less."""


class Conversation:
    """Turns with a model, which reads nothing twice that an earlier turn has read.

    Attributes
    ----------
    messages : user's and assistant's, in order.
    system : the system message, None for the template's own.
    options : fields of `cortiq.GenerateOptions`, for every answer.
    template_options : variables of the chat template.
    left_out : how many messages at the beginning the model is no longer shown, for lack of room.
    last : what the last answer was. spans : images of its prompt.
    used : answers, and tokens of them all: prompt, reused, generated, decoded.
    prompt_seconds, decode_seconds : what all of them took.

    Raises
    ------
    TokenizerError : the model has no chat template, or it refuses `template_options`.
    """

    def __init__(
        self,
        model: Model,
        *,
        system: str | None = None,
        template_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if not callable(getattr(model, "chat_ids", None)):
            hint = "give a model that cortiq.load returned"
            raise RequestError(f"expected a model, not {shown(model)}", where="model", hint=hint)
        if system is not None and not isinstance(system, str):
            raise RequestError(f"expected a text, not {shown(system)}", where="system")
        model.chat_ids([{"role": "user", "content": "?"}], template_options=template_options)
        self.model, self.system, self.options = model, system, options
        self.template_options = dict(template_options or {})
        self.messages: list[dict[str, Any]] = []
        self.left_out = 0
        self.last: Generation | None = None
        self.spans: tuple[ImageSpan, ...] = ()
        self.used: Counter[str] = Counter()
        self.prompt_seconds = self.decode_seconds = 0.0
        if model.prefixes is None:
            model.keep_prefixes(KEPT_SEQUENCES)

    def ask(
        self,
        text: str,
        *,
        images: Sequence[Any] = (),
        sounds: Sequence[Any] = (),
        on_text: Callable[[str], bool | None] | None = None,
        cancel: threading.Event | None = None,
        progress: Progress | None = None,
    ) -> Generation:
        """Answer a message; both are kept, also where the answer was cancelled midway.

        Parameters
        ----------
        images, sounds : come before the text (`Model.chat`).

        Raises
        ------
        RequestError, TokenizerError : it cannot be served; the conversation is as it was.
        """
        parts = [{"type": "image", "image": image} for image in images]
        parts += [{"type": "audio", "audio": sound} for sound in sounds]
        content = [*parts, {"type": "text", "text": text}] if parts else text
        messages = [*self.messages, {"role": "user", "content": content}]
        prompt, left_out = self._fitting(messages)
        calls: dict[str, Any] = {"on_text": on_text, "cancel": cancel, "progress": progress}
        made = self.model.generate(prompt, **calls, **self.options)
        self.messages = [*messages, {"role": "assistant", "content": made.text}]
        self.left_out = left_out
        self.spans = prompt.spans if isinstance(prompt, ImagePrompt) else ()
        self._count(made)
        return made

    def more(
        self,
        *,
        on_text: Callable[[str], bool | None] | None = None,
        cancel: threading.Event | None = None,
        progress: Progress | None = None,
    ) -> Generation:
        """Continue an answer that was cut or cancelled, from its very tokens.

        Raises
        ------
        RequestError : the last answer came to its own end, or there is none.
        """
        if self.last is None or self.last.finish_reason not in ("length", "cancelled"):
            raise RequestError("there is no answer that was cut short", where="/more")
        ids = [*self.last.prompt_ids, *self.last.token_ids]
        prompt = ImagePrompt(ids, self.spans) if self.spans else ids
        calls: dict[str, Any] = {"on_text": on_text, "cancel": cancel, "progress": progress}
        made = self.model.generate(prompt, **calls, **self.options)
        self.messages[-1]["content"] += made.text
        self._count(made)
        return made

    def _count(self, made: Generation) -> None:
        """Note what an answer took."""
        self.last, stats = made, made.stats
        self.used += Counter(
            answers=1, prompt_tokens=stats.prompt_tokens, reused_tokens=stats.reused_tokens,
            generated_tokens=stats.generated_tokens, decoded_tokens=stats.decoded_tokens,
        )  # fmt: skip
        self.prompt_seconds += stats.prompt_seconds
        self.decode_seconds += stats.decode_seconds

    def shown(self, messages: list[dict[str, Any]], left_out: int) -> list[Message]:
        """Return the messages for the template: the system message, and those not left out."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *messages[left_out:]]

    def _fitting(self, messages: list[dict[str, Any]]) -> tuple[list[int] | ImagePrompt, int]:
        """Return the prompt, and how many messages were left out to make room for an answer.

        The oldest exchange goes first; the last message always stays.
        """
        context = self.model.context
        room = min(resolve(GenerateOptions, self.options).max_tokens, context // LEAST_ROOM)
        left_out = self.left_out
        while True:
            given = self.shown(messages, left_out)
            prompt = self.model.chat_prompt(given, template_options=self.template_options)
            ids = prompt.ids if isinstance(prompt, ImagePrompt) else prompt
            later = [i for i, m in enumerate(messages) if m["role"] == "user" and i > left_out]
            if len(ids) + room <= context or not later:
                return prompt, left_out
            left_out = later[0]

    def undo(self) -> str:
        """Remove the last exchange; return the user's text of it.

        Raises
        ------
        RequestError : there is none.
        """
        asked = [i for i, m in enumerate(self.messages) if m["role"] == "user"]
        if not asked:
            raise RequestError("nothing has been said yet", where="undo")
        text = text_of(self.messages[asked[-1]]["content"])
        del self.messages[asked[-1] :]
        self.left_out, self.last = min(self.left_out, len(self.messages)), None
        return text

    def reset(self) -> None:
        """Forget all messages; the system message stays."""
        self.messages, self.left_out, self.last = [], 0, None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write system message and messages as JSON, whole or not at all.

        Raises
        ------
        RequestError : it cannot be written.
        """
        value = {
            "format": FORMAT, "version": VERSION, "model": self.model.name,
            "system": self.system, "messages": self.messages,
        }  # fmt: skip
        try:
            text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
        except TypeError:
            what = "an image that was given by its pixels, not by its path, cannot be saved"
            raise RequestError(what, where="save") from None
        try:
            write_atomically(path_of(path, "save"), [text.encode("utf-8", "surrogatepass")])
        except OSError as error:
            raise RequestError(
                f"cannot be written: {error.strerror or error}", where=str(path)
            ) from None

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a saved conversation, also with another model; present messages are
        dropped.

        Raises
        ------
        FormatError : no such file, or no conversation in it; the conversation is as it was.
        """
        system, messages = read_conversation(path)
        self.reset()
        self.system, self.messages = system, messages


def read_conversation(path: str | os.PathLike[str]) -> tuple[str | None, list[dict[str, Any]]]:
    """System message and messages of a file; see `Conversation.load`."""
    try:
        value = json.loads(path_of(path, "load").read_bytes())
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except (ValueError, RecursionError):
        raise FormatError("is not JSON", where=str(path)) from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise FormatError("is no conversation that cortiq saved", where=str(path))
    if value.get("version") != VERSION:
        what = f"is of version {shown(value.get('version'))}, this cortiq reads {VERSION}"
        raise FormatError(what, where=str(path))
    system, messages = value.get("system"), value.get("messages")
    if not (system is None or isinstance(system, str)) or not isinstance(messages, list):
        raise FormatError("has no messages", where=str(path))
    for number, message in enumerate(messages):
        known = isinstance(message, dict) and message.get("role") in ROLES
        if not known or not _is_content(message.get("content")):
            what = f"message {number} is {shown(message)}: no role and text"
            raise FormatError(what, where=str(path))
    return system, messages


def text_of(content: str | list[dict[str, Any]]) -> str:
    """Return the text of a content."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


def _is_content(value: object) -> bool:
    """Return whether a saved content is a text, or texts and paths of images."""
    if not isinstance(value, list):
        return isinstance(value, str)
    parts = (part for part in value if isinstance(part, dict))
    sound = [isinstance(part.get(part.get("type")), str) for part in parts]
    return len(sound) == len(value) and all(sound)
