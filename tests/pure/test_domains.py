"""Domains of options: what lies just inside verifies and has one meaning, the rest is refused."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from one_node import PRIMITIVES, SPECIMENS, probe_of

from cortiq.domains import (
    AnyOf,
    InstanceOf,
    Integer,
    OneOf,
    Real,
    TupleOf,
    TypedValue,
    domains_of,
)
from cortiq.errors import CortiqError, GraphError
from cortiq.ir import KVRows, Recurrent, Ring, Type, ops, verify
from cortiq.ir.layers import LAYERS, Gating, QKNorm
from cortiq.ir.op import Op, TypeMismatchError, inferred, violations_of
from cortiq.numerics import rope_scaling
from cortiq.numerics.column_order import ColumnOrder, PackedColumns
from cortiq.numerics.rope import RopeTable, Sections
from cortiq.numerics.route import Router
from cortiq_conformance.case import Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.outputs import Named
from cortiq_conformance.subject import Subject
from cortiq_cpu.backend import CpuBackend
from cortiq_reference.backend import ReferenceBackend

KINDS = (*ops.PRIMITIVES, *LAYERS)
ROWS = 5
STRANGE = (None, True, "nonsense", 1.5, (), math.nan)
SCALINGS = (*rope_scaling.KINDS.values(), rope_scaling.Growth, rope_scaling.Learned)
"""Classes whose numbers are looked at together: whether a table follows from them."""


def inside(domain):
    """Values at the borders of a domain, and some within it."""
    match domain:
        case Integer(least, most, multiple):
            return [least, least + multiple, 3 * multiple, most // multiple * multiple]
        case Real():
            edges = [(domain.low, math.inf, domain.above), (domain.high, -math.inf, domain.below)]
            found = [float(np.nextafter(np.float32(e), np.float32(to))) if open_ else e
                     for e, to, open_ in edges if math.isfinite(e)]  # fmt: skip
            return found + [0.0] * domain.zero + [-n for n in found if domain.signed]
        case OneOf(words):
            return list(words)
        case AnyOf(domains):
            return [value for d in domains for value in inside(d)]
        case TupleOf(item):
            return [(value,) for value in inside(item)]
        case TypedValue():
            return [True, False] if domain.type is bool else []
        case InstanceOf():
            return []
        case PackedColumns():
            return [ColumnOrder.of(range(7, -1, -1)).packed]
    return [None]


def outside(domain):
    """Values just outside a domain, and some of other types."""
    match domain:
        case Integer(least, most, multiple):
            near = [least - 1, least - multiple, most + 1, 0.5, str(least)]
            near += [least + 1] if multiple > 1 else []
        case Real(low, high, above, below, _, zero):
            near = [low if above else np.nextafter(low, -math.inf)]
            near += [high if below else np.nextafter(high, math.inf), math.inf, -math.inf]
            near += [-0.0, low / 2] if zero else [0.0] * (low > 0)
        case OneOf(words):
            near = [words[0].upper(), ""]
        case TupleOf(item):
            near = [(value,) for value in outside(item)] + [[]]
        case AnyOf(domains):
            near = [value for d in domains for value in outside(d)]
        case PackedColumns():
            near = [b"", b"\0", b"\0\0\0\0", b"\1\0"]
        case _:
            near = [0, 1]
    return [value for value in (*near, *STRANGE) if not domain.admits(value)]


def changed(described, path, value):
    """The object with the field at the end of a path replaced; None if its class refuses that."""
    name, *rest = path
    inner = changed(getattr(described, name), rest, value) if rest else value
    return replace(described, **{name: inner})


def options(described, path=()):
    """Paths of all fields, those of dataclasses inside it too, and their domains."""
    for name, domain in domains_of(type(described)).items():
        value = getattr(described, name)
        yield (*path, name), domain
        records = domain.domains if isinstance(domain, AnyOf) else (domain,)
        if type(value) in SCALINGS:
            continue
        if any(isinstance(d, InstanceOf) and isinstance(value, d.type) for d in records):
            yield from options(value, (*path, name))


def bare(described):
    """Fields of a class that say nothing of their values but a type."""
    for name, domain in domains_of(described).items():
        parts = domain.domains if isinstance(domain, AnyOf) else (domain,)
        for part in (p.item if isinstance(p, TupleOf) else p for p in parts):
            if isinstance(part, TypedValue) and part.type is not bool:
                yield f"{described.__name__}.{name}"
            if isinstance(part, InstanceOf) and part.type not in SCALINGS:
                yield from bare(part.type)


@pytest.mark.parametrize("described", [*KINDS, KVRows, Ring, Recurrent])
def test_every_option_has_a_domain(described):
    assert not list(bare(described))


def test_every_operator_has_a_specimen_with_each_of_its_records():
    assert {type(op) for op in SPECIMENS} == set(KINDS)
    known = {
        part.type
        for kind in KINDS
        for d in domains_of(kind).values()
        for part in (d.domains if isinstance(d, AnyOf) else (d,))
        if isinstance(part, InstanceOf)
    }
    seen = {type(getattr(op, f.name)) for op in SPECIMENS for f in fields(op)}
    assert known - set(SCALINGS) <= seen


@cache
def probe(op):
    return probe_of(op, CaseData(op.describe()))


def with_op(op, other):
    """The program of a specimen, its node having another operator."""
    program = probe(op).program
    nodes = tuple(replace(n, op=other) if n.name == "y" else n for n in program.trunk.nodes)
    return replace(program, graphs={"trunk": replace(program.trunk, nodes=nodes)})


@pytest.mark.parametrize("op", SPECIMENS, ids=Op.describe)
def test_values_outside_a_domain_are_refused_by_name(op):
    verify(probe(op).program)
    for path, domain in options(op):
        assert outside(domain)
        for value in outside(domain):
            try:
                other = changed(op, path, value)
            except CortiqError as error:  # a router or rotary table refuses it when it is made
                assert f"{path[-1]} is " in str(error) and domain.text() in str(error)
                continue
            with pytest.raises(GraphError) as error:
                verify(with_op(op, other))
            sentence = f"y: {op.kind}.{'.'.join(path)} is {value!r}; it takes {domain.text()}"
            assert sentence in str(error.value)


@pytest.mark.parametrize("op", SPECIMENS, ids=Op.describe)
def test_values_inside_a_domain_are_let_in(op):
    """Unless what several options must be to each other says no, which the message tells."""
    for path, domain in options(op):
        for value in inside(domain):
            assert domain.admits(value)
            if path[-2:] == ("table", "dim") and not small(value):
                continue  # takes seconds
            try:
                found = violations_of(changed(op, path, value))
            except CortiqError as error:
                assert "it must hold that" in str(error)
                continue
            assert all(f.wanted.startswith("it must hold that") for f in found), found


def small(value):
    numbers = [n for n in (value if isinstance(value, tuple) else (value,)) if type(n) is int]
    return all(number < 1000 for number in numbers)


def borders(op):
    """Operators with one option at a border of its domain; large counts where they take no room."""
    for path, domain in options(op):
        for value in inside(domain):
            if small(value) or (op.kind == "Attend" and path[0] in ("window", "block")):
                try:
                    other = changed(op, path, value)
                except CortiqError:
                    continue
                if not violations_of(other):
                    yield other


def observed(case, backend):
    return case.observe(Subject(backend))


@pytest.mark.parametrize("op", [op for op in PRIMITIVES if fields(op)], ids=Op.describe)
def test_at_the_borders_the_reference_and_cpu_agree(op):
    for other in borders(op):
        made = probe_of(other, CaseData(other.describe()))
        feed = made.feed(CaseData("rows"), ROWS)
        if "last" in feed.inputs:
            feed.inputs["last"][:] = ROWS - 1
        wants = tuple(map(Named, made.program.trunk.outputs))
        case = Scenario(made.program, made.weights, [feed], wants)
        here, there = (observed(case, b) for b in (ReferenceBackend(), CpuBackend()))
        assert here["outcome"] != 1, other
        assert here.keys() == there.keys()
        for name in here:
            assert here[name].tobytes() == there[name].tobytes(), (other, name)


def relations_of(described):
    """Relations of a class and of the dataclasses that its fields hold."""
    yield from ((described, relation) for relation in getattr(described, "relations", ()))
    for domain in domains_of(described).values():
        for part in domain.domains if isinstance(domain, AnyOf) else (domain,):
            if isinstance(part, InstanceOf):
                yield from relations_of(part.type)


def messages(op):
    """Return the verifier's verdict on an operator after one or two changes of options."""
    small_changes = [(p, v) for p, d in options(op) for v in inside(d) if small(v) or v == 7]
    for path, value in [*small_changes, *EXTRA]:
        try:
            yield from map(str, violations_of(changed(op, path, value)))
        except (AttributeError, TypeError):
            continue  # an extra change of another operator
        except CortiqError as error:
            yield str(error)


EXTRA = (
    (("heads",), 7), (("experts",), 1), (("start",), 6), (("low",), 2.0), (("layer",), 3),
    (("table",), RopeTable(1e4, 8, rope_scaling.Linear(0.0))), (("local",), 4),
    (("sections",), Sections((1, 1))), (("fraction",), 1 - 2.0**-45), (("grouped",), ("ba", "ba")),
    (("activation",), Gating(limit=1.0)), (("shared_inner",), 0), (("rope",), RopeTable(1e4, 64)),
    (("kept_groups",), 3), (("router", "kept_groups"), 3), (("indexer", "local"), 4),
    (("norm_groups",), 7), (("decay_form",), "plain"), (("step_low",), 2.0),
    (("qk_norm",), QKNorm(1e-6, full_width=True)), (("shares_kv",), True), (("groups",), 5),
    (("sections", "pairs"), ()), (("sections", "pairs"), (1, 1, 2)),
    (("sections",), None), (("indexer", "dim"), 4),
    (("sections", "interleaved"), True), (("gated",), False), (("width",), 2),
    (("query_rope",), RopeTable(1e4, 64)), (("nope_rope",), RopeTable(1e4, 64)),
    (("sections",), Sections((4, 2, 2))), (("value_dim",), 3), (("output_gate",), True),
    (("multipliers",), (3,)), (("heights",), (5, 7, 9)), (("heights",), (2**31 - 1, 2)),
    (("every",), 1025), (("router",), Router(2, "sparse_mixer", margin=0.5)),
)  # fmt: skip


def test_every_relation_can_be_broken_and_says_so():
    relations = {relation.text for kind in KINDS for _, relation in relations_of(kind)}
    said = {message for op in SPECIMENS for message in messages(op)}
    unseen = {text for text in relations if not any(text in message for message in said)}
    assert not unseen


SHAPES = ((), (1,), (8,), (2, 8), (4, 8), (2, 3, 8))


@pytest.mark.parametrize("op", SPECIMENS, ids=Op.describe)
def test_other_inputs_are_refused_in_words(op):
    """Any number of inputs of any types: there are types for the outputs, or one kind of error."""
    types = [Type(shape, dtype) for shape in SHAPES for dtype in ("f32", "i32", "q16")]
    draws = np.random.default_rng(0).integers(0, len(types), (60, 5))
    for draw in draws:
        for count in range(6):
            given = tuple(types[index] for index in draw[:count])
            try:
                outputs = inferred(op, given)
            except TypeMismatchError as error:
                assert op.kind in str(error) or "takes" in str(error)
                continue
            assert all(isinstance(kind, Type) for kind in outputs)
            assert count == 1 or not op.kind.endswith(("Norm", "MLP", "Linear", "Bias"))
