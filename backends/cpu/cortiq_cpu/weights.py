"""Weights as the ops take them: matrices packed once, vectors as floats; made before any batch."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod

import numpy as np

from cortiq.backend import WeightKeeper
from cortiq.backend.compiling import CheckedWeights
from cortiq.backend.float_weights import MATRICES
from cortiq.ir import Node, Op, ops
from cortiq.numerics.attention import ScoreConstants, scoring
from cortiq.numerics.contract import Floats
from cortiq.numerics.layouts import Weight, floats
from cortiq.numerics.norms import checked_epsilon, offset_weight
from cortiq.numerics.scaling import gain
from cortiq_cpu.packing import PANEL, PackedMatrix, aligned_floats

TAP_BLOCK = 16
"""Channels whose taps lie together."""


class PackedWeights:
    """The weights of a program, prepared node by node and shared between nodes.

    Parameters
    ----------
    source : the weights by name. pool : whose threads pack them. kept : those packed before.
    """

    def __init__(
        self,
        source: Mapping[str, Weight],
        pool: ThreadPoolExecutor,
        kept: WeightKeeper | None = None,
    ) -> None:
        self._source, self._pool, self._kept = source, pool, kept
        # Those of a loaded model are read, and checked, when they are packed: not for their shape.
        self._form = source.unchecked if isinstance(source, CheckedWeights) else source.__getitem__
        self._once = source.once if isinstance(source, CheckedWeights) else source.__getitem__
        self._matrices: dict[str, PackedMatrix] = {}
        self._unplaced: list[str] = []
        self._vectors: dict[tuple[str, float, str], np.ndarray] = {}
        self._taps: dict[str, np.ndarray] = {}
        self._changes: dict[str, np.ndarray] = {}
        self._scorings: dict[ops.Attend, ScoreConstants] = {}

    def with_more(self, source: Mapping[str, Weight], pool: ThreadPoolExecutor) -> PackedWeights:
        """Return these weights, to which others of a source may be added; they are not kept."""
        more = PackedWeights(source, pool)
        for name in ("_matrices", "_vectors", "_taps", "_scorings"):
            setattr(more, name, dict(getattr(self, name)))
        return more

    def prepare(self, node: Node) -> None:
        """Pack a node's weights, and check its constants."""
        op = node.op
        if isinstance(op, MATRICES):
            for name in node.weights.values():
                self._pack(name, op)
            return
        if isinstance(op, ops.RMSNorm | ops.LayerNorm):
            checked_epsilon(op.eps)
        if isinstance(op, ops.Attend):
            self._scorings[op] = scoring(op.scale, op.soft_cap)
        for role, name in node.weights.items():
            if isinstance(op, ops.CausalConv) and role == "weight":
                self._taps[name] = tap_blocks(floats(self._source[name], name))
            else:
                self._prepare_vector(name, *vector_form(op, role))

    def _pack(self, name: str, op: Op) -> None:
        if name in self._matrices:
            return
        weight = self._form(name)
        names = () if weight.whole is None else self._source
        whole = next((n for n in names if self._form(n) is weight.whole), None)
        if whole is not None and weight.shape[0] % PANEL == 0:  # a panel's faults are all rows'
            self._pack(whole, op)
            self._matrices[name] = self._matrices[whole].first_rows(weight.shape[0])
            if self._kept is not None and whole in self._kept.taken:
                self._kept.taken.add(name)
            return
        *lead, _, _ = next(iter(op.weight_shapes().values()))
        matrix = PackedMatrix.unpacked(weight, prod(lead))
        self._matrices[name] = matrix
        if self._kept is None:
            matrix.pack(self._once(name), name, self._pool)
            return
        self._unplaced.append(name)
        if not self._kept.find(name, matrix.form, matrix.nbytes, self._pool):
            parts = matrix.parts(self._once(name), name, self._pool)
            self._kept.add(name, matrix.form, matrix.nbytes, parts)

    def place(self) -> None:
        """Have all matrices where they stay, once every node's are prepared."""
        if self._kept is not None:
            self._kept.place(self._pool)
            for name in self._unplaced:
                self._matrices[name].place(self._kept.data(name))

    def _prepare_vector(self, name: str, offset: float, form: str) -> None:
        values = floats(self._source[name], name).reshape(-1)
        if offset:
            values = offset_weight(values, offset)
        values = gain(values, form, name)
        self._vectors[name, offset, form] = np.ascontiguousarray(values)

    def matrix(self, name: str) -> int:
        """Return the address of the native description of a packed matrix or stack."""
        return self._matrices[name].address

    def takes(self, name: str, number: int, weight: Weight) -> bool:
        """Check whether the part of a bank for this number can be packed alone."""
        return name in self._matrices and self._matrices[name].takes(number, weight)

    def revise(self, name: str, number: int, weight: Weight) -> None:
        """Pack the part of a bank for a number anew, in its place."""
        self._matrices[name].revise(number, weight, name)
        if name in self._changes:
            self._changes[name][:] = self._matrices[name].changes()

    def changes(self, name: str) -> int:
        """Return the address of a byte for each matrix of a stack in w16: 0 if it is zero."""
        if name not in self._changes:
            self._changes[name] = self._matrices[name].changes()
        return self._changes[name].ctypes.data

    def nbytes(self, name: str) -> int:
        """Return the bytes of a packed matrix or stack."""
        return self._matrices[name].nbytes

    def elements(self, name: str) -> int:
        """Return the number of weights in a matrix or stack."""
        matrix = self._matrices[name]
        return matrix.matrices * matrix.height * matrix.width

    def vector(self, name: str, offset: float, form: str = "plain") -> int:
        """Return the address of the float32 values of a norm, bias, gain, or sinks."""
        return self._vectors[name, offset, form].ctypes.data

    def taps(self, name: str) -> int:
        """Return the address of a convolution's `tap_blocks`."""
        return self._taps[name].ctypes.data

    def scoring(self, op: ops.Attend) -> ScoreConstants:
        """Return the score constants of an attention layer."""
        return self._scorings[op]


def vector_form(op: Op, role: str) -> tuple[float, str]:
    """Return what an operator adds to its weights, and in which form they are."""
    offset = 0.0
    if isinstance(op, ops.RMSNorm | ops.LayerNorm) and role == "weight":
        offset = op.offset
    return offset, op.form if isinstance(op, ops.Gain) else "plain"


def tap_blocks(weight: Floats) -> Floats:
    """Reorder taps [width, taps] as the kernels read them: float32 [blocks, taps, `TAP_BLOCK`]."""
    width, taps = weight.shape
    padded = np.zeros((-(-width // TAP_BLOCK) * TAP_BLOCK, taps), np.float32)
    padded[:width] = weight
    blocks = aligned_floats(len(padded) // TAP_BLOCK, taps, TAP_BLOCK)
    blocks[:] = padded.reshape(-1, TAP_BLOCK, taps).transpose(0, 2, 1)
    return blocks
