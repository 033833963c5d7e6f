"""Tensors that a layer takes beside the model's: a safetensors file of floats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

from cortiq.errors import FormatError
from cortiq.formats.safetensors import SafetensorsFolder, read_header
from cortiq.numerics.layouts import LAYOUTS, Weight, floats

FLOATS = ("F32", "F16", "BF16")
Shapes = Mapping[str, tuple[int, ...]]


def read_tensors(path: Path, shapes: Shapes, names: Iterable[str]) -> dict[str, Weight]:
    """Return these tensors of a file, converted to float32.

    Parameters
    ----------
    shapes : of all tensors that the model has room for: a file that holds more is of another one.

    Raises
    ------
    FormatError : tensors that are missing, of another shape or type, or of no use, by name.
    """
    header = read_header(path)
    problems, found, where = [], {}, str(path)
    with SafetensorsFolder(path.parent, [path], header.tensors, [header.buffer]) as opened:
        for name in names:
            there = opened.tensors.get(name)
            if there is None:
                problems.append(f"{name} is missing")
            elif there.shape != shapes[name] or there.type not in FLOATS:
                wanted = f"not a tensor of floats {list(shapes[name])}"
                problems.append(f"{name} is {there.type}{list(there.shape)}, {wanted}")
            else:
                size = (prod(there.shape[:-1]), there.shape[-1])
                raw = opened.raw(name).reshape(-1)
                stored = Weight.from_bytes(LAYOUTS[there.type], raw, size)
                found[name] = Weight.from_floats(floats(stored, name).reshape(size))
        problems += [f"{name} belongs to no layer" for name in opened.tensors if name not in shapes]
    if problems:
        raise FormatError("; ".join(sorted(problems)[:5]), where=where)
    return found
