"""Find the tensors of every weight; report missing, misshapen and unused ones by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from types import ModuleType
from typing import Any

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.models.config import BaseConfig
from cortiq.models.gguf_rope import ROPE_TENSORS
from cortiq.models.names import GGUF_FUSED, IGNORED, Names
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.parts import HEAD, TABLE
from cortiq.models.registry import location_of, names_of
from cortiq.models.tensor_pieces import TensorSlice, fused_of, locate_piece, split_name

DRAFT_NAME = re.compile(r"(?:model\.)?mtp\.")
"""Tensors of draft heads, which no trunk needs."""
COPIED = {"embed_tokens.weight": TABLE, "shared_head.head.weight": HEAD}
"""Tensors that files repeat in a draft layer, with the trunk's tensor they should equal."""
LAYER_NAME = re.compile(r"(?:model\.layers|blk)\.(\d{1,9})\.")


PROBLEM_LINES = 4
"""Lines of a message that lists problems of tensors."""


def find_tensors(
    program: Program, checkpoint: OpenCheckpoint, family: ModuleType, config: BaseConfig
) -> dict[str, list[TensorSlice]]:
    """Find the tensors, or parts of them, of each weight; `FormatError` lists every problem."""
    shapes = {name: spec.shape for name, spec in program.weights.items()}
    names = names_of(family, config).in_form_of(checkpoint, shapes)
    places = {name: _pieces(name, shapes, checkpoint, names, config.source) for name in shapes}
    wanted = {piece.tensor: piece for pieces in places.values() for piece in pieces}
    problems = [p for piece in wanted.values() for p in _tensor_problems(piece, checkpoint)]
    problems += _left_over(places, checkpoint, config, names)
    problems += untied(checkpoint, config, names.in_file(TABLE, config.source))
    if problems:
        size = -(-len(problems) // PROBLEM_LINES)  # a message has few lines, and names all of them
        lines = ("; ".join(problems[i : i + size]) for i in range(0, len(problems), size))
        message = "\n  ".join(("does not hold the tensors of its architecture:", *lines))
        raise FormatError(message, where=location_of(checkpoint))
    return places


class CheckpointTensors:
    """Tensors of a checkpoint, by the canonical names of weights (`HeadTensors`)."""

    def __init__(self, checkpoint: OpenCheckpoint, names: Names, source: str) -> None:
        self.checkpoint, self.names, self.source = checkpoint, names, source

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this name that is not a copy of the trunk's."""
        return self.called(name) in self.checkpoint and not self._is_copy(name)

    def rows(self, name: str) -> int | None:
        """Return the rows of a matrix; None if it does not exist."""
        file_name = self.called(name)
        if file_name not in self.checkpoint:
            return None
        return self.checkpoint.tensor(file_name).shape[0]

    def problems(self, shapes: Mapping[str, tuple[int, ...]]) -> Sequence[str]:
        """Return the missing or misshapen weights among these names and shapes."""
        try:
            pieces = [
                piece
                for name in shapes
                for piece in _pieces(name, shapes, self.checkpoint, self.names, self.source)
            ]
        except (KeyError, AssertionError):
            return [f"{name} is missing" for name in shapes]
        return [text for p in pieces for text in _tensor_problems(p, self.checkpoint)]

    def called(self, name: str) -> str:
        """Return the tensor's name in the file; empty if no such file has it."""
        return self.names.known(name, self.source) or ""

    def _is_copy(self, name: str) -> bool:
        """Return whether a draft layer's table or head repeats the trunk's, by its ends."""
        layer, _, end = name.partition(".")[2].partition(".")[2].partition(".")
        trunk = COPIED.get(end) if layer.isdecimal() else None
        if trunk is None:
            return False
        named = self.called(trunk)
        pair = self.called(name), named if named in self.checkpoint else self.called(TABLE)
        if not all(n in self.checkpoint for n in pair):
            return False
        one, other = (_ends(self.checkpoint.tensor(n)) for n in pair)
        return one == other


def _pieces(
    name: str,
    shapes: Mapping[str, tuple[int, ...]],
    checkpoint: OpenCheckpoint,
    names: Names,
    source: str,
) -> list[TensorSlice]:
    """Return a weight's tensors: one; one an expert; part of a fused one; several joined, or those
    of a formula.
    """
    if (formed := names.formed_as(name)) is not None:
        prefix, _, end = split_name(name)
        own = [names.in_file(f"{prefix}{tensor}{end}", source) for tensor in formed.tensors]
        return [TensorSlice(tensor, (formed.width,)) for tensor in own]
    shape, piece = shapes[name], _fused_piece(name, shapes, checkpoint, names, source)
    whole = names.known(name, source)
    if whole is None:  # this kind of file never has it as a tensor of its own
        return [piece] if piece else _joined_pieces(name, shape, checkpoint, names, source)
    if whole in checkpoint and (piece is None or piece.tensor != whole):
        return [TensorSlice(whole, shape)]
    if len(shape) == 3 and names.of_expert(name, 0, source) in checkpoint:
        experts = range(shape[0])
        return [TensorSlice(names.of_expert(name, e, source), shape[1:]) for e in experts]
    if piece is not None:
        return [piece]
    if joined := _joined_pieces(name, shape, checkpoint, names, source):
        return joined
    return [TensorSlice(whole, shape)]


def _joined_pieces(
    name: str, shape: tuple[int, ...], checkpoint: OpenCheckpoint, names: Names, source: str
) -> list[TensorSlice]:
    """Return the tensors whose rows are joined into a weight, if the family has such.

    Those of a file may have any numbers of rows that together are the weight's; of others each
    should have the number that it would have beside the others. Parts of a fused tensor are alike.
    """
    parts, end = names.joined_as(name), split_name(name)[2]
    fused = fused_of(names.fused, parts[0]) if parts else None
    if fused:
        prefix, size = fused[1], (shape[0] // len(parts), *shape[1:])
        alike = {f"{prefix}{part}{end}": size for part in fused[0].parts}
        pieces = (_fused_piece(part, alike, checkpoint, names, source) for part in parts)
        return [piece for piece in pieces if piece]
    own = [names.in_file(part, source) for part in parts]
    found = {
        tensor: prod(checkpoint.tensor(tensor).shape) // prod(shape[1:])
        for tensor in own
        if tensor in checkpoint
    }
    left, absent = shape[0] - sum(found.values()), len(own) - len(found)
    counts = [
        left // absent if tensor not in found else found[tensor] + (0 if absent else left)
        for tensor in own
    ]
    return [
        TensorSlice(tensor, (count, *shape[1:])) for tensor, count in zip(own, counts, strict=True)
    ]


def _fused_piece(
    name: str,
    shapes: Mapping[str, tuple[int, ...]],
    checkpoint: OpenCheckpoint,
    names: Names,
    source: str,
) -> TensorSlice | None:
    """Return the part of a fused tensor, if the family has one and the file no separate ones."""
    found = fused_of(names.fused, name)
    common = fused_of(GGUF_FUSED, name) if source == "gguf" else None
    if common and names.known(f"{common[1]}{common[0].tensor}{common[2]}", source) in checkpoint:
        found = common
    if found is None:
        return None
    fused, prefix, end = found
    tensor = names.known(f"{prefix}{fused.tensor}{'' if fused.bare else end}", source)
    apart = [names.known(f"{prefix}{part}{end}", source) for part in fused.parts]
    if tensor is None or (tensor not in checkpoint and any(one in checkpoint for one in apart)):
        return None
    parts = {part: shapes[f"{prefix}{part}{end}"] for part in fused.parts}
    part = name.removeprefix(prefix).removesuffix(end)
    shape = checkpoint.tensor(tensor).shape if tensor in checkpoint else ()
    piece = locate_piece(fused, part, parts, tensor, shape)
    if fused.either and shape:
        other = locate_piece(fused.turned, part, parts, tensor)
        return other if tuple(shape) == other.shape != piece.shape else piece
    return piece


def _tensor_problems(piece: TensorSlice, checkpoint: OpenCheckpoint) -> Iterator[str]:
    tensor, shape = piece.tensor, list(piece.shape)
    if tensor not in checkpoint:
        yield f"{tensor} {shape} is missing"
        return
    found = checkpoint.tensor(tensor).shape
    flat = (prod(shape[:-1]), shape[-1])
    if [n for n in found if n != 1] == [n for n in shape if n != 1] and prod(found) == prod(shape):
        return
    if len(shape) == 1 and prod(found) == shape[0]:  # a norm in parts, one below the other
        return
    if [prod(found[:-1]), found[-1]] == shape:  # tables one below the other
        return
    if len(found) > 2 and [found[0], prod(found[1:])] == shape:  # a convolution's kernel
        return
    if found != flat:
        yield f"{tensor} is {list(found)}, should be {shape}"


def _left_over(
    places: Mapping[str, Sequence[TensorSlice]],
    checkpoint: OpenCheckpoint,
    config: BaseConfig,
    names: Names,
) -> Iterator[str]:
    used = {piece.tensor for pieces in places.values() for piece in pieces}
    if config.tie_word_embeddings:
        used.add(HEAD)
    if config.source == "gguf":
        used |= ROPE_TENSORS.get(config.rope_parameters.get("rope_type", ""), frozenset())
    for tensor in checkpoint.tensor_names:
        unread = IGNORED.fullmatch(tensor) or re.fullmatch(names.unread, tensor)
        unread = unread or DRAFT_NAME.match(tensor)
        if not unread and _is_zero_bias(tensor, checkpoint):
            continue
        if tensor not in used and not unread and not _of_draft_head(tensor, checkpoint, config):
            yield f"{tensor} is not used by the graph"


def _is_zero_bias(tensor: str, checkpoint: OpenCheckpoint) -> bool:
    """Return whether a tensor is a bias of zeros, as GPTQ's writers give every matrix one."""
    if not tensor.endswith(".bias"):
        return False
    found = checkpoint.tensor(tensor)
    is_vector = len(found.shape) == 1 and found.type in ("F32", "F16", "BF16")
    return is_vector and not found.raw.any()


def _of_draft_head(tensor: str, checkpoint: OpenCheckpoint, config: BaseConfig) -> bool:
    """Return whether a tensor belongs to a draft layer after the trunk's: one with the matrix that
    joins an embedding and a hidden state.
    """
    layer = LAYER_NAME.match(tensor)
    drafts = int(getattr(config, "num_nextn_predict_layers", 0) or 0)
    first = config.num_hidden_layers
    if layer is None or not first <= int(layer[1]) < first + drafts:
        return False
    return any(f"{layer[0]}{end}eh_proj.weight" in checkpoint for end in ("", "nextn."))


def untied(checkpoint: OpenCheckpoint, config: BaseConfig, table_name: str) -> Iterator[str]:
    """Yield a separate head in a file that declares tied embeddings: some hold the copy.

    Only the ends of the two are compared, so that nothing long is read at load.
    """
    if config.source == "gguf" or not config.tie_word_embeddings or HEAD not in checkpoint:
        return
    head, table = (_ends(checkpoint.tensor(name)) for name in (HEAD, table_name))
    if head != table:
        tied = "the config says they are one (tie_word_embeddings)"
        yield f"{HEAD} differs from {table_name}, but {tied}"


def _ends(tensor: Any) -> tuple[Any, ...]:
    flat = tensor.raw.reshape(-1)
    return tensor.type, tensor.shape, bytes(flat[:4096]), bytes(flat[-4096:])
