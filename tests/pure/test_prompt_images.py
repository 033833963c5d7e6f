"""Images in prompts without a model: what rows supply, what stays together, keys of prefixes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_program import small_program

from cortiq.engine.prompt_images import ImageSpan, PromptImages, check_images, with_spans
from cortiq.errors import RequestError
from cortiq.ir.images import AXES, TEXT_ONLY, ImageRows
from cortiq.numerics.rope import Sections

SEES = ImageRows(last="last")
TURNS = ImageRows(sections=Sections((2, 1, 1)))
A, B = "a" * 64, "b" * 64


def span(places, digest=A, grid=(0, 0)):
    rows = np.arange(len(places) * 2, dtype=np.float32).reshape(-1, 2)
    return ImageSpan(tuple(places), lambda: rows, digest, grid)


def test_rows_of_an_image_see_their_own_run_and_others_themselves():
    images = PromptImages(SEES, 14, (span([2, 3, 4, 8, 9]), span([11, 12], B)))
    last = [int(images.inputs(at)["last"]) for at in range(16)]
    assert last == [0, 1, 4, 4, 4, 5, 6, 7, 9, 9, 10, 12, 12, 13, 14, 15]
    assert images.inputs(8)["embed"].tolist() == [6, 7]
    assert "embed" not in images.inputs(10)


def test_neighbouring_images_do_not_see_one_another():
    images = PromptImages(SEES, 6, (span([1, 2]), span([3, 4], B)))
    assert [int(images.inputs(at)["last"]) for at in range(6)] == [0, 2, 2, 4, 4, 5]


runs = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=4)


@given(runs, st.integers(1, 9))
def test_no_chunk_cuts_rows_that_see_one_another(gaps, size):
    spans, at = [], 0
    for gap, length in gaps:
        at += gap
        spans.append(span(range(at, at + length)))
        at += length
    images, start = PromptImages(SEES, at + 2, tuple(spans)), 0
    while start < at + 2:
        taken = images.whole_rows(start, min(size, at + 2 - start))
        end = start + taken
        assert taken >= 1
        assert all(int(images.inputs(row)["last"]) < end for row in range(start, end))
        start = end
    assert start == at + 2


def test_chunks_may_cut_images_that_are_read_in_order():
    assert PromptImages(TEXT_ONLY, 9, (span(range(2, 8)),)).whole_rows(0, 4) == 4


def test_positions_on_three_axes_go_on_after_the_larger_edge():
    images = PromptImages(TURNS, 12, (span(range(2, 8), grid=(2, 3)), span([9, 10], B, (2, 1))))
    found = [images.inputs(at)[AXES].tolist() for at in range(14)]
    assert found[:9] == [
        [0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4],
        [5, 5, 5],
    ]  # fmt: skip
    assert found[9:] == [[6, 6, 6], [6, 7, 6], [8, 8, 8], [9, 9, 9], [10, 10, 10]]
    assert PromptImages(TURNS, 3).inputs(7)[AXES].tolist() == [7, 7, 7]


def test_keys_are_ids_and_digests_of_images():
    images = PromptImages(SEES, 5, (span([1, 2]), span([4], B)))
    keys = images.keys([7, 9, 9, 8, 9, 6])
    assert keys == [7, int(A, 16), int(A, 16), 8, int(B, 16), 6]
    assert images.keys([7, 9]) == [7, int(A, 16)]
    assert min(key for key in keys if key > 100) >= 1 << 64


def test_images_that_are_not_at_places_of_the_prompt_are_refused():
    program = small_program()
    with pytest.raises(RequestError, match="not loaded to see"):
        with_spans(None, program, 4, [span([1])])
    seeing = replace(program, facts={**program.facts, "images": TEXT_ONLY})
    for places in ((), (4,), (-1,), (2, 1), (1, 1)):
        with pytest.raises(RequestError, match="not at places"):
            with_spans(None, seeing, 4, [span(places)])
    with pytest.raises(RequestError, match="are for 3 ids"):
        check_images(PromptImages(TEXT_ONLY, 3), 4, seeing)
