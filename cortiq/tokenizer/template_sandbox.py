"""A Jinja2 sandbox for untrusted templates: no escape, bounded time and memory.

Chat templates come with model files. Jinja2's immutable sandbox keeps them away from Python's
internals. In addition, everything that can grow or repeat is charged to a budget before it runs:
loop turns, calls, filters, tests, operators and comparisons by their `template_costs`, every value
by its size, so that nothing larger than the budget exists. Operations without a cost are refused
with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner, Namespace

from cortiq.tokenizer import template_costs as costs
from cortiq.tokenizer.operator_costs import cost_of_format, cost_of_operator
from cortiq.tokenizer.render_budget import RenderBudget, measure
from cortiq.tokenizer.template_metering import inserted_filters, metered, refuse_underscore

__all__ = ["TemplateEnvironment"]

_REFUSED = "is not offered to chat templates"
_OWN_METHODS: dict[type, frozenset[str]] = {
    LoopContext: frozenset({"changed", "cycle"}),
    Cycler: frozenset({"next", "reset"}),
}


class TemplateNamespace(Namespace):
    """Jinja's `namespace`, without underscore names and without printing what is in it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        refuse_underscore(name)
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


class Formatting:
    """A text's `format` method: Jinja's safe one, charged before it runs."""

    def __init__(self, budget: RenderBudget, text: str, function: Callable[..., str]) -> None:
        self._budget, self._text, self._function = budget, text, function
        self._mapped = getattr(function, "__name__", "") == "format_map"

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        named = args[0] if self._mapped and args and isinstance(args[0], dict) else kwargs
        self._budget.spend(cost_of_format(self._text, args, named))
        return self._function(*args, **kwargs)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with its budget; made for one rendering."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, budget: RenderBudget) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            cache_size=0,
        )
        self.budget = budget
        self.globals["namespace"] = TemplateNamespace
        self.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
        self.globals["lipsum"] = _refused("lipsum")
        self._callable = {id(value) for value in self.globals.values()}
        own: dict[str, Any] = FILTERS
        self.filters = {name: _refused(name) for name in own}
        for name in costs.FILTERS:
            self.add_filter(name, own[name])
        self.filters |= inserted_filters(budget)
        tests: dict[str, Any] = TESTS
        self.tests = {name: self._priced(tests[name], cost) for name, cost in costs.TESTS.items()}

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Make `function` the filter of a name that has a cost; its results are charged."""
        self.filters[name] = self._metered(name, self._priced(function, costs.FILTERS[name], name))

    def add_global(self, name: str, function: Callable[..., Any]) -> None:
        """Make `function` one that templates may call; its arguments are charged by their size."""
        self.globals[name] = function
        self._callable.add(id(function))

    def _priced(
        self, function: Callable[..., Any], cost: costs.Cost, name: str = ""
    ) -> Callable[..., Any]:
        """Return a filter or test that charges the budget before it runs."""
        first = int(hasattr(function, "jinja_pass_arg"))  # what Jinja passes before the value
        budget = self.budget

        @wraps(function)  # keeps Jinja's mark of what to pass first
        def run(*args: Any, **kwargs: Any) -> Any:
            passed, own = args[:first], list(args[first:])
            if name in costs.GATHERS and own and isinstance(own[0], (Iterator, range)):
                own[0] = budget.charge(list(own[0]))
            budget.spend(cost(*own, **kwargs))
            return function(*passed, *own, **kwargs)

        return run

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter whose result is charged by its size, iterators item by item."""
        budget = self.budget

        def counted(values: Iterator[Any]) -> Iterator[Any]:
            for value in values:
                budget.charge(value if name in costs.MAKES_LISTS else None)
                yield value

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            if isinstance(made, Iterator):
                return counted(made)
            return made if name in costs.PASSES else budget.charge(made)

        return run

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a plain value's attribute has a cost, or an object's is safe."""
        for kind in costs.METHODS:
            if isinstance(obj, kind):
                return attr in costs.METHODS[kind] or attr in costs.ATTRIBUTES.get(kind, ())
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuse an attribute with an error where Jinja would print nothing."""
        raise SecurityError(f"{attribute!r} of a {type(obj).__name__} {_REFUSED}")

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up an item; a key that is a tuple is hashed whole each time."""
        if isinstance(argument, tuple):
            self.budget.weigh(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return Jinja's safe `str.format`, charged before it runs."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        return Formatting(self.budget, value.__self__, wrapped)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a permitted callable after charging it; its names cannot clash with keywords."""
        args = tuple(list(a) if isinstance(a, Iterator) and __self._gathers(__obj) else a
                     for a in args)  # fmt: skip
        __self.budget.spend(__self._call_units(__obj, args, kwargs))
        return __self.budget.charge(super().call(__context, __obj, *args, **kwargs))

    @staticmethod
    def _gathers(function: Any) -> bool:
        return isinstance(getattr(function, "__self__", None), (str, dict))

    def _call_units(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the units of a call; SecurityError if its cost is unknown."""
        size = sum(map(measure, args)) + sum(map(measure, kwargs.values()))
        if isinstance(function, Macro):
            return size if function.catch_varargs or function.catch_kwargs else 1 + len(args)
        known = (BlockReference, Cycler, Formatting, Joiner, LoopContext, Undefined)
        if isinstance(function, known) or id(function) in self._callable:
            return size
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        for kind, names in _OWN_METHODS.items():
            if isinstance(owner, kind) and name in names:
                return size
        for kind, methods in costs.METHODS.items():
            if isinstance(owner, kind) or owner is kind:
                if name not in methods:
                    break
                return methods[name](owner, *args, **kwargs)
        raise SecurityError(f"{name or type(function).__name__!r} {_REFUSED}")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator whose result is bounded first."""
        self.budget.spend(cost_of_operator(operator, left, right))
        return self.budget.charge(super().call_binop(context, operator, left, right))

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(metered(source, self), *args, **kwargs)


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise SecurityError(f"{name!r} {_REFUSED}: a prompt has to be the same each time")

    return refuse
