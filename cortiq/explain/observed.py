"""A model compiled so that values inside of its layers may be asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cortiq.backend import Backend, CompileOptions, Executable, Named
from cortiq.backend.batch import NO_INPUTS
from cortiq.engine.prompt_images import ImageSpan, PromptImages, compute_rows, with_spans
from cortiq.engine.request import check_prompt, id_list
from cortiq.engine.session import Session
from cortiq.errors import RequestError, shown
from cortiq.ir import Program, primitives_of
from cortiq.ir.overlays import overlay_inputs
from cortiq.ir.purpose import check_continues
from cortiq.model.adapters import no_adapters
from cortiq.model.chat import prompt_ids
from cortiq.model.load import choose_backend, compile_source, compile_towers
from cortiq.model.sight import Senses, Sight, encoder_of
from cortiq.model.source import ModelSource, model_name, open_overlay, open_source
from cortiq.models.overlay_banks import banks_of
from cortiq.models.overlays import read_overlay
from cortiq.options import LoadOptions, resolve
from cortiq.placement.place import place
from cortiq.plugins.selection import find_backend

ROWS = 32
"""Rows whose values are on the host at once; no bit depends on it."""
Values = Mapping[str, np.ndarray]


def compiled_to_observe(source: ModelSource, backend: str | None = None) -> Executable:
    """Compile an opened model so that values inside of its layers may be asked for.

    The bits are the model's own: its layers are written out, which changes none.
    """
    chosen, device = find_backend(backend)
    options = CompileOptions(device=device)
    return place(chosen, primitives_of(source.program), source.weights, options)


def check_window(window: int) -> int:
    """Return the tokens of a window; RequestError if it is no number of them."""
    if type(window) is not int or window < 1:
        what = f"{shown(window)} is no number of tokens"
        raise RequestError(what, where="window", hint="give a number such as 512")
    return window


def value_rows(
    executable: Executable,
    ids: Sequence[int],
    names: Iterable[str],
    window: int | None = None,
    inputs: Mapping[str, Any] = NO_INPUTS,
    images: PromptImages | None = None,
) -> Iterator[Values]:
    """Yield named values of a text's rows, [rows, ...], some rows at a time, in order.

    Parameters
    ----------
    window : tokens of a sequence; the text is cut into as many as it takes. None for one sequence.
    inputs : what every row supplies besides. images : what stands in for some, in one sequence.

    Raises
    ------
    RequestError : the text is empty, too long, or has ids out of the vocabulary; or there is no
        value of a name.
    """
    ids = id_list(ids)
    if not ids:
        raise RequestError("the text has no tokens", where="prompt")
    values, wants = executable.program.trunk.values, tuple(map(Named, dict.fromkeys(names)))
    for want in wants:
        if want.name not in values:
            raise RequestError(f"the model has no value {want.name!r}", where="trunk")
    whole, context = len(ids), executable.program.context
    window = whole if window is None else min(check_window(window), context)
    for start in range(0, len(ids), window):
        part = check_prompt(list(ids[start : start + window]), executable.program)
        attended = None if images is None else images.attended
        room = max(len(part), 0 if attended is None else attended.count)
        with Session(executable, room) as session:
            if attended is not None:
                attended.store(executable, session.state)
            at = 0
            while at < len(part):
                count = ROWS if images is None else images.whole_rows(at, ROWS)
                chunk: list[Any] = list(part[at : at + count])
                given = [inputs] * len(chunk)
                if images is not None:
                    chunk = [images.fed(at + n, token) for n, token in enumerate(chunk)]
                    given = [{**inputs, **images.inputs(at + n)} for n in range(len(chunk))]
                rows = session.read_rows(session.feed_each(chunk, [wants] * len(chunk), given))
                at += len(chunk)
                yield {want.name: np.stack([row[want] for row in rows]) for want in wants}


@dataclass
class ObservedModel:
    """A model, perhaps with an adapter, on a backend; a context manager that lets go of it.

    Attributes
    ----------
    name : the model's. adapter : its path, or empty.
    backend, device : what computes it.
    program : the model's own, layers not written out.
    senses : what it sees with, where it was opened with images=True.
    spans : the images of its prompt (`with_images`).
    adapts_images : whether the rows of a prompt with images take an adapter of the model's own.
    """

    name: str
    adapter: str
    backend: str
    device: str
    source: ModelSource
    executable: Executable
    senses: Senses = field(default_factory=Senses)
    spans: tuple[ImageSpan, ...] = ()
    adapts_images: bool = False

    @property
    def program(self) -> Program:
        """The model's program as it is loaded."""
        return self.source.program

    @property
    def title(self) -> str:
        """The model, its adapter and the backend, for people."""
        return f"{self.name}{f' with {self.adapter}' if self.adapter else ''} on {self.backend}"

    def ids(self, text: str | Iterable[int]) -> list[int]:
        """Return the ids of a text, with the tokenizer's start token; ids as they are."""
        return prompt_ids(self.source.tokenizer, text)

    def with_images(self, text: str | Iterable[int], images: Iterable[Any]) -> list[int]:
        """Return the ids of a text with images at its markers, or before it; rows that are asked
        for then have these images.

        Raises
        ------
        RequestError : the model was not opened with images=True, or an image cannot be read.
        """
        prompt = self.senses.of("image", "image").prompt(text, images)
        self.spans = prompt.spans
        return list(prompt.ids)

    def rows(
        self, ids: Sequence[int], names: Iterable[str], window: int | None = None
    ) -> Iterator[Values]:
        """Yield named values of a text's rows; see `value_rows`."""
        adapted = bool(self.adapter or (self.adapts_images and self.spans))
        inputs, images = overlay_inputs(1) if adapted else NO_INPUTS, None
        if self.spans:
            images = with_spans(None, self.program, len(ids), self.spans)
            compute_rows(images, self.program)
        return value_rows(self.executable, ids, names, window, inputs, images)

    def close(self) -> None:
        """Let go of the executables and the files."""
        self.senses.close()
        self.executable.close()
        self.source.close()

    def __enter__(self) -> ObservedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_observed(name: str, *, adapter: str = "", **options: Any) -> ObservedModel:
    """Open a model to look inside.

    Parameters
    ----------
    name : as for `cortiq.load`.
    adapter : PATH[:SCALE] of an adapter that every row takes; empty for none.
    options : as for `cortiq.load`, on one device.

    Raises
    ------
    RequestError : the model is an encoder or transcribes speech, or takes no adapters.
    """
    chosen = resolve(LoadOptions, options)
    backend, device = choose_backend(chosen)
    source = open_source(model_name(name), chosen)
    try:
        check_continues(source.program, str(name))
        plain = replace(source, program=primitives_of(source.program))
        executable = compile_source(plain, backend, device, chosen)
        own = source.media_adapters.get("image")
        if adapter and own:
            what = f"prompts with images take the model's own adapter {own.name!r}"
            raise RequestError(what, where="adapter", hint="leave out one of both")
        if adapter or own:
            _vary(executable, source, adapter)
        senses = _senses(source, backend, device, chosen) if chosen.images else Senses()
    except BaseException:
        source.close()
        raise
    where = (backend.name, device, source, executable, senses)
    return ObservedModel(str(name), adapter, *where, adapts_images=own is not None)


def _senses(source: ModelSource, backend: Backend, device: str, options: LoadOptions) -> Senses:
    """Compile what the model sees with."""
    towers = compile_towers(source, backend, device, options)
    tokenizer, context = source.tokenizer, source.program.context
    return Senses(
        Sight(sense, encoder_of(sense, tower), tokenizer, context)
        for sense, tower in zip(source.senses, towers, strict=True)
    )


def _vary(executable: Executable, source: ModelSource, path: str) -> None:
    """Give the executable an adapter's number 1: the model's own for images without a path."""
    if source.loaded is None:
        raise no_adapters(source.program)
    if not executable.takes_overlays:
        hint = "merge it into the model: --lora PATH"
        raise RequestError("the backend computes none of its own", where="adapter", hint=hint)
    if path:
        overlay = open_overlay(path, source.loaded, source.program).overlay
    else:
        own = source.media_adapters["image"].adapter
        overlay = read_overlay(own, source.loaded, source.program)
    program, banks = banks_of(source.program, [overlay], source.weights)
    executable.vary(program, {**source.weights, **banks})
