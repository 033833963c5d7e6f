"""A kind of overlay: a file `WEIGHT FACTOR` multiplies the outputs of one matrix."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    from cortiq.models.overlay_kinds import OverlayKind


def read(path: Path, scale: float, loaded: Any, program: Any) -> Any:
    """Return what the file does, times `scale`, to the weights of a program."""
    import numpy as np

    from cortiq.models.overlay_banks import Overlay, OverlayPart

    weight, factor = path.read_text().split()
    width = program.weights[weight].shape[0]
    vector = np.full(width, 1 + scale * (float(factor) - 1), np.float32)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return Overlay(sha256, scale, {(weight, False): OverlayPart(after=vector)})


@hookimpl
def cortiq_overlays() -> Sequence[OverlayKind]:
    """Return the kind of this package."""
    from cortiq.models.overlay_kinds import OverlayKind

    return [OverlayKind("louder", lambda path: path.suffix == ".louder", read, "it is louder")]
