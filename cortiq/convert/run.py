"""`convert_model`: read a model tensor by tensor, convert it, and write it where it belongs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cortiq.convert.beside import files_beside
from cortiq.convert.calibration import calibration_ids, rows_of_matrices
from cortiq.convert.own_container import OwnContainer, own_layout_of
from cortiq.convert.plan import PlannedTensor, described_plan, plan_tensors
from cortiq.convert.recipes import Recipe, read_recipe
from cortiq.convert.senses import left_out, with_senses
from cortiq.convert.writing import (
    Container,
    ConvertedModel,
    Progress,
    write_planned,
)
from cortiq.errors import RequestError
from cortiq.formats.checkpoint import Checkpoint, open_checkpoint
from cortiq.formats.cmf.model import container_at
from cortiq.formats.cmf.reader import SUFFIX as CMF_SUFFIX
from cortiq.formats.cmf.reader import open_cmf
from cortiq.formats.fetch import SYNTHETIC, resolve
from cortiq.formats.given_files import read_given_text
from cortiq.ir import Program
from cortiq.model.source import open_lora, open_tokenizer
from cortiq.models import load_program
from cortiq.models.adapters import FACT as ADAPTERS
from cortiq.models.bind import LoadedProgram
from cortiq.models.weights import FLOAT_TARGET
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq.plugins import default_plugins

GGUF_SUFFIX = ".gguf"
CALIBRATION_TOKENS = 4096


class Wanted(NamedTuple):
    """The wishes of a caller: where to, the recipe and its patterns, and sizes of files."""

    out: Path
    recipe: str
    patterns: Sequence[str]
    shard_bytes: int = 0

    @property
    def is_folder(self) -> bool:
        """Whether a folder of our own is written."""
        return self.out.suffix not in (GGUF_SUFFIX, CMF_SUFFIX)


@dataclass(frozen=True)
class Calibration:
    """A text on which errors are weighed: its path, and at most how many tokens of it."""

    path: Path
    tokens: int = CALIBRATION_TOKENS


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
    strict: bool = True,
) -> ConvertedModel:
    """Convert a model, and write it to a new folder, or a GGUF or CMF file where `out` ends so.

    Parameters
    ----------
    model : what `cortiq.load` opens, but for synthetic models. recipe : a key of `RECIPES`.
    tensors : PATTERN=FORMAT, by which single matrices get another format.
    calibration : a text on which the errors of four-bit formats are fed back.
    lora : adapters that are merged first, as `cortiq.LoadOptions.lora` names them.
    progress : called while a model is fetched, read and written.
    shard_bytes : of CMF, most bytes of tensors in a file; 0 for one file.
    strict : of a CMF file, check everything that it says, not only what the original engine does.

    Raises
    ------
    RequestError : `out` exists, there is no such recipe, format or matrix, or none for the text.
    FormatError, UnsupportedError : about the model.
    """
    if model.startswith(SYNTHETIC):
        what = "is made by a formula, in any format: there is nothing to convert"
        raise RequestError(what, where=model, hint=f"load {SYNTHETIC}NAME?format=w4")
    path = Path(resolve(model, progress=progress))
    asked = Wanted(Path(out).absolute(), recipe, tensors, shard_bytes)
    is_cmf = asked.out.suffix == CMF_SUFFIX
    held = container_at(path) if is_cmf else None
    if held is not None and lora:
        hint = "convert it to a folder with the adapter, and that to CMF"
        raise RequestError("is not merged into the codes of a CMF file", where="lora", hint=hint)
    if held is not None and calibration is None:
        return _recoded(held, asked, strict, progress)
    checkpoint = open_checkpoint(path, strict)
    adapters = [open_lora(text, progress) for text in lora]
    try:
        load = partial(
            load_program, checkpoint, heads="off" if is_cmf else "auto", adapters=adapters,
            families=default_plugins().families, column_orders=False,
        )  # fmt: skip
        loaded = load(weight_format=FLOAT_TARGET if is_cmf else None)
        # Rows are looked at where they are quantised, which those of float matrices are not.
        read = load() if is_cmf and calibration is not None else loaded
        ids = _ids(calibration, loaded, checkpoint)
        planned, container, plan = _planned(loaded, checkpoint, asked, ids)
        _check_fed(planned, read.program, recipe, ids)
        made = write_planned(asked.out, planned, container, plan, read, ids, progress)
        return replace(made, notes=left_out(checkpoint, loaded.program, asked.is_folder))
    finally:
        checkpoint.close()
        for adapter in adapters:
            adapter.close()


def _recoded(path: Path, asked: Wanted, strict: bool, progress: Progress | None) -> ConvertedModel:
    """Write a CMF file of another one, of whatever family."""
    from cortiq.convert.cmf_container import recoded_container

    with open_cmf(path, strict) as file:
        planned, container, recipe = recoded_container(
            file, asked.out, asked.recipe, asked.patterns, asked.shard_bytes
        )
        rule = {**recipe.rule, "adapters": [], "feedback": None}
        plan = _told_apart(file.sha256(), planned, rule, container)
        return write_planned(asked.out, planned, container, plan, progress=progress)


def _told_apart(
    source: str, planned: Sequence[PlannedTensor], rule: dict[str, object], container: Container
) -> str:
    """Return a text that tells plans apart."""
    head = hashlib.sha256(container.header({})).hexdigest()
    return json.dumps([CONTRACT_VERSION, source, described_plan(planned), rule, head])


def _ids(
    calibration: Calibration | None, loaded: LoadedProgram, checkpoint: Checkpoint
) -> list[int]:
    """Return the tokens of the calibration text; none without one."""
    if calibration is None:
        return []
    where = str(calibration.path)
    try:
        with calibration.path.open("rb") as file:
            text = read_given_text(file, where)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise RequestError(f"cannot be read: {error}", where=where) from error
    tokenizer = open_tokenizer(checkpoint.tokenizer_source, loaded.program)
    ids = tokenizer.encode(text, add_bos=False)
    return calibration_ids(ids, calibration.tokens, where)


def _check_fed(
    planned: Sequence[PlannedTensor], program: Program, recipe: str, ids: Sequence[int]
) -> None:
    """Raise RequestError where the text would decide no code of any matrix."""
    fed = {name for tensor in planned if tensor.takes_feedback for name in tensor.weights}
    if ids and not rows_of_matrices(program, fed):
        hint = "leave it out, or take w4 or w4-5, or another format of four bits in a CMF file"
        what = f"no matrix gets codes that a text decides under {recipe!r}"
        raise RequestError(what, where="calibrate", hint=hint)


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
        planned = with_senses(
            plan_tensors(loaded, recipe, own_layout_of), checkpoint, loaded.program
        )
        said = {"source": checkpoint.model_hash(), "rule": _rule(recipe, planned, ids, loaded)}
        container = OwnContainer(planned, said, files_beside(checkpoint, loaded.program))
    rule = _rule(recipe, planned, ids, loaded)
    return planned, container, _told_apart(checkpoint.model_hash(), planned, rule, container)


def _rule(
    recipe: Recipe, planned: Sequence[PlannedTensor], ids: Sequence[int], loaded: LoadedProgram
) -> dict[str, object]:
    """Return what the new file says of its making."""
    rule: dict[str, object] = {**recipe.rule, "adapters": loaded.program.facts.get(ADAPTERS, [])}
    if not ids:
        return {**rule, "feedback": None}
    read = hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()
    return {**rule, "feedback": {"tokens": len(ids), "sha256": read}}
