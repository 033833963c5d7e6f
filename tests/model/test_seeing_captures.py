"""Captured steps and mixed batches of models that see: each row has what it supplies itself."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers")

import vision_folders
from installed import INTERPRETED

import cortiq
from cortiq.backend import Argmax, Batch, Digest, Row, Status
from cortiq.ir.images import image_rows

pytestmark = pytest.mark.skipif(
    "triton" not in INTERPRETED, reason="it is compiled, or not here: a GPU is measured"
)
CONTEXT, WIDTH, LAST = 64, 64, (Digest("logits"), Argmax())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("folder")
    vision_folders.qwen3_vl(place)
    return place


class Fed:
    """Rows of three sequences: texts, an image's rows in them, and the third's broken at times."""

    def __init__(self, executable):
        self.on, self.random = executable, np.random.default_rng(7)
        self.given = image_rows(executable.program)
        self.states = [executable.open(CONTEXT) for _ in range(3)]
        self.at = [0, 0, 0]

    def piece(self, number, count, image=(), broken=-1):
        """Return so many rows; those of an image see all of it, and turn by positions of theirs."""
        rows, start = [], self.at[number]
        for at in range(start, start + count):
            given = self.given.inputs(at)
            token = int(self.random.integers(5, 40))
            if at - start in image:
                last, square = start + image[-1], np.array([start, at % 2, at % 3], np.int32)
                given = self.given.inputs(at, last, lambda _, square=square: square)
                parts = self.random.standard_normal(WIDTH * (1 + self.given.deep)) / 8
                if at - start == broken:
                    parts[0] = np.inf
                given |= self.given.parts(parts.astype(np.float32))
            wants = LAST if at == start + count - 1 else ()
            rows.append(Row(self.states[number], at, token, wants, given))
        self.at[number] += count
        return rows

    def forward(self, *pieces):
        """Return statuses and what the last rows of the pieces bring."""
        result = self.on.forward(Batch([row for piece in pieces for row in piece])).result()
        ends = np.cumsum([len(piece) for piece in pieces]) - 1
        outcomes = [result.outcomes[piece[0].state].status for piece in pieces]
        brought = [
            dict(result.rows[end]) if status is Status.COMPLETED else {}
            for end, status in zip(ends, outcomes, strict=True)
        ]
        return outcomes, brought

    def run(self):
        """Return all answers: batches of pieces that are met, captured and replayed, and steps."""
        found = []
        for first in (2, 1, 3):
            image = range(first, first + 3)
            found.append(self.forward(self.piece(0, 5), self.piece(1, 7, image)))
        found += [self.forward(self.piece(0, 1), self.piece(1, 1)) for _ in range(2)]
        for broken in (-1, 1, 1):
            self.states[2], self.at[2] = self.on.open(CONTEXT), 0
            three = self.piece(0, 4), self.piece(1, 2), self.piece(2, 6, range(1, 5), broken)
            found.append(self.forward(*three))
        return found


def test_rows_of_images_and_texts_share_captured_batches(folder):
    """Fifteen seconds of Triton's interpreter, with graphs on, as on a GPU."""
    found = {}
    for backend, extra in (("reference", {}), ("triton", {"graphs": True})):
        with cortiq.load(folder, images=True, backend=backend, extra=extra) as model:
            found[backend] = Fed(model.executable).run()
            if backend == "triton":
                decoder = model.executable.inner.decoder
                assert decoder.shapes and len(decoder.mixed.shapes) == 2
    assert found["triton"] == found["reference"]
    failed = [[status is Status.FAILED for status in one] for one, _ in found["reference"]]
    assert failed == [[False] * 2] * 5 + [[False] * 3] + [[False, False, True]] * 2
