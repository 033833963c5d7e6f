"""Rewriting of a loaded program by packages: other layers in place of some of the family's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cortiq.errors import RequestError
from cortiq.ir import Program, verify
from cortiq.models.bind import layout_name
from cortiq.numerics.layouts import Weight

REWRITES = "rewrites"
"""Fact of a program: what each package says of its change, in order; part of the fingerprint."""


class Rewritten(NamedTuple):
    """A program after a change.

    Attributes
    ----------
    weights : all that the program takes, those that were there before included.
    fact : decides its bits, as JSON can hold it: the argument, and hashes of files it names.
    notes : what a user should know of it, a line each.
    """

    program: Program
    weights: Mapping[str, Weight]
    fact: Any
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProgramRewrite:
    """A change of programs from the hook `cortiq_rewrites`.

    Attributes
    ----------
    name : `--rewrite NAME:ARGUMENT` asks for it.
    summary : what it does, in a line.
    rewrite : makes the change from a program, its weights by name, and the argument; it raises
        RequestError for an argument, UnsupportedError for a program.
    """

    name: str
    summary: str
    rewrite: Callable[[Program, Mapping[str, Weight], str], Rewritten]


def rewritten(
    program: Program,
    weights: Mapping[str, Weight],
    asked: Sequence[str],
    known: Sequence[ProgramRewrite],
) -> Rewritten:
    """Return a program after the changes that `asked` names, in this order.

    Raises
    ------
    RequestError : no package brings a change of this name.
    GraphError : a change broke a rule of the IR.
    """
    by_name, facts = {kind.name: kind for kind in known}, []
    notes: list[str] = []
    for text in asked:
        name, _, argument = text.partition(":")
        if name not in by_name:
            there = ", ".join(by_name) or "none"
            hint = f"a package brings them; there are: {there}"
            raise RequestError(f"no rewriting is called {name!r}", where="rewrite", hint=hint)
        made = by_name[name].rewrite(program, weights, argument)
        program, weights = made.program, made.weights
        notes += made.notes
        facts.append([name, made.fact])
    if facts:
        layouts = {n: layout_name(weights[n]) for n in program.weights if n in weights}
        program = program.with_layouts(layouts)
        program = replace(program, facts={**program.facts, REWRITES: facts})
        verify(program)
    return Rewritten(program, weights, facts, tuple(notes))
