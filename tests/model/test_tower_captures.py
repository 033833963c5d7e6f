"""Passes of towers that come again are captured: the same rows, and nobody else's memory."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from tower_rows import compiled, image, patches, small_tower

from cortiq.backend import Batch
from cortiq.backend.columns import column
from cortiq.backend.row_runs import RowRuns
from cortiq.engine.encoder_rows import EncoderRows, EntryPass, rows_of_squares
from cortiq.errors import SequenceFailedError
from cortiq.ir.encoders import PROJECTOR
from cortiq.vision.encode import image_rows, images_made

pytest.importorskip("cortiq_triton", reason="Triton has no package for this platform")


@pytest.fixture(scope="module")
def tower():
    return small_tower()


class InPlace:
    """Stands for a graph: each replay leaves its values where those of the first were."""

    def __init__(self, launch, device):
        self.launch, self.run = launch, launch.__self__
        launch()
        self.group = self.run.all
        self.replay()

    def replay(self):
        self.launch()
        for name, there in self.group.values.items():
            there.copy_(self.run.all.values[name])
        self.group.faults.copy_(self.run.all.faults)
        self.run.all = self.run.tail = self.group


@pytest.fixture
def captured(tower, monkeypatch):
    with closing(compiled(tower, "triton", extra={"graphs": True})) as on:
        monkeypatch.setattr(on.inner.decoder, "capture", InPlace)
        yield on


def test_images_have_their_own_rows_and_faults(tower, captured, monkeypatch):
    images = [image(tower, 64, seed) for seed in range(6)]
    others = [image(tower, 32, seed) for seed in range(2)]
    images[3].tiles[0].patches[1, 3] = np.inf
    with closing(compiled(tower)) as on:
        good = [image_rows(on, one) for n, one in enumerate(images) if n != 3]
        small = [image_rows(on, one) for one in others]
    decoder, inner = captured.inner.decoder, captured.inner
    monkeypatch.setattr(inner, "batch_rows", 16, raising=False)
    for _ in range(2):  # three of a shape under way: one met, one captured, one replayed
        made = images_made(captured, images)
        assert isinstance(made.pop(3), SequenceFailedError)
        for mine, other in zip(made, good, strict=True):
            np.testing.assert_array_equal(mine, other)
        for one, rows in zip(others, small, strict=True):
            np.testing.assert_array_equal(image_rows(captured, one), rows)
        assert len(decoder.passes.shapes) == 4  # trunk and projector of two sizes
    room = 2 * captured.state_bytes(16)  # for sequences, not for a tower's values twice
    monkeypatch.setattr(inner, "device_bytes", lambda: room)
    decoder.forget()
    np.testing.assert_array_equal(image_rows(captured, images[0]), good[0])
    assert [key[0] for key in decoder.passes.shapes] == ["projector"]


def test_keys_and_values_that_stay_are_those_of_each_sequence(tower, captured):
    """Four sequences stay open, so that none has pages that one before it had."""
    found = []
    with closing(compiled(tower)) as reference:
        for on in (reference, captured):
            states, held, rows = [on.open(64) for _ in range(4)], [], []
            for seed, state in enumerate(states):
                run = patches(tower, state, seed=seed)
                result = on.forward(Batch(RowRuns([run]), held=True)).result()
                held.append([column(result.rows, range(16), want) for want in run.wants[0]])
            before = [[np.array(part) for part in parts] for parts in held]
            for state, parts in zip(states, held, strict=True):
                squares = [part.reshape(4, 4, -1) for part in parts]
                given = EncoderRows(*rows_of_squares(tower[1], state, squares))
                rows += EntryPass(on, [given], PROJECTOR, "", held=True).outputs()
            planes = [state.export().slots for state in states]
            found.append((before, [[np.array(p) for p in parts] for parts in held], rows, planes))
    (expected, _, rows, planes), (mine, mine_after, my_rows, my_planes) = found
    assert len(captured.inner.decoder.passes.shapes) == 2
    for one, other in ((expected, mine), (mine, mine_after), (rows, my_rows)):
        for parts, others in zip(one, other, strict=True):
            for part, its in zip(parts, others, strict=True):
                np.testing.assert_array_equal(np.asarray(part), np.asarray(its))
    for part, its in zip(planes, my_planes, strict=True):
        assert part.keys() == its.keys() and part
        for name in part:
            np.testing.assert_equal(vars(part[name]), vars(its[name]))
