"""Wrong orders of summation, and kernels with a part of the contract replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import reduce
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from cortiq.backend.walk import Call
from cortiq_conformance.faults.kernels import Kernel

T = TypeVar("T")
Fold = Callable[[Callable[[Any, Any], Any], Sequence[Any]], Any]
"""Takes an addition and terms in their right order to a sum."""


def in_order(add: Callable[[T, T], T], terms: Sequence[T]) -> T:
    """Add ((t0 + t1) + t2) + …: the right order."""
    return reduce(add, terms)


def from_the_last(add: Callable[[T, T], T], terms: Sequence[T]) -> T:
    """Add ((tn + …) + t1) + t0."""
    return reduce(add, terms[::-1])


def in_pairs(add: Callable[[T, T], T], terms: Sequence[T]) -> T:
    """Add (t0 + t1) + (t2 + t3) …: neighbours, then neighbours of those."""
    while len(terms) > 1:
        odd = terms[len(terms) & ~1 :]
        pairs = [add(a, b) for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *odd]
    return terms[0]


class WrongOrder(NamedTuple):
    """A wrong order, and the fewest terms by which it differs from the right one."""

    fold: Fold
    fewest: int


WAYS = {
    "added from the last": WrongOrder(from_the_last, 3),
    "added in pairs": WrongOrder(in_pairs, 4),
}


class ReplacedFunction(NamedTuple):
    """A function of a module or class that a kernel uses, and its replacement."""

    owner: Any
    name: str
    wrong: Callable[..., Any]


def with_replaced(kernel: Kernel, *parts: ReplacedFunction) -> Kernel:
    """Return the kernel with functions replaced while it runs."""

    def wrong(call: Call, *inputs: Any) -> Any:
        with ExitStack() as stack:
            for part in parts:
                stack.enter_context(patch.object(part.owner, part.name, part.wrong))
            return kernel(call, *inputs)

    return wrong
