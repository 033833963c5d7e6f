"""Level 1: layers whose products have three and four runs, and attention past two runs of tiles.

Backends that claim a layer whole have kernels of their own for it: level 0 does not see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from cortiq.ir import Op
from cortiq.ir.layers import Attention, GatedMLP, LatentAttention, Linear
from cortiq.numerics.rope import RopeTable
from cortiq_conformance.case import Case, Check
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import ChunkedDrive
from cortiq_conformance.import_scenario import ImportScenario, rows_before
from cortiq_conformance.layers import layer_probe, scenario
from cortiq_conformance.level0.long import KEYS, STEPS
from cortiq_conformance.level0.runs import BLOCKS

TABLE = RopeTable(10000.0, 16)
PRODUCTS: tuple[tuple[Op, str], ...] = (
    (Linear(256 * BLOCKS[3], 7), "Q4_K"),
    (Linear(256 * BLOCKS[4], 7), "Q6_K"),
    *((Linear(32 * BLOCKS[4], 7, True), layout) for layout in ("Q8_0", "Q4_0")),
    (GatedMLP(32 * BLOCKS[3], 32 * BLOCKS[4], "silu"), "Q4_1"),
    (GatedMLP(32 * BLOCKS[4], 32 * BLOCKS[3], "gelu_tanh"), "Q8_0"),
)
"""Layers with the layout of their matrices."""
ATTENTION: tuple[Op, ...] = (
    Attention(width=32, heads=4, kv_heads=2, head_dim=16, rope=TABLE),
    Attention(width=32, heads=2, kv_heads=1, head_dim=16, rope=TABLE, window=2500, sinks=True),
    LatentAttention(
        width=32, heads=2, latent=16, nope_dim=8, rope_dim=8, value_dim=8, eps=1e-6, scale=0.25
    ),
)  # fmt: skip
"""Layers that see all rows before them, or most of them."""


def cases() -> Iterator[Case]:
    """Yield the cases of level 1 in which three and four runs meet."""
    for op, layout in PRODUCTS:
        build = partial(scenario, op, layout, False, ChunkedDrive())
        yield _case(op, f"{layout}, several runs", build)
    for runs, keys in KEYS.items():
        for op in ATTENTION:
            yield _case(op, f"{runs} runs of tiles", partial(_long, op, keys))


def _case(op: Op, what: str, build: Callable[[CaseData], Check]) -> Case:
    name = f"level1/{op.kind}[{op.describe().partition('(')[2][:-1]}, {what}]"
    return Case(name, 1, op.kind, op.kind, build)


def _long(op: Op, keys: int, source: CaseData) -> ImportScenario:
    probe = layer_probe(op, "w8", source)
    feed = replace(probe.feed(source, sum(STEPS)), start=keys)
    return ImportScenario(probe, feed, rows_before(probe, source, keys), STEPS)
