"""Domains of the fields of a dataclass: read from its annotations, checked on its objects."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from cortiq.domains.values import Domain, NoneOnly, TypedValue, Violation
from cortiq.errors import CortiqError, shown


@dataclass(frozen=True)
class TupleOf(Domain):
    """Tuples of any length, of values of one domain."""

    item: Domain

    def text(self) -> str:
        """Return the domain of the items."""
        return f"a tuple, each of which is {self.item.text()}"

    def admits(self, value: Any) -> bool:
        """Return whether it is such a tuple."""
        return isinstance(value, tuple) and all(map(self.item.admits, value))


@dataclass(frozen=True)
class InstanceOf(Domain):
    """Objects of a dataclass whose fields lie in their domains."""

    type: type

    def text(self) -> str:
        """Return the class."""
        return f"a {self.type.__name__}"

    def admits(self, value: Any) -> bool:
        """Return whether it is such an object."""
        return not any(self.violations(value, ""))

    def violations(self, value: Any, name: str) -> Iterator[Violation]:
        """Yield the violations inside, or that the value is no such object."""
        if not isinstance(value, self.type):
            yield Violation(f"{name} is {shown(value)}", f"it takes {self.text()}")
        else:
            yield from violations(value, name)


@dataclass(frozen=True)
class AnyOf(Domain):
    """Values of one domain or another."""

    domains: tuple[Domain, ...]

    def text(self) -> str:
        """Return all of them."""
        return ", or ".join(domain.text() for domain in self.domains)

    def admits(self, value: Any) -> bool:
        """Return whether one of them admits it."""
        return any(domain.admits(value) for domain in self.domains)

    def violations(self, value: Any, name: str) -> Iterator[Violation]:
        """Yield what is wrong inside an object of a class that is admitted, or the whole value."""
        if self.admits(value):
            return
        for domain in self.domains:
            if isinstance(domain, InstanceOf) and isinstance(value, domain.type):
                yield from domain.violations(value, name)
                return
        yield from super().violations(value, name)


@dataclass(frozen=True)
class Relation:
    """A condition between fields of one class.

    Attributes
    ----------
    options : names of the fields.
    text : the sentence that holds.
    holds : of an object whose fields all lie in their own domains.
    """

    options: tuple[str, ...]
    text: str
    holds: Callable[[Any], bool]


def divides(divisor: str, dividend: str) -> Relation:
    """Return the relation of a field that is a multiple of another; `None` is left alone."""

    def holds(value: Any) -> bool:
        part = getattr(value, divisor)
        return part is None or getattr(value, dividend) % part == 0

    return Relation((divisor, dividend), f"{divisor} divides {dividend}", holds)


def at_most(lesser: str, greater: str) -> Relation:
    """Return the relation of a field that is not above another; `None` is left alone."""

    def holds(value: Any) -> bool:
        pair = getattr(value, lesser), getattr(value, greater)
        return None in pair or pair[0] <= pair[1]

    return Relation((lesser, greater), f"{lesser} is at most {greater}", holds)


def domain_of(annotation: Any) -> Domain:
    """Return the domain that an annotation stands for."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return next((a for a in arguments[1:] if isinstance(a, Domain)), domain_of(arguments[0]))
    if origin in (typing.Union, types.UnionType):
        return AnyOf(tuple(map(domain_of, arguments)))
    if origin is tuple and arguments[1:] == (...,):
        return TupleOf(domain_of(arguments[0]))
    if annotation is type(None):
        return NoneOnly()
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return InstanceOf(annotation)
    return TypedValue(annotation if isinstance(annotation, type) else object)


@cache
def domains_of(described: type) -> Mapping[str, Domain]:
    """Return the domain of each field of a dataclass."""
    hints = typing.get_type_hints(described, include_extras=True)
    return {f.name: domain_of(hints[f.name]) for f in dataclasses.fields(described)}


def violations(described: Any, name: str = "") -> Iterator[Violation]:
    """Yield what fields of a dataclass are outside their domains, or else what relation is broken.

    Parameters
    ----------
    name : of the object, the prefix of its fields' names.
    """
    prefix = f"{name}." if name else ""
    options = domains_of(type(described)).items()  # type: ignore[arg-type]
    outside = [(o, d) for o, d in options if not d.admits(getattr(described, o))]
    for option, domain in outside:
        yield from domain.violations(getattr(described, option), f"{prefix}{option}")
    for relation in () if outside else getattr(described, "relations", ()):
        if not relation.holds(described):
            values = (f"{prefix}{o} is {shown(getattr(described, o))}" for o in relation.options)
            yield Violation(", ".join(values), f"it must hold that {relation.text}")


def require(described: Any, error: type[CortiqError], where: str) -> None:
    """Raise an error that lists the violations of an object, unless there are none."""
    found = [str(violation) for violation in violations(described)]
    if found:
        raise error("; ".join(found), where=where)
