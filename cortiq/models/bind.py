"""From a checkpoint to a program with its weights: every tensor found, checked and named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import ModuleType

from cortiq.errors import FormatError, RequestError
from cortiq.ir import Program, primitives_of, verify
from cortiq.models.config import BaseConfig
from cortiq.models.names import IGNORED
from cortiq.models.parts import HEAD
from cortiq.models.registry import Checkpoint, family_for, family_name, place, read_config
from cortiq.models.weights import matrix_weight, vector_weight
from cortiq.numerics.layouts import Weight, check_finite

DEFAULT_WEIGHT_FORMAT = "w16"
"""Layout that float matrices of a checkpoint are converted to, unless another is asked for."""

MATRIX_OPERATORS = frozenset({"EmbedRows", "MatMul", "HeadMatMul", "ExpertMatMul"})
"""Primitives whose weights are matrices; every other weight stays float32."""


@dataclass(frozen=True)
class LoadedProgram:
    """A program bound to a checkpoint.

    Attributes
    ----------
    program : its graphs, with the layout of every weight.
    weights : by canonical name; block layouts are views of the file, float matrices are converted
        when they are first looked at.
    checkpoint : what it was read from.
    family : name of the family.
    config : the family's configuration.
    """

    program: Program
    weights: Mapping[str, Weight]
    checkpoint: Checkpoint
    family: str
    config: BaseConfig


def load_program(
    checkpoint: Checkpoint,
    *,
    context: int | None = None,
    weight_format: str | None = None,
    families: Sequence[ModuleType] = (),
) -> LoadedProgram:
    """Read the configuration, build the graph, bind every weight.

    Parameters
    ----------
    context : the declared context, `None` for the model's own.
    weight_format : layout for matrices that the file holds as floats (`w16`, `w8`, `w8b256`,
        `f32`); quantised tensors keep their own codes. `None` means `DEFAULT_WEIGHT_FORMAT`.
    families : families of plugins.

    Raises
    ------
    UnsupportedError : architecture, configuration key or tensor type that we do not implement.
    FormatError : tensors that are missing, left over or of the wrong shape, all of them by name.
    RequestError : a context the model does not have.
    """
    family = family_for(checkpoint, families)
    config = read_config(family, checkpoint)
    program = family.build(config, _context(context, config))
    places = _find_tensors(program, checkpoint, family, config)
    matrices = matrix_names(program)
    weights = {}
    for name, tensors in places.items():
        raws, shape = [checkpoint.tensor(t) for t in tensors], program.weights[name].shape
        if name in matrices:
            layout = weight_format or DEFAULT_WEIGHT_FORMAT
            weights[name] = matrix_weight(raws, shape, layout)
        else:
            weights[name] = vector_weight(raws, shape)
    program = program.with_layouts({name: layout_name(w) for name, w in weights.items()})
    verify(program)
    return LoadedProgram(program, weights, checkpoint, family_name(family), config)


def _context(context: int | None, config: BaseConfig) -> int:
    longest = config.max_position_embeddings
    if context is None:
        return longest
    if not 0 < context <= longest:
        hint = f"the model was made for 1 to {longest} tokens"
        raise RequestError(f"a context of {context} tokens", where="context", hint=hint)
    return context


def layout_name(weight: Weight) -> str:
    """The layout as `WeightSpec` names it: every float layout is `f32`."""
    return "f32" if weight.layout.kind == "float" else weight.layout.name


def matrix_names(program: Program) -> set[str]:
    """Weights that meet quantised rows or are looked up by token."""
    nodes = (n for g in primitives_of(program).graphs.values() for n in g.nodes)
    return {w for n in nodes if n.op.kind in MATRIX_OPERATORS for w in n.weights.values()}


def _find_tensors(
    program: Program, checkpoint: Checkpoint, family: ModuleType, config: BaseConfig
) -> dict[str, list[str]]:
    """Tensors of the file for each weight; raises `FormatError` that lists every problem."""
    places = {
        name: _candidates(name, spec.shape, checkpoint, family, config.source)
        for name, spec in program.weights.items()
    }
    problems = []
    for name, spec in program.weights.items():
        shape = spec.shape if len(places[name]) == 1 else spec.shape[1:]
        problems += [
            problem
            for tensor in places[name]
            for problem in _tensor_problems(tensor, shape, checkpoint)
        ]
    problems += _left_over(places, checkpoint, config)
    if problems:
        lines = "\n  ".join(problems)
        message = f"does not hold the tensors of its architecture:\n  {lines}"
        raise FormatError(message, where=place(checkpoint))
    return places


def _candidates(
    name: str, shape: tuple[int, ...], checkpoint: Checkpoint, family: ModuleType, source: str
) -> list[str]:
    """The tensor of a weight, or one an expert where the file holds a stack in pieces."""
    whole = family.NAMES.in_file(name, source)
    first = family.NAMES.of_expert(name, 0, source) if len(shape) == 3 else whole
    if whole in checkpoint or first not in checkpoint:
        return [whole]
    return [family.NAMES.of_expert(name, e, source) for e in range(shape[0])]


def _tensor_problems(tensor: str, shape: tuple[int, ...], checkpoint: Checkpoint) -> Iterator[str]:
    if tensor not in checkpoint:
        yield f"{tensor} {list(shape)} is missing"
        return
    found = checkpoint.tensor(tensor).shape
    if [n for n in found if n != 1] != [n for n in shape if n != 1] or prod(found) != prod(shape):
        yield f"{tensor} is {list(found)}, should be {list(shape)}"


def _left_over(
    places: Mapping[str, Sequence[str]], checkpoint: Checkpoint, config: BaseConfig
) -> Iterator[str]:
    used = {tensor for tensors in places.values() for tensor in tensors}
    if config.tie_word_embeddings:
        used.add(HEAD)
    if config.rope_parameters.get("rope_type") == "frequency_factors":
        used.add("rope_freqs.weight")
    for tensor in checkpoint.tensor_names:
        if tensor not in used and not IGNORED.fullmatch(tensor):
            yield f"{tensor} belongs to nothing in the graph"


def check_weights(loaded: LoadedProgram) -> None:
    """Read every weight whole; `FormatError` names the first tensor with a NaN or infinity."""
    for name, weight in loaded.weights.items():
        check_finite(weight, name)
