"""Sight of a model: images of prompts and messages, to ids and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cortiq.engine.prompt_images import ImageSpan
from cortiq.engine.request import id_list
from cortiq.errors import RequestError
from cortiq.ir import Program
from cortiq.tokenizer.tokenizer import Tokenizer
from cortiq.vision.decode import pixels_of
from cortiq.vision.encode import VisionEncoder
from cortiq.vision.image import ImageProcessor, PreparedImage
from cortiq.vision.load import LoadedVision

Message = Mapping[str, Any]
MAX_IMAGES = 64
"""Images of one prompt at most."""
BLIND = "load it with images=True, --images"


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
    """The processor of a model's images, and the tower that makes rows of them.

    Attributes
    ----------
    program : the tower's. encoder : the tower on its backend.
    """

    def __init__(self, loaded: LoadedVision, encoder: VisionEncoder, tokenizer: Tokenizer) -> None:
        self.program: Program = loaded.program
        self.processor: ImageProcessor = loaded.processor
        self.encoder, self.tokenizer = encoder, tokenizer

    def prepared(self, images: Iterable[Any]) -> list[PreparedImage]:
        """Return images as the model sees them; RequestError where one cannot be read."""
        made: list[PreparedImage] = []
        for image in images:
            if len(made) == MAX_IMAGES:
                raise RequestError(f"more than {MAX_IMAGES} images", where="image")
            known = isinstance(image, PreparedImage)
            made.append(image if known else self.processor.prepare(pixels_of(image)))
        return made

    def expanded(self, text: str, images: Sequence[PreparedImage], *, before: bool = False) -> str:
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
            what = f"{len(parts) - 1} places of images for {len(images)} images"
            raise RequestError(what, where="image", hint=f"an image's place is {marker!r}")
        texts = [*(image.text for image in images), ""]
        return "".join(part + own for part, own in zip(parts, texts, strict=True))

    def placed(self, ids: Sequence[int], images: Sequence[PreparedImage]) -> ImagePrompt:
        """Return a prompt with the images at their places: the ids of images' rows, in order.

        Raises
        ------
        RequestError : there are more such ids than rows, or fewer.
        """
        places = [at for at, token in enumerate(ids) if token == self.processor.token]
        rows = sum(image.rows for image in images)
        if len(places) != rows:
            what = f"the prompt has {len(places)} ids of images' rows, the images {rows} rows"
            raise RequestError(what, where="image")
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


def without_images(messages: Sequence[Message]) -> tuple[list[Message], list[Any]]:
    """Return messages as templates take them, and the images that their contents had, in order.

    A part of a content is an image where it has the key `image`.
    """
    made: list[Message] = []
    images: list[Any] = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, (list, tuple)):
            found = [part["image"] for part in content if _is_image(part)]
            parts = [{"type": "image"} if _is_image(part) else part for part in content]
            message = {**message, "content": parts} if found else message
            images += found
        made.append(message)
    return made, images


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("image") is not None


def sight_for(sight: Sight | None, where: str) -> Sight:
    """Return what a model sees with; RequestError for one that was not loaded so."""
    if sight is None:
        raise RequestError("the model was not loaded to see images", where=where, hint=BLIND)
    return sight


def chat_prompt(
    sight: Sight | None,
    where: str,
    messages: Sequence[Message],
    ids_of: Callable[[Sequence[Message], Callable[[str], str]], list[int]],
) -> list[int] | ImagePrompt:
    """Return the prompt of a conversation, whose messages may have images.

    Parameters
    ----------
    ids_of : ids of messages, by a function that is given their rendered text first.
    """
    plain, images = without_images(messages) if _may_have_images(messages) else (messages, [])
    if not images:
        return ids_of(messages, lambda text: text)
    own = sight_for(sight, where)
    made = own.prepared(images)
    return own.placed(ids_of(plain, lambda text: own.expanded(text, made)), made)


def _may_have_images(messages: object) -> bool:
    return isinstance(messages, (list, tuple))
