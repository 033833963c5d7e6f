"""Descriptors, reconstruction errors, calibration, and hysteresis of skills."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from cortiq.errors import RequestError
from cortiq.numerics.contract import F32
from cortiq_skills.descriptors import fit_selection, jacobi_eigenvectors, principal_directions
from cortiq_skills.features import RunningFeatures
from cortiq_skills.novel import NovelTexts
from cortiq_skills.record import SkillSelection
from cortiq_skills.router import (
    RoutingCalibration,
    calibrate,
    decide,
    error_of,
    probabilities_of,
    temperatures,
)
from cortiq_skills.switching import Hysteresis, Swarm

WIDTH = 24
RANDOM = np.random.default_rng(7)


def cloud(seed: int, count: int = 20, rank: int = 3) -> list[np.ndarray]:
    """Rows near an affine subspace of a task."""
    random = np.random.default_rng(seed)
    mean, directions = random.normal(size=WIDTH) * 2, random.normal(size=(rank, WIDTH))
    rows = mean + random.normal(size=(count, rank)) @ directions
    return list((rows + 0.05 * random.normal(size=rows.shape)).astype(F32))


def selection(seed: int, metric: str = "mse_unit", layer: int = 2) -> SkillSelection:
    return fit_selection(cloud(seed), layer, rank=3, metric=metric)


@pytest.mark.parametrize("metric", ["mse", "mse_unit"])
def test_the_error_is_the_distance_from_the_subspace(metric):
    made = selection(1, metric)
    for row in [*cloud(1), *cloud(2)]:
        phi = row.astype(np.float64)
        phi = phi / np.linalg.norm(phi) if metric == "mse_unit" else phi
        rest = phi - made.mean
        raw = rest @ rest - ((made.basis.astype(np.float64) @ rest) ** 2).sum()
        found = error_of(made, row)
        assert found[0] == pytest.approx(max(raw, 0), rel=1e-5, abs=1e-6)
        assert found[1] == pytest.approx(max(raw, 0) / (phi @ phi), rel=1e-5, abs=1e-6)
    own, others = ([error_of(made, row)[1] for row in cloud(seed)] for seed in (1, 2))
    assert np.median(own) < 0.01 < 0.3 < np.median(others)


def test_directions_are_the_principal_ones_whoever_computes_them():
    rows = np.stack(cloud(3)).astype(np.float64)
    centred = rows - rows.mean(axis=0)
    found = principal_directions(centred, 3)
    _, values, vectors = np.linalg.svd(centred)
    assert np.allclose(np.abs(found @ vectors[:3].T), np.eye(3), atol=1e-5)
    assert np.allclose(found @ found.T, np.eye(3), atol=1e-5)
    assert all(row[np.argmax(np.abs(row))] > 0 for row in found)
    eigenvalues, _ = jacobi_eigenvectors(centred @ centred.T)
    assert np.allclose(sorted(eigenvalues)[-3:], sorted(values**2)[-3:], rtol=1e-9)
    flat = np.outer(np.arange(5.0) - 2, np.ones(WIDTH))
    assert len(principal_directions(flat, 4)) == 1


def test_descriptors_hold_what_was_asked():
    made = selection(1)
    assert made.basis.shape == (3, WIDTH) and len(made.holdout) == 4
    assert np.array_equal(made.mean, made.mean.astype(np.float16))
    one = fit_selection(cloud(1)[:1], 0, rank=4)
    assert one.basis.shape == (0, WIDTH) and len(one.holdout) == 0
    with pytest.raises(RequestError, match="takes features and a rank"):
        fit_selection([], 0)
    with pytest.raises(RequestError, match="has the metric 'cosine'"):
        SkillSelection("cosine", 0, made.mean, made.basis)


def test_texts_belong_to_the_skill_they_are_made_of():
    known = {f"s{i}": selection(i) for i in range(4)}
    for i in range(4):
        for row in cloud(i)[16:]:
            found = decide(known, {2: row})
            assert found.skill == f"s{i}" and not found.is_novel and found.confidence == 0
            errors = [one.raw for one in found.ranked]
            assert errors == sorted(errors)
    assert decide(known, {2: cloud(9)[0]}).is_novel
    nothing = decide({}, {})
    assert (nothing.skill, nothing.novelty, nothing.is_novel) == (None, 1.0, True)
    same = {"b": known["s0"], "a": known["s0"]}
    assert decide(same, {2: cloud(0)[0]}).skill == "b"


def test_errors_of_other_layers_or_metrics_are_compared_relatively():
    row = cloud(0)[0]
    mixed = {"unit": selection(1, "mse_unit"), "own": selection(0, "mse", 5)}
    found = decide(mixed, {2: row, 5: row})
    assert [one.id for one in found.ranked] == ["own", "unit"]
    assert found.ranked[0].raw > found.ranked[1].raw * 0.001
    assert found.ranked[0].relative < found.ranked[1].relative


def test_calibration_as_it_is_defined():
    grid = temperatures()
    assert len(grid) == 149 and grid[0] == float(F32(1e-3))
    assert grid[-1] == pytest.approx(962230.6, rel=1e-5)
    known = {f"s{i}": selection(i) for i in range(3)}
    made = calibrate(known, 0.05)
    assert made.samples == 12 and made.target_fpr == 0.05

    def loss(temperature):
        found = 0.0
        for name, one in known.items():
            for row in one.holdout:
                errors = [error_of(other, row)[0] for other in known.values()]
                found -= math.log(probabilities_of(errors, temperature)[list(known).index(name)])
        return found

    losses = [loss(t) for t in grid]
    assert made.temperature == grid[int(np.argmin(losses))]
    for name, one in known.items():
        for row in one.holdout:
            found = decide(known, {2: row}, made)
            assert found.skill == name and sum(found.probabilities) == pytest.approx(1)
            z = (found.ranked[0].raw - one.err_mean) / one.err_std
            novelty = 0.5 / (1 + math.exp(-z)) + 0.25 / (1 + 8 * found.margin)
            novelty += 0.25 * (1 - found.confidence)
            assert found.novelty == pytest.approx(novelty)
    outside = [decide(known, {2: row}, made).is_novel for row in cloud(8)]
    inside = [decide(known, {2: row}, made).is_novel for one in known.values()
              for row in one.holdout]  # fmt: skip
    assert all(outside) and sum(inside) <= 1
    without = SkillSelection("mse", 2, made_mean := known["s0"].mean, known["s0"].basis)
    assert made_mean is without.mean and calibrate({"x": without}) is None
    with pytest.raises(RequestError, match="takes a share"):
        calibrate(known, 2.0)


@pytest.mark.parametrize(
    ("active", "own", "best", "then"),
    [
        (None, None, 0.70, None), (None, None, 0.55, "best"), ("cur", 0.70, 0.68, "cur"),
        ("cur", 0.80, 0.55, "best"), ("cur", 0.80, 0.70, None), ("cur", 0.70, 0.69, "cur"),
        ("cur", 0.70, 0.66, "best"),
    ],
)  # fmt: skip
def test_hysteresis_of_the_published_table(active, own, best, then):
    rule = Hysteresis(on=0.60, off=0.75, margin=0.03)
    errors = {"best": best} | ({} if own is None else {"cur": own})
    assert rule.step(active, errors) == then


def test_hysteresis_at_its_borders():
    rule = Hysteresis()
    assert rule.step(None, {}) is None and rule.step("gone", {"a": 0.1}) == "a"
    assert rule.step(None, {"a": 0.62}) is None and rule.step("a", {"a": 0.74}) == "a"
    assert rule.step(None, {"b": 0.5, "a": 0.5}) == "b"


def test_a_swarm_looks_every_period_and_takes_one_kind_of_descriptor():
    known = {f"s{i}": selection(i, "mse") for i in range(2)}
    swarm, row = Swarm(known, Hysteresis(period=4)), cloud(1)[0]
    assert swarm.layer == 2
    assert swarm.choose(3, None, row) is None and not swarm.last
    assert swarm.choose(4, None, row) == "s1" and swarm.choose(4, None, None) is None
    with pytest.raises(RequestError, match="one layer and one metric"):
        Swarm({**known, "x": selection(0, "mse_unit")})


def test_running_features_forget_slowly():
    running, rows = RunningFeatures(), RANDOM.normal(size=(4, WIDTH)).astype(F32)
    found = [running.add(row) for row in rows]
    assert found[0].tobytes() == rows[0].tobytes()
    want = F32(0.8) * rows[0] + F32(0.2) * rows[1]
    assert found[1].tobytes() == want.tobytes()


def test_novel_texts_are_kept(tmp_path):
    known, kept = {"s0": selection(0)}, NovelTexts(tmp_path / "ood", lambda: 12.5)
    near, far = decide(known, {2: cloud(0)[0]}), decide(known, {2: cloud(5)[0]})
    assert not kept.saw(near, [1], "near", False) and kept.saw(far, [1, 2], "far äö", False)
    (line,) = (tmp_path / "ood/buffer.jsonl").read_text().splitlines()
    said = json.loads(line)
    assert said["text"] == "far äö" and said["tokens"] == [1, 2] and said["nearest"] == "s0"
    assert said["e_min"] > 0.3 and said["ts"] == 12.5 and (tmp_path / "ood/last_request").exists()


def test_a_confident_text_is_less_novel_than_a_doubtful_one():
    known = {f"s{i}": selection(i) for i in range(2)}
    both = (cloud(0)[0] + cloud(1)[0]) / 2
    calibration = RoutingCalibration(0.01, 0.9, 4, 0.05)
    clear, doubtful = (decide(known, {2: row}, calibration) for row in (cloud(0)[0], both))
    assert clear.novelty < doubtful.novelty and clear.confidence > doubtful.confidence
