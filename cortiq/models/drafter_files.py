"""Drafters in files of their own, EAGLE-3 heads and block drafters: their entries and weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.heads import DFLASH, DSPARK, EAGLE3
from cortiq.models import dflash, dspark, dspark_latent, eagle3, eagle3_files
from cortiq.models.head_names import FROM_FILES
from cortiq.models.names import IGNORED
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.registry import location_of, said_of
from cortiq.models.tensor_pieces import read_piece
from cortiq.models.tensors import find_tensors
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
    if DSPARK in drafters:
        side = drafters[DSPARK]
        latent = dspark_latent.read_drafter(side, program)
        with said_of(side):
            backbone = dspark_latent.LatentStack(latent, program.context)
            program = dspark.with_block(program, backbone)
        made |= _dspark_weights(program, side, latent, weight_format)
    return program, made | _weights(program, drafters, weight_format)


def with_formula_drafters(program: Program, names: Iterable[str]) -> Program:
    """Return the program of a formula model with drafters by formula."""
    if EAGLE3 in names:
        program = eagle3.with_head(program, eagle3.synthetic_head(program))
    if DFLASH in names:
        program = dflash.with_drafter(program, dflash.synthetic_drafter(program))
    if DSPARK in names:
        config = dspark_latent.synthetic_drafter(program)
        program = dspark.with_block(program, dspark_latent.LatentStack(config, program.context))
    return program


def _dspark_weights(
    program: Program,
    side: OpenCheckpoint,
    config: dspark_latent.Config,
    weight_format: str | None,
) -> dict[str, Weight]:
    """Return the weights that a DSpark drafter's own folder holds."""
    prefix = dspark_latent.PREFIX
    own = {n: spec for n, spec in program.weights.items() if n.startswith(prefix)}
    alone = replace(program, weights={n.removeprefix(prefix): s for n, s in own.items()})
    places = find_tensors(alone, side, dspark_latent, config)
    formats = format_of_each(program, weight_format or DEFAULT_WEIGHT_FORMAT)
    found = dict[str, Weight]()
    for name, spec in own.items():
        pieces = places[name.removeprefix(prefix)]
        raws = [read_piece(side.tensor(piece.tensor), piece) for piece in pieces]
        layout, forced = formats.get(name), weight_format is not None
        found[name] = (
            matrix_weight(raws, spec.shape, layout, forced)
            if layout
            else vector_weight(raws, spec.shape)
        )
    return found


def _weights(program: Program, drafters: Drafters, weight_format: str | None) -> dict[str, Weight]:
    """Return the weights that the drafters' own files hold."""
    found = dict[str, Weight]()
    formats = format_of_each(program, weight_format or DEFAULT_WEIGHT_FORMAT) if drafters else {}
    for kind in FROM_FILES:
        if kind not in drafters or kind == DSPARK:
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
