"""Rows of a PEFT adapter's matrices in a GGUF file, whose writers may have turned some of them.

llama.cpp's converter puts the rows of query and key heads of some families in pairs, for rotary
embeddings. A family says so by the graph that it builds: where the graphs of a folder and of a GGUF
file differ in the pairing alone (and in the offset of norms, whose weights no low-rank change
touches), all matrices but those have the same rows.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import CortiqError, UnsupportedError
from cortiq.ir.layers import Attention
from cortiq.models.config import BaseConfig

Rows = npt.NDArray[np.intp]
_FOLLOWING = frozenset({"pairing", "offset"})
"""Fields of operators that only follow from how a file arranges weights."""


def turned_rows(family: ModuleType, config: BaseConfig, where: str) -> dict[str, Rows]:
    """Return the weights whose rows a GGUF file has in another order: the folder's row of each.

    Raises
    ------
    UnsupportedError : the family's GGUF files differ from its folders in more than that.
    """
    context = config.max_position_embeddings
    try:
        folder = family.build(dataclasses.replace(config, source="huggingface"), context)
        file = family.build(config, context)
    except CortiqError as error:
        raise _other(where) from error
    pairs = list(zip(folder.trunk.nodes, file.trunk.nodes, strict=False))
    is_same = len(folder.trunk.nodes) == len(file.trunk.nodes) and folder.weights == file.weights
    if not is_same or not all(_is_same(a, b) for a, b in pairs):
        raise _other(where)
    found: dict[str, Rows] = {}
    for theirs, ours in pairs:
        op, other = ours.op, theirs.op
        if (
            isinstance(op, Attention)
            and isinstance(other, Attention)
            and op.pairing != other.pairing
        ):
            turned = op.rope.dim if op.rope is not None else 0
            for part, heads in (("q", op.heads), ("k", op.kv_heads)):
                found[ours.weights[part]] = _in_pairs(heads, op.head_dim, turned)
    return found


def _other(where: str) -> UnsupportedError:
    """Return the error about a family that has no rule."""
    hint = "take the model's folder, or convert the adapter with llama.cpp's "
    hint += "convert_lora_to_gguf.py"
    what = "is a PEFT adapter, and GGUF files of this family arrange their weights otherwise"
    return UnsupportedError(what, where=where, hint=hint)


def _is_same(first: Any, second: Any) -> bool:
    """Return whether two values are equal, but for fields that follow from an arrangement."""
    if type(first) is not type(second):
        return False
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in dataclasses.fields(first)]
        return all(
            n in _FOLLOWING or _is_same(getattr(first, n), getattr(second, n)) for n in names
        )
    return bool(first == second)


def _in_pairs(heads: int, width: int, turned: int) -> Rows:
    """Return the row of halves for every row of pairs: of each head's first `turned` rows."""
    rows = np.arange(heads * width).reshape(heads, width)
    half = rows[:, :turned].reshape(heads, 2, turned // 2)
    rows[:, :turned] = half.swapaxes(1, 2).reshape(heads, turned).copy()
    return rows.reshape(-1)
