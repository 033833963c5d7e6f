"""Gemma 3's pan and scan against transformers: crops, their text, rows and logits; refusals."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")

import numpy as np
import vision_folders
from ideal_senses import ideal_rows
from test_vision import EXACT, OTHERS, TOLERANCE, drawn, ideal_logits, prompt_of, sight_of
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from vision_oracles import logits_of, patches_of, processed, rows_of

import cortiq
from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.vision.crops import PanAndScan

RULES = {
    "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 16, "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}  # fmt: skip
SIZES = ((40, 150), (131, 41), (60, 60))
"""Height and width of images of four crops, of three, and of none."""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder whose file asks for crops, and transformers' model in double."""
    folder = tmp_path_factory.mktemp("crops")
    model = vision_folders.gemma3(folder).double()
    ask(folder, **RULES)
    return folder, model


def ask(folder, **rules):
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | rules))


def test_crops_are_those_of_transformers_processor():
    """Of images of 60 random forms, under random rules."""
    random, counts = np.random.default_rng(3), set()
    for _ in range(60):
        image = drawn(np.exp(random.uniform(1, 5, 2)).astype(int).tolist())
        most = int(random.integers(1, 9))
        values = int(random.integers(most, 24)), most, float(random.uniform(0.5, 4))
        theirs = Gemma3ImageProcessorPil().pan_and_scan(image.transpose(2, 0, 1), *values)
        ours = PanAndScan(*values).cut(image)
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.size and np.array_equal(mine, other.transpose(1, 2, 0))
        counts.add(len(ours))
    assert counts >= {0, 1, 2, 3, 4}


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pixels_text_and_rows_are_those_of_transformers(written, size):
    folder, model = written
    vision, given = sight_of(folder), processed("gemma3", folder, [drawn(size)])
    made = vision.processor.prepare(drawn(size))
    ours, theirs = patches_of("gemma3", made, given), given["pixel_values"].numpy()
    assert np.abs(ours - theirs).max() < 1e-6
    processor = Gemma3Processor.__new__(Gemma3Processor)
    tokens = "<image_soft_token>" * 4
    processor.full_image_sequence = f"\n\n<start_of_image>{tokens}<end_of_image>\n\n"
    assert made.text == processor.replace_image_token(given, 0)
    rows = np.concatenate(rows_of("gemma3", model, given))
    assert np.abs(ideal_rows(vision, made) - rows).max() < TOLERANCE * np.abs(rows).max()


def test_logits_in_float64_are_transformers_in_double(written):
    """A prompt with images of four crops, of three, and of none."""
    folder, model = written
    images, vision = [drawn(size) for size in SIZES], sight_of(folder)
    made = [vision.processor.prepare(image) for image in images]
    assert [len(image.tiles) for image in made] == [5, 4, 1]
    ids = prompt_of("gemma3", folder, made)
    logits = ideal_logits(open_checkpoint(folder), vision, made, ids)
    given = processed("gemma3", folder, images)
    theirs = logits_of("gemma3", model, given, ids, vision.processor.token)
    assert np.abs(logits - theirs).max() < TOLERANCE * np.abs(theirs).max()


def digests(folder, backend):
    """Digests of an answer about three images: alone, in a batch, and in chunks of rows."""
    content = [*({"image": drawn(size)} for size in SIZES), {"type": "text", "text": "what?"}]
    with cortiq.load(folder, images=True, backend=backend, threads=1) as model:
        prompt = model.chat_prompt([{"role": "user", "content": content}])
        made = [
            model.generate(prompt, max_tokens=3, **EXACT),
            model.generate(prompt, max_tokens=3, chunk_rows=7, **EXACT),
            model.generate_many(["hello", prompt], max_tokens=3, **EXACT)[1],
        ]
    (digest,) = {one.digest for one in made}
    return digest


@pytest.fixture(scope="module")
def expected(written):
    return digests(written[0], "reference")


SLOW = [pytest.param(name, marks=() if name == "cpu" else pytest.mark.slow) for name in OTHERS]


@pytest.mark.parametrize("backend", SLOW)
def test_every_backend_has_the_references_digest(written, expected, backend):
    assert digests(written[0], backend) == expected


def test_published_settings_ask_for_no_crops_and_defaults_are_gemmas():
    assert PanAndScan.of({"do_pan_and_scan": None, "pan_and_scan_max_num_crops": None}) is None
    assert PanAndScan.of({"do_pan_and_scan": True}) == PanAndScan(256, 4, 1.2)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"do_pan_and_scan": "no"}, FormatError, "do_pan_and_scan = 'no'"),
        ({"pan_and_scan_min_crop_size": 0}, FormatError, "min_crop_size = 0"),
        ({"pan_and_scan_min_crop_size": 1.5}, FormatError, r"min_crop_size = 1\.5"),
        ({"pan_and_scan_max_num_crops": "4"}, FormatError, "max_num_crops = '4'"),
        ({"pan_and_scan_max_num_crops": True}, FormatError, "max_num_crops = True"),
        ({"pan_and_scan_min_ratio_to_activate": float("nan")}, FormatError, "activate = nan"),
        ({"pan_and_scan_min_ratio_to_activate": -1}, FormatError, "activate = -1"),
        ({"pan_and_scan_max_num_crops": 17}, UnsupportedError, "17 crops of 16 pixels"),
        ({"pan_and_scan_max_num_crops": 999, "pan_and_scan_min_crop_size": 9999},
         UnsupportedError, "999 crops"),
    ],
)  # fmt: skip
def test_rules_that_make_no_crops_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        PanAndScan.of(RULES | changes)
