"""Tensors of a folder that other programs quantised: the parts of a matrix, read as one tensor.

A module's codes, scales and zero points are tensors of their own, named `MODULE.qweight`,
`MODULE.weight_scale` and so on. What is there decides how it is read; the configuration is checked
against it (`quantisation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.mapped import MappedTensors, TensorInfo
from cortiq.formats.packed_codes import StoredNumbers

Rows = Callable[[int, int], npt.NDArray[np.uint8]]

DTYPES: Mapping[str, str] = {
    "I8": "i1", "U8": "u1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1", "I16": "<i2",
    "I32": "<i4", "U32": "<u4", "I64": "<i8", "F16": "<u2", "F32": "<u4", "BF16": "<u2",
}  # fmt: skip
"""Integers that hold an element of a type, or its bits."""


@dataclass(frozen=True)
class OrderedRows:
    """Rows of a matrix with its columns in another order, in which a layout holds them.

    Attributes
    ----------
    type, make : as of `PackedTensor`. columns : the column in each place.
    """

    type: str
    make: Rows
    columns: npt.NDArray[np.int64]


@dataclass(frozen=True)
class PackedTensor:
    """A matrix, or a stack of them, whose rows are made when they are asked for.

    Attributes
    ----------
    name, shape : as a file of plain floats would have them.
    type : the layout of the rows, or F32 where no layout holds the file's numbers.
    make : rows start…stop−1 of all matrices, one below the other: uint8 [n, bytes of a row].
    parts : names of the tensors that it is made of.
    note : why no layout holds the numbers, where none does.
    ordered : the same numbers in a layout, if one holds them in another order of columns.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    make: Rows
    parts: tuple[str, ...] = ()
    lazy: bool = True
    note: str = ""
    ordered: OrderedRows | None = None

    @property
    def height(self) -> int:
        """Rows of all matrices."""
        return prod(self.shape[:-1])

    @property
    def raw(self) -> npt.NDArray[np.uint8]:
        """All rows: uint8 [..., rows, bytes of a row]."""
        return self.make(0, self.height).reshape(*self.shape[:-1], -1)


@dataclass
class PackedModule:
    """The tensors of a module of a folder, by the ends of their names.

    Attributes
    ----------
    stem : the module's name. between : what stands between it and an end.
    bare : whether the matrix itself has the module's name, as stacks of experts do.
    whole : the module that it is a part of, where that has its scale; else empty.
    taken : ends that were asked for and are there.
    """

    folder: MappedTensors
    stem: str
    between: str = "."
    bare: bool = False
    whole: str = ""
    taken: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The tensor's name in a folder of plain floats."""
        return self.stem if self.bare else f"{self.stem}.weight"

    def full(self, end: str) -> str:
        """Return a tensor's whole name."""
        if self.whole and end != "weight":
            return f"{self.whole}{self.between}{end}"
        return self.stem if self.bare and end == "weight" else f"{self.stem}{self.between}{end}"

    def has(self, end: str) -> bool:
        """Return whether the module has a tensor with this end."""
        return self.full(end) in self.folder.tensors

    def type_of(self, end: str) -> str:
        """Return a tensor's type, or nothing if the module has none with this end."""
        return self.folder.tensors[self.full(end)].type if self.has(end) else ""

    def info(self, end: str) -> TensorInfo:
        """Return a tensor's type and shape; `FormatError` if it is missing."""
        name = self.full(end)
        if name not in self.folder.tensors:
            self.fail(f"lacks {name}")
        if end not in self.taken:
            self.taken.append(end)
        return self.folder.tensors[name]

    def raw(self, end: str) -> npt.NDArray[np.uint8]:
        """Return a tensor's bytes: uint8 [..., bytes of a row], mapped."""
        info = self.info(end)
        data = MappedTensors.raw(self.folder, info.name)
        return data.reshape(*info.shape[:-1], -1)

    def array(self, end: str, *types: str) -> npt.NDArray[np.integer]:
        """Return a tensor's elements, or the bits of floats, in its own shape, mapped.

        Raises
        ------
        FormatError : it is missing, or of none of these types.
        """
        info = self.info(end)
        if types and info.type not in types:
            self.fail(f"has {end} in {info.type}, not {' or '.join(types)}")
        if info.type not in DTYPES:
            self.fail(f"has {end} in {info.type}")
        return self.raw(end).view(DTYPES[info.type]).reshape(info.shape)

    def scales(self, end: str, *types: str) -> StoredNumbers:
        """Return a tensor's numbers in its own shape; errors as `array`."""
        return StoredNumbers(self.array(end, *types), self.info(end).type)

    def fail(self, what: str) -> NoReturn:
        """Raise FormatError about the module."""
        raise FormatError(f"{self.stem} {what}", where=str(self.folder.path))

    def decline(self, what: str, hint: str) -> NoReturn:
        """Raise UnsupportedError about the module."""
        raise UnsupportedError(f"{self.stem} {what}", where=str(self.folder.path), hint=hint)

    def made(self, shape: tuple[int, ...], layout: str, make: Rows, note: str = "") -> PackedTensor:
        """Return the tensor that was made of what was asked for."""
        parts = tuple(self.full(end) for end in self.taken)
        return PackedTensor(self.name, shape, layout, make, parts, note=note)

    def multiple(self, columns: int, block: int) -> None:
        """Check that rows are whole blocks of our layouts."""
        if columns % block:
            hint = f"rows of quantised matrices are multiples of {block} columns"
            self.decline(f"has rows of {columns} columns", hint)


class PackedFolder(MappedTensors):
    """The tensors of a folder, each group of parts as one tensor `MODULE.weight`.

    Parameters
    ----------
    packed : the tensors made of parts. unread : names of tensors that are left out.
    """

    def __init__(
        self, inner: MappedTensors, packed: Mapping[str, PackedTensor], unread: set[str]
    ) -> None:
        parts = {name for tensor in packed.values() for name in tensor.parts}
        tensors = {
            name: info
            for name, info in inner.tensors.items()
            if name not in parts and name not in unread
        }
        tensors |= {name: _info(tensor, inner) for name, tensor in packed.items()}
        super().__init__(inner.path, inner.paths, tensors, inner._buffers)
        self._inner, self._packed = inner, packed

    def joined(self, name: str) -> PackedTensor | None:
        """Return the tensor made of parts, or None for an ordinary tensor."""
        return self._packed.get(name)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of an ordinary tensor."""
        return self._inner.raw(name)

    def close(self) -> None:
        """Release the files."""
        super().close()
        self._inner.close()


def _info(tensor: PackedTensor, inner: MappedTensors) -> TensorInfo:
    """Return a tensor's entry: the bytes of all its parts, at the place of the first."""
    parts = [inner.tensors[name] for name in tensor.parts]
    total, first = sum(part.nbytes for part in parts), parts[0]
    row = total // max(1, tensor.height)
    return TensorInfo(tensor.name, tensor.shape, tensor.type, first.part, first.offset, total, row)
