"""Draws as kernels read them: a line of numbers for each, lists of biases, masks, and histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.backend import Argmax, Draw
from cortiq.backend.requests import draw_numbers, penalises
from cortiq.numerics.masks import Mask
from cortiq.numerics.sampling import Sampling
from cortiq_triton.language import pow2, signed

COLUMNS = 24
(PLACE, AT, MASK, OVER_T, TOP_K, TOP_P, MIN_P, POSITION, CHOICE, SEED_LOW, SEED_HIGH,
 REPETITION, OVER_REPETITION, PRESENCE, FREQUENCY, HISTORY) = range(16)  # fmt: skip
"""Columns of a line, int32; those of float32 hold its bits.

PLACE : row of the logits. AT : row of the fault flags. MASK : row of the masks, −1 for none.
OVER_T : RN(1/T), 0 for the argmax. TOP_K : 0 for all. TOP_P, MIN_P : units of 2⁻²⁴, −1 for no
top_p. HISTORY : number of ids that the penalties look at.
"""
FEWEST_BIASES = 64
"""Biases of a step, rounded up: another number is another kernel to capture."""
Lines = npt.NDArray[np.int32]


class Drawing(NamedTuple):
    """A draw of a row: of the logits in row `place`, faults in row `at`.

    position : that of the drawn token. history : ids that penalties look at, or where these lie.
    """

    want: Draw | Argmax
    place: int
    at: int
    position: int
    history: Sequence[int] | Stored = ()


class Stored(NamedTuple):
    """Ids on the device: the address of int32, and how many."""

    address: int
    count: int


@dataclass(frozen=True)
class Features:
    """What the draws of a batch use; with the same features they are the same launches.

    Attributes
    ----------
    draws : how many. top_k, top_p, min_p : whether some row has that filter.
    biases, masks : how many, rounded up. penalties : whether some row looks at its history.
    """

    draws: int
    top_k: bool = False
    top_p: bool = False
    min_p: bool = False
    biases: int = 0
    masks: int = 0
    penalties: bool = False


@lru_cache(maxsize=4096)
def _line(sampling: Sampling) -> Lines:
    """The numbers of a line that are the same for all draws with these options."""
    numbers, line = draw_numbers(Draw(sampling), None, 0), np.zeros(COLUMNS, np.int32)
    floats = line.view(np.float32)
    floats[OVER_T], floats[REPETITION] = numbers.inverse_temperature, numbers.repetition
    floats[OVER_REPETITION] = numbers.inverse_repetition
    floats[PRESENCE], floats[FREQUENCY] = numbers.presence, numbers.frequency
    line[SEED_LOW], line[SEED_HIGH] = signed(numbers.seed_low), signed(numbers.seed_high)
    line[MASK] = line[TOP_P] = -1
    if sampling.temperature:
        line[TOP_K] = min(numbers.top_k, (1 << 31) - 1)
        line[TOP_P], line[MIN_P] = (numbers.top_p if numbers.top_p_on else -1), numbers.min_p
    line.flags.writeable = False
    return line


@lru_cache(maxsize=4096)
def _biases(sampling: Sampling) -> tuple[Lines, npt.NDArray[np.float32]]:
    numbers = draw_numbers(Draw(sampling), None, 0)
    return numbers.bias_ids, numbers.bias


_GREEDY = Sampling(temperature=0.0)


def lines_of(drawings: Sequence[Drawing]) -> Lines:
    """A line of numbers for each draw; masks are numbered by `with_lists`."""
    lines = np.empty((len(drawings), COLUMNS), np.int32)
    for line, drawing in zip(lines, drawings, strict=True):
        want = drawing.want
        sampling = want.sampling if isinstance(want, Draw) else _GREEDY
        line[:] = _line(sampling)
        line[PLACE], line[AT] = drawing.place, drawing.at
        if isinstance(want, Draw):
            line[POSITION] = signed(drawing.position & 0xFFFFFFFF)
            line[CHOICE] = signed(want.choice & 0xFFFFFFFF)
            if penalises(want):
                known = drawing.history
                line[HISTORY] = known.count if isinstance(known, Stored) else len(known)
    return lines


def arrays_of(drawings: Sequence[Drawing], width: int) -> tuple[Features, dict[str, np.ndarray]]:
    """Features of a batch's draws, and the arrays that kernels read, by name.

    lines int32 [draws, COLUMNS]; histories int64 [draws], addresses of those that are `Stored`;
    bias_owners, bias_ids, biases int32 [biases] (bits of float32), owner −1 where there is none;
    masks int32 [masks, words]. The last ones only where they are used.

    Parameters
    ----------
    width : ids of a row of logits.
    """
    lines = lines_of(drawings)
    penalties = bool(lines[:, HISTORY].any())
    arrays: dict[str, np.ndarray] = {"lines": lines}
    if penalties:
        stored = (d.history.address if isinstance(d.history, Stored) else 0 for d in drawings)
        arrays["histories"] = np.fromiter(stored, np.int64, len(drawings))
    biased = _add_biases(drawings, arrays)
    masked = _add_masks(drawings, lines, arrays, width)
    features = Features(
        len(drawings), bool(lines[:, TOP_K].any()), bool((lines[:, TOP_P] >= 0).any()),
        bool(lines[:, MIN_P].any()), biased, masked, penalties,
    )  # fmt: skip
    return features, arrays


def _add_biases(drawings: Sequence[Drawing], arrays: dict[str, np.ndarray]) -> int:
    """Add the lists of biases; return their length."""
    found = [
        (number, *_biases(drawing.want.sampling))
        for number, drawing in enumerate(drawings)
        if isinstance(drawing.want, Draw) and drawing.want.sampling.logit_bias
    ]
    total = sum(len(ids) for _, ids, _ in found)
    if not total:
        return 0
    size = max(FEWEST_BIASES, pow2(total))
    owners, ids = np.full(size, -1, np.int32), np.zeros(size, np.int32)
    values, at = np.zeros(size, np.float32), 0
    for number, mine, bias in found:
        cut = slice(at, at + len(mine))
        owners[cut], ids[cut], values[cut] = number, mine, bias
        at += len(mine)
    arrays |= {"bias_owners": owners, "bias_ids": ids, "biases": values.view(np.int32)}
    return size


def _add_masks(
    drawings: Sequence[Drawing], lines: Lines, arrays: dict[str, np.ndarray], width: int
) -> int:
    """Add the masks, and their numbers to the lines; return how many there are, rounded up."""
    known: dict[Mask, int] = {}
    for line, drawing in zip(lines, drawings, strict=True):
        if isinstance(drawing.want, Draw) and drawing.want.mask is not None:
            line[MASK] = known.setdefault(drawing.want.mask, len(known))
    if not known:
        return 0
    size = -(-width // 32)
    bits = np.zeros((pow2(len(known)), 4 * size), np.uint8)
    for mask, number in known.items():
        bits[number, : len(mask)] = np.frombuffer(mask, np.uint8)
    arrays["masks"] = bits.view(np.int32)
    return len(bits)
