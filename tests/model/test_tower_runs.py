"""Rows of towers as arrays: the rows' own bits and refusals, at a cost that no patch adds to."""

from __future__ import annotations

import sys
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from tower_rows import compiled, image, patches, small_tower

from cortiq.backend import Batch, Named, Status
from cortiq.backend.batch import COMPLETED
from cortiq.backend.columns import Columns, column
from cortiq.backend.held_rows import HeldRows, joined, side_by_side
from cortiq.backend.row_runs import RowRun, RowRuns
from cortiq.errors import RequestError, SequenceFailedError
from cortiq.ir.encoders import LAST
from cortiq.vision.encode import VisionEncoder, image_rows, images_made, images_rows
from cortiq.vision.tower import PATCH

HOST = ("/cortiq/backend/", "/cortiq/engine/", "/cortiq/vision/", "/cortiq_cpu/")
"""Packages of a batch's way to its kernels and back."""
CALLS_A_PATCH = 0.5
"""Functions that the host calls more for each patch more; as rows of their own it was 130."""


@pytest.fixture(scope="module")
def tower():
    return small_tower()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_images_of_a_batch_have_the_rows_that_each_has_alone(tower, backend):
    with closing(compiled(tower, backend)) as on:
        images = [image(tower, side, side) for side in (64, 32, 96)]
        together, alone = images_rows(on, images), [image_rows(on, one) for one in images]
        assert len({rows.tobytes() for rows in alone}) == len(images)
        for mine, other in zip(together, alone, strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_arrays_are_answered_as_the_rows_that_they_are(tower, backend):
    found = []
    with closing(compiled(tower, backend)) as on:
        for form in (RowRuns, lambda runs: list(RowRuns(runs))):
            one, two = on.open(64), on.open(64)
            runs = [patches(tower, one), patches(tower, two, 32)]
            runs[1].inputs[PATCH][1, 3] = np.inf
            result = on.forward(Batch(form(runs))).result()
            assert result.outcomes[one].status is Status.COMPLETED
            assert result.outcomes[two].status is Status.FAILED
            count = len(runs[0].tokens)
            assert len(result.rows) == count + 4 and not any(result.rows[count:])
            found.append([column(result.rows, range(count), w) for w in runs[0].wants[0]])
    for runs, rows in zip(*found, strict=True):
        np.testing.assert_array_equal(runs, rows)


def on_the_host(values, *_):
    raise AssertionError(f"{values.shape} of one entry leave the device for the next")


def test_an_image_that_fails_takes_no_other_along(tower, monkeypatch):
    monkeypatch.setattr(HeldRows, "__array__", on_the_host)
    found = {}
    good, bad, other = (image(tower, 32, seed) for seed in range(3))
    bad.tiles[0].patches[1, 3] = np.inf
    for backend in ("reference", "triton"):  # one that brings arrays, and one that holds values
        with closing(compiled(tower, backend)) as on:
            first, error, last = images_made(on, [good, bad, other])
            assert isinstance(error, SequenceFailedError)
            found[backend] = first, last
    np.testing.assert_array_equal(*found.values())
    with closing(compiled(tower)) as on:
        for one, rows in zip((good, other), found["triton"], strict=True):
            np.testing.assert_array_equal(image_rows(on, one), rows)
        with pytest.raises(SequenceFailedError, match="domain"):
            images_rows(on, [good, bad])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_batches_of_images_are_as_large_as_there_is_room_for(tower, asynchronous, monkeypatch):
    with closing(compiled(tower)) as on:
        images = [image(tower, 64, seed) for seed in range(5)]
        alone = [image_rows(on, one) for one in images]
        rows, forward, each = [], on.inner.forward, on.state_bytes(16)
        monkeypatch.setattr(
            on.inner, "forward", lambda b: rows.append((b.entry, len(b.rows))) or forward(b)
        )
        monkeypatch.setattr(on.inner, "asynchronous", asynchronous, raising=False)
        begun = [("trunk", 32), ("trunk", 32), ("projector", 8), ("trunk", 16), ("projector", 8)]
        apart = [("trunk", 32), ("projector", 8)] * 2 + [("trunk", 16), ("projector", 4)]
        for bound, value in (("batch_rows", 32), ("free_bytes", lambda: 4 * each)):
            rows.clear()
            with monkeypatch.context() as bounded:
                bounded.setattr(on.inner, bound, value)
                found = images_rows(on, images)
            assert rows == ([*begun, ("projector", 4)] if asynchronous else apart)
            for mine, other in zip(found, alone, strict=True):
                np.testing.assert_array_equal(mine, other)
        monkeypatch.setattr(on.inner, "free_bytes", lambda: (3 - len(on.inner.states)) * each)
        opened, new_state = [], on.inner.new_state
        monkeypatch.setattr(
            on.inner, "new_state", lambda n: opened.append(len(on.inner.states)) or new_state(n)
        )
        np.testing.assert_array_equal(np.stack(images_rows(on, images)), np.stack(alone))
        assert max(opened) == int(asynchronous)
        monkeypatch.setattr(on.inner, "new_state", lambda limit: state_without_room(on, limit))
        (refused,) = images_made(on, images[:1])
        assert isinstance(refused, RequestError) and "bytes of state" in str(refused)
        assert not on.inner.states


def state_without_room(on, limit):
    state = type(on.inner).new_state(on.inner, limit)
    state.reserve = lambda rows: False
    return state


def test_a_device_has_its_next_batch_before_the_host_waits_for_rows(tower, monkeypatch):
    """All entries of the batches so far are submitted when an image's rows are waited for."""
    with closing(compiled(tower)) as on:
        monkeypatch.setattr(on.inner, "asynchronous", True, raising=False)
        monkeypatch.setattr(on.inner, "batch_rows", 16, raising=False)
        forward, said = on.inner.forward, []

        def noted(batch):
            ticket, entry = forward(batch), batch.entry
            said.append(entry)
            return SimpleNamespace(result=lambda: said.append(f"{entry} read") or ticket.result())

        monkeypatch.setattr(on.inner, "forward", noted)
        images_rows(on, [image(tower, 64, seed) for seed in range(3)])
    at = [n for n, what in enumerate(said) if what == "projector read"]
    assert [said[:n].count("projector") for n in at] == [2, 3, 3], said
    assert [said[:n].count("trunk") for n in at] == [3, 3, 3], said


def test_images_of_a_prompt_are_one_batch(tower, monkeypatch):
    with closing(compiled(tower)) as on:
        encoder = VisionEncoder(on)
        images = [image(tower, 64, seed) for seed in (0, 1, 0)]
        bad = image(tower, 64, 2)
        bad.tiles[0].patches[0, 0] = np.nan
        alone = [image_rows(on, one) for one in images]
        sizes, forward = [], on.inner.forward
        monkeypatch.setattr(on.inner, "forward", lambda b: sizes.append(len(b.rows)) or forward(b))
        *makers, failing = encoder.makers([*images, bad])
        assert not sizes
        for make, rows in zip(makers, alone, strict=True):
            np.testing.assert_array_equal(make(), rows)
        with pytest.raises(SequenceFailedError):
            failing()
        assert sizes == [3 * 16, 2 * 4]  # the same image once
        assert encoder.makers(images[:1])[0]() is encoder.rows(images[0])
        assert len(sizes) == 2


def test_values_that_stay_are_treated_as_arrays(tower):
    with closing(compiled(tower, "triton")) as on:
        state, wants = on.open(64), (Named("hidden"),)
        run = patches(tower, state)._replace(wants=[wants] * 16)
        result = on.forward(Batch(RowRuns([run]), held=True)).result()
        values = column(result.rows, range(16), wants[0])
        assert isinstance(values, HeldRows) and values.shape == (16, 48) and len(values) == 16
        array, index = np.asarray(values), np.array([[3, 1], [0, 15]])
        for made, other in (
            (values[2:5], array[2:5]), (values[index], array[index]), (values[7], array[7]),
            (values.reshape(4, 192), array.reshape(4, 192)),
            (joined([values, values[:2]]), np.concatenate([array, array[:2]])),
            (joined([values, array]), np.concatenate([array, array])),
            (side_by_side([[values, values]])[0], np.concatenate([array, array], axis=1)),
            (side_by_side([[values, array]])[0], np.concatenate([array, array], axis=1)),
        ):  # fmt: skip
            assert made.shape == other.shape
            np.testing.assert_array_equal(np.asarray(made), other)
        with closing(compiled(tower)) as other:  # an array of other executables
            for form in (RowRuns, lambda runs: list(RowRuns(runs))):
                rows = form([square_run(tower, other.open(4), values)])
                result = other.forward(Batch(rows, "projector")).result()
                assert [*result.outcomes.values()] == [COMPLETED]


def square_run(tower, state, values):
    """A run of the projector that supplies values of the tower as they are."""
    names = tower[1].graphs["projector"].inputs
    given = {n: values.reshape(4, 192) for n in names if n.startswith("square")}
    return RowRun(state, 0, [0] * 4, [(Named("rows"),)] * 4, given)


def unfit(given):
    """Return changes of a run's inputs that are refused, one for each reason."""
    count, patch = len(given[LAST]), given[PATCH]
    yield {PATCH: None}
    yield {PATCH: patch[:, :-1]}
    yield {PATCH: patch.astype(np.complex64)}
    yield {LAST: given[LAST] + np.int32(1)}
    yield {LAST: np.full(count, -1, np.int32)}
    yield {LAST: given[LAST].astype(np.float32)}
    yield {LAST: np.arange(count, dtype=np.int32)[::-1]}
    yield {"place.0": np.full(count, 64, np.int32)}
    yield {"position": given[LAST]}
    yield {"no value": patch}


def test_arrays_are_refused_for_the_reasons_of_their_rows(tower):
    with closing(compiled(tower)) as on:
        state = on.open(64)
        good = patches(tower, state)
        for change in unfit(good.inputs):
            given = {n: v for n, v in {**good.inputs, **change}.items() if v is not None}
            run, reasons = good._replace(inputs=given), []
            for rows in (RowRuns([run]), list(RowRuns([run]))):
                outcome = on.forward(Batch(rows)).result().outcomes[state]
                assert outcome.status is Status.DECLINED, change
                reasons.append(outcome.reason)
            assert "a run of" in reasons[0] or reasons[0] == reasons[1], change
        assert state.length() == 0


@pytest.mark.parametrize("array", [np.zeros((3, 2)), np.float32(1), [1.0], "text"])
def test_arrays_of_other_numbers_of_rows_are_refused(tower, array):
    with closing(compiled(tower)) as on:
        state = on.open(64)
        good = patches(tower, state)
        run = good._replace(inputs={**good.inputs, PATCH: array})
        outcome = on.forward(Batch(RowRuns([run]))).result().outcomes[state]
        assert outcome.status is Status.DECLINED and "a run of 16 rows" in outcome.reason


def test_columns_are_their_rows():
    want = Named("x")
    columns = Columns({want: np.arange(6).reshape(3, 2)})
    assert len(columns) == 3 and [row[want].tolist() for row in columns] == [[0, 1], [2, 3], [4, 5]]
    assert [row[want].tolist() for row in columns[1:]] == [[2, 3], [4, 5]]
    for arrays in ({}, {want: np.zeros(2), Named("y"): np.zeros(3)}):
        with pytest.raises(ValueError, match="columns"):
            Columns(arrays)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_patch_more_costs_the_host_no_calls(tower, backend):
    counts = []
    with closing(compiled(tower, backend)) as on:
        for side in (64, 128):
            one = image(tower, side)
            image_rows(on, one)
            calls = [0]

            def count(frame, event, argument, calls=calls):
                ours = any(package in frame.f_code.co_filename for package in HOST)
                calls[0] += ours and event in ("call", "c_call")

            sys.setprofile(count)
            try:
                image_rows(on, one)
            finally:
                sys.setprofile(None)
            counts.append((len(one.tiles[0].patches), calls[0]))
    (few, less), (many, more) = counts
    assert (more - less) / (many - few) <= CALLS_A_PATCH, counts
