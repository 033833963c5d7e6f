"""Senses of a model: images or sounds of prompts and messages, to ids and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from typing import Any

from cortiq.backend import Executable
from cortiq.engine.prompt_images import ImageSpan
from cortiq.engine.request import id_list
from cortiq.errors import ContextError, RequestError, UnsupportedError
from cortiq.hearing.encode import SoundEncoder
from cortiq.hearing.spoken import SpokenSound
from cortiq.ir import Program
from cortiq.model.message_parts import Message, as_text, without_media
from cortiq.tokenizer.tokenizer import Tokenizer
from cortiq.vision.encode import VisionEncoder
from cortiq.vision.image import PreparedImage
from cortiq.vision.load import LoadedVision

MAX_IMAGES = 64
"""Images, or sounds, of one prompt at most."""
UNABLE = {
    "image": (
        "the model was not loaded to see images",
        "load it with images=True, --images, if it is one that sees (docs/models.md#images)",
    ),
    "audio": (
        "the model takes no sounds in prompts",
        "load it with sounds=True, --sounds, if it is one that hears (docs/models.md#sound)",
    ),
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
    context : tokens of a sequence. token : id of the rows; that of a token that no text has where
        the family has none for them.

    Raises
    ------
    UnsupportedError : the tokenizer has no such token.
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
        self.token: int | None = self.processor.token
        self._row_text = tokenizer.reserved_token if self.token is None else ""
        if self.token is None and not self._row_text:
            what = f"the rows of {self.things} have no token, and the tokenizer none to spare"
            raise UnsupportedError(what, where=self.medium)
        if self._row_text:
            self.token = tokenizer.token_id(self._row_text)

    def prepared(self, images: Iterable[Any]) -> list[Any]:
        """Return images or sounds as the model has them; RequestError where one cannot be read."""
        made: list[Any] = []
        for image in self.counted(images):
            made.append(self.one_prepared(image, sum(one.rows for one in made)))
        return made

    def counted(self, given: Iterable[Any]) -> list[Any]:
        """Return images or sounds, of which a prompt may have so many; nothing is read before."""
        listed = list(islice(given, MAX_IMAGES + 1))
        if len(listed) > MAX_IMAGES:
            raise RequestError(f"more than {MAX_IMAGES} {self.things}", where=self.medium)
        return listed

    def one_prepared(self, given: Any, before: int) -> Any:
        """Return an image or a sound as the model has it; refuse one that the context has no room
        for behind so many rows: a sound before its spectrogram is computed, an image before the
        next one is read.
        """
        if not isinstance(given, Prepared):
            found = self.processor.read(given)
            if self.medium == "audio":
                self._check_room(before + self.processor.rows_of(len(found)))
            given = self.processor.prepare(found)
        self._check_room(before + given.rows)
        if isinstance(given, PreparedImage):
            self._check_patches(given)
        return given

    def _check_patches(self, image: PreparedImage) -> None:
        """Refuse an image of which a family's rules make more patches than its limit says."""
        patches, most = max(len(tile.patches) for tile in image.tiles), self.processor.most
        if patches > most:
            what = f"an image of {patches} patches, more than {most}: an edge is too long"
            raise RequestError(what, where="image", hint="cut it, or make it less long")

    def _check_room(self, rows: int) -> None:
        if rows > self.context:
            what = f"{self.things} of {rows} rows: the context has {self.context} tokens"
            raise ContextError(what, where=self.medium, hint="give fewer, or smaller ones")

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
        texts = [*(number(n) + self._own(image.text) for n, image in enumerate(images)), ""]
        return "".join(part + own for part, own in zip(parts, texts, strict=True))

    def _own(self, text: str) -> str:
        """Return what stands for an image, with the token that its rows have."""
        return text.replace(self.processor.marker, self._row_text) if self._row_text else text

    def placed(self, ids: Sequence[int], images: Sequence[Prepared]) -> ImagePrompt:
        """Return a prompt with the images at their places: the ids of images' rows, in order.

        Raises
        ------
        RequestError : there are more such ids than rows, or fewer.
        """
        own = (self.token, *self.processor.ends)
        places = [at for at, token in enumerate(ids) if token in own]
        rows = sum(image.rows for image in images)
        if len(places) != rows:
            what = f"the prompt has {len(places)} ids of {self.things}' rows, the {self.things}"
            raise RequestError(f"{what} {rows} rows", where=self.medium)
        spans: list[ImageSpan] = []
        for image, make in zip(images, self.encoder.makers(images), strict=True):
            here, places = places[: image.rows], places[image.rows :]
            turned = self._turned(image, ids, here, places[0] - 1 if places else len(ids))
            own = image.digest, image.grid, self.medium, turned
            spans.append(ImageSpan(tuple(here), make, *own))
        return ImagePrompt(ids, tuple(spans))

    def _turned(self, image: Any, ids: Sequence[int], places: Sequence[int], stop: int) -> Any:
        """Return the positions that an image decides, before the first token of the next one."""
        canvas = getattr(image, "canvas", None)
        return canvas and canvas.placed(ids, places, self.processor.markers, stop)

    def prompt(self, given: str | Iterable[int], images: Iterable[Any]) -> ImagePrompt:
        """Return a raw text, or ids with a place for each row, with its images."""
        single = isinstance(images, (str, bytes, PathLike)) or not isinstance(images, Iterable)
        made = self.prepared([images] if single else images)
        if not isinstance(given, str):
            return self.placed(id_list(given), made)
        text = self.expanded(given, made, before=True)
        return self.placed(self.tokenizer.encode(text, parse_special=True), made)


def encoder_of(loaded: LoadedVision, tower: Executable) -> VisionEncoder | SoundEncoder:
    """Return the encoder of a sense whose tower is on a backend."""
    hears = loaded.processor.medium == "audio"
    return SoundEncoder(tower) if hears else VisionEncoder(tower)


class Senses:
    """A model's senses by medium: one for images, one for sounds, or both, or none."""

    def __init__(self, senses: Iterable[Sight] = ()) -> None:
        self._by_medium = {sense.medium: sense for sense in senses}

    def __contains__(self, medium: str) -> bool:
        return medium in self._by_medium

    def of(self, medium: str, where: str) -> Sight:
        """Return the sense of a medium; RequestError for a model that was loaded without it."""
        if medium not in self:
            what, hint = UNABLE[medium]
            raise RequestError(what, where=where, hint=hint)
        return self._by_medium[medium]

    def prepared(self, given: Iterable[tuple[str, Any]], where: str) -> list[Prepared]:
        """Return images and sounds, each with its medium, as the model has them."""
        media = list(given)
        senses = [self.of(medium, where) for medium, _ in media]
        for sense in dict.fromkeys(senses):
            sense.counted(thing for medium, thing in media if medium == sense.medium)
        made: list[Prepared] = []
        for sense, (_, thing) in zip(senses, media, strict=True):
            made.append(sense.one_prepared(thing, sum(one.rows for one in made)))
        return made

    def expanded(self, text: str, made: Sequence[Prepared]) -> str:
        """Return a text with what stands for each image or sound in place of its marker."""
        for sense, own in self._divided(made):
            text = sense.expanded(text, own)
        return text

    def as_texts(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages with their parts as one text, for templates that take no parts."""
        processors = [sense.processor for sense in self._by_medium.values()]
        markers = {p.medium: p.marker for p in processors if p.between is not None}
        if not markers:
            return messages
        between = next(p.between for p in processors if p.between is not None)
        return [as_text(message, markers, between) for message in messages]

    def placed(self, ids: Sequence[int], made: Sequence[Prepared]) -> ImagePrompt:
        """Return a prompt with images and sounds at their places, in the order of these."""
        media, spans = {one.medium for one in made}, list[ImageSpan]()
        for sense, own in self._divided(made):
            heard = sense.medium == "audio"
            here = [sense.processor.among(one, media) for one in own] if heard else own
            spans += sense.placed(ids, here).spans
        return ImagePrompt(ids, tuple(sorted(spans, key=lambda span: span.places)))

    def named(self) -> tuple[str, str]:
        """Return the medium, and the word for what is of it, that messages speak of."""
        names = {medium: sense.things for medium, sense in self._by_medium.items()}
        return next(iter(names.items()), ("image", "images"))

    def close(self) -> None:
        """Release all towers."""
        for sense in self._by_medium.values():
            sense.encoder.close()

    def _divided(self, made: Sequence[Prepared]) -> Iterator[tuple[Sight, list[Prepared]]]:
        """Yield senses with what there is for each."""
        for medium, sense in self._by_medium.items():
            own = [one for one in made if one.medium == medium]
            if own:
                yield sense, own


def chat_prompt(
    senses: Senses,
    where: str,
    messages: Sequence[Message],
    ids_of: Callable[[Sequence[Message], Callable[[str], str]], list[int]],
) -> list[int] | ImagePrompt:
    """Return the prompt of a conversation, whose messages may have images or sounds.

    Parameters
    ----------
    ids_of : ids of messages, by a function that is given their rendered text first.
    """
    listed = isinstance(messages, (list, tuple))
    plain, given = without_media(messages) if listed else (messages, [])
    if not given:
        return ids_of(messages, lambda text: text)
    made = senses.prepared(given, where)
    plain = senses.as_texts(plain)
    return senses.placed(ids_of(plain, lambda text: senses.expanded(text, made)), made)
