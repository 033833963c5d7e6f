"""The file and folder of our own layout: places of all parts, the header, what lies beside."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy.typing as npt

from cortiq.convert.plan import PlannedTensor
from cortiq.convert.work_folder import JOURNAL, LOCK, PLAN, Place, WorkFolder, publish
from cortiq.errors import UnsupportedError
from cortiq.formats.own_layout import (
    KEY,
    PLACEHOLDER,
    VERSION,
    WEIGHTS_FILE,
    described,
    name_in_file,
    stored_parts,
)
from cortiq.formats.safetensors import ITEM_BYTES, MAX_HEADER
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq.numerics.layouts import Layout, Weight
from cortiq.numerics.weights import convert, target_layout

ALIGNMENT = 64


def own_layout_of(target: str, columns: int, name: str) -> Layout:
    """Return the layout of a format in a folder of our own."""
    return target_layout(target, columns, name)


class OwnContainer:
    """A folder of our own layout.

    Parameters
    ----------
    tensors : as planned. said : source and rule of the conversion.
    beside : contents of the other files.
    """

    def __init__(
        self, tensors: Sequence[PlannedTensor], said: Mapping[str, Any], beside: Mapping[str, bytes]
    ) -> None:
        self.tensors, self.said, self.beside = tensors, said, beside
        parts = [
            (name_in_file(t.name, part), *kind)
            for t in tensors
            for part, kind in stored_parts(t.layout.name, t.shape).items()
        ]
        # The widest types first: then all lie at multiples of their size.
        parts.sort(key=lambda part: -ITEM_BYTES[part[1]])
        self._table: dict[str, Any] = {}
        end = 0
        for name, kind, shape in parts:
            start, end = end, end + ITEM_BYTES[kind] * prod(shape)
            self._table[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
        head = len(self.header({}))
        if head > MAX_HEADER:
            what = f"has {len(self._table)} tensors, too many for one header"
            raise UnsupportedError(what, where="convert")
        self.size = head + end
        self.places: Mapping[str, Sequence[Place]] = {
            t.name: [self._place(name_in_file(t.name, part), head)
                     for part in stored_parts(t.layout.name, t.shape)]
            for t in tensors
        }  # fmt: skip

    def _place(self, name: str, head: int) -> Place:
        start, end = self._table[name]["data_offsets"]
        return Place(name, head + start, end - start)

    def header(self, hashes: Mapping[str, Mapping[str, str]]) -> bytes:
        """Return the header, of one length whatever the hashes: {tensor: {name in the file: hash}}.

        Those that are not known yet are zeros.
        """
        listed = {t.name: self._described(t, hashes.get(t.name, {})) for t in self.tensors}
        files = {name: hashlib.sha256(data).hexdigest() for name, data in self.beside.items()}
        own = {"version": VERSION, "contract": CONTRACT_VERSION, **self.said}
        text = described({**own, "tensors": listed, "files": files})
        table = {"__metadata__": {"format": "pt", KEY: text}, **self._table}
        body = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
        body += b" " * (-(len(body) + 8) % ALIGNMENT)
        return len(body).to_bytes(8, "little") + body

    @staticmethod
    def _described(tensor: PlannedTensor, hashes: Mapping[str, str]) -> dict[str, Any]:
        parts = stored_parts(tensor.layout.name, tensor.shape)
        names = [name_in_file(tensor.name, part) for part in parts]
        return {
            "layout": tensor.layout.name,
            "shape": list(tensor.shape),
            "sha256": {name: hashes.get(name, PLACEHOLDER) for name in names},
        }

    def rows(self, part: Weight, tensor: PlannedTensor) -> Mapping[str, npt.NDArray[Any]]:
        """Return some rows of a tensor as the file has them, by part."""
        if tensor.target == "keep":
            return part.parts
        return convert(part, tensor.target, tensor.name).parts

    def pieces(self, tensor: PlannedTensor) -> Iterator[Sequence[npt.NDArray[Any]]]:
        """Yield the rows of a tensor in order, as the file has them, by part."""
        yield from (list(self.rows(part, tensor).values()) for part in tensor.slices())

    def publish(self, work: WorkFolder, out: Path) -> None:
        """Make the finished work folder the model's."""
        for name, data in self.beside.items():
            (work.path / name).parent.mkdir(exist_ok=True)  # of a module
            (work.path / name).write_bytes(data)
        work.finish().rename(work.path / WEIGHTS_FILE)
        publish(work.path, out)
        for name in (JOURNAL, PLAN, LOCK):
            (out / name).unlink(missing_ok=True)
