"""Bind a checkpoint to a program: find, check and name every tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import prod
from types import MappingProxyType, ModuleType

from cortiq.errors import RequestError
from cortiq.formats.adapter import Adapter
from cortiq.ir import Program, verify
from cortiq.ir.heads import DSPARK
from cortiq.ir.images import ImageRows
from cortiq.models.adapters import adapted
from cortiq.models.build import build_program
from cortiq.models.column_orders import OrderedWeights, in_order, ordered_weights, with_orders
from cortiq.models.config import BaseConfig
from cortiq.models.draft_vocabulary import with_shortlist
from cortiq.models.drafter_files import (
    NO_DRAFTERS,
    Drafters,
    with_drafters,
    with_formula_drafters,
)
from cortiq.models.fixture_heads import head_tensors as held_by_fixture
from cortiq.models.head_names import (
    AUTO,
    OFF,
    find_plan,
    parse_head_option,
    split_heads_option,
    synthetic_plan,
)
from cortiq.models.head_tensors import HeadTensors
from cortiq.models.heads import HeadPlan, is_like, layer_count, with_heads
from cortiq.models.names import USUAL, Names
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.registry import (
    family_for,
    family_name,
    location_of,
    names_of,
    read_config,
    said_of,
)
from cortiq.models.sentence_steps import with_sentence_steps
from cortiq.models.sidecar import with_sidecar
from cortiq.models.synthetic import SyntheticCheckpoint, synthetic_program, synthetic_weights
from cortiq.models.tensor_pieces import TensorSlice, read_piece
from cortiq.models.tensors import CheckpointTensors, find_tensors
from cortiq.models.weight_rules import (
    DEFAULT_WEIGHT_FORMAT,
    check_contract,
    format_of_each,
    with_rule,
)
from cortiq.models.weights import FLOAT_TARGET, matrix_weight, raw_weight, vector_weight
from cortiq.numerics.column_order import ColumnOrder
from cortiq.numerics.layouts import Weight
from cortiq.numerics.soundness import check_finite


@dataclass(frozen=True)
class LoadedProgram:
    """A program bound to a checkpoint.

    Attributes
    ----------
    program : its graphs, with the layout of every weight.
    weights : by canonical name; block layouts are views of the file, float matrices are converted
        when they are first looked at.
    checkpoint : its source.
    family : name of the family.
    config : the family's configuration; `None` for fixtures.
    pieces : the tensors of the file, or the parts of them, that each weight was made of.
    notes : what was done to the file's numbers, a line each.
    module : the family; `None` for fixtures.
    """

    program: Program
    weights: Mapping[str, Weight]
    checkpoint: OpenCheckpoint
    family: str
    config: BaseConfig | None
    pieces: Mapping[str, Sequence[TensorSlice]]
    notes: tuple[str, ...] = ()
    module: ModuleType | None = None

    @property
    def tensors(self) -> dict[str, list[str]]:
        """Names of the tensors that each weight was made of."""
        return {name: [piece.tensor for piece in held] for name, held in self.pieces.items()}


def load_program(
    checkpoint: OpenCheckpoint,
    *,
    context: int | None = None,
    weight_format: str | None = None,
    families: Sequence[ModuleType] = (),
    heads: str = OFF,
    sidecar: OpenCheckpoint | None = None,
    drafters: Drafters = NO_DRAFTERS,
    draft_vocabulary: int = 0,
    ignored_keys: Sequence[str] = (),
    adapters: Sequence[Adapter] = (),
    column_orders: bool = True,
    images: ImageRows | None = None,
) -> LoadedProgram:
    """Read the configuration, build the graph, bind every weight.

    Parameters
    ----------
    context : the declared context, `None` for the model's own.
    weight_format : format of all matrices, `w4`, `w8`, `w8b256` or `w16`, or of those stored as
        floats, `f32`. `None` keeps codes and gives floats `DEFAULT_WEIGHT_FORMAT`.
    families : of plugins. heads : `off`, `auto` (the file's own), `mtp`, `mimo`, `dspark`.
    sidecar : a file beside the model's that may hold its draft head.
    drafters : opened files of an EAGLE-3 head (`eagle3`) and a block drafter (`dflash`, `dspark`).
    draft_vocabulary : ids that a draft head looks at; 0 for all. ignored_keys : left out; a fact.
    adapters : merged into the tensors, in this order; the program's facts name hash and scale.
    column_orders : whether rows are permuted for codes in another order of columns, else floats.
    images : what the trunk's rows supply where it sees images; None for a trunk that does not.

    Raises
    ------
    UnsupportedError : architecture, configuration key or tensor type that we do not implement.
    FormatError : tensors that are missing, left over or of the wrong shape, all of them by name.
    RequestError : a context, or a draft head, that the model does not have.
    """
    if isinstance(checkpoint, SyntheticCheckpoint):
        how = context, weight_format, heads, drafters, draft_vocabulary, adapters
        return _load_synthetic(checkpoint, *how)
    check_contract(checkpoint)
    family = family_for(checkpoint, families)
    config = read_config(family, checkpoint, ignored_keys)
    program = build_program(family, config, context, checkpoint, images, ignored_keys)
    program, checkpoint = adapted(program, checkpoint, adapters, family, config)
    checkpoint, config = with_sidecar(checkpoint, config, sidecar, family)
    head_tensors = CheckpointTensors(checkpoint, names_of(family, config), config.source)
    plan = find_plan(heads, config.num_hidden_layers, head_tensors.has)
    program = _drafted(program, family, config, heads, head_tensors.has, checkpoint)
    program = _headed(program, plan, head_tensors, heads, checkpoint)
    program = with_sentence_steps(program, head_tensors)
    tensors = find_tensors(program, checkpoint, family, config)
    program, weights = with_drafters(program, drafters, weight_format)
    ordered = _ordered(program, checkpoint, tensors, column_orders, weight_format)
    weights |= read_weights(
        program, checkpoint, tensors, weight_format, ordered.orders, head_tensors.names
    )
    program = with_rule(program, weight_format, checkpoint, tensors)
    program, weights = with_shortlist(program, weights, draft_vocabulary)
    bound, name = with_layouts(program, weights, ordered.orders), family_name(family)
    return LoadedProgram(bound, weights, checkpoint, name, config, tensors, ordered.notes, family)


def _ordered(
    program: Program,
    checkpoint: OpenCheckpoint,
    tensors: Mapping[str, Sequence[TensorSlice]],
    column_orders: bool,
    weight_format: str | None,
) -> OrderedWeights:
    """Return the orders of columns that are kept: those of codes that stay as they are stored."""
    as_stored = column_orders and weight_format in (None, FLOAT_TARGET)
    return ordered_weights(program, checkpoint, tensors if as_stored else {})


def read_weights(
    program: Program,
    checkpoint: OpenCheckpoint,
    tensors: Mapping[str, Sequence[TensorSlice]],
    weight_format: str | None,
    orders: Mapping[str, ColumnOrder] = MappingProxyType({}),
    names: Names = USUAL,
) -> dict[str, Weight]:
    """Return the weights that are made of a checkpoint's tensors; `orders` as they are permuted."""
    formats, weights = format_of_each(program, weight_format or DEFAULT_WEIGHT_FORMAT), {}
    for name, pieces in tensors.items():
        whole = [checkpoint.tensor(piece.tensor) for piece in pieces]
        whole = [in_order(tensor) for tensor in whole] if name in orders else whole
        raws = [read_piece(*pair) for pair in zip(whole, pieces, strict=True)]
        shape = program.weights[name].shape
        rows = [piece.height for piece in pieces] if len(pieces) > 1 else []
        if (formed := names.formed_as(name)) is not None:
            weights[name] = formed.made(raws, name)
        elif name in formats:
            weights[name] = matrix_weight(
                raws, shape, formats[name], weight_format is not None, rows
            )
        else:
            weights[name] = vector_weight(raws, shape, rows)
    return weights


def _load_synthetic(
    checkpoint: SyntheticCheckpoint,
    context: int | None,
    weight_format: str | None,
    heads: str,
    drafters: Drafters,
    draft_vocabulary: int,
    adapters: Sequence[Adapter],
) -> LoadedProgram:
    if adapters:
        raise RequestError("a synthetic model takes no adapters", where="lora")
    program, config, family = synthetic_program(checkpoint, context), None, None
    if program is None:
        family = family_for(checkpoint)
        config = read_config(family, checkpoint)
        program = build_program(family, config, context, checkpoint)
    heads, further = split_heads_option(heads)
    plan = synthetic_plan(heads, layer_count(program.trunk))
    program = _headed(program, plan, held_by_fixture(checkpoint.name), heads, checkpoint)
    if heads == DSPARK and not hasattr(family, "DRAFTER"):
        heads, further = OFF, {**further, DSPARK: ""}
    program = with_formula_drafters(program, further)
    if heads == DSPARK:
        program = _drafted(program, family, config, heads, None, checkpoint)
    weights = synthetic_weights(checkpoint, program, weight_format)
    program, theirs = with_drafters(program, drafters, weight_format)
    weights |= theirs
    program, weights = with_shortlist(program, weights, draft_vocabulary)
    name = str(program.facts["family"])
    bound = with_layouts(program, weights)
    return LoadedProgram(bound, weights, checkpoint, name, config, {}, module=family)


def _drafted(
    program: Program,
    family: ModuleType | None,
    config: BaseConfig | None,
    heads: str,
    has: Callable[[str], bool] | None,
    checkpoint: OpenCheckpoint,
) -> Program:
    """Return the program with the drafter that the family's folders may hold beside the trunk, if
    it is wanted and there; raise if it was asked for by name and not found.
    """
    if heads not in (AUTO, DSPARK):
        return program
    drafted = program
    if module := getattr(family, "DRAFTER", ""):
        with said_of(checkpoint):
            drafted = import_module(module).with_drafter(program, config, has)
    if heads == DSPARK and drafted is program:
        what, hint = "the model has no drafter 'dspark'", "heads='dspark:PATH' names one's folder"
        raise RequestError(what, where=location_of(checkpoint), hint=hint)
    return drafted


def _headed(
    program: Program,
    plan: HeadPlan | None,
    head_tensors: HeadTensors,
    heads: str,
    checkpoint: OpenCheckpoint,
) -> Program:
    """Return the program with the draft head; raise if one was asked for by name and not found."""
    name, _ = parse_head_option(heads)
    if plan is not None and (name != AUTO or is_like(program.trunk, plan.modules[0])):
        return with_heads(program, plan, head_tensors)
    if name in (OFF, AUTO, DSPARK):
        return program
    what = f"the model has no draft head {name!r}"
    hint = "heads='auto' takes one where there is one; drafting by lookup needs none"
    raise RequestError(what, where=location_of(checkpoint), hint=hint)


def with_layouts(
    program: Program,
    weights: Mapping[str, Weight],
    orders: Mapping[str, ColumnOrder] = MappingProxyType({}),
) -> Program:
    """Fill in every layout of a program, permute the rows of ordered weights, and verify it."""
    program = program.with_layouts({name: layout_name(w) for name, w in weights.items()})
    program = with_orders(program, orders)
    verify(program)
    return program


def layout_name(weight: Weight) -> str:
    """Return the layout as `WeightSpec` names it: `f32` for every float layout."""
    return "f32" if weight.layout.kind == "float" else weight.layout.name


def check_weights(loaded: LoadedProgram) -> None:
    """Read every tensor whole, in slices; `FormatError` names the first with a NaN or infinity."""
    for names in loaded.tensors.values():
        for name in names:
            tensor = loaded.checkpoint.tensor(name)
            check_finite(raw_weight(tensor, (prod(tensor.shape[:-1]), tensor.shape[-1])), name)
