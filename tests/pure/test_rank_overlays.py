"""Adapters chosen by request on several ranks: the bits of one, for every kind of change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_folders import write_ia3, write_lora

import cortiq
from cortiq.backend import Batch, CompileOptions, Digest, Executable, Row, Status
from cortiq.errors import BackendError
from cortiq.ir import ops
from cortiq.ir.overlays import changeable, matrices, overlay_inputs
from cortiq.model.devices import backend_named, weights_of
from cortiq.model.source import ModelSource, open_lora, open_source
from cortiq.models.overlay_banks import Overlay, OverlayPart, banks_of
from cortiq.models.overlay_numbers import stored_matrix, stored_vector
from cortiq.models.overlays import read_overlay
from cortiq.options import LoadOptions
from cortiq.placement.place import place
from cortiq.ranks.backend import DeviceSplit, RanksBackend
from cortiq.ranks.start import Ranks, start_ranks

MODEL = "synthetic:tiny-llama?seed=1&format=w8"
CPU = backend_named("cpu")
IDS = [5, 9, 2, 71, 33, 8, 4]
WANTS = (Digest("hidden"), Digest())
SPLITS = {
    "two": DeviceSplit(((0, 1),)),
    "three": DeviceSplit(((0, 1, 2),)),
    "experts": DeviceSplit(((1, 2),), by_expert=True),
    "replicas": DeviceSplit(((0,), (1, 2)), replicas=True),
}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    made = start_ranks(3, backend_named, weights_of)
    yield made
    made.close()


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return open_source(MODEL, LoadOptions())


@pytest.fixture(scope="module")
def overlays(source: ModelSource, tmp_path_factory: pytest.TempPathFactory) -> list[Overlay]:
    """An overlay of every kind."""
    folder = tmp_path_factory.mktemp("adapters")
    with cortiq.load(MODEL, context=64, keep_weights=False) as model:
        paths = [
            write_lora(folder / "one", model, 1, rank=1),
            write_lora(folder / "wide", model, 2, rank=9, targets=("q_proj", "k_proj", "o_proj")),
            write_lora(folder / "dora", model, 3, dora=True),
            write_lora(folder / "table", model, 4, targets=("embed_tokens", "lm_head")),
            write_ia3(folder / "ia3", model, 5),
        ]
    other = open_source(MODEL.replace("seed=1", "seed=2"), LoadOptions()).weights
    ends = ("layers.0.self_attn.q_proj", "layers.1.mlp.up_proj", "layers.1.mlp.down_proj")
    names = [f"model.{end}.weight" for end in ends]
    own = {(name, False): OverlayPart(whole=other[name]) for name in names}
    return [*(read(path, source) for path in paths), Overlay("own", 1.0, own)]


@pytest.fixture(scope="module")
def varied(source: ModelSource, overlays: list[Overlay]) -> tuple[Any, Any]:
    """A program with all the overlays, and the weights with their banks."""
    return with_banks(source, overlays)


def read(path: Path, source: ModelSource) -> Overlay:
    adapter = open_lora(str(path))
    try:
        return read_overlay(adapter, source.loaded, source.program)
    finally:
        adapter.close()


def with_banks(source: ModelSource, overlays: list[Overlay]) -> tuple[Any, Any]:
    program, banks = banks_of(source.program, overlays, source.weights)
    return program, {**source.weights, **banks}


def digests(executable: Executable, count: int = 7) -> list[list[Any]]:
    """Return the digests of a sequence of each overlay, all in the same batches."""
    states = [executable.open(16) for _ in range(count)]
    found: list[list[Any]] = [[] for _ in states]
    for start, stop in ((0, 5), (5, 6), (6, 7)):
        rows = [
            Row(state, at, IDS[at], WANTS, overlay_inputs(number))
            for number, state in enumerate(states)
            for at in range(start, stop)
        ]
        result = executable.forward(Batch(rows)).result()
        assert all(one.status is Status.COMPLETED for one in result.outcomes.values())
        each = iter(result.rows)
        for one in found:
            for row in islice(each, stop - start):
                one.append([row[want] for want in WANTS])
    for state in states:
        state.release()
    return found


@pytest.fixture(scope="module")
def alone(source: ModelSource, varied: tuple[Any, Any]) -> list[list[Any]]:
    """The digests on one rank, which differ from overlay to overlay."""
    one = place(CPU, source.program, source.weights, CompileOptions(threads=1))
    one.vary(*varied)
    found = digests(one)
    one.close()
    assert len({str(of[-1]) for of in found}) == len(found)
    return found


@pytest.mark.parametrize("split", SPLITS)
def test_rows_of_overlays_have_the_bits_of_one_rank(
    split: str,
    ranks: Ranks,
    source: ModelSource,
    overlays: list[Overlay],
    varied: tuple[Any, Any],
    alone: list[list[Any]],
) -> None:
    """Ranks open the weights themselves, or get all of them, take fewer overlays than they had, and
    give them back.
    """
    named = (MODEL, LoadOptions()) if split != "two" else None
    backend = RanksBackend(ranks.driver, CPU, SPLITS[split], named)
    on = place(backend, source.program, source.weights, CompileOptions(threads=1))
    assert on.takes_overlays
    plain = on.open(16)
    row = Row(plain, 0, IDS[0], WANTS)
    before = on.forward(Batch([row])).result().rows[0]
    on.vary(*varied)
    assert digests(on) == alone
    on.vary(*with_banks(source, overlays[:1]))
    assert digests(on, 2) == alone[:2]
    on.vary(None, {})
    plain.rewind(0)
    assert on.forward(Batch([row])).result().rows[0] == before
    on.close()


STACKS = "mini-qwen3_moe", "mini-mimo_v2_flash", "mini-deepseek2"
"""Experts; these beside windows and sinks; latent attention, whose heads multiply both ways."""
BY_EXPERT = DeviceSplit(((0, 1, 2),), by_expert=True)


@cache
def of_stacks(name: str) -> tuple[Any, list[Overlay]]:
    """Return a model, and overlays with every part of all that overlays change in it."""
    source = open_source(f"synthetic:{name}?seed=1&format=w8", LoadOptions())
    other = open_source(f"synthetic:{name}?seed=2&format=w8", LoadOptions()).weights
    low_rank, vectors, own = {}, {}, {}
    for key, node in changeable(source.program).items():
        op: Any = node.op
        if not isinstance(op, (ops.MatMul, ops.HeadMatMul, ops.ExpertMatMul)):
            continue
        count, random = matrices(op), np.random.default_rng([len(low_rank)])
        a = random.normal(size=(count, 3, op.in_width))
        b = random.normal(size=(count, op.out_width, 3)) * 0.2
        low_rank[key] = OverlayPart(*(stored_matrix(v, "") for v in (a, b)), count=count)
        lengths = random.uniform(0.5, 1.5, (2, count, op.out_width))
        gain, after = (stored_vector(v, "") for v in lengths)
        vectors[key] = OverlayPart(gain=gain, after=after, count=count)
        own[key] = OverlayPart(whole=other[key[0]], count=count)
    parts = {"factors": low_rank, "vectors": vectors, "own": own}
    return source, [Overlay(name, 1.0, members) for name, members in parts.items()]


def without(overlays: list[Overlay], kind: Any, source: ModelSource) -> list[Overlay]:
    """Return overlays without their changes of products of a kind."""
    keys = [k for k, node in changeable(source.program).items() if not isinstance(node.op, kind)]
    return [
        replace(one, members={key: one.members[key] for key in keys if key in one.members})
        for one in overlays
    ]


def on_ranks(split: DeviceSplit, ranks: Ranks, source: ModelSource, banks: tuple[Any, Any]) -> Any:
    """Return the digests that ranks compute."""
    backend = RanksBackend(ranks.driver, CPU, split, None)
    on = place(backend, source.program, source.weights, CompileOptions(threads=1))
    try:
        on.vary(*banks)
        return digests(on, 4)
    finally:
        on.close()


@pytest.mark.parametrize("name", STACKS)
def test_overlays_of_stacks_have_the_bits_of_one_rank(name: str, ranks: Ranks) -> None:
    """Whose outputs are cut. Two seconds: every matrix but those of heads has every part, and an
    expert's is cut on two ranks and on three.
    """
    source, overlays = of_stacks(name)
    banks = with_banks(source, without(overlays, ops.HeadMatMul, source))
    one = place(CPU, source.program, source.weights, CompileOptions(threads=1))
    one.vary(*banks)
    alone = digests(one, 4)
    one.close()
    assert len({str(of[-1]) for of in alone}) == 4
    for split in ("two", "three", "replicas"):
        assert on_ranks(SPLITS[split], ranks, source, banks) == alone, split
    only = without(overlays, (ops.MatMul, ops.HeadMatMul), source)
    for overlay in only:
        with pytest.raises(BackendError, match="need values whole"):
            on_ranks(BY_EXPERT, ranks, source, with_banks(source, [overlay]))


def test_overlays_of_heads_are_refused_where_these_are_divided(ranks: Ranks) -> None:
    source, overlays = of_stacks("mini-deepseek2")
    only = without(overlays, (ops.MatMul, ops.ExpertMatMul), source)
    for split in (SPLITS["two"], BY_EXPERT):
        with pytest.raises(BackendError, match=r"need values whole[^\0]*--lora PATH"):
            on_ranks(split, ranks, source, with_banks(source, only))


def test_layers_on_several_ranks_take_none(ranks: Ranks, source: ModelSource) -> None:
    backend = RanksBackend(ranks.driver, CPU, DeviceSplit(((0,), (1,))))
    on = place(backend, source.program, source.weights, CompileOptions(threads=1))
    assert not on.takes_overlays
    with pytest.raises(BackendError, match="computes no overlays"):
        on.vary(None, {})
    on.close()
