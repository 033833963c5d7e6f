"""Drafters in files of their own, EAGLE-3 heads and block drafters: their entries and weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.heads import EAGLE3
from cortiq.models import dflash, eagle3, eagle3_files
from cortiq.models.head_names import DFLASH, FROM_FILES
from cortiq.models.names import IGNORED
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.registry import location_of, said_of
from cortiq.models.weight_rules import DEFAULT_WEIGHT_FORMAT, format_of_each
from cortiq.models.weights import matrix_weight, vector_weight
from cortiq.numerics.layouts import Weight

Drafters = Mapping[str, OpenCheckpoint]
"""Opened files of drafters, by `head_names.FROM_FILES`."""
NO_DRAFTERS: Drafters = MappingProxyType({})
MOST_NAMED = 4
"""Tensors that an error names."""


def with_drafters(
    program: Program, drafters: Drafters, weight_format: str | None
) -> tuple[Program, dict[str, Weight]]:
    """Return the program with the drafters' entries, and their weights.

    Raises
    ------
    FormatError : one was made for another model; a weight is missing, misshapen or left over.
    """
    made = dict[str, Weight]()
    if EAGLE3 in drafters:
        side = drafters[EAGLE3]
        head = eagle3_files.read_head(side, program)
        with said_of(side):
            program = eagle3.with_head(program, head)
        made |= {} if head.places is None else {eagle3.INDEX: head.places}
    if DFLASH in drafters:
        side = drafters[DFLASH]
        config = dflash.read_drafter(side, program)
        with said_of(side):
            program = dflash.with_drafter(program, config)
    return program, made | _weights(program, drafters, weight_format)


def with_formula_drafters(program: Program, names: Iterable[str]) -> Program:
    """Return the program of a formula model with drafters by formula."""
    if EAGLE3 in names:
        program = eagle3.with_head(program, eagle3.synthetic_head(program))
    if DFLASH in names:
        program = dflash.with_drafter(program, dflash.synthetic_drafter(program))
    return program


def _weights(program: Program, drafters: Drafters, weight_format: str | None) -> dict[str, Weight]:
    """Return the weights that the drafters' own files hold."""
    found = dict[str, Weight]()
    formats = format_of_each(program, weight_format or DEFAULT_WEIGHT_FORMAT) if drafters else {}
    for kind in FROM_FILES:
        if kind not in drafters:
            continue
        side, tensors = drafters[kind], dict[str, str]()
        for name in program.weights:
            if name.startswith(f"{kind}.") and name != eagle3.INDEX:
                own = eagle3_files.tensor_name(name, side) if kind == EAGLE3 else None
                tensors[name] = own or name.removeprefix(f"{kind}.")
        if kind == EAGLE3:
            _check_left(side, {*tensors.values(), *eagle3_files.UNREAD})
        for name, tensor in tensors.items():
            shape, forced = program.weights[name].shape, weight_format is not None
            found[name] = _weight(side, tensor, shape, formats.get(name), forced)
    return found


def _weight(
    side: OpenCheckpoint, tensor: str, shape: tuple[int, ...], layout: str | None, forced: bool
) -> Weight:
    if tensor not in side:
        raise FormatError(f"lacks {tensor} {list(shape)}", where=location_of(side))
    found = side.tensor(tensor)
    if tuple(found.shape) != shape:
        what = f"{tensor} is {list(found.shape)}, should be {list(shape)}"
        raise FormatError(what, where=location_of(side))
    return (
        matrix_weight([found], shape, layout, forced) if layout else vector_weight([found], shape)
    )


def _check_left(side: OpenCheckpoint, known: set[str]) -> None:
    """Raise FormatError for tensors that have no place in a drafter's graph."""
    left = [n for n in side.tensor_names if n not in known and not IGNORED.fullmatch(n)]
    if left:
        named = ", ".join(left[:MOST_NAMED])
        what = f"has tensors that no EAGLE-3 head has: {named}"
        raise FormatError(what, where=location_of(side))
