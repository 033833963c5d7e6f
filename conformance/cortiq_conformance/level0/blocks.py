"""Block-sparse attention: the blocks that queries choose, and attention to their keys only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from cortiq.backend import Named
from cortiq.ir import Builder, ops
from cortiq.numerics.contract import F32
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import SequenceInput
from cortiq_conformance.probes import CONTEXT, OUTPUT, ProbeProgram, floats

ROWS = 150
CHOSEN = "chosen"
"""Name of the blocks that rows choose."""
DIM = 8


def cases() -> Iterator[Case]:
    """Yield block cases of level 0."""
    for what, op in CHOICES.items():
        yield _case("ChooseBlocks", what, partial(_typical, op, 2, CHOSEN))
        yield _case("Attend blocks", what, partial(_typical, op, 2, OUTPUT))
    yield _case("ChooseBlocks", "equal scores", _ties)
    for kv_heads in (1, 4):
        what = f"2 sets of heads on {kv_heads} KV heads"
        build = partial(
            _typical, CHOICES["4 of 16 keys, the last one among them"], kv_heads, OUTPUT
        )
        yield _case("Attend blocks", what, build)

    for block in CHUNKS:
        what = f"chunks of {block} keys"
        yield _case("OwnBlock", what, partial(_chunked, block, CHOSEN))
        yield _case("Attend blocks", what, partial(_chunked, block, OUTPUT))
    yield _case("Attend slopes", "4 blocks of 16 keys", partial(_sloped, FOUR))
    yield _case("Attend slopes", "9 keys", partial(_sloped, ops.ChooseKeys(3, DIM, 9)))
    for block, sizes in WINDOWS:
        what = f"windows of {', '.join(map(str, sizes))} blocks of {block} keys that rows list"
        yield _case("Attend listed", what, partial(_windows, block, sizes))


def _case(family: str, what: str, build: Callable[[CaseData], Scenario]) -> Case:
    op = family.partition(" ")[0]
    return Case(f"level0/{family}[{what}]", 0, family, op, build)


FOUR = ops.ChooseBlocks(2, DIM, 16, 4)
CHOICES = {
    "4 of 16 keys, the last one among them": FOUR,
    "2 of 64 keys, whatever they are": ops.ChooseBlocks(2, DIM, 64, 2, 0),
    "3 of 20 keys, the last two among them": ops.ChooseBlocks(2, DIM, 20, 3, 2),
    "1 of 8 keys, whatever it is": ops.ChooseBlocks(1, DIM, 8, 1, 0),
}


CHUNKS = (1, 20, 64, 70)
"""Keys of a chunk: one, some within a tile, a tile, some over its border."""


def chunked_attention(block: int) -> ProbeProgram:
    """Build a probe whose rows supply q, k and v, and see the keys of their own chunk."""
    b = Builder(context=CONTEXT)
    b.input("token")
    position = b.input("position")
    shapes = {"q": floats(4, DIM), "k": floats(2, DIM), "v": floats(2, DIM)}
    rows = {n: b.input(n, kind.shape, "f32") for n, kind in shapes.items()}
    coded = {n: b.add(ops.Quantise(), x, name=f"{n}.quantised") for n, x in rows.items()}
    store = ops.StoreKV(2, DIM, DIM)
    b.add_node(store, coded["k"], coded["v"], name="store", slots={"kv": "kv"})
    own = b.add(ops.OwnBlock(block), position, name=CHOSEN)
    attend = ops.Attend(4, 2, DIM, DIM, DIM**-0.5, block=block)
    b.add(attend, coded["q"], position, own, name=OUTPUT, slots={"kv": "kv"})
    return ProbeProgram(b.program((OUTPUT, CHOSEN)), {}, shapes)


def _chunked(block: int, wanted: str, source: CaseData) -> Scenario:
    return replace(chunked_attention(block).scenario(source, ROWS, 2.0), wants=(Named(wanted),))


WINDOWS = ((1, (1,)), (4, (16, 8, 16, 2)), (4, (36, 70, 12)), (9, (1, 3, 1)))
"""Keys of a block, and blocks of the windows that a batch's rows are in, in order."""


def listed_attention(block: int, count: int) -> ProbeProgram:
    """Build an Attend whose rows supply their last key and a list of blocks."""
    b = Builder(context=CONTEXT)
    b.input("token")
    b.input("position")
    shapes = {"q": floats(4, DIM), "k": floats(2, DIM), "v": floats(2, DIM)}
    rows = {n: b.input(n, kind.shape, "f32") for n, kind in shapes.items()}
    last, listed = b.input("last"), b.input("listed", (1, count))
    coded = {n: b.add(ops.Quantise(), x, name=f"{n}.quantised") for n, x in rows.items()}
    store = ops.StoreKV(2, DIM, DIM)
    b.add_node(store, coded["k"], coded["v"], name="store", slots={"kv": "kv"})
    attend = ops.Attend(4, 2, DIM, DIM, DIM**-0.5, block=block, until=True)
    b.add(attend, coded["q"], last, listed, name=OUTPUT, slots={"kv": "kv"})
    return ProbeProgram(b.program((OUTPUT,)), {}, shapes)


def _windows(block: int, sizes: tuple[int, ...], source: CaseData) -> Scenario:
    """Return one batch whose rows see those of their own window."""
    most, blocks = max(sizes), sum(sizes)
    probe = listed_attention(block, most)
    feed = probe.feed(source, block * blocks, 2.0)
    firsts = np.repeat(np.cumsum((0, *sizes[:-1])), np.array(sizes) * block)
    counts = np.repeat(sizes, np.array(sizes) * block)
    offsets = np.arange(most)
    listed = np.where(
        offsets < counts[:, None], firsts[:, None] + offsets, blocks + offsets - counts[:, None]
    )
    given = {
        "last": np.full(len(listed), len(listed) - 1, np.int32),
        "listed": listed.astype(np.int32)[:, None],
    }
    feed = SequenceInput(feed.tokens, {**feed.inputs, **given})
    return Scenario(probe.program, {}, [feed])


def block_attention(
    op: ops.ChooseBlocks | ops.ChooseKeys,
    kv_heads: int = 2,
    heads: int = 4,
    window: int | None = None,
    slopes: tuple[float, ...] = (),
) -> ProbeProgram:
    """Build a probe whose rows supply q, k, v and the query and key that choose blocks, or keys."""
    b = Builder(context=CONTEXT)
    b.input("token")
    position = b.input("position")
    shapes = {
        "q": floats(heads, DIM), "k": floats(kv_heads, DIM), "v": floats(kv_heads, DIM),
        "index_q": floats(op.heads, DIM), "index_k": floats(1, DIM),
    }  # fmt: skip
    one = isinstance(op, ops.ChooseKeys)
    if one:
        shapes["index_w"] = floats(op.heads)
    rows = {n: b.input(n, kind.shape, "f32") for n, kind in shapes.items()}
    weights = [rows.pop("index_w")] if one else []
    coded = {n: b.add(ops.Quantise(), x, name=f"{n}.quantised") for n, x in rows.items()}
    keys_only = ops.StoreKV(1, DIM, 0)
    b.add_node(keys_only, coded["index_k"], name="store_index", slots={"kv": "index"})
    b.add_node(
        ops.StoreKV(kv_heads, DIM, DIM), coded["k"], coded["v"], name="store", slots={"kv": "kv"}
    )
    query = coded["index_q"]
    chosen = b.add(op, query, position, *weights, name=CHOSEN, slots={"kv": "index"})
    block = getattr(op, "block", 1)
    attend = ops.Attend(heads, kv_heads, DIM, DIM, DIM**-0.5, window, block=block, slopes=slopes)
    b.add(attend, coded["q"], position, chosen, name=OUTPUT, slots={"kv": "kv"})
    return ProbeProgram(b.program((OUTPUT, CHOSEN)), {}, shapes)


def _typical(op: ops.ChooseBlocks, kv_heads: int, wanted: str, source: CaseData) -> Scenario:
    probe = block_attention(op, kv_heads)
    return replace(probe.scenario(source, ROWS, 2.0), wants=(Named(wanted),))


def _sloped(op: ops.ChooseBlocks | ops.ChooseKeys, source: CaseData) -> Scenario:
    """Return chosen keys whose scores fall with distance, of some queries more than of others."""
    probe = block_attention(op, slopes=(0.6, 0.2, 0.07, 0.0))
    return replace(probe.scenario(source, ROWS, 2.0), wants=(Named(OUTPUT),))


def _ties(source: CaseData) -> Scenario:
    """Return integers for which many blocks share the largest product."""
    probe = block_attention(ops.ChooseBlocks(2, DIM, 16, 3))
    scenario = probe.scenario(source, ROWS)
    (feed,) = scenario.feeds
    small = {
        name: source.integers(-1, 2, *feed.inputs[name].shape).astype(F32)
        for name in ("index_q", "index_k")
    }
    feed = replace(feed, inputs={**feed.inputs, **small})
    return replace(scenario, feeds=[feed], wants=(Named(CHOSEN),))


def sparse(source: CaseData) -> ProbeProgram:
    """Return the small program of the state cases."""
    return block_attention(FOUR)


def choosing(source: CaseData) -> ProbeProgram:
    """Return `sparse` with its blocks as the output."""
    probe = sparse(source)
    graph = replace(probe.program.trunk, outputs=(CHOSEN,))
    return replace(probe, program=replace(probe.program, graphs={"trunk": graph}))
