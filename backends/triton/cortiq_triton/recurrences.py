"""Recurrent slots: launches of their kernels, and how a state goes back.

A slot is the state, two marks of it and `KEPT` rows: a state is kept at lengths that `MARK`
divides, m in place 1 + m // MARK % 2. The row of position p, in place p % KEPT, is k, v, α and β of
all heads (of a state space B, x, α and Δ). To go back is to take a mark and to compute the rows
behind it once more, in one launch for all slots that are alike. A diagonal delta rule keeps κ too:
see `diagonal`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
import torch

from cortiq.backend.extents import KEPT, MarkedExtent
from cortiq.backend.recurrences import Recurrence
from cortiq_triton import diagonal, mixers
from cortiq_triton.call import LaunchCall
from cortiq_triton.language import INTERPRETED, ceil_div, launch, pow2
from cortiq_triton.rowset import uploaded

COPIES = 3


@dataclass(frozen=True)
class KeptRecurrence(Recurrence):
    """A recurrence whose last rows are kept."""

    @property
    def words(self) -> int:
        """Count the numbers of a slot: state, marks, and rows."""
        heads, rows, columns = self.slot.shape
        width = self.key_heads * rows + heads * (columns + self.decays + 1)
        return COPIES * prod(self.slot.shape) + KEPT * width


def _sizes(rows: int, columns: int) -> tuple[int, dict[str, Any]]:
    """Programs for the columns of a state, and their sizes."""
    each, padded = pow2(columns) if INTERPRETED else min(pow2(columns), 32), pow2(rows)
    sizes = {"KP": padded, "BV": each, "STEPS": min(padded, 256).bit_length() - 1}
    return ceil_div(columns, each), sizes


def delta_rule(
    call: LaunchCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, alpha: torch.Tensor,
    beta: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Rows of a delta rule, whose states change and are kept."""
    (_, offset), op, rows = call.slot("state"), call.op, call.rows
    out, (programs, sizes) = torch.empty_like(v), _sizes(op.key_dim, op.value_dim)
    launch(
        mixers.delta_rule, (len(rows.starts), op.heads, programs), q, k, v, alpha, beta, rows.fixed,
        rows.starts, rows.stops, rows.positions, out, call.faults, offset, H=op.heads, G=op.groups,
        DK=op.key_dim, DV=op.value_dim, CHANNELS=alpha.ndim == 3, **sizes,
    )  # fmt: skip
    return out


def diagonal_delta_rule(call: LaunchCall, *inputs: torch.Tensor) -> torch.Tensor:
    """Rows of a diagonal delta rule, whose states change and are kept."""
    (_, offset), op, rows = call.slot("state"), call.op, call.rows
    out, (programs, sizes) = torch.empty_like(inputs[2]), _sizes(op.key_dim, op.value_dim)
    launch(
        diagonal.diagonal_delta_rule, (len(rows.starts), op.heads, programs), *inputs, rows.fixed,
        rows.starts, rows.stops, rows.positions, out, call.faults, offset, H=op.heads,
        DK=op.key_dim, DV=op.value_dim, **sizes,
    )  # fmt: skip
    return out


def state_space(
    call: LaunchCall, x: torch.Tensor, b: torch.Tensor, c: torch.Tensor, alpha: torch.Tensor,
    delta: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Rows of a state space, whose states change and are kept."""
    (_, offset), op, rows = call.slot("state"), call.op, call.rows
    out, (programs, sizes) = torch.empty_like(x), _sizes(op.state_dim, op.head_dim)
    launch(
        mixers.state_space, (len(rows.starts), op.heads, programs), x, b, c, alpha, delta,
        rows.fixed, rows.starts, rows.stops, rows.positions, out, call.faults, offset, H=op.heads,
        G=op.groups, DN=op.state_dim, DP=op.head_dim, CHANNELS=alpha.ndim == 3, **sizes,
    )  # fmt: skip
    return out


@cache
def _uploaded(offsets: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return uploaded(np.array(offsets, np.int64), device)


def replay(
    block: torch.Tensor,
    slots: Mapping[str, KeptRecurrence],
    offset_of: Callable[[str], int],
    extents: Mapping[str, MarkedExtent],
) -> None:
    """Bring states of a block to where their extents are: to a mark, and through rows kept.

    Parameters
    ----------
    offset_of : where a slot lies in the block.
    """
    alike: dict[Any, list[int]] = defaultdict(list)
    for name, extent in extents.items():
        alike[slots[name], extent.marks[-1], extent.length].append(offset_of(name))
    for (kind, mark, length), offsets in alike.items():
        heads, rows, columns = kind.slot.shape
        programs, sizes = _sizes(rows, columns)
        own: dict[str, Any] = {"G": kind.key_heads, "DECAYS": kind.decays, "DELTA": kind.is_delta}
        function, own = (diagonal.replay_diagonal, {}) if kind.is_diagonal else (mixers.replay, own)
        launch(
            function, (len(offsets), heads, programs), block,
            _uploaded(tuple(offsets), block.device), mark, length, H=heads, DK=rows, DV=columns,
            **own, **sizes,
        )  # fmt: skip
