"""The plan of a CMF file: its tensors, under the format's names, and the encoding of each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.convert.feedback import CodeGrid, Feedback, best_codes
from cortiq.convert.plan import PlannedTensor
from cortiq.convert.recipes import KEEP, Recipe
from cortiq.formats.checkpoint import Checkpoint
from cortiq.formats.cmf.decode import matrix_of
from cortiq.formats.cmf.dtypes import BY_NAME, GROUP, fits
from cortiq.formats.cmf.encode import Survey, pack_nibbles, survey
from cortiq.formats.cmf.families import LFM2, MIXTRAL
from cortiq.formats.cmf.fitted_codes import FITTED, fit_rows
from cortiq.formats.cmf.reader import CMFFile
from cortiq.models.bind import LoadedProgram
from cortiq.models.weight_rules import delicate_names, matrix_names
from cortiq.models.weights import raw_weight
from cortiq.numerics.contract import Floats
from cortiq.numerics.four_bits import four_bit_rows
from cortiq.numerics.layouts import LAYOUTS, Layout, Weight
from cortiq.numerics.weights import refuse_large, refuse_scales, weight_values

FORMATS = (
    "q8_row", "q8_2f", "q4_block", "q4_tiled", "q4_fit", "q4tp", "q2tp", "vbit", "vbit_ro", "q1",
    "q1p", "q1s", "q1t", "f16", "f32", KEEP,
)  # fmt: skip
FINE = ("q8_row", "q8_2f", "f16", "f32", KEEP)
RECIPES: Mapping[str, tuple[str, str]] = {
    "w4": ("q4_fit", "q8_row"),
    "w4-mixed": ("q4_fit", "q8_row"),
    "w8": ("q8_row", "q8_row"),
    **{name: (name, name if name in FINE else "q8_row") for name in FORMATS},
}
"""As `recipes.RECIPES`: tables and heads get at least eight bits."""
MADE_OTHERWISE = {"q1p": "q1", "q4_fit": "q4_tiled"}
"""Encodings of formats that are named after how their codes are found."""
BROKEN_GROUPS = "q8_row"
"""Encoding of rows that are no whole groups of 32, in place of one that takes only such."""
PLAIN = re.compile(r".*\.(mlp\.gate|shared_expert_gate|linear_attn\.in_proj_[ab])\.weight")
"""Small matrices that stay f16."""
DELICATE = re.compile(r".*(embed_tokens|lm_head|\.desc\.|mlp\.gate\.weight|k_gate).*")
"""Tables, heads and routers of CMF files."""
FINE_LAYERS = 2
"""Last layers whose matrices get eight bits under w4-mixed."""
LAYER = re.compile(r"(?:model\.)?layers\.(\d+)\.")
LEFT = re.compile(r"skill\.|model\.mtp\.")
"""Beginnings of names that a recipe leaves as they are; a pattern reaches them."""
TAPS = re.compile(r".*\.conv(1d)?\.weight")
BACK = {
    "lfm2": {theirs: mine for mine, theirs in LFM2.items()},
    "lfm2_moe": {theirs: mine for mine, theirs in LFM2.items()},
    "mixtral": {theirs: mine for mine, theirs in MIXTRAL.items()},
}
"""Names of the format by a family's, where they differ."""


@dataclass(frozen=True)
class EncodedTensor(PlannedTensor):
    """A tensor of a CMF file.

    Attributes
    ----------
    held : the weight that it is made of: of floats, or in the source's codes.
    heads : heads whose rows change places, of GGUF files that hold pairs of rows; 0 for none.
    payload : its bytes, if it stays as a CMF file has it.
    """

    held: Weight | None = None
    heads: int = 0
    payload: npt.NDArray[np.uint8] | None = None

    @property
    def encoding(self) -> str:
        """Its encoding in the directory."""
        return self.layout.name

    def weight(self) -> Weight:
        """Return the source; rows of it are read when they are asked for."""
        assert self.held is not None
        return self.held.once()

    @property
    def takes_feedback(self) -> bool:
        """Whether it is a matrix in an encoding whose codes errors decide."""
        whole = len(self.shape) == 2 and self.columns % GROUP == 0
        return self.encoding in FITTED and whole and self.payload is None

    @cached_property
    def survey(self) -> Survey:
        """The facts about all rows that the encoding takes."""
        if self.payload is not None:
            return Survey({})
        return survey(self.encoding, matrix_of(self.shape), self.values)

    def fed_pieces(self, feedback: Feedback) -> Iterator[Sequence[npt.NDArray[Any]]]:
        """Yield all rows in order, by part, with scales and codes that lose less."""
        start = 0
        for values in self.values():
            fitted = fit_rows(self.encoding, values, feedback.weights, self.survey, start)
            if not np.isfinite(fitted.scale).all():
                refuse_scales(values, self.name)
            steps = CodeGrid(fitted.scale, fitted.low, fitted.largest)
            yield fitted.pack(best_codes(values, steps, feedback).astype(np.uint8))
            start += len(values)

    def fitted(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield all rows in order, with scales of least squares."""
        for values in self.values():
            raw = four_bit_rows("Q4_0", values)
            refuse_large(LAYOUTS["Q4_0"], raw, values, self.name)
            blocks = raw.reshape(-1, 18)
            codes = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
            yield np.concatenate([blocks[:, :2], pack_nibbles(codes)], axis=1).reshape(-1)

    def rows_of(self, start: int, stop: int) -> Floats:
        """Return rows as floats, in the order of the new file."""
        weight = self.weight()
        if not self.heads:
            return weight_values(weight.rows(start, stop), self.name)
        size = self.rows // self.heads
        row = np.arange(start, stop)
        inside = row % size
        paired = np.where(inside < size // 2, 2 * inside, 2 * (inside - size // 2) + 1)
        return weight_values(weight.take(row - inside + paired), self.name)

    def values(self) -> Iterator[Floats]:
        """Yield all rows in order, as floats."""
        for start in range(0, self.rows, self.step):
            yield self.rows_of(start, min(start + self.step, self.rows))


def encoded_tensors(loaded: LoadedProgram, recipe: Recipe) -> Iterator[EncodedTensor]:
    """Yield the tensors of a model of another format."""
    matrices, delicate = matrix_names(loaded.program), delicate_names(loaded.program)
    delicate |= finer_names(recipe, matrices)
    paired = loaded.config is not None and loaded.config.source == "gguf"
    paired = paired and loaded.family in ("llama", "mixtral")
    for name, spec in loaded.program.weights.items():
        weight = loaded.weights[name]
        chosen = "f32"
        if name in matrices:
            chosen = recipe.format_of((name,), name in delicate)[0]
        heads = 0
        if paired and re.search(r"\.self_attn\.[qk]_proj\.", name):
            heads = loaded.config.kv_heads  # type: ignore[union-attr]
            if ".q_proj." in name:
                heads = loaded.config.num_attention_heads  # type: ignore[union-attr]
        for own, part, shape in _parts(loaded.family, name, spec.shape, weight):
            found = encoding_of(own, shape, chosen, name in matrices)
            layout = Layout(found, "parts", 0, 0)
            target = chosen if MADE_OTHERWISE.get(chosen) == found else found
            yield EncodedTensor(own, shape, layout, target, (name,), None, part, heads)


def finer_names(recipe: Recipe, names: Collection[str]) -> set[str]:
    """Return what w4-mixed takes for delicate, too: values of attention, and the last layers."""
    if recipe.name != "w4-mixed":
        return set()
    layers = {name: int(found[1]) for name in names if (found := LAYER.match(name))}
    first = max(layers.values(), default=0) + 1 - FINE_LAYERS
    return {name for name in names if ".v_proj." in name or layers.get(name, -1) >= first}


def _parts(
    family: str, name: str, shape: tuple[int, ...], weight: Weight
) -> Iterator[tuple[str, Weight, tuple[int, ...]]]:
    """Yield the name, rows and shape of each tensor that a weight becomes: an expert each."""
    own = name
    for theirs, mine in BACK.get(family, {}).items():
        own = re.sub(rf"(^|\.){re.escape(theirs)}", rf"\g<1>{mine}", own, count=1)
    if len(shape) == 3 and ".experts." in own:
        for expert in range(shape[0]):
            one = own.replace(".experts.", f".experts.{expert}.")
            yield one, weight.rows(expert * shape[1], (expert + 1) * shape[1]), shape[1:]
        return
    if TAPS.fullmatch(own) and len(shape) == 2:
        shape = (shape[0], 1, shape[1])
    yield own, weight, shape


def encoding_of(name: str, shape: tuple[int, ...], chosen: str, matrix: bool) -> str:
    """Return the encoding that a tensor gets where a format was chosen for its matrices."""
    if not matrix or chosen == KEEP:
        return "f32"
    if PLAIN.fullmatch(name) or prod(shape) < GROUP:
        return "f16"
    wanted = MADE_OTHERWISE.get(chosen, chosen)
    return BROKEN_GROUPS if fits(BY_NAME[wanted], shape) else wanted


def weights_of(loaded: LoadedProgram, checkpoint: Checkpoint) -> dict[str, str]:
    """Return the weight that each tensor of a file is, by the tensor's name in the file."""
    return {
        checkpoint.info(piece.tensor).name: weight
        for weight, pieces in loaded.pieces.items()
        for piece in pieces
    }


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a recipe gives a tensor a format; draft heads and skills stay as they are."""
    return len(shape) == 2 and name.endswith(".weight") and LEFT.match(name) is None


def recoded_tensors(
    file: CMFFile, recipe: Recipe, weights: Mapping[str, str]
) -> Iterator[EncodedTensor]:
    """Yield the tensors of a CMF file: matrices in new encodings, everything else as it is.

    Names of the format tell matrices and delicate ones, not a graph: families that are not run are
    recoded too.

    Parameters
    ----------
    weights : canonical names of weights, which patterns may give too, by names of the file.
    """
    finer = finer_names(recipe, file.entries)
    for name, (part, entry) in file.entries.items():
        weight, own = weights.get(name, name), Layout(entry.dtype.name, "parts", 0, 0)
        chosen, asked = KEEP, False
        if len(entry.shape) == 2 and entry.dtype.decodes:
            delicate = name in finer or DELICATE.fullmatch(name) is not None
            chosen, asked = recipe.format_of((name, weight), delicate)
        if not asked and not is_matrix(name, entry.shape):
            chosen = KEEP
        found = entry.dtype.name if chosen == KEEP else encoding_of(name, entry.shape, chosen, True)
        if found == entry.dtype.name:
            raw = part.payload(entry)
            yield EncodedTensor(name, entry.shape, own, KEEP, (weight,), None, payload=raw)
            continue
        target = chosen if MADE_OTHERWISE.get(chosen) == found else found
        held = raw_weight(file.tensor(name), (entry.shape[0], entry.shape[1]))
        layout = Layout(found, "parts", 0, 0)
        yield EncodedTensor(name, entry.shape, layout, target, (weight,), None, held)
