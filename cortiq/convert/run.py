"""`convert_model`: read a model tensor by tensor, convert it, and write it where it belongs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from cortiq.convert.beside import files_beside
from cortiq.convert.calibration import calibration_ids, moments_of
from cortiq.convert.feedback import Feedback, best_rows, feedback_of
from cortiq.convert.own_container import OwnContainer, own_layout_of
from cortiq.convert.plan import PlannedTensor, contiguous_bytes, described_plan, plan_tensors
from cortiq.convert.recipes import Recipe, read_recipe
from cortiq.convert.scratch import ScratchArrays
from cortiq.convert.work_folder import Place, WorkFolder, remove, work_folder
from cortiq.errors import RequestError
from cortiq.formats.checkpoint import Checkpoint, open_checkpoint
from cortiq.formats.cmf.reader import SUFFIX as CMF_SUFFIX
from cortiq.formats.fetch import SYNTHETIC, resolve
from cortiq.model.source import open_lora, open_tokenizer
from cortiq.models import load_program
from cortiq.models.adapters import FACT as ADAPTERS
from cortiq.models.bind import LoadedProgram
from cortiq.models.weights import FLOAT_TARGET
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq.numerics.layouts import LAYOUTS
from cortiq.numerics.weights import refuse_large
from cortiq.plugins import default_plugins

GGUF_SUFFIX = ".gguf"
CALIBRATION_TOKENS = 4096
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
    """

    path: Path
    nbytes: int
    layouts: Mapping[str, int]
    resumed: int
    files: tuple[Path, ...] = ()


class Wanted(NamedTuple):
    """The wishes of a caller: where to, the recipe and its patterns, and sizes of files."""

    out: Path
    recipe: str
    patterns: Sequence[str]
    shard_bytes: int = 0


@dataclass(frozen=True)
class Calibration:
    """A text on which errors are weighed: its path, and at most how many tokens of it."""

    path: Path
    tokens: int = CALIBRATION_TOKENS


@dataclass
class _Conversion:
    loaded: LoadedProgram
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
        fed = {n: t for t in left if ids and takes_feedback(t) for n in t.weights}
        done = set()
        loaded, scratch = self.loaded, ScratchArrays(self.work.path)
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
        if feedback is None:
            pieces = self.container.pieces(tensor)
        else:
            pieces = _with_least_loss(tensor, feedback)
        for arrays in pieces:
            for i, array in enumerate(arrays):
                data = contiguous_bytes(array)
                self.work.write(at[i], data)
                digests[i].update(data)
                at[i] += len(data)
                self._report(len(data))
        hashes = {p.name: d.hexdigest() for p, d in zip(places, digests, strict=True)}
        self.work.finish_tensor(tensor.name, hashes)


def _with_least_loss(
    tensor: PlannedTensor, feedback: Feedback
) -> Iterator[Sequence[npt.NDArray[Any]]]:
    """Yield the rows of a tensor in order, with the codes that lose less."""
    layout = tensor.searched
    for values in tensor.values():
        raw = best_rows(layout, values, feedback)
        refuse_large(LAYOUTS[layout], raw, values, tensor.name)
        yield [tensor.laid_out(raw)]


def takes_feedback(tensor: PlannedTensor) -> bool:
    """Return whether a tensor becomes one matrix, or some side by side, of four-bit codes."""
    return bool(tensor.searched) and len(tensor.shape) == 2


def convert_model(
    model: str,
    out: str | Path,
    recipe: str = "w4",
    *,
    tensors: Sequence[str] = (),
    calibration: Calibration | None = None,
    lora: Sequence[str] = (),
    progress: Progress | None = None,
    shard_bytes: int = 0,
) -> ConvertedModel:
    """Convert a model, and write it to a new folder, or a GGUF or CMF file where `out` ends so.

    Parameters
    ----------
    model : what `cortiq.load` opens, but for synthetic models. recipe : a key of `RECIPES`.
    tensors : PATTERN=FORMAT, by which single matrices get another format.
    calibration : a text on which the errors of w4 are fed back.
    lora : adapters that are merged first, as `cortiq.LoadOptions.lora` names them.
    progress : called while a model is fetched, read and written.
    shard_bytes : of CMF, most bytes of tensors in a file; 0 for one file.

    Raises
    ------
    RequestError : `out` exists, or there is no such recipe, format or matrix.
    FormatError, UnsupportedError : about the model.
    """
    if model.startswith(SYNTHETIC):
        what = "is made by a formula, in any format: there is nothing to convert"
        raise RequestError(what, where=model, hint=f"load {SYNTHETIC}NAME?format=w4")
    out = Path(out).absolute()
    checkpoint = open_checkpoint(resolve(model, progress=progress))
    adapters = [open_lora(text, progress) for text in lora]
    try:
        families = default_plugins().families
        is_cmf = out.suffix == CMF_SUFFIX
        loaded = load_program(
            checkpoint, heads="off" if is_cmf else "auto", families=families, adapters=adapters,
            weight_format=FLOAT_TARGET if is_cmf else None,
        )  # fmt: skip
        ids = _ids(calibration, loaded, checkpoint)
        asked = Wanted(out, recipe, tensors, shard_bytes)
        planned, container, plan = _planned(loaded, checkpoint, asked, ids)
        with work_folder(out, plan) as work:
            work.resume(container.places)
            work.set_size(container.size)
            resumed = len(work.done)
            _Conversion(loaded, planned, container, work, progress).run(ids)
            container.publish(work, out)
        remove(work.path)
    finally:
        checkpoint.close()
        for adapter in adapters:
            adapter.close()
    layouts: dict[str, int] = {}
    for tensor in planned:
        size = sum(place.nbytes for place in container.places[tensor.name])
        layouts[tensor.layout.name] = layouts.get(tensor.layout.name, 0) + size
    files = tuple(getattr(container, "files", (out,)))
    return ConvertedModel(files[0], container.size, layouts, resumed, files)


def _ids(
    calibration: Calibration | None, loaded: LoadedProgram, checkpoint: Checkpoint
) -> list[int]:
    """Return the tokens of the calibration text; none without one."""
    if calibration is None:
        return []
    try:
        text = calibration.path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        what = f"cannot be read: {error}"
        raise RequestError(what, where=str(calibration.path)) from error
    tokenizer = open_tokenizer(checkpoint.tokenizer_source, loaded.program)
    ids = tokenizer.encode(text, add_bos=False)
    return calibration_ids(ids, calibration.tokens, str(calibration.path))


def _planned(
    loaded: LoadedProgram,
    checkpoint: Checkpoint,
    asked: Wanted,
    ids: Sequence[int],
) -> tuple[Sequence[PlannedTensor], Container, str]:
    """Return the planned tensors, the file that takes them, and a text that tells plans apart."""
    container: Container
    planned: Sequence[PlannedTensor]
    if asked.out.suffix == GGUF_SUFFIX:
        from cortiq.convert.gguf_container import gguf_container

        planned, container, recipe = gguf_container(
            loaded, checkpoint, asked.recipe, asked.patterns
        )
    elif asked.out.suffix == CMF_SUFFIX:
        from cortiq.convert.cmf_container import cmf_container

        planned, container, recipe = cmf_container(
            loaded, checkpoint, asked.out, asked.recipe, asked.patterns, asked.shard_bytes
        )
    else:
        recipe = read_recipe(asked.recipe, asked.patterns)
        planned = plan_tensors(loaded, recipe, own_layout_of)
        said = {"source": checkpoint.model_hash(), "rule": _rule(recipe, planned, ids, loaded)}
        container = OwnContainer(planned, said, files_beside(checkpoint))
    facts = [
        CONTRACT_VERSION, checkpoint.model_hash(), described_plan(planned),
        _rule(recipe, planned, ids, loaded), hashlib.sha256(container.header({})).hexdigest(),
    ]  # fmt: skip
    return planned, container, json.dumps(facts)


def _rule(
    recipe: Recipe, planned: Sequence[PlannedTensor], ids: Sequence[int], loaded: LoadedProgram
) -> dict[str, object]:
    """Return what the new file says of its making."""
    rule: dict[str, object] = {**recipe.rule, "adapters": loaded.program.facts.get(ADAPTERS, [])}
    if not ids or not any(map(takes_feedback, planned)):
        return {**rule, "feedback": None}
    read = hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()
    return {**rule, "feedback": {"tokens": len(ids), "sha256": read}}
