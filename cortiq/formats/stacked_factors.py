"""Low-rank changes of stacked experts in PEFT folders: `target_parameters`.

PEFT wraps the module that has the parameter, once for each of its parameters, one around the other:
`MODULE.lora_A.weight`, `MODULE.base_layer.lora_A.weight`, … are [r·experts, in] and
[out, r·experts], of which r is not told. Which parameter each is of follows from the shapes.
Source: PEFT's `tuners/lora/layer.py`, `ParamWrapper`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cortiq.arguments import is_finite
from cortiq.errors import FormatError, UnsupportedError, shown

_WRAPPED = ".base_layer"


@dataclass(frozen=True)
class StackedLowRank:
    """A change of every expert of a stack.

    Attributes
    ----------
    module : that has the parameter. parameters : names that it may have.
    a, b : tensors of the adapter: [r·experts, in] and [out, r·experts].
    alpha : the factor, over r, or over √r where it is rank-stabilised.
    """

    module: str
    parameters: tuple[str, ...]
    a: str
    b: str
    alpha: float
    stabilised: bool

    def scale(self, rank: int) -> float:
        """Return what the product is multiplied with."""
        return self.alpha / (math.sqrt(rank) if self.stabilised else rank)


def take_stacks(
    parts: dict[str, dict[str, str]], config: Mapping[str, Any], where: str
) -> tuple[StackedLowRank, ...]:
    """Take the changes of parameters from the tensors of an adapter by module.

    Raises
    ------
    FormatError : a target is no name, or a factor is missing.
    UnsupportedError : ranks differ by module.
    """
    targets = config.get("target_parameters") or []
    if not isinstance(targets, list) or not all(isinstance(t, str) and "." in t for t in targets):
        raise FormatError(f"target_parameters is {shown(targets)}", where=where)
    found = []
    for name in list(parts) if targets else ():
        module = name
        while module.endswith(_WRAPPED):
            module = module.removesuffix(_WRAPPED)
        there = tuple(_parameters(module, targets))
        if not there:
            continue
        if config.get("alpha_pattern") or config.get("rank_pattern"):
            what = "has ranks by module beside target_parameters"
            raise UnsupportedError(what, where=where)
        own = parts.pop(name)
        if own.keys() != {"lora_A", "lora_B"}:
            raise FormatError(f"{name} has not lora_A and lora_B alone", where=where)
        alpha: Any = config.get("lora_alpha")
        if not is_finite(alpha):
            raise FormatError(f"lora_alpha is {shown(alpha)}", where=where)
        stabilised = is_stabilised(config, where)
        found.append(
            StackedLowRank(module, there, own["lora_A"], own["lora_B"], float(alpha), stabilised)
        )
    return tuple(found)


def is_stabilised(config: Mapping[str, Any], where: str) -> bool:
    """Return whether factors are over √r; FormatError if the key says neither."""
    value: Any = config.get("use_rslora")
    if value not in (None, True, False):
        raise FormatError(f"use_rslora is {shown(value)}", where=where)
    return bool(value)


def _parameters(module: str, targets: Sequence[str]) -> list[str]:
    """Return the parameters of a module that are targets."""
    found = []
    for target in targets:
        owner, _, parameter = target.rpartition(".")
        if module == owner or module.endswith(f".{owner}"):
            found.append(parameter)
    return found
