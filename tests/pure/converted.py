"""Small models of several kinds on disk, and what a conversion of them should be."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cortiq.model.source import ModelSource, open_source
from cortiq.options import LoadOptions
from tests.fuzz.files import folder_files, gguf_files, quantised_files

KINDS = {"folder": folder_files, "gguf": gguf_files, "quantised": quantised_files}


def write_model(kind: str, folder: Path) -> str:
    """Write a model to a new folder; return its name."""
    folder.mkdir()
    for name, data in KINDS[kind]().items():
        (folder / name).write_bytes(data)
    return str(folder)


def opened(name: str | Path, **options: str) -> ModelSource:
    """Open a model's source."""
    return open_source(str(name), LoadOptions(**options))


def assert_same_weights(one: ModelSource, other: ModelSource) -> None:
    """Check that every weight has the same layout and bytes."""
    assert one.weights.keys() == other.weights.keys()
    for name, mine in one.weights.items():
        theirs = other.weights[name]
        assert mine.layout is theirs.layout and mine.shape == theirs.shape, name
        for part in mine.parts:
            a, b = (np.ascontiguousarray(w.parts[part][:]) for w in (mine, theirs))
            assert a.tobytes() == b.tobytes(), (name, part)
