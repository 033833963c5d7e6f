"""A skill as an overlay: matrices in place of a model's, or low-rank products beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.digest import file_sha256
from cortiq.ir import Program
from cortiq.ir.overlays import BANK_LAYOUT, changeable
from cortiq.models.bind import LoadedProgram
from cortiq.models.overlay_banks import Key, Overlay, OverlayPart
from cortiq.models.overlay_kinds import OverlayKind
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.layouts import Weight
from cortiq.numerics.weights import convert, in_layout, weight_values
from cortiq_skills.files import SUFFIX, read_skill
from cortiq_skills.notice import NOTICE
from cortiq_skills.record import TaskSkill


def skill_overlay(
    skill: TaskSkill,
    program: Program,
    weights: Mapping[str, Weight],
    sha256: str,
    scale: float = 1.0,
    where: str = "skill",
) -> Overlay:
    """Return what a skill does to the weights of a program.

    Parameters
    ----------
    sha256 : the hash that stands for the skill.
    scale : c of W + c·(T − W), W + c·Δ and W + c·B·A; with 1 a matrix T is taken as it is.

    Raises
    ------
    FormatError : the skill is of another model.
    UnsupportedError : it changes what no overlay can, or a weight in a format that only files have.
    """
    parts = _SkillParts(skill, program, weights, scale, where)
    return Overlay(sha256, scale, dict(parts.members()))


class _SkillParts:
    """The parts of a skill for a program's weights."""

    def __init__(
        self,
        skill: TaskSkill,
        program: Program,
        weights: Mapping[str, Weight],
        scale: float,
        where: str,
    ) -> None:
        self.skill, self.weights = skill, weights
        self.scale, self.where = scale, where
        self.specs, self.known = program.weights, changeable(program)

    def members(self) -> Iterator[tuple[Key, OverlayPart]]:
        """Yield what is done to each weight."""
        for name in self.skill.weights:
            if name not in self.specs:
                what = f"changes {name}, which the model does not have"
                raise FormatError(what, where=self.where, hint="it was made for another model")
            if (name, False) not in self.known:
                what = f"changes {name}, which the model multiplies in a form no overlay changes"
                raise UnsupportedError(what, where=self.where)
            held = {kind: array for (kind, of), array in self.skill.tensors.items() if of == name}
            yield (name, False), self._part(name, held)

    def _part(self, name: str, held: Mapping[str, Floats]) -> OverlayPart:
        rows, columns = self.specs[name].shape
        if held.keys() == {"a", "b"}:
            rank = len(held["a"])
            self._check(name, held["a"], (rank, columns))
            self._check(name, held["b"], (rows, rank))
            b = (self.scale * held["b"].astype(np.float64)).astype(F32)
            return OverlayPart(self._factor(held["a"], name), self._factor(b, name))
        if len(held) != 1 or not held.keys() <= {"replace", "delta"}:
            what = f"holds {', '.join(sorted(held))} of {name}: one matrix, or both factors"
            raise FormatError(what, where=self.where)
        ((kind, values),) = held.items()
        self._check(name, values, (rows, columns))
        if kind == "delta" or self.scale != 1.0:
            values = self._changed(name, values, kind == "delta")
        return OverlayPart(whole=in_layout(values, str(self.specs[name].layout), name))

    def _changed(self, name: str, values: Floats, delta: bool) -> Floats:
        """Return W + c·Δ, or W + c·(T − W), rounded once from float64."""
        own = weight_values(self.weights[name], name).astype(np.float64)
        change = values.astype(np.float64) - (0.0 if delta else own)
        return (own + self.scale * change).astype(F32)

    def _factor(self, values: Floats, name: str) -> Weight:
        return convert(Weight.from_floats(values), BANK_LAYOUT, name)

    def _check(self, name: str, values: Floats, wanted: tuple[int, int]) -> None:
        if values.shape != wanted:
            what = f"has {name} as {list(values.shape)}, and the model takes {list(wanted)}"
            raise FormatError(what, where=self.where, hint="it was made for another model")


def _read(path: Path, scale: float, loaded: LoadedProgram, program: Program) -> Overlay:
    skill = read_skill(path)
    base = skill.record.base
    if base and base != loaded.checkpoint.model_hash():  # type: ignore[attr-defined]
        what = f"is bound to the model {base}, and this is another"
        raise FormatError(what, where=str(path), hint="write it without --bind")
    return skill_overlay(skill, loaded.program, loaded.weights, file_sha256(path), scale, str(path))


KIND = OverlayKind("skill", lambda path: path.suffix == SUFFIX and path.is_file(), _read, NOTICE)
"""The kind of files that hold a skill."""
