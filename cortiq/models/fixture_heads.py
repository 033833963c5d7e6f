"""Draft heads of the fixtures: their tensors, and the formula of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from cortiq.models.head_tensors import SYNTHETIC_TENSORS, HeadTensors
from cortiq.models.patterns import pattern
from cortiq.numerics.contract import F32, Floats

MIMO_PREFIX, MTP_PREFIX = "model.mtp.layers.", "mtp."
MIMO_SINKS = (0.3, -0.7, 1.1, 0.0)
MIMO_WIDTHS = (24, 24, 24)
MIMO_SALTS = {name: i for i, name in enumerate((
    "eh_proj", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
))}  # fmt: skip
MTP_SALTS = {"mtp.fc": 301} | {f"mtp.layers.0.{name}": 311 + i for i, name in enumerate((
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
))}  # fmt: skip


@dataclass(frozen=True)
class MimoHead:
    """Three draft layers like the trunk's windowed ones, each with an MLP of its own width."""

    widths: tuple[int, ...] = MIMO_WIDTHS

    def problems(self, shapes: Mapping[str, tuple[int, ...]]) -> Sequence[str]:
        """Refuse all but two KV heads with sinks, and an MLP without experts."""
        names = [name.rpartition(".")[0] for name in shapes]
        if any(name.startswith(MTP_PREFIX) for name in names):
            return names
        values = [shape for name, shape in shapes.items() if "v_proj" in name]
        windowed = any(name.endswith(".sinks") for name in shapes) and values == [(8, 16)]
        described = windowed or (not values and all("block_sparse_moe" not in n for n in names))
        return () if described else names

    def rows(self, name: str) -> int | None:
        """Return the rows of a gate."""
        if not name.startswith(MIMO_PREFIX):
            return None
        return self.widths[int(name.removeprefix(MIMO_PREFIX).partition(".")[0])]

    def called(self, name: str) -> str:
        """Return the canonical name."""
        return name


HELD: Mapping[str, HeadTensors] = {"tiny-mimo": MimoHead()}
"""Tensors of the fixtures' heads; other models have any tensor."""


def head_tensors(name: str) -> HeadTensors:
    """Return the tensors that a synthetic model's draft head has."""
    return HELD.get(name, SYNTHETIC_TENSORS)


def mimo_head_values(name: str, shape: tuple[int, ...]) -> Floats:
    """Return a tensor of `tiny-mimo`'s draft layers; norms are 1."""
    layer, _, rest = name.removeprefix(MIMO_PREFIX).partition(".")
    salt = MIMO_SALTS.get(rest.removesuffix(".weight"))
    if rest == "self_attn.sinks":
        return np.array(MIMO_SINKS, F32)
    if salt is None:
        return np.ones(prod(shape), F32)
    salt += 500 + 40 * int(layer)
    return pattern(prod(shape), salt, a=37, b=13, c=3, period=89, size=0.6)


def mtp_head_values(name: str, shape: tuple[int, ...]) -> Floats:
    """Return a tensor of `tiny-ties`'s draft module; norms are 1."""
    salt = MTP_SALTS.get(name.removesuffix(".weight"))
    if salt is None:
        return np.ones(prod(shape), F32)
    return pattern(prod(shape), salt, a=29, b=23, c=5, period=101, size=0.2)
