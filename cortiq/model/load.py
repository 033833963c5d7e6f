"""Loading: a name to a model, compiled for a backend."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from cortiq.arguments import function_of, mapping_of
from cortiq.backend import Backend, CompileOptions, Executable
from cortiq.backend.seam import devices_of
from cortiq.errors import OptionError
from cortiq.formats.adapter import split_adapter
from cortiq.formats.cache import Progress
from cortiq.formats.fetch import check_there
from cortiq.formats.kept_weights import KeptWeights, kept_weights
from cortiq.model.machine import memory
from cortiq.model.model import Model
from cortiq.model.source import ModelSource, model_name, open_source
from cortiq.numerics.layouts import Weight
from cortiq.options import LoadOptions, on_one_device, resolve

PREPARING = "preparing weights"
"""Activity of `progress` once a model is there."""


def load(
    name: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    extra: Mapping[str, Any] | None = None,
    **options: Any,
) -> Model:
    """Open a model and compile it for a backend.

    Parameters
    ----------
    name : a known name, a file, a folder, `hf:organisation/name:files@revision`, or
        `synthetic:NAME`; a path object is always a file or folder.
    progress : called while a model is fetched: what is done, bytes done, bytes in all; then while
        its weights are prepared (`PREPARING`): weights done, weights in all.
    extra : options of the backend's own (`CompileOptions.extra`); none changes a bit.
    options : fields of `cortiq.LoadOptions`; `help(cortiq.LoadOptions)` lists them.

    Raises
    ------
    ModelNotFoundError, DownloadError, FormatError, UnsupportedError : about the model.
    BackendError, DeclinedError : about the backend.
    """
    started = time.perf_counter()
    called, chosen = model_name(name), resolve(LoadOptions, options)
    progress = function_of(progress, "progress")
    extra = mapping_of(extra, "extra", "give the backend's own options by name")
    check_there(called)
    placed = choose_backend(chosen)
    source = open_source(called, chosen, progress)
    model = model_of(called, source, placed, chosen, extra, progress)
    model.load_seconds = time.perf_counter() - started
    return model


def model_of(
    name: str,
    source: ModelSource,
    placed: tuple[Backend, str],
    options: LoadOptions,
    extra: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Model:
    """Compile an opened source for a backend's device; close it if that fails."""
    backend, device = placed
    try:
        backend, sees = _on_devices(name, source, backend, options)
        kept = _kept_weights(name, source, backend, options)
        with contextlib.ExitStack() as stack:
            if kept is not None:
                stack.callback(kept.close)
            executable = compile_source(source, backend, device, options, extra, progress, kept)
            towers = compile_towers(source, sees, device, options)
            if kept is not None:
                kept.finish()
    except BaseException:
        source.close()
        raise
    model = Model(name, source, executable, backend.name, device, options, towers)
    model.notes += kept.notes if kept is not None else ()
    model.notes += getattr(backend, "notes", ())
    try:
        model.adapters.load_own()
        for text in options.adapters:
            model.load_adapter(*split_adapter(text), progress=progress)
    except BaseException:
        model.close()
        raise
    return model


def _on_devices(
    name: str, source: ModelSource, backend: Backend, options: LoadOptions
) -> tuple[Backend, Backend]:
    """Return the backend over the devices that the options ask for, and that of the model's tower;
    the source lets go of them.
    """
    alone = options.devices == 1 or (options.devices == 0 and "WORLD_SIZE" not in os.environ)
    for given, default in on_one_device().items():
        if alone and given != "split" and getattr(options, given) != default:
            raise OptionError(given, "needs several devices", hint="devices=2, --devices 2")
    if alone:
        return backend, backend
    kept = tuple(s for s in source.senses if not getattr(s.processor, "asked_for", False))
    if kept != source.senses:
        source.senses = kept
        source.notes += ("on several devices it takes no audio",)
    if source.hearing is not None or len(source.senses) > 1:
        what = "a model with an encoder of speech, or of both sounds and images, needs one"
        raise OptionError("devices", what, hint="leave out --devices")
    if options.rewrite:
        raise OptionError("rewrite", "needs one device", hint="leave out --devices")
    from cortiq.model.devices import shared_backend

    whole, tower, let_go = shared_backend(name, backend, options)
    close = source.close

    def close_all() -> None:
        close()
        let_go()

    source.close = close_all
    return whole, tower


def choose_backend(options: LoadOptions) -> tuple[Backend, str]:
    """Return the chosen backend, or the best available, and the name of its device."""
    from cortiq.plugins.selection import device_of, find_backend

    name = options.backend
    if options.device is not None and (name is None or isinstance(name, str)):
        if name is None:
            what = f"{options.device!r} needs a backend: a device belongs to one"
            raise OptionError("device", what, hint=f"name both, as backend NAME:{options.device}")
        if ":" in name:
            what = f"is {options.device!r}, and the backend {name!r} names one too"
            raise OptionError("device", what, hint="name the device once")
        name = f"{name}:{options.device}"
    backend, device = find_backend(name)
    if not isinstance(name, str) and options.device is not None:
        device = device_of(backend, options.device)
    return backend, device or devices_of(backend)[0].name


def compile_source(
    source: ModelSource,
    backend: Backend,
    device: str,
    options: LoadOptions,
    extra: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    kept: KeptWeights | None = None,
) -> Executable:
    """Compile an opened model for a backend, and for the fallback what that one declines."""
    from cortiq.placement.place import place

    compile_options = CompileOptions(
        device=device, threads=options.threads, full_windows=options.full_windows,
        extra=extra or {}, kept=kept,
    )  # fmt: skip
    weights = source.weights if progress is None else CountedWeights(source.weights, progress)
    return place(backend, source.program, weights, compile_options, strict=options.strict_placement)


def compile_towers(
    source: ModelSource, backend: Backend, device: str, options: LoadOptions
) -> list[Executable]:
    """Compile what an opened model hears or sees with, for the same backend: an encoder of speech,
    then a tower for each of its senses.
    """
    from cortiq.placement.place import place

    chosen = CompileOptions(device=device, threads=options.threads)
    speech = () if source.hearing is None else (source.hearing,)
    made: list[Executable] = []
    with contextlib.ExitStack() as failed:
        for part in (*speech, *source.senses):
            strict = options.strict_placement
            made.append(place(backend, part.program, part.weights, chosen, strict=strict))
            failed.callback(made[-1].close)
        failed.pop_all()
    return made


def _kept_weights(
    name: str, source: ModelSource, backend: Backend, options: LoadOptions
) -> KeptWeights | None:
    """Return the weights that a backend prepared before from the same files in the same way."""
    takes = getattr(backend, "keeps_weights", False)
    if not (takes and options.keep_weights) or options.heads != "off":
        return None
    facts = {
        "backend": backend.name,
        "format": options.weight_format,
        "vocabulary": options.draft_vocabulary,
        "ignored": list(options.ignore_unknown_config),
    }
    return kept_weights(name, source.files, facts, options.weights, memory()["free"])


class CountedWeights(Mapping[str, Weight]):
    """Weights that report how many of them have been taken."""

    def __init__(self, weights: Mapping[str, Weight], progress: Progress) -> None:
        self._weights, self._progress, self._taken = weights, progress, set[str]()

    def __getitem__(self, name: str) -> Weight:
        weight = self._weights[name]
        if name not in self._taken:
            self._taken.add(name)
            self._progress(PREPARING, len(self._taken), len(self._weights))
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
