"""Weights on the device: matrices, tables, stacks of experts and heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cortiq.backend.array_kernels import reshaped
from cortiq.numerics.layouts import Weight, floats, unpack
from cortiq.numerics.matmul import check_columns
from cortiq.numerics.unpacked_weights import UnpackedWeight
from cortiq_mlx.code_forms import MatrixCodes, form_of, narrowed
from cortiq_mlx.exact_sums import PLANE
from cortiq_mlx.library import mx
from cortiq_mlx.products import CELLS, code_product, float_product, part_height
from cortiq_mlx.quantised_rows import Faults, MlxRows, snap

MANY = 2
"""Rows for each matrix of a stack from which on they are multiplied matrix by matrix."""


class MlxMatrix:
    """A weight [count·height, width]: codes in pieces, or plain floats [count, height, width]."""

    def __init__(self, weight: Weight, name: str, count: int = 1) -> None:
        height, self.width = weight.shape
        self.count, self.height = count, height // count
        self.floating = weight.layout.kind == "float"
        if self.floating:
            self.values = mx.array(floats(weight, name).reshape(count, self.height, self.width))
            return
        check_columns(self.width)
        fields = narrowed(unpack(weight, name))
        self.form = form_of(fields, self.width)
        self.codes = self._laid_out(fields)
        self.parts: list[MatrixCodes] = []

    def _laid_out(self, fields: UnpackedWeight) -> MatrixCodes:
        """Upload, with the outputs along the last axis."""
        form, blocks = self.form, fields.scale.shape[1]
        codes = fields.codes.astype(np.int32) - np.int32(form.shift)
        parts = []
        for _ in range(form.planes - 1):
            high = (codes + PLANE) >> 8
            parts.append(codes - (high << 8))
            codes = high
        parts = [codes, *reversed(parts)]
        block = form.piece * form.pieces
        # Only the last block of a row may be short, and only if pieces are the rest of it.
        padded = [np.pad(part, ((0, 0), (0, blocks * block - self.width))) for part in parts]
        shape = (blocks * form.pieces, form.piece)
        stored = tuple(self._upload(part.astype(np.int8), shape) for part in padded)
        extras: dict[str, mx.array] = {}
        if fields.minimum is not None:
            extras["minimum"] = self._upload(fields.minimum, (blocks, 1))
            offsets = fields.offsets
            if offsets is None:
                offsets = np.ones((len(codes), blocks), np.int8)
            extras["offsets"] = self._upload(offsets.astype(np.int8), (blocks, -1, 1))
        if fields.sub_scales is not None:
            scales = fields.sub_scales.astype(np.int8)
            extras["scales"] = self._upload(scales, (blocks, form.pieces, 1))
        return MatrixCodes(form, stored, self._upload(fields.scale, (blocks, 1)), **extras)

    def _upload(self, x: np.ndarray, columns: tuple[int, ...]) -> mx.array:
        """Upload [count·height, columns…] as [columns but the last…, count, the last, height]."""
        split = x.reshape(self.count, self.height, *columns)
        split = np.moveaxis(np.moveaxis(split, 1, -1), 0, -3)
        return mx.array(np.ascontiguousarray(split))

    def split(self) -> None:
        """Split the outputs into contiguous parts, once no other matrix joins this."""
        if self.floating or self.parts:
            return
        count = -(-self.height // self.step)
        self.codes = self.codes.mapped(lambda x: _in_parts(x, count, self.step))
        self.parts = [self.codes.mapped(lambda x, at=at: x[at]) for at in range(count)]  # type: ignore[misc]
        mx.eval(self.codes.arrays(), [part.arrays() for part in self.parts])

    @property
    def step(self) -> int:
        """Outputs of a part."""
        return part_height(self.height, self.width, self.count)

    def joins(self, other: MlxMatrix) -> bool:
        """Check whether both can be outputs of one matrix."""
        if self.floating or other.floating:
            return False
        return self.form == other.form and self.count == other.count == 1

    @staticmethod
    def joined(parts: Sequence[MlxMatrix]) -> MlxMatrix:
        """Join matrices to one with all their outputs."""
        whole = object.__new__(MlxMatrix)
        whole.__dict__.update(parts[0].__dict__)
        whole.height = sum(part.height for part in parts)
        lists = [part.codes.arrays() for part in parts]
        arrays = iter([mx.concatenate(list(same), axis=-1) for same in zip(*lists, strict=True)])
        whole.codes = parts[0].codes.mapped(lambda _: next(arrays))
        mx.eval(whole.codes.arrays())
        return whole

    def multiply(self, x: MlxRows | mx.array, faults: Faults) -> mx.array:
        """Multiply x [rows, K] with the one matrix: float32 [rows, height]."""
        rows = x.shape[0]
        return self.product(reshaped(x, 1, rows), faults).reshape(rows, -1)

    def product(self, x: MlxRows | mx.array, faults: Faults) -> mx.array:
        """Multiply x [count, rows, K] with the matrices: float32 [count, rows, height].

        faults : of count·rows rows.
        """
        if isinstance(x, MlxRows):
            y = code_product(self.parts, x, faults)
            return y if y.shape[-1] == self.height else y[..., : self.height]
        return float_product(self.values, x, faults)

    def chosen_product(self, x: MlxRows | mx.array, index: mx.array, faults: Faults) -> mx.array:
        """Multiply x [pairs, 1, K] with matrices by index [pairs]: float32 [pairs, 1, height]."""
        if index.shape[0] > MANY * self.count and isinstance(x, MlxRows):
            return self._by_matrix(x, np.array(index), faults)
        pairs, size = index.shape[0], self.width * self.height
        step = max(1, (CELLS * 4) // size)
        faults_seen: list[Faults] = []
        parts = []
        for start in range(0, pairs, step):
            cut = slice(start, min(start + step, pairs))
            some, flags = index[cut], Faults(cut.stop - cut.start)
            if isinstance(x, MlxRows):
                rows = MlxRows(x.q[cut], x.e[cut])
                parts.append(code_product([self.parts[0].picked(some)], rows, flags))
            else:
                values = mx.take(self.values, some, axis=0)
                parts.append(float_product(values, x[cut], flags))
            faults_seen.append(flags)
        faults.see(mx.concatenate([flags.seen() for flags in faults_seen]))
        return mx.concatenate(parts)

    def _by_matrix(self, x: MlxRows, index: np.ndarray, faults: Faults) -> mx.array:
        """Multiply all pairs of a matrix at once, by the choice computed on the host before."""
        order = np.argsort(index, kind="stable")
        ends = np.searchsorted(index[order], np.arange(self.count + 1))
        found, seen = [], []
        for at in np.unique(index):
            some = mx.array(order[ends[at] : ends[at + 1]])
            flags = Faults(some.size)
            rows = MlxRows(mx.take(x.q[:, 0], some, axis=0)[None], mx.take(x.e[:, 0], some)[None])
            one = [part.matrix(int(at)) for part in self.parts]
            found.append(code_product(one, rows, flags)[0, :, : self.height])
            seen.append(flags.seen())
        back = mx.array(np.argsort(order))
        faults.see(mx.take(mx.concatenate(seen), back))
        return mx.take(mx.concatenate(found), back, axis=0)[:, None]

    def rows(self, ids: mx.array, faults: Faults) -> mx.array:
        """Look up rows of a table, a stack of one: float32 [ids, K]."""
        if self.floating:
            return snap(mx.take(self.values[0], ids, axis=0), faults)
        return snap(_values(self.codes, ids, self.step)[:, : self.width], faults)


def _in_parts(x: mx.array, count: int, step: int) -> mx.array:
    """Split […, height] into [parts, …, step], zero past the last output."""
    missing = count * step - x.shape[-1]
    if missing:
        x = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    return mx.contiguous(mx.moveaxis(x.reshape(*x.shape[:-1], count, step), -2, 0))


def _values(weight: MatrixCodes, ids: mx.array, step: int) -> mx.array:
    """Compute rows of a table: RN(scale·code) [+ RN(minimum·offset)], float32 [ids, K]."""
    form = weight.form
    where, place = ids // step, ids % step
    # [ids, blocks or slices, …, columns or 1]: a stack of one, and the parts it was cut into.
    part = weight.mapped(lambda x: x[(where, *[slice(None)] * (x.ndim - 2), place)].squeeze(-2))
    codes = part.codes[0].astype(mx.int32) + form.shift
    for plane in part.codes[1:]:
        codes = codes * 256 + plane.astype(mx.int32)
    codes = codes.reshape(len(ids), -1, form.pieces, form.piece)
    if part.scales is not None:
        codes = codes * part.scales
    values = codes.astype(mx.float32) * part.scale[:, :, None]
    if part.minimum is not None and part.offsets is not None:
        values = values + part.offsets.astype(mx.float32) * part.minimum[:, :, None]
    return values.reshape(len(ids), -1)
