"""Which tensors of a file make each weight: missing, misshapen and left over ones, all by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from types import ModuleType
from typing import Any

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.models.config import BaseConfig
from cortiq.models.gguf_config import FREQUENCY_FACTORS
from cortiq.models.names import IGNORED
from cortiq.models.parts import HEAD, TABLE
from cortiq.models.registry import Checkpoint, place


def find_tensors(
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
    problems += _untied(checkpoint, config)
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
        used.add(FREQUENCY_FACTORS)
    for tensor in checkpoint.tensor_names:
        if tensor not in used and not IGNORED.fullmatch(tensor):
            yield f"{tensor} belongs to nothing in the graph"


def _untied(checkpoint: Checkpoint, config: BaseConfig) -> Iterator[str]:
    """A head of its own in a file that says the head is the table: some files hold the copy.

    Only the ends of the two are compared, so that nothing long is read at load.
    """
    if config.source == "gguf" or not config.tie_word_embeddings or HEAD not in checkpoint:
        return
    head, table = (_ends(checkpoint.tensor(name)) for name in (HEAD, TABLE))
    if head != table:
        yield f"{HEAD} differs from {TABLE}, but the config says they are one (tie_word_embeddings)"


def _ends(tensor: Any) -> tuple[Any, ...]:
    flat = tensor.raw.reshape(-1)
    return tensor.type, tensor.shape, bytes(flat[:4096]), bytes(flat[-4096:])
