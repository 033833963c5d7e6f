"""Planned tensors written to a file, which goes on where an earlier start stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from cortiq.convert.calibration import moments_of
from cortiq.convert.feedback import Feedback, feedback_of
from cortiq.convert.plan import PlannedTensor, contiguous_bytes
from cortiq.convert.scratch import ScratchArrays
from cortiq.convert.work_folder import Place, WorkFolder, remove, work_folder
from cortiq.models.bind import LoadedProgram

Progress = Callable[[str, int, int], None]


class Container(Protocol):
    """A kind of file that is written: `OwnContainer`, `GGUFContainer`."""

    size: int
    places: Mapping[str, Sequence[Place]]

    def header(self, hashes: Mapping[str, Mapping[str, str]]) -> bytes:
        """Return the file's first bytes."""

    def pieces(self, tensor: PlannedTensor) -> Iterator[Sequence[npt.NDArray[Any]]]:
        """Yield the rows of a tensor in order, as the file has them, by part."""

    def publish(self, work: WorkFolder, out: Path) -> None:
        """Give the finished file its name."""


@dataclass(frozen=True)
class ConvertedModel:
    """The result of a conversion.

    Attributes
    ----------
    path : of the new model. nbytes : of its tensors' file.
    layouts : bytes by layout. resumed : tensors that an earlier start had left.
    files : of a model in several, all of them.
    notes : what the new model lacks, a line each.
    """

    path: Path
    nbytes: int
    layouts: Mapping[str, int]
    resumed: int
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class _Conversion:
    loaded: LoadedProgram | None
    tensors: Sequence[PlannedTensor]
    container: Container
    work: WorkFolder
    progress: Progress | None
    total: int = 0
    written: int = field(default=0)

    def run(self, ids: Sequence[int]) -> None:
        """Convert every tensor that is not done."""
        self.total = sum(place.nbytes for t in self.tensors for place in self._places(t))
        left = [t for t in self.tensors if t.name not in self.work.done]
        self._report(sum(p.nbytes for n in self.work.done for p in self.container.places[n]))
        for tensor, feedback in self._with_feedback(left, ids):
            self._convert(tensor, feedback)
        self.work.write(0, self.container.header(self.work.done))

    def _places(self, tensor: PlannedTensor) -> Sequence[Place]:
        return self.container.places[tensor.name]

    def _report(self, nbytes: int) -> None:
        self.written += nbytes
        if self.progress is not None:
            self.progress("Converting", self.written, self.total)

    def _with_feedback(
        self, left: Sequence[PlannedTensor], ids: Sequence[int]
    ) -> Iterator[tuple[PlannedTensor, Feedback | None]]:
        """Yield tensors with what error feedback takes, None for those without it."""
        loaded, done = self.loaded, set[str]()
        if loaded is None or not ids:
            yield from ((tensor, None) for tensor in left)
            return
        fed = {n: t for t in left if t.takes_feedback for n in t.weights}
        scratch = ScratchArrays(self.work.path)
        for held, moments in moments_of(
            loaded.program, loaded.weights, ids, set(fed), scratch, self.progress
        ):
            feedback = feedback_of(moments, scratch)
            for tensor in {fed[name].name: fed[name] for name in held}.values():
                if set(tensor.weights) <= set(held):
                    done.add(tensor.name)
                    yield tensor, feedback
        yield from ((tensor, None) for tensor in left if tensor.name not in done)

    def _convert(self, tensor: PlannedTensor, feedback: Feedback | None) -> None:
        """Convert the rows of a tensor in order; note it as whole."""
        places = self._places(tensor)
        digests = [hashlib.sha256() for _ in places]
        at = [place.start for place in places]
        fed = None if feedback is None else tensor.fed_pieces(feedback)
        pieces = self.container.pieces(tensor) if fed is None else fed
        for arrays in pieces:
            for i, array in enumerate(arrays):
                data = contiguous_bytes(array)
                self.work.write(at[i], data)
                digests[i].update(data)
                at[i] += len(data)
                self._report(len(data))
        hashes = {p.name: d.hexdigest() for p, d in zip(places, digests, strict=True)}
        self.work.finish_tensor(tensor.name, hashes)


def write_planned(
    out: Path, planned: Sequence[PlannedTensor], container: Container, plan: str,
    loaded: LoadedProgram | None = None, ids: Sequence[int] = (), progress: Progress | None = None,
) -> ConvertedModel:  # fmt: skip
    """Write planned tensors to a file, going on where an earlier start with this plan stopped.

    Parameters
    ----------
    plan : a text that tells plans apart. loaded : the model, where tokens `ids` weigh errors.
    """
    with work_folder(out, plan) as work:
        work.resume(container.places)
        work.set_size(container.size)
        resumed = len(work.done)
        _Conversion(loaded, planned, container, work, progress).run(ids)
        container.publish(work, out)
    remove(work.path)
    layouts: dict[str, int] = {}
    for tensor in planned:
        size = sum(place.nbytes for place in container.places[tensor.name])
        layouts[tensor.layout.name] = layouts.get(tensor.layout.name, 0) + size
    files = tuple(getattr(container, "files", (out,)))
    return ConvertedModel(files[0], container.size, layouts, resumed, files)
