"""Cross attention: several requests in a batch, each of which attends to rows of its own encoder.

Another entry stores an encoder's keys and values; the trunk's rows supply the last one they see.
Each request has other rows, and as many as it has: fewer than its own, a tile, runs of tiles.
Rows that list the blocks of theirs (tiles of images beside a text) see none, one or several, and a
request may have none at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from cortiq.ir import Builder, Program, Type, ops
from cortiq.ir.encoded import ENCODED, LAST_ENCODED, EncodedRows
from cortiq.ir.images import TILES as TILE_NUMBERS
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import Attention, ListedBlocks
from cortiq.ir.ops import Quantise, Reshape, StoreKV
from cortiq_conformance.case import Case
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.crossed_scenario import CrossedDrive, CrossedScenario
from cortiq_conformance.drives import SequenceInput
from cortiq_conformance.layers import weights_of
from cortiq_conformance.probes import CONTEXT, OUTPUT, bound, floats

SEQUENCES = 2
"""Stage of level 0."""
FAMILY = "Attend crossed"
MOST = 1200
"""Rows of an encoder at most."""
WIDTH = 32
COUNTS: dict[str, tuple[tuple[int, int], ...]] = {
    "3 keys and more": ((3, 5), (5, 4), (7, 9), (4, 1)),
    "1 to 130 keys": ((1, 6), (63, 3), (64, 5), (65, 70), (130, 2)),
    "more than a run of tiles": ((1100, 3), (3, 7), (513, 66)),
}
"""Encoder's rows and own ones of the requests of a batch, by description."""
TILE, TILES = 17, 8
"""Keys of a block that rows list, and blocks of a list."""
LISTED = ((1, 5), (0, 4), (3, 70), (6, 9))
"""Blocks of the encoder's rows and own rows of the requests of a batch."""
GEOMETRIES = ((4, 2, 8, 8), (6, 1, 8, 12), (3, 3, 16, 8))


def cases() -> Iterator[Case]:
    """Yield cross attention of level 0."""
    for what, counts in COUNTS.items():
        for geometry in GEOMETRIES:
            heads, kv_heads, key_dim, value_dim = geometry
            shape = f"{heads} heads on {kv_heads}, keys of {key_dim}, values of {value_dim}"
            for step, how in ((0, "whole"), (2, "2 rows of each at a time")):
                if step == 0 or geometry == GEOMETRIES[0]:
                    build = partial(_crossed, geometry, counts, step)
                    case_id = f"level0/{FAMILY}[{what}, {shape}, {how}]"
                    yield Case(case_id, 0, FAMILY, "Attend", build, SEQUENCES)
    for geometry in GEOMETRIES:
        for step, how in ((0, "whole"), (2, "2 rows of each at a time")):
            case_id = f"level0/{FAMILY}[blocks that rows list, {geometry[0]} heads, {how}]"
            build = partial(_crossed, geometry, LISTED, step, block=TILE)
            yield Case(case_id, 0, FAMILY, "Attend", build, SEQUENCES)


def layer_cases() -> Iterator[Case]:
    """Yield layers of cross attention, of level 1: as claimed, and as their decomposition."""
    for what, counts in COUNTS.items():
        for decomposed in (False, True):
            twin = ", as its decomposition" if decomposed else ""
            build = partial(_layer, counts, decomposed)
            case_id = f"level1/Attention crossed[{what}{twin}]"
            yield Case(case_id, 1, "Attention crossed", "Attention", build, SEQUENCES)
    for decomposed in (False, True):
        twin = ", as its decomposition" if decomposed else ""
        case_id = f"level1/Attention crossed[blocks that rows list{twin}]"
        build = partial(_layer, LISTED, decomposed, blocks=ListedBlocks(TILE, TILES))
        yield Case(case_id, 1, "Attention crossed", "Attention", build, SEQUENCES)


def _crossed(
    geometry: tuple[int, int, int, int],
    counts: tuple[tuple[int, int], ...],
    step: int,
    source: CaseData,
    block: int = 0,
) -> CrossedScenario:
    heads, kv_heads, key_dim, value_dim = geometry
    b = _begun(kv_heads * (key_dim + value_dim))
    given = b.input("q", (heads, key_dim), "f32")
    q = b.add(Quantise(), given, name="q.quantised")
    op = ops.Attend(*geometry, key_dim**-0.5, until=True, block=block)
    listed = [b.input(TILE_NUMBERS, (1, TILES))] if block else []
    b.add(op, q, b.input(LAST_ENCODED), *listed, name=OUTPUT, slots={"kv": "kv"})
    b.graph("trunk", (OUTPUT,))
    program = _stored(b, kv_heads, key_dim, value_dim)
    return _scenario(program, {}, {"q": floats(heads, key_dim)}, counts, step, source, block)


def _layer(
    counts: tuple[tuple[int, int], ...],
    decomposed: bool,
    source: CaseData,
    blocks: ListedBlocks | None = None,
) -> CrossedScenario:
    op = Attention(
        WIDTH, 4, 2, 8, biased=("q",), output_biased=True, shares_kv=True, until=True,
        listed=blocks,
    )  # fmt: skip
    b, weights = _begun(2 * 2 * op.head_dim), weights_of(op, "w8", source)
    x, position = b.input("x", (WIDTH,), "f32"), b.input("position")
    roles = {role: role for role in weights}
    last = b.input(LAST_ENCODED)
    listed = [] if blocks is None else [b.input(TILE_NUMBERS, blocks.type.shape)]
    b.add(op, x, position, last, *listed, name=OUTPUT, weights=roles, slots={"kv": "kv"})
    b.graph("trunk", (OUTPUT,))
    program = bound(_stored(b, op.kv_heads, op.head_dim, op.head_dim), weights)
    block = 0 if blocks is None else blocks.size
    found = _scenario(program, weights, {"x": floats(WIDTH)}, counts, 0, source, block)
    return replace(found, decomposed=decomposed)


def _begun(width: int) -> Builder:
    b = Builder(context=CONTEXT, facts={ENCODED: EncodedRows(MOST, width)})
    b.input("token")
    return b


def _stored(b: Builder, heads: int, key_dim: int, value_dim: int) -> Program:
    """Write the entry that stores keys and values, which its rows supply side by side."""
    b.input("position")
    row, codes, start = b.input(ENCODED, (heads * (key_dim + value_dim),), "f32"), [], 0
    for role, dim in (("k", key_dim), ("v", value_dim)):
        part = b.add(ops.Slice(start, start + heads * dim), row, name=role)
        part = b.add(Reshape((heads, dim)), part, name=f"{role}.heads")
        codes.append(b.add(Quantise(), part, name=f"{role}.codes"))
        start += heads * dim
    b.add_node(StoreKV(heads, key_dim, value_dim), *codes, name="store", slots={"kv": "kv"})
    b.graph(ENCODED, ())
    return b.program()


def _scenario(
    program: Program,
    weights: dict,
    inputs: dict[str, Type],
    counts: tuple[tuple[int, int], ...],
    step: int,
    source: CaseData,
    block: int = 0,
) -> CrossedScenario:
    """Return the requests; `block`: they have so many blocks of keys, of which rows list some."""
    width, sounds, feeds = program.facts[ENCODED].width, [], []
    for encoded, rows in counts:
        tiles, encoded = encoded, encoded * (block or 1)
        given = {ENCODED: source.floats(encoded, width, amplitude=2.0)}
        sounds.append(SequenceInput(np.zeros(encoded, np.int32), given, ENCODED))
        own = {name: source.floats(rows, *kind.shape, amplitude=2.0)
               for name, kind in inputs.items()}  # fmt: skip
        own[LAST_ENCODED] = np.full(rows, encoded - 1, np.int32)
        if block:
            stops = [row * (tiles + 1) // rows for row in range(rows)]
            seen = [ImageRows(tile=block, tiles=TILES).beside(max(stop - 1 - row % 3, 0), stop)
                    for row, stop in enumerate(stops)]  # fmt: skip
            own |= {name: np.stack([one[name] for one in seen])
                    for name in (LAST_ENCODED, TILE_NUMBERS)}  # fmt: skip
        feeds.append(SequenceInput(np.zeros(rows, np.int32), own))
    return CrossedScenario(program, weights, feeds, drive=CrossedDrive(sounds, step))
