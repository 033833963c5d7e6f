"""Senses of a model: images or sounds of prompts and messages, to ids and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cortiq.engine.prompt_images import ImageSpan
from cortiq.engine.request import id_list
from cortiq.errors import RequestError
from cortiq.hearing.encode import SoundEncoder
from cortiq.hearing.spoken import SpokenSound
from cortiq.ir import Program
from cortiq.tokenizer.tokenizer import Tokenizer
from cortiq.vision.encode import VisionEncoder
from cortiq.vision.image import PreparedImage
from cortiq.vision.load import LoadedVision

Message = Mapping[str, Any]
MAX_IMAGES = 64
"""Images, or sounds, of one prompt at most."""
MEDIA = ("image", "audio")
"""Keys of parts of a content, and types of these parts for a template."""
UNABLE = {
    "image": ("the model was not loaded to see images", "load it with images=True, --images"),
    "audio": ("the model hears no sounds in prompts", "see docs/models.md"),
}
Prepared = PreparedImage | SpokenSound


@dataclass(frozen=True)
class ImagePrompt:
    """Token ids of a prompt, and the images whose rows stand in for some of them.

    Attributes
    ----------
    spans : the images, at their places.
    """

    ids: Sequence[int]
    spans: tuple[ImageSpan, ...]


class Sight:
    """The processor of a model's images, or of its sounds, and the tower that makes rows of them.

    Attributes
    ----------
    program : the tower's. encoder : the tower on its backend. medium : one of `MEDIA`.
    context : tokens of a sequence.
    """

    def __init__(
        self, loaded: LoadedVision, encoder: VisionEncoder | SoundEncoder, tokenizer: Tokenizer,
        context: int,
    ) -> None:  # fmt: skip
        self.program: Program = loaded.program
        self.processor: Any = loaded.processor
        self.encoder: Any = encoder
        self.tokenizer, self.medium = tokenizer, loaded.processor.medium
        self.context = context
        self.things = "images" if self.medium == "image" else "sounds"

    def prepared(self, images: Iterable[Any]) -> list[Any]:
        """Return images or sounds as the model has them; RequestError where one cannot be read."""
        made: list[Any] = []
        for image in images:
            if len(made) == MAX_IMAGES:
                raise RequestError(f"more than {MAX_IMAGES} {self.things}", where=self.medium)
            if not isinstance(image, Prepared):
                image = self._prepared(image, sum(one.rows for one in made))
            made.append(image)
        return made

    def _prepared(self, given: Any, before: int) -> Any:
        """Return an image or a sound as the model has it; refuse a sound that the context has no
        room for behind so many rows, before its spectrogram is computed.
        """
        found = self.processor.read(given)
        if self.medium == "audio":
            rows = before + self.processor.rows_of(len(found))
            if rows > self.context:
                what = f"sounds of {rows} rows: the context has {self.context} tokens"
                raise RequestError(what, where="audio", hint="give a shorter one")
        return self.processor.prepare(found)

    def expanded(self, text: str, images: Sequence[Prepared], *, before: bool = False) -> str:
        """Return a text with what stands for each image in place of its marker.

        Parameters
        ----------
        before : a text without markers has the images before it.

        Raises
        ------
        RequestError : it has not as many markers as there are images.
        """
        marker = self.processor.marker
        parts = text.split(marker)
        if before and len(parts) == 1:
            parts = [""] * len(images) + parts
        if len(parts) != len(images) + 1:
            what = f"{len(parts) - 1} places of {self.things} for {len(images)} {self.things}"
            raise RequestError(what, where=self.medium, hint=f"such a place is {marker!r}")
        number = self.processor.numbered.format
        texts = [*(number(n) + image.text for n, image in enumerate(images)), ""]
        return "".join(part + own for part, own in zip(parts, texts, strict=True))

    def placed(self, ids: Sequence[int], images: Sequence[Prepared]) -> ImagePrompt:
        """Return a prompt with the images at their places: the ids of images' rows, in order.

        Raises
        ------
        RequestError : there are more such ids than rows, or fewer.
        """
        places = [at for at, token in enumerate(ids) if token == self.processor.token]
        rows = sum(image.rows for image in images)
        if len(places) != rows:
            what = f"the prompt has {len(places)} ids of {self.things}' rows, the {self.things}"
            raise RequestError(f"{what} {rows} rows", where=self.medium)
        spans: list[ImageSpan] = []
        for image in images:
            own, places = places[: image.rows], places[image.rows :]
            make = partial(self.encoder.rows, image)
            spans.append(ImageSpan(tuple(own), make, image.digest, image.grid))
        return ImagePrompt(ids, tuple(spans))

    def prompt(self, given: str | Iterable[int], images: Iterable[Any]) -> ImagePrompt:
        """Return a raw text, or ids with a place for each row, with its images."""
        made = self.prepared(images)
        if not isinstance(given, str):
            return self.placed(id_list(given), made)
        text = self.expanded(given, made, before=True)
        return self.placed(self.tokenizer.encode(text, parse_special=True), made)


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
            media = [_medium_of(part) for part in content]
            found = [(m, part[m]) for m, part in zip(media, content, strict=True) if m]
            parts = [{"type": m} if m else p for m, p in zip(media, content, strict=True)]
            message = {**message, "content": parts} if found else message
            given += found
        made.append(message)
    return made, given


def _medium_of(part: object) -> str:
    """Return the medium of a part of a content; empty for a text."""
    if not isinstance(part, Mapping):
        return ""
    return next((medium for medium in MEDIA if part.get(medium) is not None), "")


def sight_for(sight: Sight | None, where: str, medium: str | None = None) -> Sight:
    """Return what a model has images or sounds in its prompts with; RequestError for a model that
    was not loaded so, or has another medium.
    """
    if sight is None or (medium is not None and sight.medium != medium):
        what, hint = UNABLE[medium or MEDIA[0]]
        raise RequestError(what, where=where, hint=hint)
    return sight


def chat_prompt(
    sight: Sight | None,
    where: str,
    messages: Sequence[Message],
    ids_of: Callable[[Sequence[Message], Callable[[str], str]], list[int]],
) -> list[int] | ImagePrompt:
    """Return the prompt of a conversation, whose messages may have images or sounds.

    Parameters
    ----------
    ids_of : ids of messages, by a function that is given their rendered text first.
    """
    plain, given = without_media(messages) if _may_have_media(messages) else (messages, [])
    if not given:
        return ids_of(messages, lambda text: text)
    senses = [sight_for(sight, where, medium) for medium, _ in given]
    own, made = senses[0], senses[0].prepared(thing for _, thing in given)
    return own.placed(ids_of(plain, lambda text: own.expanded(text, made)), made)


def _may_have_media(messages: object) -> bool:
    return isinstance(messages, (list, tuple))
