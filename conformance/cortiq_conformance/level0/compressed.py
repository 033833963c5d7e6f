"""Compressed attention, streams and listed experts: entries, keys that close windows, masses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from cortiq.backend import Named
from cortiq.ir import Builder, ops
from cortiq.numerics.contract import F32
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.level0.blocks import CHOSEN, DIM, block_attention
from cortiq_conformance.probes import (
    CONTEXT,
    OUTPUT,
    TOKEN,
    ProbeProgram,
    bound,
    floats,
    one,
    vector,
)

ROWS = 150
COMPRESSIONS: Mapping[str, ops.Compress] = {
    "4 rows": ops.Compress(24, 4),
    "3 rows": ops.Compress(40, 3),
    "2 rows, overlapping": ops.Compress(16, 2, overlap=True),
    "5 rows, overlapping": ops.Compress(70, 5, overlap=True),
    "128 rows": ops.Compress(8, 128),
}
LISTS: Mapping[str, ops.ListKeys] = {
    "4 of every third": ops.ListKeys(3, 4),
    "3 of all": ops.ListKeys(1, 3),
    "more than there are": ops.ListKeys(7, 40),
}
MATRICES: Mapping[str, ops.Sinkhorn] = {
    "2 streams, 1 round": ops.Sinkhorn(2, 1, 1e-6),
    "3 streams, 2 rounds": ops.Sinkhorn(3, 2, 0.01),
    "4 streams, 20 rounds": ops.Sinkhorn(4, 20, 1e-6),
    "17 streams, 3 rounds": ops.Sinkhorn(17, 3, 1e-6),
}
VOCABULARY, EXPERTS, LISTED = 9, 12, 3
MASS = f"{OUTPUT}.1"


def cases() -> Iterator[Case]:
    """Yield compressed attention's cases of level 0."""
    for what, entry in COMPRESSIONS.items():
        yield _case("Compress", what, partial(_compressed, entry, 1.5))
        yield _case("Compress", f"{what}, weights far apart", partial(_compressed, entry, 60.0))
    for what, listed in LISTS.items():
        yield _case("ListKeys", what, partial(_listed, listed))
    for what, matrix in MATRICES.items():
        for amplitude in (1.0, 30.0):
            name = f"{what}, scores to about {3 * amplitude:g}"
            yield _case("Sinkhorn", name, partial(_stochastic, matrix, amplitude))
    for every, top in ((4, 9), (3, 1), (2, 100)):
        what = f"{top} by 3 heads, of every {every}th"
        yield _case("ChooseKeys", what, partial(_every, ops.ChooseKeys(3, DIM, top, every)))
    for what, op in MASSES.items():
        yield _case("Attend mass", what, partial(_mass, op))
    yield _case("Attend mass", "of keys that are chosen, or none", _mass_of_chosen)
    yield _case("KeepListed", f"{LISTED} of {EXPERTS}", lambda s: keep_listed(s).scenario(s, 30))
    yield _case("KeepListed", "lists with repetitions and strangers", _strange)


MASSES: Mapping[str, ops.Attend] = {
    "with a sink, in a window": ops.Attend(4, 2, 8, 8, 0.4, 20, sinks=True, mass=True),
    "of large scores": ops.Attend(3, 1, 8, 4, 60.0, mass=True),
    "of capped scores": ops.Attend(2, 2, 8, 8, 1.0, soft_cap=5.0, mass=True),
}


def _case(family: str, what: str, build: Callable[[CaseData], Scenario]) -> Case:
    op = family.partition(" ")[0]
    return Case(f"level0/{family}[{what}]", 0, family, op, build)


def compress(source: CaseData, op: ops.Compress | None = None) -> ProbeProgram:
    """Build a probe of entries of rows."""
    op = op or COMPRESSIONS["5 rows, overlapping"]
    wide = floats(op.parts * op.width)
    weights = {"bias": vector(source.floats(op.rate, op.parts * op.width))}
    return one(op, {"x": wide, "position": TOKEN, "gates": wide}, weights)


def _compressed(op: ops.Compress, amplitude: float, source: CaseData) -> Scenario:
    return compress(source, op).scenario(source, 2 * op.rate + 21, amplitude)


def list_keys(op: ops.ListKeys = LISTS["4 of every third"]) -> ProbeProgram:
    """Build a probe of listed keys."""
    return one(op, {"position": TOKEN})


def _listed(op: ops.ListKeys, source: CaseData) -> Scenario:
    return list_keys(op).scenario(source, ROWS)


def sinkhorn(op: ops.Sinkhorn = MATRICES["4 streams, 20 rounds"]) -> ProbeProgram:
    """Build a probe of doubly stochastic matrices."""
    return one(op, {"x": floats(op.streams, op.streams)})


def _stochastic(op: ops.Sinkhorn, amplitude: float, source: CaseData) -> Scenario:
    return sinkhorn(op).scenario(source, 20, amplitude)


def _every(op: ops.ChooseKeys, source: CaseData) -> Scenario:
    return replace(block_attention(op).scenario(source, ROWS, 2.0), wants=(Named(CHOSEN),))


def mass(op: ops.Attend, source: CaseData) -> ProbeProgram:
    """Build a probe of attention with its mass; rows supply q, k and v."""
    b = Builder(context=CONTEXT)
    b.input("token")
    position = b.input("position")
    shapes = {
        "q": floats(op.heads, op.key_dim), "k": floats(op.kv_heads, op.key_dim),
        "v": floats(op.kv_heads, op.value_dim),
    }  # fmt: skip
    rows = {n: b.input(n, kind.shape, "f32") for n, kind in shapes.items()}
    q, k, v = (b.add(ops.Quantise(), x, name=f"{n}.quantised") for n, x in rows.items())
    store = ops.StoreKV(op.kv_heads, op.key_dim, op.value_dim)
    b.add_node(store, k, v, name="store", slots={"kv": "kv"})
    inputs = [q, position]
    if op.block:
        inputs.append(b.add(ops.ListKeys(5, 4), position, name="keys"))
    weights = {"sinks": vector(source.floats(op.heads))} if op.sinks else {}
    roles = {role: role for role in weights}
    b.add_node(op, *inputs, name=OUTPUT, weights=roles, slots={"kv": "kv"})
    return ProbeProgram(bound(b.program((f"{OUTPUT}.0", MASS)), weights), weights, shapes)


def _mass(op: ops.Attend, source: CaseData) -> Scenario:
    return replace(mass(op, source).scenario(source, ROWS, 1.5), wants=_masses())


def _mass_of_chosen(source: CaseData) -> Scenario:
    return _mass(ops.Attend(4, 2, 8, 8, 0.4, block=1, mass=True), source)


def _masses() -> tuple[Named, ...]:
    return Named(f"{OUTPUT}.0"), Named(MASS)


def keep_listed(source: CaseData) -> ProbeProgram:
    """Build a probe of the experts that tokens list."""
    op = ops.KeepListed(EXPERTS, VOCABULARY, LISTED)
    lists = np.stack([source.permutation(EXPERTS)[:LISTED] for _ in range(VOCABULARY)])
    weights = {"table": vector(lists.astype(F32))}
    return one(op, {"x": floats(EXPERTS), "token": TOKEN}, weights, limits={"token": VOCABULARY})


def _strange(source: CaseData) -> Scenario:
    probe = keep_listed(source)
    lists = source.integers(-2, EXPERTS + 2, VOCABULARY, LISTED).astype(F32)
    lists[0], lists[1] = 4.0, 2.5
    probe = replace(probe, weights={"table": vector(lists)})
    return probe.scenario(source, 30)
