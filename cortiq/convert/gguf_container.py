"""GGUF files that others read, from models that come from GGUF.

Metadata is the source's, but for the type of file; tensors get types that `gguf`, the package of
the format's authors, quantises to, Q4_K by our own search, or stay as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.convert.beside import gguf_head
from cortiq.convert.plan import PlannedTensor, plan_tensors
from cortiq.convert.recipes import KEEP, Recipe, read_recipe
from cortiq.convert.work_folder import Place, WorkFolder, publish
from cortiq.errors import CortiqError, UnsupportedError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.formats.gguf_metadata import GGUFMetadata
from cortiq.models.bind import LoadedProgram
from cortiq.numerics.contract import Floats
from cortiq.numerics.four_bits import BLOCKS
from cortiq.numerics.layouts import LAYOUTS, Layout, Weight
from cortiq.numerics.weights import SEARCHED, convert, weight_values

ALIGNMENT = 32
W4, FALLBACK = "w4", "Q8_0"
BY_PACKAGE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16", "F32")
FORMATS = (*SEARCHED, "Q4_K", *BY_PACKAGE, KEEP)
RECIPES: Mapping[str, tuple[str, str]] = {
    **{name: (name, FALLBACK if name[0] in "wQ" else name) for name in FORMATS},
    "w4-all": (W4, W4),
    "w4-keep": (W4, KEEP),
}
"""As `recipes.RECIPES`: tables, heads and the scores of routers get at least Q8_0."""
FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_K": 14, W4: 14,
    "w4-5": 14,
    "w4-all": 14, "w4-keep": 14, "BF16": 32,
}  # fmt: skip
"""`general.file_type` by recipe: what most tensors are."""


def gguf_container(
    loaded: LoadedProgram, checkpoint: Checkpoint, name: str, patterns: Sequence[str]
) -> tuple[Sequence[PlannedTensor], GGUFContainer, Recipe]:
    """Plan a GGUF file of a model.

    Raises
    ------
    UnsupportedError : the model does not come from GGUF, or a tensor has no type there.
    """
    metadata = checkpoint.tokenizer_source
    if not isinstance(metadata, GGUFMetadata):
        hint = "leave off .gguf for a folder of cortiq's; llama.cpp converts folders to GGUF"
        what = "is no GGUF file: its tokenizer and settings have no GGUF metadata"
        raise UnsupportedError(what, where=str(checkpoint.path), hint=hint)
    recipe = read_recipe(name, patterns, RECIPES, FORMATS)
    planned = plan_tensors(loaded, recipe, gguf_layout_of)
    if any(tensor.target in BY_PACKAGE for tensor in planned):
        quantise_of("Q8_0")
    return planned, GGUFContainer(planned, metadata, recipe.name), recipe


def gguf_layout_of(target: str, columns: int, name: str) -> Layout:
    """Return the layout of a format; Q8_0, or F16, for rows that are no whole blocks of it."""
    wanted = (*SEARCHED.get(target, (target,)), FALLBACK)
    whole = (LAYOUTS[n] for n in wanted if columns % (LAYOUTS[n].block or 1) == 0)
    return next(whole, LAYOUTS["F16"])


def quantise_of(layout: str) -> Callable[[Floats], npt.NDArray[np.uint8]]:
    """Return the function of the package `gguf` for a type, rows to bytes.

    Raises
    ------
    CortiqError : the package is not installed.
    """
    try:
        import gguf
    except ImportError:
        hint = "pip install gguf"
        raise CortiqError("the package gguf is not installed", where="convert", hint=hint) from None
    kind = gguf.GGMLQuantizationType[layout]

    def quantise(values: Floats) -> npt.NDArray[np.uint8]:
        return np.ascontiguousarray(gguf.quantize(values, kind)).view(np.uint8)

    return quantise


class GGUFContainer:
    """A GGUF file.

    Parameters
    ----------
    tensors : as planned. metadata : of the source. recipe : its name.
    """

    def __init__(
        self, tensors: Sequence[PlannedTensor], metadata: GGUFMetadata, recipe: str
    ) -> None:
        self.tensors = tensors
        odd = next((t for t in tensors if t.layout.ggml_type is None), None)
        if odd is not None:
            hint = f"choose a format for it: --tensor {odd.name}=Q8_0"
            what = f"{odd.name} is in {odd.layout.name}, which GGUF does not have"
            raise UnsupportedError(what, where="convert", hint=hint)
        sizes = [t.rows * t.layout.row_bytes(t.columns) for t in tensors]
        ends = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]).tolist()
        self._head = self._first_bytes(metadata, recipe, ends)
        first = len(self._head)
        self.size = first + ends[-1]
        self.places: Mapping[str, Sequence[Place]] = {
            tensor.name: [Place(tensor.name, first + start, size)]
            for tensor, size, (start, _) in zip(tensors, sizes, pairwise(ends), strict=True)
        }

    def _first_bytes(self, metadata: GGUFMetadata, recipe: str, starts: Sequence[int]) -> bytes:
        instead = {"general.alignment": _u32("general.alignment", ALIGNMENT)}
        if recipe in FILE_TYPES:
            instead["general.file_type"] = _u32("general.file_type", FILE_TYPES[recipe])
            instead["general.quantization_version"] = _u32("general.quantization_version", 2)
        head = gguf_head(metadata, instead, len(self.tensors))
        for tensor, start in zip(self.tensors, starts, strict=False):
            assert tensor.layout.ggml_type is not None
            shape = tensor.shape[::-1]
            head += _text(tensor.name) + struct.pack("<I", len(shape))
            head += struct.pack(f"<{len(shape)}Q", *shape)
            head += struct.pack("<IQ", tensor.layout.ggml_type, start)
        return head + bytes(-len(head) % ALIGNMENT)

    def header(self, hashes: Mapping[str, Mapping[str, str]]) -> bytes:
        """Return the file's first bytes; GGUF has no place for hashes."""
        return self._head

    def rows(self, part: Weight, tensor: PlannedTensor) -> Mapping[str, npt.NDArray[Any]]:
        """Return some rows of a tensor: uint8 [n, bytes of a row]."""
        name = tensor.layout.name
        if tensor.target == KEEP or part.layout is tensor.layout:
            return part.parts
        if name in BLOCKS and tensor.target in (*SEARCHED, "Q4_K"):
            rule = tensor.target if tensor.target in SEARCHED else W4
            return convert(part, rule, tensor.name).parts
        raw = quantise_of(name)(weight_values(part, tensor.name))
        return {"raw": raw.reshape(part.shape[0], -1)}

    def pieces(self, tensor: PlannedTensor) -> Iterator[Sequence[npt.NDArray[Any]]]:
        """Yield the rows of a tensor in order, as the file has them, by part."""
        yield from (list(self.rows(part, tensor).values()) for part in tensor.slices())

    def publish(self, work: WorkFolder, out: Path) -> None:
        """Give the finished file its name; the work folder goes after it."""
        publish(work.finish(), out)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _u32(key: str, value: int) -> bytes:
    """Return an entry of metadata: a number of 32 bits."""
    return _text(key) + struct.pack("<II", 4, value)
