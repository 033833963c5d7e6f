"""Weights on the device: matrices, tables, stacks of experts and heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cortiq.numerics.codes import Fields
from cortiq.numerics.layouts import Weight, floats, unpack
from cortiq.numerics.matmul import check_columns
from cortiq_mlx.arithmetic import Faults, Rows, snap
from cortiq_mlx.exact import PLANE
from cortiq_mlx.forms import Codes, form_of
from cortiq_mlx.library import mx
from cortiq_mlx.products import CELLS, by_block, code_product, float_product


class Matrix:
    """A weight [count·height, width]: codes in pieces, or plain floats [count, height, width]."""

    def __init__(self, weight: Weight, name: str, count: int = 1) -> None:
        height, self.width = weight.shape
        self.count, self.height = count, height // count
        self.floating = weight.layout.kind == "float"
        if self.floating:
            self.values = mx.array(floats(weight, name).reshape(count, self.height, self.width))
            return
        check_columns(self.width)
        fields = unpack(weight, name)
        self.form = form_of(fields, self.width)
        self.codes = self._laid_out(fields)

    def _laid_out(self, fields: Fields) -> Codes:
        """Upload, with the outputs along the last axis."""
        form, blocks = self.form, fields.scale.shape[1]
        codes = fields.codes.astype(np.int16) - np.int16(form.shift)
        high = (codes + np.int16(PLANE)) >> 8
        parts = [codes] if form.planes == 1 else [high, codes - (high << 8)]
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
        return Codes(form, stored, self._upload(fields.scale, (blocks, 1)), **extras)

    def _upload(self, x: np.ndarray, columns: tuple[int, ...]) -> mx.array:
        """[count·height, columns…] as [columns but the last…, count, the last, height]."""
        split = x.reshape(self.count, self.height, *columns)
        split = np.moveaxis(np.moveaxis(split, 1, -1), 0, -3)
        return mx.array(np.ascontiguousarray(split))

    def arrays(self) -> list[mx.array]:
        """What is kept on the device."""
        return [self.values] if self.floating else self.codes.arrays()

    def joins(self, other: Matrix) -> bool:
        """Whether both can be outputs of one matrix."""
        if self.floating or other.floating:
            return False
        return self.form == other.form and self.count == other.count == 1

    @staticmethod
    def joined(parts: Sequence[Matrix]) -> Matrix:
        """One matrix with the outputs of all parts."""
        whole = object.__new__(Matrix)
        whole.__dict__.update(parts[0].__dict__)
        whole.height = sum(part.height for part in parts)
        lists = [part.arrays() for part in parts]
        arrays = iter([mx.concatenate(list(same), axis=-1) for same in zip(*lists, strict=True)])
        whole.codes = parts[0].codes.mapped(lambda _: next(arrays))
        mx.eval(whole.arrays())
        return whole

    def product(self, x: Rows | mx.array, faults: Faults) -> mx.array:
        """x [count, rows, K] times the matrices: float32 [count, rows, height].

        faults : of count·rows rows.
        """
        if isinstance(x, Rows):
            return code_product(self.codes, x, faults)
        return float_product(self.values, x, faults)

    def chosen_product(self, x: Rows | mx.array, index: mx.array, faults: Faults) -> mx.array:
        """x [pairs, 1, K] times the matrices of an index [pairs]: float32 [pairs, 1, height]."""
        pairs, size = index.shape[0], self.width * self.height
        step = max(1, (CELLS * 4) // size)
        faults_seen: list[Faults] = []
        parts = []
        for start in range(0, pairs, step):
            cut = slice(start, min(start + step, pairs))
            some, flags = index[cut], Faults(cut.stop - cut.start)
            if isinstance(x, Rows):
                rows = Rows(x.q[cut], x.e[cut])
                parts.append(code_product(self.codes.picked(some), rows, flags))
            else:
                values = mx.take(self.values, some, axis=0)
                parts.append(float_product(values, x[cut], flags))
            faults_seen.append(flags)
        faults.see(mx.concatenate([flags.seen() for flags in faults_seen]))
        return mx.concatenate(parts)

    def rows(self, ids: mx.array, faults: Faults) -> mx.array:
        """Rows of a table, a stack of one: float32 [ids, K]."""
        if self.floating:
            return snap(mx.take(self.values[0], ids, axis=0), faults)
        return snap(_values(self.codes, ids)[:, : self.width], faults)


def _values(weight: Codes, ids: mx.array) -> mx.array:
    """Elements of rows of a table: RN(scale·code) [+ RN(minimum·offset)], float32 [ids, K]."""
    form = weight.form
    part = weight.mapped(lambda x: mx.take(x, ids, axis=-1).squeeze(-3))
    codes = part.codes[0].astype(mx.int32) + form.shift
    if form.planes == 2:
        codes = codes * 256 + part.codes[1].astype(mx.int32)
    codes = by_block(codes, form)
    if part.scales is not None:
        codes = codes * part.scales
    values = codes.astype(mx.float32) * part.scale[:, None]
    if part.minimum is not None and part.offsets is not None:
        values = values + part.offsets.astype(mx.float32) * part.minimum[:, None]
    return values.transpose(3, 0, 1, 2).reshape(len(ids), -1)
