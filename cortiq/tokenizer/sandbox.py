"""A Jinja2 sandbox for templates nobody has read: no escape, and bounded time and memory.

Chat templates come with model files. Jinja2's immutable sandbox keeps them away from Python's
internals; on top of it everything that can grow or repeat is charged to a budget: loop turns,
macro calls, every value made by a call, filter, operator or literal, and the output. What could
make a huge value in one step (`*`, `join`, `replace`, format widths) is checked before it happens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from cortiq.tokenizer.budget import (
    CHARACTERS_PER_UNIT,
    CHECKS,
    Budget,
    operator_units,
    refuse_wide_fields,
    refuse_wide_percent,
)

__all__ = ["TemplateEnvironment"]


# Filters whose work is at most proportional to what they get; others do not exist here.
_FILTERS = """
abs capitalize count d default dictsort e escape first float groupby indent int items join last
length list lower map max min reject rejectattr replace reverse round safe select selectattr sort
string sum title trim truncate unique upper wordcount
"""

_TEXT_METHODS = """
capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit
isidentifier islower isnumeric isprintable isspace istitle isupper join lower lstrip partition
removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith
strip swapcase title upper
"""

_ATTRIBUTES: dict[type, frozenset[str]] = {
    str: frozenset(_TEXT_METHODS.split()),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    int: frozenset(),
    float: frozenset({"is_integer"}),
}


class TemplateNamespace(Namespace):
    """Jinja's `namespace`, without underscore names and without printing what is in it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}`: marks the assistant's words; the text stays."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: Parser) -> nodes.Node:
        """Replace the tag by its body, in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with its budget; made for one rendering."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, budget: Budget) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            cache_size=0,
        )
        self.budget = budget
        for name in ("lipsum", "cycler"):
            del self.globals[name]
        self.globals["namespace"] = TemplateNamespace
        self.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
        self.filters = {name: self._metered(FILTERS[name]) for name in _FILTERS.split()}
        self.filters |= self._inserted_filters()

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Make `function` a filter whose results are charged."""
        self.filters[name] = self._metered(function)

    def _metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        check = CHECKS.get(function.__name__.removeprefix("do_").removeprefix("sync_do_"))

        @wraps(function)  # keeps Jinja's mark of what to pass first
        def run(*args: Any, **kwargs: Any) -> Any:
            if check is not None:
                own = args[1:] if hasattr(function, "jinja_pass_arg") else args
                args = (*args[: len(args) - len(own)], *check(self.budget, *own, **kwargs))
            return self.budget.charge(function(*args, **kwargs))

        return run

    def _inserted_filters(self) -> dict[str, Callable[..., Any]]:
        """Filters that `_Meter` puts into a template; no template can spell their names."""
        budget = self.budget

        @pass_context  # which also keeps Jinja from evaluating them when compiling
        def tick(_: Context, units: int) -> None:
            budget.spend(units)

        @pass_context
        def charge(_: Context, value: Any) -> Any:
            return budget.charge(value)

        @pass_context
        def emit(_: Context, value: Any) -> str:
            budget.charge(value)
            return budget.charge(str(value))

        @pass_context
        def concatenate(_: Context, values: list[Any]) -> str:
            return "".join([budget.charge(str(value)) for value in values])

        return {"+tick": tick, "+charge": charge, "+emit": emit, "+concatenate": concatenate}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Of plain values only what is listed; of other objects what the sandbox allows."""
        for kind, allowed in _ATTRIBUTES.items():
            if isinstance(obj, kind):
                return attr in allowed
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's safe `str.format`, without wide or computed fields."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            refuse_wide_fields(value.__self__)
        return wrapped

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call with a check before and a charge after; the names cannot clash with keywords."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            check = CHECKS.get(getattr(__obj, "__name__", ""))
            if check is not None:
                # "sep".join(values) is the filter's values|join("sep")
                swap = __obj.__name__ == "join"
                own = check(__self.budget, *((*args, owner) if swap else (owner, *args)))
                args = own[:1] if swap else own[1:]
        return __self.budget.charge(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator whose result is bounded before it is computed."""
        if operator == "%" and isinstance(left, str):
            refuse_wide_percent(left)
        self.budget.require(operator_units(operator, left, right))
        return self.budget.charge(super().call_binop(context, operator, left, right))

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        metered = _Meter().visit(source)
        metered.set_environment(self)
        return super()._generate(metered, *args, **kwargs)


class _Meter(NodeTransformer):
    """Puts the inserted filters where a template repeats, prints, or builds values."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._ticking(node)

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
        parts = nodes.List([self.visit(part) for part in node.nodes], lineno=node.lineno)
        return _filtered(parts, "+concatenate")

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return _filtered(self.generic_visit(node), "+charge")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return _filtered(self.generic_visit(node), "+charge")

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


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the template sets the private attribute {name!r} of a namespace")
