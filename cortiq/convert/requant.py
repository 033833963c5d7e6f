"""Matrices of a CMF file encoded anew, by the encoding that they have."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from cortiq.convert.cmf_plan import DELICATE
from cortiq.convert.recipes import KEEP
from cortiq.convert.run import convert_model
from cortiq.convert.writing import ConvertedModel, Progress
from cortiq.errors import RequestError
from cortiq.formats.cmf.directory import Entry
from cortiq.formats.cmf.dtypes import GROUP
from cortiq.formats.cmf.reader import SUFFIX, open_cmf
from cortiq.formats.fetch import resolve

LEAST_ROWS = 64
DRAFTED = re.compile(r".*\.mtp\..*experts?\..*(gate|up)_proj\.weight|.*\.mtp\..*\.w[13]\.weight")


def _floats(entry: Entry) -> bool:
    plain = entry.dtype.name in ("f32", "f16", "bf16") and entry.shape[0] >= LEAST_ROWS
    return plain and not DELICATE.fullmatch(entry.name)


KINDS: Mapping[str, tuple[str, Callable[[Entry], bool]]] = {
    "q4tp": ("q4tp", lambda entry: entry.dtype.name in ("q4_tiled", "q4_block")),
    "q4tp-quantize": ("q4tp", _floats),
    "q2tp-draft": (
        "q2tp", lambda e: e.dtype.name == "q4tp" and DRAFTED.fullmatch(e.name) is not None,
    ),
}  # fmt: skip
"""The new encoding, and which matrices get it, by kind."""


def requantise(
    model: str, out: Path, kind: str, progress: Progress | None = None, strict: bool = True
) -> tuple[ConvertedModel, int]:
    """Write a CMF file with some matrices encoded anew; return it, and how many they are.

    Raises
    ------
    RequestError : the model or `out` is no CMF file, or it has no matrix of the kind.
    """
    path = Path(resolve(model, progress=progress))
    if path.suffix != SUFFIX or out.suffix != SUFFIX:
        raise RequestError(f"takes and writes files that end in {SUFFIX}", where="requant")
    target, chosen = KINDS[kind]
    with open_cmf(path, strict) as file:
        names = [
            name
            for name, (_, entry) in file.entries.items()
            if len(entry.shape) == 2 and entry.shape[1] % GROUP == 0 and chosen(entry)
        ]
    if not names:
        raise RequestError(f"has no matrix for {kind}", where=str(path))
    patterns = [f"{glob.escape(name)}={target}" for name in names]
    made = convert_model(str(path), out, KEEP, tensors=patterns, progress=progress, strict=strict)
    return made, len(names)
