"""Routing by reconstruction error: which skill's subspace a text's features are nearest to.

Every sum is in float64 in the order of indices, rounded once to float32 where it is compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cortiq.errors import RequestError
from cortiq.numerics.contract import F32, Floats
from cortiq_skills.record import SkillSelection

NOVEL = 0.30
"""Normalised error above which a text is novel, without calibration."""
TINY = 1e-12
SMALLEST_DEVIATION, SMALLEST_TEMPERATURE = 1e-4, 1e-3


@dataclass(frozen=True)
class RoutingCalibration:
    """Figures measured on features that no descriptor was made from.

    Attributes
    ----------
    temperature : of the softmax over errors. novelty_theta : above it a text is novel.
    samples : how many features there were. target_fpr : share of them that are taken for novel.
    """

    temperature: float
    novelty_theta: float
    samples: int
    target_fpr: float


@dataclass(frozen=True)
class SkillError:
    """The error of features in a skill's subspace; `raw` as it is, `relative` to their length."""

    id: str
    raw: float
    relative: float


@dataclass(frozen=True)
class Decision:
    """The skill that features belong to.

    Attributes
    ----------
    ranked : errors, the smallest first. probabilities : of these, with calibration.
    confidence : of the first. margin : over the second. novelty : None without calibration.
    """

    ranked: tuple[SkillError, ...]
    is_novel: bool
    probabilities: tuple[float, ...] = ()
    confidence: float = 0.0
    margin: float = 0.0
    novelty: float | None = None

    @property
    def skill(self) -> str | None:
        """The skill whose error is smallest; None without any."""
        return self.ranked[0].id if self.ranked else None


def error_of(selection: SkillSelection, features: Floats) -> tuple[float, float]:
    """Return raw and relative error of features: ‖r‖² − ‖B·r‖² with r = φ − mean, and over ‖φ‖²."""
    phi = features.astype(np.float64)
    if selection.metric == "mse_unit":
        phi = phi / max(math.sqrt(_sum(phi * phi)), TINY)
    rest = phi - selection.mean.astype(np.float64)
    inside = [_sum(row.astype(np.float64) * rest) for row in selection.basis]
    raw = max(_sum(rest * rest) - sum(c * c for c in inside), 0.0)
    return float(F32(raw)), float(F32(raw / max(_sum(phi * phi), TINY)))


def _sum(values: npt.NDArray[np.float64]) -> float:
    return float(np.add.accumulate(values)[-1]) if len(values) else 0.0


def decide(
    selections: Mapping[str, SkillSelection],
    features: Mapping[int, Floats],
    calibration: RoutingCalibration | None = None,
) -> Decision:
    """Return where features belong; of equal errors the earlier skill is the nearer.

    Raw errors are compared where all skills have one layer and one metric, and relative ones where
    they do not, since raw ones of different features say nothing of each other.

    Parameters
    ----------
    features : a row for each layer that a skill has.
    """
    if not selections:
        return Decision((), True, novelty=1.0)
    chosen = {name: error_of(one, features[one.layer]) for name, one in selections.items()}
    alike = is_alike(selections.values())
    errors = [SkillError(name, *pair) for name, pair in chosen.items()]
    errors.sort(key=lambda one: one.raw if alike else one.relative)
    ranked = tuple(errors)
    if calibration is None:
        return Decision(ranked, min(one.relative for one in ranked) > NOVEL)
    values = [one.raw if alike else one.relative for one in ranked]
    novelty, probabilities, margin = _novelty(
        values, calibration.temperature, selections[ranked[0].id]
    )
    novel = novelty > calibration.novelty_theta
    return Decision(ranked, novel, probabilities, probabilities[0], margin, novelty)


def is_alike(selections: object) -> bool:
    """Return whether descriptors have one layer and one metric."""
    return len({(one.layer, one.metric) for one in selections}) == 1  # type: ignore[attr-defined]


def probabilities_of(values: Sequence[float], temperature: float) -> tuple[float, ...]:
    """Return the softmax of −error/T."""
    temperature = max(temperature, SMALLEST_TEMPERATURE)
    powers = [math.exp((min(values) - value) / temperature) for value in values]
    total = max(math.fsum(powers), 1e-30)
    return tuple(power / total for power in powers)


def _novelty(
    values: Sequence[float], temperature: float, first: SkillSelection
) -> tuple[float, tuple[float, ...], float]:
    """Return novelty, probabilities and margin of sorted errors."""
    probabilities = probabilities_of(values, temperature)
    margin = 1.0 / (1.0 + values[0])
    if len(values) > 1:
        margin -= 1.0 / (1.0 + values[1])
    mean = 0.0 if first.err_mean is None else first.err_mean
    deviation = 1.0 if first.err_std is None else max(first.err_std, SMALLEST_DEVIATION)
    z = (values[0] - mean) / deviation
    logistic = 1.0 / (1.0 + math.exp(-min(max(z, -700.0), 700.0)))
    novelty = 0.5 * logistic + 0.25 / (1.0 + 8.0 * margin) + 0.25 * (1.0 - probabilities[0])
    return novelty, probabilities, margin


def temperatures() -> list[float]:
    """Return the temperatures that are tried: 10⁻³ times powers of 1.15 in float32, to 10⁶."""
    found, value = [], F32(1e-3)
    while value <= F32(1e6):
        found.append(float(value))
        value = F32(value * F32(1.15))
    return found


def calibrate(
    selections: Mapping[str, SkillSelection], fpr: float = 0.05
) -> RoutingCalibration | None:
    """Return the temperature that gives held-out features their own skills with the least loss, and
    the novelty that a share `fpr` of them exceeds; None where no skill has held-out features.

    Features are compared with skills of their own layer and metric only.

    Raises
    ------
    RequestError : `fpr` is not in [0, 1].
    """
    if not 0.0 <= fpr <= 1.0:
        raise RequestError(f"takes a share in [0, 1], not {fpr:g}", where="skill.fpr")
    samples = list(_samples(selections))
    if not samples:
        return None
    losses = [(_loss(samples, t), t) for t in temperatures()]
    temperature = min(losses, key=lambda pair: pair[0])[1]
    scores = []
    for names, values, _ in samples:
        order = sorted(range(len(values)), key=lambda at: values[at])
        first = selections[names[order[0]]]
        scores.append(_novelty([values[at] for at in order], temperature, first)[0])
    scores.sort()
    at = math.floor((len(scores) - 1) * (1.0 - fpr) + 0.5)
    theta = min(scores[at] + 1e-4, 0.999)
    return RoutingCalibration(temperature, theta, len(samples), fpr)


_Sample = tuple[list[str], list[float], int]


def _samples(selections: Mapping[str, SkillSelection]) -> list[_Sample]:
    """Return, of each held-out row, the skills it is compared with, errors, and its own's place."""
    found = []
    for name, one in selections.items():
        fit = [n for n, other in selections.items() if is_alike((one, other))]
        for row in one.holdout:
            errors = [error_of(selections[n], row)[0] for n in fit]
            found.append((fit, errors, fit.index(name)))
    return found


def _loss(samples: Sequence[_Sample], temperature: float) -> float:
    chances = (probabilities_of(values, temperature)[own] for _, values, own in samples)
    return math.fsum(-math.log(max(chance, 1e-9)) for chance in chances)
