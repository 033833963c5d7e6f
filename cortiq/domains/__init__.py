"""Domains: the values that a field of a dataclass takes, written in its annotation.

    window: Count | None = None
    pairing: Annotated[str, OneOf(PAIRINGS)] = "half"

`bool`, `tuple[X, ...]`, unions and dataclasses need nothing more; a bare `int`, `float` or `str`
takes any (finite) one. What several fields must be to each other is a `Relation`, in the class's
`relations`. `violations` checks an object against all of it, dataclasses inside it too.
"""

from __future__ import annotations

from cortiq.domains.fields import (
    AnyOf,
    InstanceOf,
    Relation,
    TupleOf,
    at_most,
    divides,
    domains_of,
    require,
    violations,
)
from cortiq.domains.values import (
    MAX_COUNT,
    Count,
    Domain,
    Integer,
    NoneOnly,
    OneOf,
    Real,
    Size,
    TypedValue,
    Violation,
)

__all__ = [
    "MAX_COUNT",
    "Count",
    "Domain",
    "TupleOf",
    "AnyOf",
    "Integer",
    "TypedValue",
    "NoneOnly",
    "OneOf",
    "Real",
    "InstanceOf",
    "Relation",
    "Size",
    "Violation",
    "at_most",
    "divides",
    "domains_of",
    "require",
    "violations",
]
