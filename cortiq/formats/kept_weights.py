"""Weights as a backend prepared them, kept in the cache between runs, and mapped from there.

One file for each model and form, `kept/NAME-KEY.weights` beside the folder of models. The key
covers what the bytes follow from: the model's files (device, inode, size, times of change), how
they were loaded, and the code that prepares them. A file is hostile until it is checked, and is
read as a whole first: one that differs from what was written is made anew.

Weights that are prepared go to the file one by one, so that a model never lies in memory twice, nor
in memory that the system cannot take back. Where nothing can be written they lie in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cortiq.errors import FormatError
from cortiq.formats.kept_file import START, MappedFile, WeightsFile, opened
from cortiq.formats.kept_folder import SUFFIX, has_room, kept_folder, make_room
from cortiq.formats.kept_writer import WeightsWriter

if TYPE_CHECKING:
    from cortiq.formats.kept_file import Bytes

LEAST_BYTES = 1 << 20
"""A smaller model is prepared sooner than a file is written."""
HUGE_SHARE = 0.75
"""Least share of huge pages with which mapped weights are read as fast as those in memory."""
MEMORY_SHARE = 0.25
"""Weights of a larger share of the free memory are mapped in any case."""
CODE = ("formats", "models", "numerics", "ir", "backend")
"""Packages whose code decides what is prepared."""


class KeptPolicy(NamedTuple):
    """The choice where weights are in a run.

    Attributes
    ----------
    where : "mapped"; "memory", into which they are copied; or "auto", which maps what the system
        maps in huge pages, or is large for the memory.
    size : bytes of the model's files. free : bytes of memory that are free, None if unknown.
    """

    where: str = "auto"
    size: int = 0
    free: int | None = None


class KeptWeights:
    """The prepared weights of one model: those of the last run, or those for the next.

    Parameters
    ----------
    path : the file, whether it exists or not. source : the model's first file.

    Attributes
    ----------
    taken : names that were found as they were written.
    notes : what keeps the weights from being kept, if something does.
    """

    def __init__(self, path: Path, source: Path, policy: KeptPolicy | None = None) -> None:
        self._path, self._source, self._policy = path, source, policy or KeptPolicy()
        self.taken: set[str] = set()
        self.notes: tuple[str, ...] = ()
        self._file: WeightsFile | None = opened(path)
        self._is_checked = self._is_new = False
        self._writer: WeightsWriter | None = None
        self._data: dict[str, Bytes] = {}

    def find(self, name: str, form: str, nbytes: int, pool: Executor | None = None) -> bool:
        """Return whether a weight is there, in this form.

        Parameters
        ----------
        form : what the bytes mean: another form is another weight. pool : whose threads read.
        """
        if self._file is not None and not self._is_checked:
            self._is_checked = True
            if not self._file.is_whole(pool):
                self._file = None
        weights = self._writer.weights if self._writer is not None else {}
        if name in weights or name in self._data:
            return True
        place = self._file.weights.get(name) if self._file is not None else None
        if self._is_new or place is None or (place.form, place.nbytes) != (form, nbytes):
            return False
        self.taken.add(name)
        return True

    def add(self, name: str, form: str, nbytes: int, parts: Iterable[Bytes]) -> None:
        """Take a weight that is prepared now, its bytes part by part."""
        if not self._is_new:
            self._begin()
        if self._writer is not None:
            self._writer.start(name, form, nbytes)
        else:
            self._data[name] = _aligned(nbytes)
        done = 0
        for part in parts:
            if self._writer is None:
                self._data[name][done : done + part.nbytes] = part
            else:
                self._append(part)
            done += part.nbytes

    def place(self, pool: Executor | None = None) -> None:
        """Map the weights that were found or taken, or copy them to memory."""
        if self._writer is not None:
            try:
                mapped, places = self._writer.map(), self._writer.weights
            except OSError as error:
                return self._to_memory(error)
        elif self._file is not None and not self._is_new:
            mapped = self._file.mapped
            places = {name: self._file.weights[name] for name in self.taken}
        else:
            return None
        new = {name: place for name, place in places.items() if name not in self._data}
        views = {name: mapped.bytes[p.offset : p.offset + p.nbytes] for name, p in new.items()}
        if not self._is_mapped(mapped):
            copies = (
                map(_copied, views.values()) if pool is None else pool.map(_copied, views.values())
            )
            views = dict(zip(views, copies, strict=True))
        self._data |= views
        return None

    def data(self, name: str) -> Bytes:
        """Return a weight's bytes once they are placed: at a multiple of 64, not to be changed."""
        return self._data[name]

    def finish(self) -> None:
        """Give what was prepared its name in the cache."""
        try:
            if self._writer is None:
                if self._file is not None and self.taken:
                    os.utime(self._path)  # used: others go first
            elif make_room(self._path.parent, self._writer.end, self._path):
                self._writer.seal(str(self._source))
                self._writer.rename(self._path)
        except OSError as error:
            self._note(error)
        self.close()

    def close(self) -> None:
        """Forget everything; what was not finished leaves nothing behind."""
        if self._writer is not None:
            self._writer.close()
        self._writer = self._file = None
        self._data = {}

    def _begin(self) -> None:
        """Open a file for what is prepared, and move there what was found of an older one."""
        self._is_new = True
        try:
            if not has_room(self._path.parent, self._policy.size):
                raise OSError("too little space for it, or it is too large")
            self._writer = WeightsWriter(self._path.parent)
        except OSError as error:
            self._note(error)
        if self._file is not None:
            for name in sorted(self.taken):
                place = self._file.weights[name]
                part = self._file.mapped.bytes[place.offset : place.offset + place.nbytes]
                self.add(name, place.form, place.nbytes, [part])

    def _append(self, part: Bytes) -> None:
        assert self._writer is not None
        try:
            self._writer.append(part)
        except OSError as error:
            self._to_memory(error)

    def _to_memory(self, error: OSError) -> None:
        """Take what was written to memory, since no more can be written."""
        writer, self._writer = self._writer, None
        assert writer is not None
        self._note(error)
        for name, place in writer.weights.items():
            if name not in self._data:
                self._data[name] = _aligned(place.nbytes)
                writer.read(place, self._data[name])
        writer.close()

    def _note(self, error: OSError) -> None:
        why = error.strerror or str(error)
        self.notes = (f"weights are not kept in {self._path.parent}: {why}",)

    def _is_mapped(self, mapped: MappedFile) -> bool:
        """Decide whether weights stay mapped; have them read then, if they fit in the memory."""
        where, free, size = self._policy.where, self._policy.free, len(mapped.bytes)
        if where == "memory":
            return False
        if free is None or size < free:
            mapped.populate(0, size)
        is_large = free is not None and size > MEMORY_SHARE * free
        return where == "mapped" or is_large or mapped.huge_bytes() >= HUGE_SHARE * size


def kept_weights(
    name: str, files: Sequence[Path], facts: Mapping[str, Any], where: str, free: int | None
) -> KeptWeights | None:
    """Return the kept weights of a model's files; None where nothing can be kept.

    Parameters
    ----------
    facts : what else decides the bytes: options of loading, the backend.
    where, free : see `KeptPolicy`.
    """
    if not files or not hasattr(os, "preadv"):
        return None
    try:
        told = [_identity(file) for file in files]
        size = sum(file.stat().st_size for file in files)
        facts = {**facts, "files": told, "code": _code()}
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).name)[:60]
        folder = kept_folder()
    except (OSError, FormatError):
        return None
    if size < LEAST_BYTES:
        return None
    policy = KeptPolicy(where, size, free)
    return KeptWeights(folder / f"{stem}-{key}{SUFFIX}", files[0].resolve(), policy)


def _identity(file: Path) -> list[Any]:
    """Return what changes when a file does: its time of change cannot be set back."""
    found = file.stat()
    return [str(file.resolve()), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns,
            found.st_ctime_ns]  # fmt: skip


def _code() -> str:
    """Return a hash of names, sizes and times of the code that makes weights of files."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for package in CODE:
        for entry in sorted(os.scandir(root / package), key=lambda one: one.name):
            if entry.name.endswith(".py"):
                found = entry.stat()
                digest.update(f"{entry.name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _aligned(nbytes: int) -> Bytes:
    """Allocate uint8 at a multiple of 64."""
    import numpy as np

    raw = np.empty(nbytes + START, np.uint8)
    first = -raw.ctypes.data % START
    return raw[first : first + nbytes]


def _copied(view: Bytes) -> Bytes:
    copy = _aligned(view.nbytes)
    copy[:] = view
    return copy
