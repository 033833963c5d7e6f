"""Skills: records, the tensors that one has in place of a model's, and what it is chosen by."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cortiq.errors import RequestError, shown
from cortiq.numerics.contract import Floats

ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
METRICS = ("mse", "mse_unit")
KINDS = ("replace", "delta", "a", "b")
"""The part of a weight that a file holds: a matrix in its place, a change, or its factors."""
MAX_RANK = 16
_TYPES: Mapping[str, type] = {
    "name": str, "task": str, "base": str, "quality": Mapping, "provenance": Mapping,
}  # fmt: skip


def _check_error(name: str, value: object) -> None:
    """Refuse an error that is no finite number from 0 on, and not None."""
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        what = f"has {name} as {shown(value)}: a number from 0 on"
        raise RequestError(what, where="skill.selection")


@dataclass(frozen=True)
class SkillSelection:
    """The affine subspace that a task's features lie near.

    Attributes
    ----------
    metric : "mse", of features as they are, or "mse_unit", of features divided by their length.
    layer : whose output rows the features are of.
    mean : float32 [hidden]. basis : float32 [rank, hidden], rows near to orthonormal.
    err_mean, err_std : of the raw error of the features it was made from; None if not measured.
    holdout : features that it was not made from, float32 [n, hidden], for calibration.
    """

    metric: str
    layer: int
    mean: Floats
    basis: Floats
    err_mean: float | None = None
    err_std: float | None = None
    holdout: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            what = f"has the metric {shown(self.metric)}: {', '.join(METRICS)}"
            raise RequestError(what, where="skill.selection")
        width = self.mean.shape
        fits = len(width) == 1 and self.basis.shape[1:] == width and len(self.basis) <= MAX_RANK
        held = self.holdout.size == 0 or self.holdout.shape[1:] == width
        counted = type(self.layer) is int and self.layer >= 0
        if not fits or not held or not counted or not self.mean.size:
            what = f"has a mean {width}, a basis {self.basis.shape}, layer {shown(self.layer)}"
            raise RequestError(what, where="skill.selection")
        for name in ("err_mean", "err_std"):
            _check_error(name, getattr(self, name))


@dataclass(frozen=True)
class SkillRecord:
    """The facts of a skill.

    Attributes
    ----------
    id : letters, digits, "_" and "-". name, task : for people.
    base : hash of the model that it was made for; empty for any model whose shapes fit.
    quality, provenance : whatever was measured, and where it comes from.
    """

    id: str
    name: str = ""
    task: str = ""
    base: str = ""
    quality: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not ID.fullmatch(self.id):
            what = f"is called {shown(self.id)}: letters, digits, '_' and '-'"
            raise RequestError(what, where="skill.id")
        for name, kind in _TYPES.items():
            if not isinstance(getattr(self, name), kind):
                what = f"has {name} as {shown(getattr(self, name))}"
                raise RequestError(what, where=f"skill.{name}")


@dataclass(frozen=True)
class TaskSkill:
    """A skill.

    Attributes
    ----------
    tensors : by kind and name of the weight, float32 matrices.
    selection : what it is chosen by; None for a skill that only a name chooses.
    """

    record: SkillRecord
    tensors: Mapping[tuple[str, str], Floats] = field(default_factory=dict, repr=False)
    selection: SkillSelection | None = None

    @property
    def weights(self) -> list[str]:
        """Names of the weights that it changes."""
        return sorted({name for _, name in self.tensors})

    @property
    def layers(self) -> list[int]:
        """Layers that it changes."""
        found = (re.search(r"layers\.(\d+)\.", name) for name in self.weights)
        return sorted({int(one[1]) for one in found if one})

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors in float32."""
        return sum(array.nbytes for array in self.tensors.values())
