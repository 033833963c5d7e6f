"""Computations on logits: argmax, draws, the largest logits, digests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from cortiq.backend import Argmax, Digest, Draw, DrawnLogit, Top, Want
from cortiq.ir import Builder, ops
from cortiq.numerics.contract import F32
from cortiq.numerics.masks import mask_of
from cortiq.numerics.sampling import Sampling
from cortiq.numerics.synthetic import synthetic_weight
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import SequenceInput
from cortiq_conformance.probes import ProbeProgram, floats, logits

VOCABULARY = 1000
ROWS = 24

CHAINS = {
    "temperature 1": Sampling(seed=1),
    "temperature 0.7": Sampling(temperature=0.7, seed=2),
    "temperature 0": Sampling(temperature=0.0, seed=3),
    "top-k 5": Sampling(top_k=5, seed=4),
    "top-p 0.8": Sampling(temperature=1.5, top_p=0.8, seed=5),
    "min-p 0.05": Sampling(temperature=1.2, min_p=0.05, seed=6),
    "every filter": Sampling(temperature=0.9, top_k=40, top_p=0.95, min_p=0.02, seed=1 << 40),
    "penalties": Sampling(
        repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25, seed=7
    ),
    "bias": Sampling(logit_bias={3: 4.0, 17: -2.5}, seed=8),
    "a bias of what is penalised": Sampling(
        0.0, repetition_penalty=1.3, logit_bias=dict.fromkeys(range(12), 6.0)
    ),
}

MASKED: dict[str, tuple[Sampling, Sequence[int]]] = {
    "temperature 1, two of three": (Sampling(seed=1), [i for i in range(VOCABULARY) if i % 3]),
    "temperature 0": (Sampling(temperature=0.0), range(7, VOCABULARY, 11)),
    "two tokens": (Sampling(seed=2), [3, VOCABULARY - 1]),
    "fewer than top-k": (Sampling(top_k=20, min_p=1e-6, seed=3), [0, 8, 15, 500]),
    "every filter": (
        Sampling(temperature=1.4, top_k=40, top_p=0.9, min_p=0.01, seed=4), range(100, 700)
    ),
    "penalties and bias": (
        Sampling(0.9, repetition_penalty=1.3, frequency_penalty=0.25, logit_bias={2: 3.0}, seed=5),
        range(0, VOCABULARY, 2),
    ),
}  # fmt: skip
"""Options and allowed ids; what is not allowed has logits near the domain's end."""


def cases() -> Iterator[Case]:
    """Yield the tails of level 0."""
    for what, build in ARGMAXES.items():
        yield _case("Argmax", "Argmax", what, build)
    for what, sampling in CHAINS.items():
        yield _case("Draw", "Draw", what, partial(_draws, sampling))
    yield _case("Draw", "Draw", "three choices of one row", _choices)
    yield _case("Draw", "Draw", "for another position, after other ids", _elsewhere)
    yield _case("Draw", "Draw", "of another value than the logits", _of_another)
    for what, (sampling, ids) in MASKED.items():
        yield _case("Draw", "Draw", f"masked: {what}", partial(_masked, sampling, ids))
    yield _case("Top", "Top", "the largest 20", partial(_top, False, 20))
    yield _case("Top ties", "Top", "equal logits by id", partial(_top, True, 50))
    yield _case("DrawnLogit", "DrawnLogit", "as it is, and divided", _drawn_logits)
    yield _case("Digest", "Digest", "logits and a value", _digests)
    yield _case("Digest", "Digest", "many rows of wide logits", _wide)


def _case(family: str, op: str, what: str, build: Callable[[CaseData], Scenario]) -> Case:
    return Case(f"level0/{family}[{what}]", 0, family, op, build)


def rows(x: np.ndarray, wants: tuple[Want, ...], source: CaseData, factor: float = 1.0) -> Scenario:
    """Return rows that supply `x`, with logits by this factor; ids repeat, so that penalties have a
    history.
    """
    probe = logits(x.shape[1], factor)
    tokens = source.integers(0, 12, len(x))
    return Scenario(probe.program, probe.weights, [SequenceInput(tokens, {"x": x})], wants)


def _argmax_ties(source: CaseData) -> Scenario:
    """Return rows with the largest value several times, zeros of both signs among them."""
    x = source.floats(ROWS, VOCABULARY)
    for row in range(ROWS):
        x[row, source.permutation(VOCABULARY)[:5]] = 7
    x[0] = np.where(np.arange(VOCABULARY) % 7 == 3, F32(-0.0), F32(-1))
    x[0, 500] = 0
    return rows(x, (Argmax(),), source)


ARGMAXES: dict[str, Callable[[CaseData], Scenario]] = {
    "the lowest index wins a tie": _argmax_ties,
}


def _draws(sampling: Sampling, source: CaseData) -> Scenario:
    x = source.floats(ROWS, VOCABULARY, amplitude=2)
    return rows(x, (Draw(sampling),), source)


def _masked(sampling: Sampling, ids: Sequence[int], source: CaseData) -> Scenario:
    x = source.floats(ROWS, VOCABULARY, amplitude=2)
    banned = np.setdiff1d(np.arange(VOCABULARY), ids)
    x[::2, banned] = np.nextafter(F32(2.0**50), F32(0))
    return rows(x, (Draw(sampling, mask=mask_of(ids, VOCABULARY)),), source)


def _choices(source: CaseData) -> Scenario:
    """Return one distribution for all positions: only position and choice tell draws apart."""
    x = np.repeat(source.floats(1, VOCABULARY), ROWS, axis=0)
    wants = tuple(Draw(Sampling(seed=9), choice) for choice in range(3))
    return rows(x, wants, source)


def _elsewhere(source: CaseData) -> Scenario:
    """Draw as draft heads do: for a token further on, after ids that are not their rows'."""
    x = np.repeat(source.floats(1, VOCABULARY), ROWS, axis=0)
    penalised = CHAINS["penalties"]
    wants = (
        Draw(Sampling(seed=9), ahead=0), Draw(Sampling(seed=9), ahead=3),
        Draw(penalised, ahead=2), Draw(penalised, ahead=2, history=(4, 900, 4, 17)),
    )  # fmt: skip
    return rows(x, wants, source)


def _of_another(source: CaseData) -> Scenario:
    x = source.floats(ROWS, VOCABULARY, amplitude=2)
    wants = (Argmax(), Argmax("x"), Draw(Sampling(seed=9)), Draw(Sampling(seed=9), name="x"))
    return rows(x, wants, source, factor=-1.0)


def _top(ties: bool, count: int, source: CaseData) -> Scenario:
    x = source.floats(8, VOCABULARY, amplitude=2)
    if ties:
        x = source.integers(-3, 4, 8, VOCABULARY).astype(F32)
    return rows(x, (Top(count),), source)


def _drawn_logits(source: CaseData) -> Scenario:
    """Ask for logits as they are and divided, of draws whose filters exclude the largest."""
    x = source.floats(ROWS, VOCABULARY, amplitude=2)
    ids = mask_of(range(0, VOCABULARY, 3), VOCABULARY)
    wants = (Draw(Sampling(top_k=9, seed=3), mask=ids), DrawnLogit(), DrawnLogit(1.7))
    return rows(x, wants, source)


def _digests(source: CaseData) -> Scenario:
    x = source.spread(8, VOCABULARY)
    return replace(rows(x, (), source), wants=(Digest("logits"), Digest("x")))


WIDTHS = (16, 8, 12, 20, 16, 40_000)
"""Of what is stored, of what follows, and of the logits."""


def _wide(source: CaseData) -> Scenario:
    """Return more logits than a backend need hold at once, behind small values.

    What is fed to these values is stored: a backend that computes it once for all rows, and the
    rest for some rows at a time, must find it whole each time.
    """
    b = Builder(context=256)
    b.input("token")
    b.input("position")
    x = b.input("x", (1, WIDTHS[0]), "f32")
    key = b.add(ops.Scale(2.0), x, name="key")
    stored = b.add(ops.Quantise(), key, name="stored")
    b.add_node(
        ops.StoreKV(1, WIDTHS[0], WIDTHS[0]), stored, stored, name="store", slots={"kv": "kv"}
    )
    q = b.add(ops.Quantise(), b.add(ops.Reshape(WIDTHS[:1]), key, name="row"), name="q0")
    weights = {}
    for i, (width, height) in enumerate(pairwise(WIDTHS)):
        weights[f"w{i}"] = synthetic_weight("w8", f"w{i}", 3, (height, width))
        roles = {"weight": f"w{i}"}
        if height == WIDTHS[-1]:
            b.add(ops.MatMul(width, height), q, name="logits", weights=roles)
        else:
            y = b.add(ops.MatMul(width, height), q, name=f"y{i}", weights=roles)
            q = b.add(ops.Quantise(), y, name=f"q{i + 1}")
    program = b.program(("logits",)).with_layouts(dict.fromkeys(weights, "w8"))
    scenario = ProbeProgram(program, weights, {"x": floats(1, WIDTHS[0])}).scenario(source, 130)
    return replace(scenario, wants=(Digest("logits"),))
