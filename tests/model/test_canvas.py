"""MiniCPM-V 4.7's canvas against transformers: positions of rows and of the tokens around them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")

import numpy as np
import torch
import vision_folders
from test_vision import TOLERANCE, drawn, ideal_logits, sight_of
from transformers.models.minicpmv4_7.modeling_minicpmv4_7 import MiniCPMV4_7Model
from vision_oracles import logits_of, processed

import cortiq
from cortiq.engine.prompt_images import ImageSpan, PromptImages
from cortiq.errors import FormatError, GraphError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.ir.images import ImageRows
from cortiq.numerics.rope import Sections
from cortiq.tokenizer.tokenizer import Tokenizer
from cortiq.vision.canvas import canvas_of

ROW, TEXT = 1, 9
MARKS = {"image_start": 2, "image_end": 3, "slice_start": 4, "slice_end": 5, "newline": 6}
MARKERS = frozenset(MARKS.values())
TURNS = ImageRows(sections=Sections((2, 1, 1), interleaved=True))


def tokens_of(grids, down, across):
    """Ids of an image: the whole, then lines of slices."""
    found = [2, *[ROW] * int(np.prod(grids[0])), 3]
    for n in range(down * across):
        found += [6] * (n > 0 and n % across == 0)
        found += [4, *[ROW] * int(np.prod(grids[1])), 5]
    return found


def drawn_image(random):
    whole, part = ([int(n) for n in random.integers(1, 8, 2)] for _ in range(2))
    down, across = random.choice([(0, 0), (1, 2), (2, 1), (2, 2), (3, 1), (2, 3), (1, 1)])
    return [whole, part], int(down), int(across)


def their_positions(ids, sizes, factor=4):
    model = MiniCPMV4_7Model.__new__(MiniCPMV4_7Model)
    names = {f"{name}_id": one for name, one in MARKS.items()}
    model.__dict__["config"] = SimpleNamespace(downsample_mode="16x", **names)
    found, more = model.get_rope_index(
        torch.tensor([ids]), torch.tensor([[int(one == ROW) for one in ids]]),
        target_sizes=torch.tensor(sizes) * factor,
    )  # fmt: skip
    return found[:, 0].T.numpy(), int(more)


def our_positions(ids, canvases, stops):
    places, spans = [at for at, one in enumerate(ids) if one == ROW], []
    for n, (canvas, stop) in enumerate(zip(canvases, stops, strict=True)):
        here, places = places[: len(canvas.rows)], places[len(canvas.rows) :]
        turned = canvas.placed(ids, here, MARKERS, stop)
        spans.append(ImageSpan(tuple(here), lambda: None, f"{n:064x}", turned=turned))
    images = PromptImages(TURNS, len(ids), tuple(spans))
    return np.stack([images._turned(at) for at in range(len(ids) + 3)])


@pytest.mark.parametrize("seed", range(60))
def test_positions_are_those_of_transformers(seed):
    """Of prompts of one to four images: at its start, side by side, with ends of lines behind."""
    random = np.random.default_rng(seed)
    ids = [TEXT] * int(random.integers(0, 3))
    canvases, sizes, starts = [], [], []
    for _ in range(random.integers(1, 5)):
        grids, down, across = drawn_image(random)
        starts.append(len(ids))
        ids += tokens_of(grids, down, across)
        ids += random.choice([6, 6, TEXT, 3], random.integers(0, 4)).tolist()
        canvases.append(canvas_of(*grids, down, across))
        sizes += [grids[0], *[grids[1]] * (down * across)]
    ids += [TEXT] * int(random.integers(1, 4))
    theirs, more = their_positions(ids, sizes)
    ours = our_positions(ids, canvases, [*starts[1:], len(ids)])
    assert np.array_equal(ours[:-3], theirs)
    assert (ours[-3:] == np.arange(len(ids), len(ids) + 3)[:, None] + more).all()


def test_a_stretched_whole_has_the_places_of_transformers():
    """Of 1 to 40 rows on canvases of 1 to 150, where a half decides between two."""
    for count in range(1, 41):
        for edge in range(1, 151):
            theirs = torch.linspace(0, edge - 1, count).round().long().tolist()
            canvas = canvas_of((count, 1), (edge, 1), 1, 1)
            assert canvas.positions[1 : count + 1, 1].tolist() == theirs


def test_keys_of_markers_tell_images_and_ids_apart():
    canvas = canvas_of((1, 2), (1, 1))
    ids = [TEXT, 2, ROW, ROW, 3, 6, TEXT]
    spans = [
        ImageSpan((2, 3), lambda: None, letter * 64, turned=canvas.placed(ids, (2, 3), MARKERS, 7))
        for letter in "ab"
    ]
    one, other = (PromptImages(TURNS, 7, (span,)).keys(ids) for span in spans)
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, *[False] * 5, True]
    assert len(set(one[1:6])) == 4  # rows alone have the same
    assert PromptImages(TURNS, 7, (spans[0],)).keys(ids[:3]) == one[:3]


@pytest.mark.parametrize(
    ("ids", "stop"),
    [
        ([ROW, ROW, 3, 6], 4),  # no token before the rows
        ([2, ROW, ROW], 3),  # none behind them
        ([2, ROW, TEXT, ROW, 3], 5),  # one among them
        ([TEXT, ROW, ROW, 3], 4),  # a text's in place of a marker
        ([2, ROW, ROW, TEXT], 4),
        ([2, ROW, ROW, 2, ROW, ROW, 3], 3),  # the next image's in its place
    ],
)
def test_rows_without_their_markers_are_refused(ids, stop):
    places = [at for at, one in enumerate(ids) if one == ROW][:2]
    with pytest.raises(RequestError, match="are not its markers, one token each"):
        canvas_of((1, 2), (1, 1)).placed(ids, places, MARKERS, stop)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder whose prompts do not number images, and transformers' model in double."""
    folder = tmp_path_factory.mktemp("minicpmv4_7")
    model = vision_folders.minicpmv4_7(folder).double()
    change(folder / "preprocessor_config.json", use_image_id=False)
    return folder, model


def change(path, **more):
    found = json.loads(path.read_text())
    nested = {key: found[key] | value for key, value in more.items() if isinstance(value, dict)}
    path.write_text(json.dumps({**found, **more, **nested}))


def test_logits_of_images_side_by_side_are_transformers_in_double(written):
    """The first of them sliced, at the prompt's start, with ends of lines behind the last."""
    folder, model = written
    images, vision = [drawn(size) for size in ((130, 420), (40, 70))], sight_of(folder)
    made = [vision.processor.prepare(image) for image in images]
    assert [len(image.tiles) for image in made] == [4, 1]
    text = made[0].text + made[1].text + "\nwhat?"
    ids = Tokenizer.from_folder(folder).encode(text, add_bos=False, parse_special=True)
    logits = ideal_logits(open_checkpoint(folder), vision, made, ids)
    given = processed("minicpmv4_7", folder, images)
    theirs = logits_of("minicpmv4_7", model, given, ids, vision.processor.token)
    assert np.abs(logits - theirs).max() < TOLERANCE * np.abs(theirs).max()


REFUSED = [
    ({"newline_id": None}, FormatError, "newline_id"),
    ({"image_start_id": "<image>"}, FormatError, "image_start_id"),
    ({"merger_times": 2}, UnsupportedError, "merger_times"),
    ({"text_config": {"rope_parameters": {"mrope_section": [2, 2]}}}, FormatError, "mrope_section"),
    ({"text_config": {"rope_parameters": {"mrope_section": 4}}}, FormatError, "sections"),
    ({"text_config": {"rope_parameters": {"mrope_section": [0, 2, 2]}}}, GraphError, "pairs"),
    ({"text_config": {"rope_parameters": {"mrope_section": [1, 9, 9]}}}, GraphError, "axes"),
]


@pytest.mark.parametrize(("more", "error", "message"), REFUSED, ids=lambda v: str(v)[:40])
def test_a_configuration_without_a_canvas_is_refused(written, tmp_path, more, error, message):
    for path in written[0].iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text((written[0] / "config.json").read_text())
    change(tmp_path / "config.json", **more)
    with pytest.raises(error, match=message):
        cortiq.load(tmp_path, images=True, backend="reference")


def test_ids_without_markers_are_refused(written):
    with cortiq.load(written[0], images=True, backend="cpu", threads=1) as model:
        made = model.senses.prepared([("image", drawn((40, 70)))], "")
        with pytest.raises(RequestError, match="are not its markers"):
            model.senses.placed([9] * 3 + [4] * made[0].rows + [9], made)
