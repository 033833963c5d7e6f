"""Tensors of a folder and of folders within it, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cortiq.formats.mapped import MappedTensors
from cortiq.formats.packed_tensors import PackedTensor
from cortiq.formats.text_model import RenamedTensors


class JoinedTensors(RenamedTensors):
    """Tensors of a folder, and those of further files under names with a beginning of their own.

    Parameters
    ----------
    further : tensors by the beginning of their names here, which no tensor of the folder has.
    """

    def __init__(self, inner: MappedTensors, further: Mapping[str, MappedTensors]) -> None:
        super().__init__(inner, {name: name for name in inner.tensors})
        self.paths, self._further = list(inner.paths), further
        self._within: dict[str, tuple[MappedTensors, str]] = {}
        for prefix, file in further.items():
            for name, info in file.tensors.items():
                here, part = f"{prefix}.{name}", len(self.paths) + info.part
                self._within[here] = file, name
                self.tensors[here] = replace(info, name=here, part=part)
            self.paths += file.paths

    def name_within(self, name: str) -> str:
        """Return the folder's name of a tensor; one of a further file has its own."""
        return name if name in self._within else super().name_within(name)

    def joined(self, name: str) -> PackedTensor | None:
        """Return the quantised matrix of this name, or None for an ordinary tensor."""
        return None if name in self._within else super().joined(name)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor."""
        file, own = self._within.get(name, (None, name))
        return super().raw(name) if file is None else file.raw(own)

    def close(self) -> None:
        """Release the files."""
        super().close()
        for file in self._further.values():
            file.close()
