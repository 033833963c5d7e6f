"""A model family: a name that cortiq doesn't know, whose graph is Llama's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

from cortiq.hookspecs import hookimpl
from cortiq.models.llama import KEYS, NAMES, Config, build

ARCHITECTURES = ("echo_llama",)
__all__ = ["ARCHITECTURES", "KEYS", "NAMES", "Config", "build"]


@hookimpl
def cortiq_families() -> Sequence[ModuleType]:
    """The family of this package: this module."""
    return [sys.modules[__name__]]
