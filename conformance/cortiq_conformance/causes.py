"""Shared causes: the failed foundations that other failures depend on."""

from __future__ import annotations

from collections.abc import Iterable

STANDS_ON = {
    "silu": ("sigmoid",),
    "gelu_tanh": ("sigmoid",),
    "gelu": ("exp",),
    "sigmoid": ("exp",),
    "tanh": ("exp",),
    "softplus": ("exp", "relu"),
    "relu2": ("relu",),
    "SoftCap": ("tanh",),
}
"""Functions that are computed from another one, by the definitions of `cortiq.numerics.scalar`."""


def name_of(case_id: str, family: str) -> str:
    """Return the function that a case of the foundations tests, or its family."""
    what = case_id.partition("[")[2].partition(",")[0]
    return what if family == "Activation" else family


def stands_on(name: str) -> set[str]:
    """Return everything that a function is computed from."""
    direct = STANDS_ON.get(name, ())
    return set(direct).union(*map(stands_on, direct))


def causes_of(names: Iterable[str]) -> list[str]:
    """Return the names that depend on none of the others."""
    failed = set(names)
    return sorted(name for name in failed if not failed.intersection(stands_on(name)))
