"""Level 1: each layer with random geometry, as the backend claims it and as its decomposition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from cortiq.ir import Builder, Op, Type
from cortiq.ir.layers import (
    KDA,
    MLP,
    Approach,
    Attention,
    Blend,
    Embedding,
    GatedDeltaNet,
    GatedMLP,
    LatentAttention,
    LayerNorm,
    Linear,
    Mamba2,
    MoE,
    PerLayerGate,
    PerLayerInputs,
    QKNorm,
    Residual,
    RMSNorm,
    Rope,
    ShortConv,
    WindowIndexer,
)
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import LAYOUTS, Weight
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.route import Router
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.case_weights import LAYER_LAYOUTS, typical
from cortiq_conformance.drives import BatchedDrive, ChunkedDrive, Drive
from cortiq_conformance.layer_options import OPTIONS
from cortiq_conformance.layer_streams import SEVERAL, joined, stream_inputs, with_own
from cortiq_conformance.probes import CONTEXT, OUTPUT, ProbeProgram, bound, vector
from cortiq_conformance.state_drives import ExportDrive, ForkDrive, RewindDrive, SnapshotDrive

EPS = 1e-6
ROWS = 70
"""More than a tile."""
GEOMETRIES = 4

DRIVES: dict[str, Drive] = {
    "chunks of 1": ChunkedDrive(1),
    "chunks of 7": ChunkedDrive(7),
    "batch": BatchedDrive(64),
    "rewind": RewindDrive(37),
    "snapshot": SnapshotDrive(37),
    "fork": ForkDrive(37),
    "export": ExportDrive(37),
}
STATEFUL = ("Attention", "LatentAttention", "ShortConv", "GatedDeltaNet", "KDA", "Mamba2")
TURNS = 200
"""Positions of the axes of mRoPE are below it."""
BLOCKS = 20
"""Blocks of keys that rows list are below it."""
CHOSEN_KEYS = 9
"""Keys that rows of latent attention list, if they are chosen."""


class _Dice:
    """Random choices of a geometry, seeded by its name."""

    def __init__(self, name: str) -> None:
        self._source = CaseData(f"geometry of {name}")

    def one_of(self, *choices: object) -> object:
        """Return one of the choices."""
        return choices[int(self._source.integers(0, len(choices), 1)[0])]

    def number(self, *choices: int) -> int:
        """Return one of these numbers."""
        return int(self.one_of(*choices))  # type: ignore[call-overload]

    def flip(self) -> bool:
        """Return true or false."""
        return bool(self.one_of(False, True))


def _attention(d: _Dice) -> Attention:
    kv_heads, dim = d.number(1, 2, 3), d.number(8, 16, 32)
    rotated = d.number(dim // 2, dim)
    return Attention(
        width=d.number(32, 64, 96),
        heads=kv_heads * d.number(1, 2, 3),
        kv_heads=kv_heads,
        head_dim=dim,
        value_dim=d.one_of(None, dim // 2),  # type: ignore[arg-type]
        rope=d.one_of(None, RopeTable(10000.0, rotated)),  # type: ignore[arg-type]
        pairing=str(d.one_of("half", "interleaved")),
        window=d.one_of(None, 5, 64),  # type: ignore[arg-type]
        soft_cap=d.one_of(None, 30.0),  # type: ignore[arg-type]
        sinks=d.flip(),
        qk_norm=d.one_of(None, QKNorm(EPS), QKNorm(EPS, 1.0)),  # type: ignore[arg-type]
        biased=d.flip(),
        output_biased=d.flip(),
    )


def _latent(d: _Dice) -> LatentAttention:
    nope, rope = d.number(8, 16), d.number(4, 8)
    return LatentAttention(
        width=d.number(32, 64), heads=d.number(2, 4), latent=d.number(16, 32), nope_dim=nope,
        rope_dim=rope, value_dim=d.number(8, 16), eps=EPS, scale=(nope + rope) ** -0.5,
        rope=RopeTable(10000.0, rope), query_latent=d.number(0, 24),
    )  # fmt: skip


def _moe(d: _Dice) -> MoE:
    kind = str(d.one_of("softmax", "sigmoid", "softmax_topk"))
    router = Router(d.number(1, 2, 3), kind, d.flip(), routed_scaling=float(d.number(1, 2)))
    return MoE(
        width=d.number(32, 64), inner=d.number(32, 48), experts=d.number(4, 8), router=router,
        activation=str(d.one_of("silu", "gelu_tanh")), selection_bias=d.flip(),
        shared_inner=d.number(0, 32),
    )  # fmt: skip


def _delta_net(d: _Dice) -> GatedDeltaNet:
    key_heads = d.number(1, 2, 3)
    return GatedDeltaNet(
        width=d.number(32, 64), heads=key_heads * d.number(1, 2), key_heads=key_heads,
        key_dim=d.number(8, 16, 24), value_dim=d.number(16, 32), kernel=d.number(2, 4), eps=EPS,
        grouped=("qkvz", "ba") if d.flip() else (),
    )  # fmt: skip


def _kimi(d: _Dice) -> KDA:
    return KDA(
        width=d.number(32, 64), heads=d.number(1, 2, 3), key_dim=d.number(8, 16),
        value_dim=d.number(16, 32), kernel=d.number(2, 4), eps=EPS, decay_rank=d.number(8, 16),
        gate_rank=d.number(0, 16),
    )  # fmt: skip


def _space(d: _Dice) -> Mamba2:
    groups = d.number(1, 2)
    return Mamba2(
        width=d.number(32, 64), heads=groups * d.number(1, 2, 3), head_dim=d.number(8, 16),
        state_dim=d.number(8, 16, 24), groups=groups, kernel=d.number(2, 4), eps=EPS,
        norm_groups=groups, biased=d.flip(), conv_biased=d.flip(),
    )  # fmt: skip


LAYERS: dict[str, Callable[[_Dice], Op]] = {
    "Embedding": lambda d: Embedding(40, d.number(256, 512), float(d.number(1, 16)) ** 0.5),
    "Linear": lambda d: Linear(d.number(256, 512, 768), d.number(5, 70, 129), d.flip()),
    "RMSNorm": lambda d: RMSNorm(d.number(48, 300, 576), EPS, float(d.number(0, 1))),
    "LayerNorm": lambda d: LayerNorm(d.number(48, 300, 576), 1e-5, d.flip()),
    "Rope": lambda d: Rope(RopeTable(500000.0, d.number(8, 16)), str(d.one_of("half"))),
    "Residual": lambda d: Residual(float(d.one_of(1.0, 0.22, 2.5))),  # type: ignore[arg-type]
    "GatedMLP": lambda d: GatedMLP(
        d.number(256, 512), d.number(256, 512), str(d.one_of("silu", "gelu_tanh")), d.flip()
    ),
    "MoE": _moe,
    "ShortConv": lambda d: ShortConv(d.number(32, 64), d.number(2, 3, 4), d.flip()),
    "Attention": _attention,
    "LatentAttention": _latent,
    "MLP": lambda d: MLP(
        d.number(256, 512), d.number(256, 512), str(d.one_of("relu", "gelu_tanh")), d.flip()
    ),
    "GatedDeltaNet": _delta_net,
    "KDA": _kimi,
    "Mamba2": _space,
}
"""A layer with its geometry drawn."""


def cases() -> Iterator[Case]:
    """Yield all cases of level 1."""
    for kind, draw in LAYERS.items():
        seen = set()
        for number in range(GEOMETRIES):
            op = draw(_Dice(f"{kind} {number}"))
            layout = _layout(op, number)
            if (op, layout) not in seen:
                yield _case(kind, op, layout, False)
                yield _case(kind, op, layout, True)
            seen.add((op, layout))
        if kind in STATEFUL:
            for what, drive in DRIVES.items():
                family = f"{kind} {what.partition(' of ')[0]}"
                build = partial(scenario, op, layout, False, drive)
                name = f"level1/{family}[{what}, {_geometry(op)}]"
                yield Case(name, 1, family, kind, build, stage=2)
    for number, op in enumerate(OPTIONS):
        yield _case(op.kind, op, _layout(op, number), False)


def _case(kind: str, op: Op, layout: str, decomposed: bool) -> Case:
    twin = ", as its decomposition" if decomposed else ""
    name = f"level1/{kind}[{_geometry(op)}, {layout}{twin}]"
    build = partial(scenario, op, layout, decomposed, ChunkedDrive())
    return Case(name, 1, kind, kind, build)


def _geometry(op: Op) -> str:
    """Return the operator's description without its name."""
    return op.describe().partition("(")[2][:-1]


def _layout(op: Op, number: int) -> str:
    """Return a layout whose blocks divide every row of the layer's matrices; it varies."""
    columns = [shape[-1] for role, shape in op.weight_shapes().items() if _is_matrix(role, shape)]
    fitting = [
        name
        for name in LAYER_LAYOUTS
        if LAYOUTS[name].kind != "blocks" or all(n % LAYOUTS[name].block == 0 for n in columns)
    ]
    return fitting[(number * 5 + len(op.kind)) % len(fitting)] if columns else "f32"


def _is_matrix(role: str, shape: tuple[int, ...]) -> bool:
    return len(shape) > 1 and role not in ("conv", "index_pool") and not role.endswith("_bias")


def weights_of(op: Op, layout: str, source: CaseData) -> dict[str, Weight]:
    """Return random weights by role: matrices in the layout, gains around 1, others around 0."""
    found = {}
    for role, shape in op.weight_shapes().items():
        rows = int(np.prod(shape[:-1]))
        if _is_matrix(role, shape):
            found[role] = typical(source, layout, rows, shape[-1])
        else:
            values = source.floats(rows, shape[-1]) * F32(0.25)
            values = np.where(values > 0, F32(1), F32(0)) if role == "mask" else values
            values = -np.abs(values) if role == "A" else values  # a decay
            gain = role.endswith("norm") or role == "weight"
            found[role] = vector(values + F32(1) if gain else values)
    return found


def _inputs(op: Op) -> dict[str, Type]:
    """Return a row's inputs besides token and position, in the layer's order."""
    if isinstance(op, Embedding):
        return {}
    if isinstance(op, Rope):
        return {"x": Type((2, op.table.dim))}
    if isinstance(op, Residual | Blend | Approach):
        return {"x": Type((64,)), "branch": Type((64,))}
    streams = stream_inputs(op)
    if streams is not None:
        return streams
    width = Type((int(getattr(op, "width", None) or getattr(op, "in_width", None) or 0),))
    found = {"x": width}
    if isinstance(op, Attention):
        found |= {"turns": Type((op.sections.count,), "i32")} if op.sections else {}
        found |= {"blocks": op.listed.type} if op.listed else {}
        found |= {"values": width} if op.value_input else {}
    if isinstance(op, LatentAttention) and op.chosen:
        found["keys" if op.block == 1 else "blocks"] = Type((1, CHOSEN_KEYS), "i32")
    if isinstance(op, WindowIndexer) and op.sections:
        found |= dict.fromkeys(("turns", "begins"), Type((op.sections.count,), "i32"))
    if isinstance(op, MoE) and op.router_input:
        found["routed"] = width
    if isinstance(op, PerLayerGate):
        found["given"] = Type((op.layers * op.dim,))
    return found


def layer_probe(op: Op, layout: str, source: CaseData) -> ProbeProgram:
    """Build a program of one layer."""
    b, weights, inputs = Builder(context=CONTEXT), weights_of(op, layout, source), _inputs(op)
    token, position = b.input("token"), b.input("position")
    taken = [b.input(name, kind.shape, kind.dtype) for name, kind in inputs.items()]
    taken = with_own(op, taken, token, position)
    roles = {role: role for role in weights}
    slots = {role: role for role in op.slot_kinds()}
    name = "layer" if isinstance(op, SEVERAL) else OUTPUT
    found = b.add_node(op, *taken, name=name, weights=roles, slots=slots)
    first = found[0].name if name == OUTPUT else joined(b, found, OUTPUT)
    limits = {"token": _vocabulary(op), "keys": ROWS, "blocks": BLOCKS}
    limits |= {"turns": TURNS, "begins": TURNS}
    return ProbeProgram(bound(b.program((first,)), weights), weights, inputs, limits)


def _vocabulary(op: Op) -> int:
    """Return one past the largest token; per-layer tables lack the last few."""
    more = 5 if isinstance(op, PerLayerInputs) else 0
    return op.vocab + more if isinstance(op, Embedding | PerLayerInputs) else 2


def scenario(op: Op, layout: str, decomposed: bool, drive: Drive, source: CaseData) -> Scenario:
    """Return a scenario of a layer's rows with this drive."""
    probe = layer_probe(op, layout, source)
    counts = (ROWS, 30, 66) if isinstance(drive, BatchedDrive) else (ROWS,)
    feeds = [probe.feed(source, rows) for rows in counts]
    found = Scenario(probe.program, probe.weights, feeds, drive=drive)
    return replace(found, decomposed=decomposed)
