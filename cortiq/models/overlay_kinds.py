"""Kinds of files beside PEFT's and GGUF's that plugins read as overlays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cortiq.ir import Program
from cortiq.models.bind import LoadedProgram
from cortiq.models.overlay_banks import Overlay

Reader = Callable[[Path, float, LoadedProgram, Program], Overlay]


@dataclass(frozen=True)
class OverlayKind:
    """A kind of file that `--adapter NAME=PATH` takes.

    Attributes
    ----------
    name : what the kind is called.
    fits : tells from a path, cheaply, whether it is such a file.
    read : reads one, times a scale, for the weights of a program that has been compiled.
    notice : what whoever loads one is told; empty for nothing.
    """

    name: str
    fits: Callable[[Path], bool]
    read: Reader
    notice: str = ""


def kind_of(path: Path, kinds: Sequence[OverlayKind]) -> OverlayKind | None:
    """Return the kind of a file, the first that it fits; None for one of an adapter."""
    return next((kind for kind in kinds if kind.fits(path)), None)
