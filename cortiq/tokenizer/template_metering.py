"""Insert metering into a template: filters whose names no template can spell."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from jinja2 import Environment, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from cortiq.tokenizer.operator_costs import cost_of_comparison
from cortiq.tokenizer.render_budget import CHARACTERS_PER_UNIT, RenderBudget

__all__ = ["inserted_filters", "metered", "refuse_underscore"]

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "ne": operator.ne, "gt": operator.gt, "gteq": operator.ge,
    "lt": operator.lt, "lteq": operator.le, "in": lambda a, b: a in b,
    "notin": lambda a, b: a not in b,
}  # fmt: skip


def inserted_filters(budget: RenderBudget) -> dict[str, Callable[..., Any]]:
    """Return the filters that `metered` inserts; Jinja never evaluates them at compile time."""

    @pass_context
    def tick(_: Context, units: int) -> bool:
        budget.spend(units)
        return True

    @pass_context
    def charge(_: Context, value: Any) -> Any:
        return budget.charge(value)

    @pass_context
    def emit(_: Context, value: Any) -> str:
        budget.weigh(value)
        return value if isinstance(value, str) else budget.charge(str(value))

    @pass_context
    def compare(_: Context, left: Any, operation: str, right: Any) -> Any:
        budget.spend(cost_of_comparison(operation, left, right))
        return _COMPARE[operation](left, right)

    return {"+tick": tick, "+charge": charge, "+emit": emit, "+compare": compare}


def metered(template: nodes.Template, environment: Environment) -> nodes.Template:
    """Return a template with the inserted filters in it."""
    made: nodes.Template = _Meter().visit(template)
    made.set_environment(environment)
    return made


class _Meter(NodeTransformer):
    """Inserts filters where a template repeats, prints, compares, or builds values."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self._ticking(node)
        if node.test is not None:
            tick = _filtered(nodes.Const(1, lineno=node.lineno), "+tick")
            node.test = nodes.And(tick, node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._ticking(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._ticking(node)

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        for index, child in enumerate(node.nodes):
            if not isinstance(child, nodes.TemplateData):
                node.nodes[index] = _filtered(self.visit(child), "+emit")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        node.nodes = [_filtered(self.visit(part), "+emit") for part in node.nodes]
        return _filtered(node, "+charge")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if len(node.ops) == 1:
            operation = nodes.Const(node.ops[0].op, lineno=node.lineno)
            return _filtered(node.expr, "+compare", operation, node.ops[0].expr)
        node.expr = _filtered(node.expr, "+charge")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "+charge")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "+charge") if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return _filtered(self.generic_visit(node), "+charge")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _filtered(pair.key, "+charge")
        return _filtered(node, "+charge")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "+charge") if node.ctx == "load" else node

    def _ticking(self, node: Any) -> nodes.Node:
        texts = node.find_all(nodes.TemplateData)
        units = 1 + sum(len(text.data) for text in texts) // CHARACTERS_PER_UNIT
        self.generic_visit(node)
        tick = _filtered(nodes.Const(units, lineno=node.lineno), "+tick")
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        return node


def _filtered(node: nodes.Node, name: str, *arguments: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


def refuse_underscore(name: object) -> None:
    """Refuse private names of a namespace."""
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the template sets the private attribute {name!r} of a namespace")
