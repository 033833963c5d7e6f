"""Hashed n-grams, the rows of a table that they name, and windows of listed keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from cortiq.backend import Named
from cortiq.ir import Builder, Type, ops
from cortiq.numerics.ngrams import LARGEST_MULTIPLIER
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.case_weights import typical
from cortiq_conformance.probes import CONTEXT, OUTPUT, TOKEN, ProbeProgram, bound, one

ROWS = 150
VOCABULARY, WIDTH = 40, 32
HASHES: Mapping[str, ops.HashNGrams] = {
    "pairs": ops.HashNGrams(3, (5, 9), (7,)),
    "pairs and triples of 2 heads": ops.HashNGrams(0, (2**57 + 1, 2**58 - 3, 77), (11, 13, 17, 19)),
    "up to 5 tokens, products beyond 64 bits": ops.HashNGrams(
        1, (LARGEST_MULTIPLIER, 2**62 + 5, 2**63 - 9, 3, 2**61 - 1), (2**31 - 81, 2, 3, 5)
    ),
}
WINDOWS = ((3, ops.ListKeys(3, 4)), (4, ops.ListKeys(4, 1)), (7, ops.ListKeys(7, 40)))
NUMBERS = "numbers"


def cases() -> Iterator[Case]:
    """Yield the cases of hashed n-grams of level 0."""
    for what, op in HASHES.items():
        yield _case("HashNGrams", what, partial(_hashed, op, VOCABULARY))
        yield _case("HashNGrams", f"{what}, few tokens", partial(_hashed, op, 4))
    yield _case("HashNGrams", "ids of 24 bits", partial(_hashed, HASHES["pairs"], 2**24 - 2))
    for layout in ("f32", "w16", "Q4_K"):
        yield _case("EmbedRows", f"{layout}, 4 rows by hashes", partial(_looked_up, layout))
    for every, listed in WINDOWS:
        what = f"{listed.top} of {every} keys"
        yield _case("WindowBlocks", what, partial(_windows, every, listed))


def _case(family: str, what: str, build: partial[Scenario]) -> Case:
    return Case(f"level0/{family}[{what}]", 0, family, family, build)


def hashes(
    op: ops.HashNGrams = HASHES["pairs and triples of 2 heads"], vocabulary: int = VOCABULARY
) -> ProbeProgram:
    """Build a probe of hashes of tokens below `vocabulary`."""
    return one(op, {"token": TOKEN}, limits={"token": vocabulary})


def _hashed(op: ops.HashNGrams, vocabulary: int, source: CaseData) -> Scenario:
    return hashes(op, vocabulary).scenario(source, ROWS)


def _looked_up(layout: str, source: CaseData) -> Scenario:
    """Return the rows of a table that hashes name, several a token."""
    op = HASHES["pairs and triples of 2 heads"]
    weight = typical(source, layout, sum(op.heights), 256 if layout == "Q4_K" else WIDTH)
    b = Builder(context=CONTEXT)
    token = b.input("token")
    b.input("position")
    numbers = b.add(op, token, name=NUMBERS, slots={"ring": "ring"})
    table = ops.EmbedRows(*weight.shape)
    b.add(table, numbers, name=OUTPUT, weights={"table": "table"})
    weights = {"table": weight}
    probe = ProbeProgram(bound(b.program((OUTPUT,)), weights), weights, {}, {"token": VOCABULARY})
    return probe.scenario(source, 40)


def windows(every: int = 3, listed: ops.ListKeys = WINDOWS[0][1]) -> ProbeProgram:
    """Build a probe of the windows that listed keys close."""
    b = Builder(context=CONTEXT)
    b.input("token")
    position = b.input("position")
    keys = b.add(listed, position, name="keys")
    blocks: Type = b.add(ops.WindowBlocks(every), keys, position, name=OUTPUT).type
    assert blocks == Type((1, listed.top + 1), "i32")
    return ProbeProgram(b.program((OUTPUT,)), {}, {})


def _windows(every: int, listed: ops.ListKeys, source: CaseData) -> Scenario:
    return replace(windows(every, listed).scenario(source, ROWS), wants=(Named(OUTPUT),))
