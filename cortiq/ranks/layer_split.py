"""Cuts of a program for a layer split: contiguous stretches of layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from math import prod

from cortiq.errors import DeviceMemoryError, OptionError
from cortiq.ir import Program
from cortiq.numerics.layouts import LAYOUTS

LAYER = re.compile(r"layers\.\d+(?=\.)")
WORD_BYTES = 4.0


def layers_of(program: Program) -> list[str]:
    """Return the names of the trunk's layers, in order."""
    found = (LAYER.match(node.name) for node in program.trunk.nodes)
    return list(dict.fromkeys(match[0] for match in found if match))


def layer_bytes(program: Program) -> list[float]:
    """Return about how many bytes the weights of each layer take.

    What stands before the first layer counts to it, what stands after the last one to that.
    """
    names, sizes = layers_of(program), list[float]()
    seen: set[str] = set()
    place = 0
    sizes = [0.0] * max(1, len(names))
    for node in program.trunk.nodes:
        match = LAYER.match(node.name)
        if match:
            place = names.index(match[0])
        for weight in node.weights.values():
            if weight not in seen:
                seen.add(weight)
                spec = program.weights[weight]
                sizes[place] += prod(spec.shape) * bytes_of_value(spec.layout)
    return sizes


def bytes_of_value(layout: str | None) -> float:
    """Return the bytes that one value of a layout takes."""
    known = LAYOUTS.get(layout or "f32")
    if known is None:
        return WORD_BYTES
    if known.kind == "blocks":
        return known.block_bytes / known.block
    return {"w8": 1.0, "w8b256": 1.0, "w16": 2.0}.get(known.name, WORD_BYTES)


def even_segments(layers: int, parts: int) -> list[int]:
    """Return how many layers each part has: ⌈L/n⌉ until they run out; there may be fewer parts."""
    each = -(-layers // parts)
    starts = range(0, layers, each)
    return [min(each, layers - start) for start in starts]


def segments(sizes: Sequence[float], budgets: Sequence[float]) -> list[int]:
    """Return how many layers each part has.

    Evenly, where every part's layers fit its budget. Otherwise each part takes layers up to its
    budget, and the next goes on.

    Raises
    ------
    DeviceMemoryError : they do not fit all budgets together.
    """
    even = even_segments(len(sizes), len(budgets))
    ends = [sum(even[: n + 1]) for n in range(len(even))]
    taken = [sum(sizes[a:b]) for a, b in pairwise([0, *ends])]
    if all(size <= budget for size, budget in zip(taken, budgets, strict=False)):
        return even
    counts, at = list[int](), 0
    for budget in budgets:
        start, left = at, budget
        while at < len(sizes) and sizes[at] <= left:
            left -= sizes[at]
            at += 1
        counts.append(at - start)
    if at < len(sizes):
        what = f"layer {at} of {len(sizes)} does not fit: its devices hold {sum(budgets):.0f} bytes"
        raise DeviceMemoryError(what, hint="More devices, or a smaller weight_format.")
    return counts


def cuts_at(program: Program, points: Sequence[int], parts: int) -> list[str]:
    """Return the layers before which a program is cut at explicit points.

    Raises
    ------
    OptionError : there is not one point between each two parts, or they are not ascending layers.
    """
    names = layers_of(program)
    ascending = all(a < b for a, b in pairwise(points))
    inside = all(0 < point < len(names) for point in points)
    if len(points) != parts - 1 or not ascending or not inside:
        what = f"is {','.join(map(str, points))}: {parts} devices and {len(names)} layers take"
        raise OptionError(
            "split_at", f"{what} {parts - 1} ascending numbers from 1 to {len(names) - 1}",
            hint="each is the first layer of the next device",
        )  # fmt: skip
    return [names[point] for point in points]


def even_cuts(program: Program, budgets: Sequence[float]) -> list[str]:
    """Return the layers before which a program is cut for parts of these budgets."""
    names = layers_of(program)
    if len(names) < 2:
        return []
    counts = [count for count in segments(layer_bytes(program), budgets) if count]
    ends = [sum(counts[: n + 1]) for n in range(len(counts) - 1)]
    return [names[end] for end in ends]
