"""Adapters beside a model: loaded, unloaded and listed by name, and chosen by requests.

An adapter has a number in the executable's banks from when it is loaded until it is unloaded and
no request holds it any more. The banks are made before the next request that chooses an adapter,
however many were loaded or unloaded since the last.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Collection
from dataclasses import dataclass

from cortiq.backend import Executable
from cortiq.engine.overlay import ChosenOverlay, facts_of
from cortiq.errors import RequestError, shown
from cortiq.formats.cache import Progress
from cortiq.ir import Program
from cortiq.model.adapter_banks import AdapterBanks
from cortiq.model.machine import memory
from cortiq.model.source import ModelSource, ReadOverlay, open_overlay
from cortiq.models.bind import LoadedProgram
from cortiq.models.overlay_banks import Overlay, bank_bytes
from cortiq.models.overlays import read_overlay
from cortiq.models.rewriting import REWRITES

NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
"""Names of adapters: they follow a colon in `model: "base:adapter"`."""


@dataclass(frozen=True)
class LoadedAdapter:
    """An adapter as it is listed.

    Attributes
    ----------
    name : what requests call it. path : its folder or file. scale : its factor.
    sha256 : hash of its files. rank : the largest of its products; 0 for vectors alone.
    nbytes : memory of its own numbers. notice : what whoever loads it is told.
    """

    name: str
    path: str
    scale: float
    sha256: str
    rank: int
    nbytes: int
    notice: str = ""


@dataclass
class _Held:
    """An adapter that has a number.

    Attributes
    ----------
    chosen : what requests hold, as long as one does or it is loaded.
    """

    overlay: Overlay
    chosen: weakref.ref[ChosenOverlay]


class Adapters:
    """The adapters of a model on an executable.

    Any thread may load and unload; `sync` is called by the thread that computes, before a request.

    Parameters
    ----------
    budget : most bytes of banks; None for what the machine has free.
    """

    def __init__(self, executable: Executable, source: ModelSource, budget: int | None) -> None:
        self._executable, self._source, self._budget = executable, source, budget
        self._lock = threading.RLock()
        self._names: dict[str, tuple[ChosenOverlay, LoadedAdapter]] = {}
        self._held: list[_Held | None] = []
        self._banks = AdapterBanks(executable, source, budget)
        self._own: dict[str, str] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    @property
    def listed(self) -> list[LoadedAdapter]:
        """The adapters that requests may choose, in the order they were loaded."""
        with self._lock:
            return [listed for _, listed in self._names.values()]

    def load(self, name: str, path: str, progress: Progress | None = None) -> LoadedAdapter:
        """Load an adapter, `PATH[:SCALE]`, under a name.

        Raises
        ------
        FormatError, UnsupportedError : it is no adapter, or none of this model.
        RequestError : the name is taken, or there is no memory for it.
        """
        if not isinstance(name, str) or not NAME.fullmatch(name):
            what = f"an adapter is named {shown(name)}: letters, digits, '.', '_' and '-'"
            raise RequestError(what, where="adapter", hint="--adapter NAME=PATH")
        loaded = self._taken()
        self._check_new(name)
        return self._add(name, open_overlay(path, loaded, self._executable.program, progress))

    def load_own(self) -> None:
        """Load the model's own adapters, which prompts with images, or with sounds, take."""
        for medium, (name, adapter) in self._source.media_adapters.items():
            overlay = read_overlay(adapter, self._taken(), self._executable.program)
            self._add(name, ReadOverlay(overlay, adapter.path))
            self._own[medium] = name

    def of_media(
        self, media: Collection[str], chosen: ChosenOverlay | None
    ) -> ChosenOverlay | None:
        """Return the adapter of a request whose prompt has these media: the model's own for them,
        that for images where there are several; else the one that the request chose.

        Raises
        ------
        RequestError : the request chose another.
        """
        medium = next((one for one in self._own if one in media), None)
        if medium is None:
            return chosen
        own = self.named(self._own[medium])
        if chosen not in (None, own):
            what = f"a prompt with {medium} takes the model's own adapter {self._own[medium]!r}"
            raise RequestError(what, where="adapter", hint="choose no other")
        return own

    def _taken(self) -> LoadedProgram:
        """Return the program that adapters are read for; RequestError where none are computed."""
        if self._source.loaded is None:
            raise no_adapters(self._source.program)
        if not self._executable.takes_overlays:
            what = "the backend, or a split by layers, computes no adapter chosen by request"
            raise RequestError(what, where="adapter", hint="merge it into the model: --lora PATH")
        return self._source.loaded

    def _add(self, name: str, read: ReadOverlay) -> LoadedAdapter:
        """Give an adapter that was read a number and its name."""
        overlay = read.overlay
        with self._lock:
            self._check_new(name)
            number = self._free_number(overlay, name)
            chosen = ChosenOverlay(name, overlay.sha256, overlay.scale, 1 + number)
            self._held[number] = _Held(overlay, weakref.ref(chosen))
            listed = LoadedAdapter(
                name, str(read.path), overlay.scale, overlay.sha256,
                max((m.rank for m in overlay.members.values()), default=0), overlay.nbytes,
                read.notice,
            )  # fmt: skip
            self._names[name] = chosen, listed
        return listed

    def unload(self, name: str) -> None:
        """Forget an adapter; requests that chose it go on with it."""
        with self._lock:
            if name not in self._names:
                raise self._unknown(name)
            if name in self._own.values():
                what = f"the adapter {name!r} is the model's own"
                raise RequestError(what, where="adapter", hint="others may be unloaded")
            del self._names[name]

    def named(self, name: str | None) -> ChosenOverlay | None:
        """Return what a request of this adapter holds; None for none.

        Raises
        ------
        RequestError : there is none of this name.
        """
        if name is None:
            return None
        with self._lock:
            if name not in self._names:
                raise self._unknown(name)
            return self._names[name][0]

    def claimed(self, facts: tuple[str, float] | None) -> ChosenOverlay | None:
        """Return the adapter with this hash and scale; None for none.

        Raises
        ------
        RequestError : it is not loaded.
        """
        if facts is None:
            return None
        with self._lock:
            same = (one for one, _ in self._names.values() if facts_of(one) == facts)
            found = next(same, None)
        if found is None:
            what = f"made with an adapter that is not loaded: {facts[0]}, times {facts[1]:g}"
            raise RequestError(what, where="adapter", hint="load its files: --adapter NAME=PATH")
        return found

    def _unknown(self, name: object) -> RequestError:
        there = ", ".join(self._names) or "none"
        what = f"no adapter named {shown(name)} is loaded"
        return RequestError(what, where="adapter", hint=f"there are: {there}")

    def _check_new(self, name: str) -> None:
        with self._lock:
            if name in self._names:
                what = f"an adapter named {name!r} is loaded already"
                raise RequestError(what, where="adapter", hint="unload it first")

    def _overlays(self) -> list[Overlay | None]:
        """Return the overlay of each number; those that nobody holds any more are dropped."""
        for number, held in enumerate(self._held):
            if held is not None and held.chosen() is None:
                self._held[number] = None
        while self._held and self._held[-1] is None:
            self._held.pop()
        return [None if held is None else held.overlay for held in self._held]

    def _free_number(self, overlay: Overlay, name: str) -> int:
        """Return a number for an overlay; refuse it where the banks would be too large."""
        overlays = self._overlays()
        number = overlays.index(None) if None in overlays else len(overlays)
        overlays[number : number + 1] = [overlay]
        needed, budget = bank_bytes(self._executable.program, overlays), self._budget
        free = memory()["free"]
        most = budget if budget is not None else free
        if most is not None and needed > most:
            what = f"{len(overlays)} adapters take {_mib(needed)}, and there may be {_mib(most)}"
            hint = "unload one, or load the model with more: --adapter-memory MIB"
            raise RequestError(what, where=f"adapter {name}", hint=hint)
        if number == len(self._held):
            self._held.append(None)
        return number

    def sync(self, overlay: ChosenOverlay | None) -> None:
        """Have the executable's banks hold what is loaded, between two batches, if a request
        chooses an overlay or nobody does any more.

        Raises
        ------
        BackendError, DeclinedError : the backend computes no overlays.
        """
        with self._lock:
            overlays = self._overlays()
            if overlay is not None or not overlays:
                self._banks.sync(overlays)


def no_adapters(program: Program) -> RequestError:
    """Return why a program that was changed after its files were read takes no adapters."""
    by = ", ".join(name for name, _ in program.facts.get(REWRITES, ()))
    asked = f"by --rewrite {by}" if by else "by the package that loaded it"
    what = f"the model was changed {asked}, and an adapter fits the weights that its files hold"
    hint = "merge the adapter, which is done before the change: --lora PATH"
    return RequestError(what, where="adapter", hint=hint)


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"


class AdapterMixin:
    """The adapters of `Model`.

    Attributes
    ----------
    adapters : those that are loaded.
    """

    adapters: Adapters
    notes: tuple[str, ...]

    def load_adapter(
        self, name: str, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> LoadedAdapter:
        """Load an adapter beside the model, for `generate(..., adapter=name)`; any thread may.

        Parameters
        ----------
        path : a PEFT folder, a GGUF file or a file of a plugin's kind, perhaps with `:SCALE`, or a
            name of the hub.

        Raises
        ------
        FormatError, UnsupportedError : it is no adapter, or none of this model.
        RequestError : the name is taken, or there is no memory for it.
        """
        made = self.adapters.load(name, os.fspath(path), progress)
        if made.notice and made.notice not in self.notes:
            self.notes = (*self.notes, made.notice)
        return made

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter; RequestError if none of this name is loaded."""
        self.adapters.unload(name)
