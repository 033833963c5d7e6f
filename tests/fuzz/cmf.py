"""Mutants of CMF files: verified, and run where they open, or refused by name.

`python -m fuzz.cmf --seconds 60`. A changed header gets the hash that fits it, as a file made
to deceive would have. Only errors of ours may come of a file, in little memory.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from cmf_files import MIXED, cmf_bytes, masks_section
from fuzzing import memory_limit, mutate

import cortiq
from cortiq.errors import CortiqError
from cortiq.formats.cmf.directory import ENVELOPE_BYTES, read_envelope
from cortiq.formats.cmf.hash64 import hash64
from cortiq.formats.cmf.reader import open_cmf
from cortiq.formats.cmf.writer import TrailingSections

from .mutants import main, mutated_text, rounds
from .small_folder import byte_level_json

MEBIBYTES = 1024
"""Address space that loading a mutant may take: the model has some hundred KiB."""
SECTIONS = TrailingSections(byte_level_json(), masks_section())
SKILL = {"id": "chess", "layers": [0], "quality": None}
PIECES = [
    b"CMF\x01", b"\x00" * 8, b"\xff" * 8, b'"num_layers":', b"null", b"[]",
    json.dumps(SKILL).encode(), *(bytes([n, 2]) for n in range(18)),
]  # fmt: skip


def seeds() -> list[bytes]:
    """Files of every encoding: alone, with masks and a skill, and with floats only."""
    return [
        cmf_bytes(MIXED), cmf_bytes(MIXED, SECTIONS, skills=[SKILL]), cmf_bytes(("f32",)),
    ]  # fmt: skip


def mutant(data: bytes, rng: random.Random) -> bytes:
    """Return the file with another header and the hash of it, or with other bytes."""
    if rng.random() < 0.5:
        envelope = read_envelope(data, len(data), "m.cmf")
        first, length = envelope.place("header")
        text = mutated_text(data[first : first + length], rng)
        places = ((len(data), len(text)), *envelope.places[1:])
        envelope = replace(envelope, places=places, header_hash=hash64(text))
        return envelope.packed() + data[ENVELOPE_BYTES:] + text
    if rng.random() < 0.8:  # the envelope, the header and the directory
        return mutate(data[:12_000], rng, PIECES) + data[12_000:]
    return mutate(data, rng, PIECES)


def tried(data: bytes) -> str:
    """Return a file's outcome: "read", or the name of our error."""
    with tempfile.TemporaryDirectory() as folder, memory_limit(MEBIBYTES):
        path = Path(folder) / "m.cmf"
        path.write_bytes(data)
        try:
            with open_cmf(path, strict=False) as file:
                list(file.problems())
            with cortiq.load(str(path), backend="reference", threads=1) as model:
                model.logits([1, 2, 3])
        except CortiqError as error:
            return type(error).__name__
        return "read"


def run(seed: int, count: int | None = None, seconds: float | None = None, first: int = 0) -> (
    Counter[str]
):  # fmt: skip
    """Try mutants; how often each outcome came."""
    files = seeds()
    assert [tried(data) for data in files] == ["read"] * len(files)
    return rounds(
        lambda rng: tried(mutant(rng.choice(files), rng)),
        seed,
        count=count,
        seconds=seconds,
        first=first,
    )


if __name__ == "__main__":
    main(__doc__, lambda o: run(o.seed, seconds=o.seconds, first=o.first))
