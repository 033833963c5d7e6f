"""Draws as kernels read them: a line of numbers for each, lists of biases, masks, and histories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.backend import LATE, Argmax, Draw
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


class Stored(NamedTuple):
    """Ids on the device: the address of int32, and how many."""

    address: int
    length: int


NOTHING = Stored(0, 0)


class Drawing(NamedTuple):
    """A draw of a row: of the logits in row `place`, faults in row `at`.

    position : that of the drawn token. history : the ids that penalties look at.
    """

    want: Draw | Argmax
    place: int
    at: int
    position: int
    history: Stored = NOTHING


@dataclass(frozen=True)
class Features:
    """Features that the draws of a batch use; the same features are the same launches.

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
MOST_KEPT = 64


@dataclass(frozen=True)
class Constants:
    """Numbers that all draws with these options, in this order, have in common.

    Attributes
    ----------
    samplings : the options, held so that nothing else can be at their addresses.
    lines : with PLACE, AT, POSITION, CHOICE, MASK and HISTORY still to be filled in.
    biases : arrays of the lists of biases, by name; none without them.
    looks : whether a draw looks at its history.
    """

    samplings: tuple[Sampling, ...]
    lines: Lines
    biases: Mapping[str, np.ndarray]
    looks: npt.NDArray[np.bool_]


_KEPT: dict[tuple[int, ...], Constants] = {}
"""Constants by the addresses of their options: those of the steps before are needed again."""


def _constants(samplings: tuple[Sampling, ...]) -> Constants:
    key = tuple(map(id, samplings))
    if key not in _KEPT:
        if len(_KEPT) == MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]
        lines = np.stack([_line(sampling) for sampling in samplings])
        looks = np.array([penalises(Draw(sampling)) for sampling in samplings])
        _KEPT[key] = Constants(samplings, lines, _bias_arrays(samplings), looks)
    return _KEPT[key]


def _bias_arrays(samplings: Sequence[Sampling]) -> dict[str, np.ndarray]:
    """The lists of biases of these draws, one after another."""
    found = [(n, *_biases(sampling)) for n, sampling in enumerate(samplings) if sampling.logit_bias]
    total = sum(len(ids) for _, ids, _ in found)
    if not total:
        return {}
    size = max(FEWEST_BIASES, pow2(total))
    owners, ids = np.full(size, -1, np.int32), np.zeros(size, np.int32)
    values, at = np.zeros(size, np.float32), 0
    for number, mine, bias in found:
        cut = slice(at, at + len(mine))
        owners[cut], ids[cut], values[cut] = number, mine, bias
        at += len(mine)
    return {"bias_owners": owners, "bias_ids": ids, "biases": values.view(np.int32)}


def arrays_of(drawings: Sequence[Drawing], width: int) -> tuple[Features, dict[str, np.ndarray]]:
    """Features of a batch's draws, and the arrays that kernels read, by name.

    lines int32 [draws, COLUMNS]; histories int64 [draws], addresses of those that are `Stored`;
    bias_owners, bias_ids, biases int32 [biases] (bits of float32), owner −1 where there is none;
    masks int32 [masks, words]. The last ones only where they are used.

    Parameters
    ----------
    width : ids of a row of logits.
    """
    draws = [d.want if isinstance(d.want, Draw) else None for d in drawings]
    known = _constants(tuple(_GREEDY if w is None else w.sampling for w in draws))
    lines, looks = known.lines.copy(), known.looks
    lines[:, PLACE], lines[:, AT] = zip(*((d.place, d.at) for d in drawings), strict=True)
    unsigned = lines.view(np.uint32)
    unsigned[:, POSITION] = [d.position & 0xFFFFFFFF for d in drawings]
    unsigned[:, CHOICE] = [0 if w is None else w.choice & 0xFFFFFFFF for w in draws]
    arrays: dict[str, np.ndarray] = {"lines": lines, **known.biases}
    penalties = bool(looks.any())
    if penalties:
        stored = [d.history if look else NOTHING for d, look in zip(drawings, looks, strict=True)]
        lines[:, HISTORY] = [history.length for history in stored]
        arrays["histories"] = np.array([history.address for history in stored], np.int64)
    masked = _add_masks(draws, lines, arrays, width)
    features = Features(
        len(drawings), bool(lines[:, TOP_K].any()), bool((lines[:, TOP_P] >= 0).any()),
        bool(lines[:, MIN_P].any()), len(known.biases.get("biases", ())), masked, penalties,
    )  # fmt: skip
    return features, arrays


def _add_masks(
    draws: Sequence[Draw | None], lines: Lines, arrays: dict[str, np.ndarray], width: int
) -> int:
    """Add the masks, and their numbers to the lines; return how many there are, rounded up."""
    known: dict[Mask, int] = {}
    late: list[int] = []
    for number, want in enumerate(draws):
        if want is not None and want.mask is LATE:
            late.append(number)
        elif want is not None and want.mask is not None:
            lines[number, MASK] = known.setdefault(want.mask, len(known))
    lines[late, MASK] = len(known) + np.arange(len(late))
    if not (known or late):
        return 0
    size = -(-width // 32)
    bits = np.zeros((pow2(len(known) + len(late)), 4 * size), np.uint8)
    for mask, number in known.items():
        given = np.frombuffer(mask, np.uint8)[: 4 * size]  # more are of no token
        bits[number, : len(given)] = given
    arrays["masks"] = bits.view(np.int32)
    return len(bits)
