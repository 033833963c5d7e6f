"""A skill in a model's folder: a new one with the skill's matrices in place of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cortiq.convert.beside import files_beside
from cortiq.convert.own_container import OwnContainer
from cortiq.convert.plan import PlannedTensor, described_plan
from cortiq.convert.recipes import KEEP
from cortiq.convert.senses import left_out, with_senses
from cortiq.convert.writing import ConvertedModel, Progress, write_planned
from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.formats.digest import file_sha256
from cortiq.formats.fetch import resolve
from cortiq.formats.own_layout import OwnTensor
from cortiq.models import load_program
from cortiq.models.bind import LoadedProgram
from cortiq.numerics.layouts import LAYOUTS
from cortiq.numerics.weights import in_layout
from cortiq.plugins import default_plugins
from cortiq_skills.files import read_skill
from cortiq_skills.record import TaskSkill


def apply_skill(
    model: str,
    path: str | Path,
    out: str | Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> ConvertedModel:
    """Write a model with a skill's matrices in place of its own to a new folder.

    Parameters
    ----------
    force : also where the skill is bound to another model.

    Raises
    ------
    FormatError : the skill is bound to another model, or has what this one lacks.
    UnsupportedError : it holds changes, or a matrix that the file has as part of a tensor.
    """
    skill = read_skill(Path(path))
    checkpoint = open_checkpoint(Path(resolve(model, progress=progress)))
    try:
        if checkpoint.kind != "huggingface":
            raise UnsupportedError("is no Hugging Face folder", where=str(checkpoint.path))
        source = checkpoint.model_hash()
        if skill.record.base not in ("", source) and not force:
            what = f"is bound to the model {skill.record.base}, and this is another"
            raise FormatError(what, where=str(path), hint="--force")
        loaded = load_program(
            checkpoint, heads="off", families=default_plugins().families, column_orders=False
        )
        tensors = with_senses(_planned(loaded, skill, str(path)), checkpoint, loaded.program)
        rule = {"recipe": KEEP, "skill": file_sha256(Path(path))}
        said = {"source": source, "rule": rule}
        plan = json.dumps([said, described_plan(tensors)])
        container = OwnContainer(tensors, said, files_beside(checkpoint, loaded.program))
        made = write_planned(Path(out).absolute(), tensors, container, plan, progress=progress)
        return replace(made, notes=left_out(checkpoint, loaded.program))
    finally:
        checkpoint.close()


def _planned(loaded: LoadedProgram, skill: TaskSkill, where: str) -> list[PlannedTensor]:
    """Return the tensors of the new folder."""
    if any(kind != "replace" for kind, _ in skill.tensors):
        what = "holds changes of matrices, which are no matrices of a folder"
        raise UnsupportedError(what, where=where, hint="choose it by request: --adapter NAME=FILE")
    users: dict[str, list[str]] = {}
    for weight, pieces in loaded.pieces.items():
        for piece in pieces:
            whole = piece.is_whole and not piece.swapped and len(pieces) == 1
            if weight in skill.weights and not whole:
                raise UnsupportedError(f"{weight} is part of {piece.tensor}", where=where)
            users.setdefault(piece.tensor, []).append(weight)
    strange = sorted(set(skill.weights) - loaded.pieces.keys())
    if strange:
        raise FormatError(f"changes {strange[0]}, which the model lacks", where=where)
    found = []
    for name in loaded.checkpoint.tensor_names:
        if name not in users:
            continue
        source: Any = loaded.checkpoint.tensor(name)
        weights, layout = tuple(users[name]), LAYOUTS[source.type]
        own: Mapping[tuple[str, str], Any] = skill.tensors
        values = next((own["replace", w] for w in weights if ("replace", w) in own), None)
        if values is not None:
            if values.shape != tuple(source.shape):
                what = f"has {name} as {list(values.shape)}, the model {list(source.shape)}"
                raise FormatError(what, where=where)
            made = in_layout(values, "f32" if layout.kind == "float" else layout.name, name)
            kind = "F32" if made.layout.kind == "float" else made.layout.name
            layout, source = made.layout, OwnTensor(name, made.shape, kind, dict(made.parts))
        found.append(PlannedTensor(name, tuple(source.shape), layout, KEEP, weights, source))
    return found
