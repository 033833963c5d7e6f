"""Skills from other models: tensors of a fine-tuned one, and blends of several skills."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cortiq.errors import FormatError, RequestError
from cortiq.ir import Node, Program, ops
from cortiq.ir.layers import MLP, GatedMLP, XieluMLP
from cortiq.ir.layers.basic import Layer
from cortiq.ir.overlays import changeable
from cortiq.model.source import ModelSource
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.weights import weight_values
from cortiq_skills.record import SkillRecord, TaskSkill

FAMILIES: Mapping[str, Callable[[Node], bool]] = {
    "ffn": lambda node: isinstance(node.op, GatedMLP | MLP | XieluMLP),
    "attn": lambda node: isinstance(node.op, Layer) and node.op.attends,
    "all": lambda node: True,
}
"""Whether a family of parts has a node."""
BLEND_TEMPERATURE = 0.4
_RANGE = re.compile(r"(\d+)-(\d+)")
_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class GraftedSkill:
    """A skill, and the weights that it does not have, each with the reason."""

    skill: TaskSkill
    skipped: Mapping[str, str]


def layer_numbers(text: str, count: int) -> frozenset[int]:
    """Return the layers that `all`, `A-B` or `i,j` names.

    Raises
    ------
    RequestError : it is none of these, or names a layer that is not there.
    """
    if text == "all":
        return frozenset(range(count))
    matched = _RANGE.fullmatch(text)
    parts = text.split(",")
    if matched:
        found = range(int(matched[1]), int(matched[2]) + 1)
    elif all(part.isdecimal() for part in parts):
        found = [int(part) for part in parts]  # type: ignore[assignment]
    else:
        raise RequestError(f"takes all, A-B or i,j, not {text!r}", where="skill.layers")
    if not found or max(found) >= count:
        what = f"names layer {max(found, default=0)}, and there are {count}"
        raise RequestError(what, where="skill.layers")
    return frozenset(found)


def weights_of(program: Program, family: str, layers: str) -> list[str]:
    """Return the matrices of a family of parts in some layers, which overlays can change."""
    chosen = FAMILIES[family]
    known = {name for (name, table), node in changeable(program).items()
             if not table and isinstance(node.op, ops.MatMul)}  # fmt: skip
    numbered = [(n, m) for n in program.trunk.nodes if (m := _LAYER.match(n.name))]
    wanted = layer_numbers(layers, 1 + max((int(m[1]) for _, m in numbered), default=-1))
    found: list[str] = []
    for node, matched in numbered:
        if int(matched[1]) in wanted and chosen(node):
            found += [name for name in node.weights.values() if name in known]
    return list(dict.fromkeys(found))


def relative_change(own: Floats, other: Floats) -> float:
    """Return √(Σ(d − b)²/Σb²), in float64."""
    base, change = own.astype(np.float64), other.astype(np.float64) - own.astype(np.float64)
    return math.sqrt(float((change * change).sum()) / max(float((base * base).sum()), 1e-30))


def graft(
    base: ModelSource,
    donor: ModelSource,
    record: SkillRecord,
    *,
    family: str = "ffn",
    layers: str = "all",
    min_delta: float = 0.0,
) -> GraftedSkill:
    """Return the skill that has a donor's matrices in place of a base's.

    Parameters
    ----------
    family : "ffn", "attn" or "all". layers : "all", "A-B" or "i,j".
    min_delta : matrices whose relative change is not above it are left out.

    Raises
    ------
    FormatError : a matrix of the donor has another shape. RequestError : nothing is left.
    """
    tensors: dict[tuple[str, str], Floats] = {}
    skipped: dict[str, str] = {}
    for name in weights_of(base.program, family, layers):
        if name not in donor.weights:
            skipped[name] = "the donor has none"
            continue
        own = weight_values(base.weights[name], name)
        other = weight_values(donor.weights[name], name)
        if own.shape != other.shape:
            what = f"has {name} as {list(other.shape)}, the base as {list(own.shape)}"
            raise FormatError(what, where=donor.where)
        change = relative_change(own, other)
        if change <= min_delta:
            skipped[name] = f"changes by {change:.3g}"
        else:
            tensors["replace", name] = np.array(other, F32)
    if not tensors:
        raise RequestError("no matrix of the donor differs enough", where="skill.min_delta")
    return GraftedSkill(TaskSkill(record, tensors), skipped)


def blend_weights(errors: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the two skills of least relative error, and the softmax of −E/0.4 over them.

    Raises
    ------
    RequestError : there are fewer than two.
    """
    if len(errors) < 2:
        what = "a blend takes at least two skills with descriptors"
        raise RequestError(what, where="skill.blend")
    best = sorted(errors, key=lambda pair: pair[1])[:2]
    powers = [math.exp((best[0][1] - error) / BLEND_TEMPERATURE) for _, error in best]
    return [(name, p / sum(powers)) for (name, _), p in zip(best, powers, strict=True)]


def blend(
    base: ModelSource, skills: Sequence[tuple[TaskSkill, float]], record: SkillRecord
) -> TaskSkill:
    """Return the skill whose matrices are Σ w·T: T is a skill's, or the base's where it has none.

    Each product is rounded to float32, and each sum, in the order of the list. Weights are divided
    by their sum.

    Raises
    ------
    RequestError : a weight is negative, or all are 0. FormatError : a skill holds no matrices.
    """
    total = math.fsum(weight for _, weight in skills)
    if total <= 0 or any(weight < 0 for _, weight in skills):
        raise RequestError("weights of a blend are positive", where="skill.blend")
    shares = [F32(weight / max(total, 1e-9)) for _, weight in skills]
    names = sorted({name for skill, _ in skills for name in skill.weights})
    tensors = {}
    for name in names:
        made: Floats | None = None
        for (skill, _), share in zip(skills, shares, strict=True):
            part = share * _matrix(base, skill, name)
            made = part if made is None else made + part
        assert made is not None
        tensors["replace", name] = made
    return TaskSkill(record, tensors)


def _matrix(base: ModelSource, skill: TaskSkill, name: str) -> Floats:
    """Return a skill's matrix in a weight's place, or the base's."""
    held = {kind: array for (kind, of), array in skill.tensors.items() if of == name}
    if "replace" in held:
        return held["replace"]
    if name not in base.weights:
        raise FormatError(f"changes {name}, which the model does not have", where=skill.record.id)
    own: Floats = weight_values(base.weights[name], name)
    if "delta" in held:
        return (own.astype(np.float64) + held["delta"]).astype(F32)
    if "a" in held:
        change = held["b"].astype(np.float64) @ held["a"].astype(np.float64)
        return (own + change).astype(F32)
    return own


def skill_summary(skill: TaskSkill) -> Iterator[tuple[str, str]]:
    """Yield what a list says of a skill."""
    yield "id", skill.record.id
    yield "name", skill.record.name
    yield "tensors", str(len(skill.tensors))
    yield "MiB", f"{skill.nbytes / 2**20:.1f}"
    yield "layers", ",".join(map(str, skill.layers))
    yield "routable", "yes" if skill.selection is not None else "no"
    yield "bound", skill.record.base[:12]
