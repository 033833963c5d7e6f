"""Parts of messages' contents: texts, images and sounds, and those of other APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cortiq.errors import RequestError, shown

Message = Mapping[str, Any]
MEDIA = ("image", "audio")
"""Keys of parts of a content, and types of these parts for a template."""
FOREIGN = {
    "image_url": "image", "input_image": "image", "input_audio": "audio", "audio_url": "audio",
}  # fmt: skip
"""Types of parts of other APIs, which no template shows, by our key of what they hold."""
TYPES = (*MEDIA, "video", "video_url")
"""Other types that parts of images, sounds and pictures in motion have."""


def without_media(messages: Sequence[Message]) -> tuple[list[Message], list[tuple[str, Any]]]:
    """Return messages as templates take them, and the images and sounds that their contents had, in
    order, each with its medium.

    A part of a content is an image where it has the key `image`, a sound where it has `audio`.
    """
    made: list[Message] = []
    given: list[tuple[str, Any]] = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, (list, tuple)):
            media = [medium_of(part) for part in content]
            found = [(m, part[m]) for m, part in zip(media, content, strict=True) if m]
            parts = [{"type": m} if m else p for m, p in zip(media, content, strict=True)]
            message = {**message, "content": parts} if found else message
            given += found
        made.append(message)
    return made, given


def as_text(message: Message, markers: Mapping[str, str], between: str) -> Message:
    """Return a message whose parts are one text, with the marker of each medium."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, (list, tuple)):
        return message
    typed = [part if isinstance(part, Mapping) else {"text": part} for part in content]
    given = [markers.get(part.get("type", "")) or part.get("text") for part in typed]
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) < len(given):
        raise RequestError("a part of a content is no text", where="messages")
    return {**message, "content": between.join(texts)}


def medium_of(part: object) -> str:
    """Return the medium of a part of a content; empty for a text.

    Raises
    ------
    RequestError : it is several things, of which but one would be read; or an image or a sound by
        its type, and has none: a template would put a place there that stands for nothing.
    """
    if not isinstance(part, Mapping):
        return ""
    found = [medium for medium in MEDIA if part.get(medium) is not None]
    things = [*found, *(["text"] if found and part.get("text") else [])]
    if len(things) > 1:
        what = f"a part of a content has {' and '.join(things)}"
        raise RequestError(what, where="messages", hint="give each in a part of its own")
    kind = part.get("type")
    if not found and isinstance(kind, str) and kind in FOREIGN:
        hint = f'give {{"{FOREIGN[kind]}": a path, or the bytes of a file}}'
        raise RequestError(f"a part of the type {kind!r}", where="messages", hint=hint)
    if not found and kind in TYPES:
        what = f"a part of the type {shown(kind)} has no image or sound that is read"
        hint = 'parts are {"image": PATH, BYTES or ARRAY}, {"audio": PATH, BYTES or (ARRAY, RATE)}'
        raise RequestError(what, where="messages", hint=hint)
    return found[0] if found else ""
