"""Models that see against transformers: pixels, tokens, towers, trunks; and one digest anywhere."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")

import minicpmv_folders
import numpy as np
import phi4mm_folders
import vision_folders
from click.testing import CliRunner
from ideal_senses import ideal_rows
from installed import backends
from PIL import Image
from safetensors.numpy import load_file, save_file
from transformers.models.aya_vision.processing_aya_vision import AyaVisionProcessor
from transformers.models.cohere2_vision.processing_cohere2_vision import Cohere2VisionProcessor
from transformers.models.glm5_next.image_processing_pil_glm5_next import (
    Glm5NextImageProcessorPil,
)
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor
from vision_oracles import (
    MINICPM,
    PADDED,
    QWEN,
    logits_of,
    patches_of,
    pixels_of,
    processed,
    rows_of,
)

import cortiq
from cortiq.cli.main import cli
from cortiq.convert.run import convert_model
from cortiq.engine.prompt_images import ImageSpan, with_spans
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.ir.encoded import ENCODED
from cortiq.models import load_program
from cortiq.tokenizer.tokenizer import Tokenizer
from cortiq.vision import glm5_next
from cortiq.vision.load import load_vision, vision_family
from cortiq_reference.ideal import evaluate

TOLERANCE = 1e-5
SIZES = ((40, 70), (100, 30), (20, 31), (150, 149))
"""Height and width of images: wide, tall, small, large."""
FAMILIES = (
    "gemma3",
    "idefics3",
    "smolvlm",
    *QWEN,
    "llava",
    "llava_next",
    "pixtral",
    "mistral3",
    "mistral_large4",
    "internvl",
    "aria",
    "cohere2_vision",
    "aya_vision",
    "lfm2_vl",
    "gemma4",
    "gemma4_small",
    "kimi_k25",
    "minicpmv4_6",
    "minicpmv4_7",
    "minicpm_ocr",
    "minicpmv",
    "phi4_multimodal",
    "mllama",
)
EXACT = {"temperature": 0, "ignore_eos": True}


def write(name, folder, **sight):
    if name == "smolvlm":
        return vision_folders.idefics3(folder, "SmolVLM", **sight)
    if name == "phi4_multimodal":
        return phi4mm_folders.phi4_multimodal(folder, **sight)
    return getattr(vision_folders, name)(folder, **sight)


@pytest.fixture(scope="module", params=FAMILIES)
def written(request, tmp_path_factory):
    """A family's name, folder, and transformers' model in double."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, write(request.param, folder).double()


def families(*names):
    """Run a test on some families alone: those whose processors put more than rows' tokens."""
    return pytest.mark.parametrize("written", names, indirect=True, scope="module")


def drawn(size, seed=0):
    return np.random.default_rng([seed, *size]).integers(0, 256, (*size, 3), dtype=np.uint8)


def sight_of(folder, weight_format="f32"):
    checkpoint = open_checkpoint(folder)
    return load_vision(checkpoint, vision_family(checkpoint), weight_format)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pixels_are_those_of_transformers_processor(written, size):
    name, folder, _ = written
    image = drawn(size)
    given = processed(name, folder, [image])
    theirs = pixels_of(name, given)
    ours = patches_of(name, sight_of(folder).processor.prepare(image), given)
    assert np.nanmax(np.abs(ours - theirs.reshape(ours.shape))) < 1e-6  # a grey level is 8e-3


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_rows_in_float64_are_transformers_in_double(written, size):
    name, folder, model = written
    image, vision = drawn(size), sight_of(folder)
    (theirs,) = rows_of(name, model, processed(name, folder, [image]))
    ours = ideal_rows(vision, vision.processor.prepare(image))
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < TOLERANCE * np.abs(theirs).max()


def prompt_of(name, folder, made):
    """Ids of a text with images, and where their rows are."""
    tokenizer, parts = Tokenizer.from_folder(folder), []
    for number, image in enumerate(made):
        around = "<|vision_start|>{}<|vision_end|>" if name in QWEN else "{}"
        parts.append("ab"[number % 2] + around.format(image.text))
    return tokenizer.encode("".join(parts) + "what?", parse_special=True)


def spans_of(ids, token, images, rows, markers=frozenset()):
    places = [at for at, one in enumerate(ids) if one == token]
    spans = []
    for image, own in zip(images, rows, strict=True):
        here, places = places[: image.rows], places[image.rows :]
        stop = places[0] - 1 if places else len(ids)
        turned = image.canvas and image.canvas.placed(ids, here, markers, stop)
        made = tuple(here), lambda own=own: own, image.digest, image.grid
        spans.append(ImageSpan(*made, turned=turned))
    assert places == []
    return spans


def ideal_logits(checkpoint, vision, made, ids, adapters=()):
    """The logits in float64 of a prompt with images, adapters being merged."""
    rows = [ideal_rows(vision, image) for image in made]
    spans = spans_of(ids, vision.processor.token, made, rows, vision.processor.markers)
    loaded = load_program(
        checkpoint, weight_format="f32", images=vision.processor.rows, adapters=adapters
    )
    prompt = with_spans(None, loaded.program, len(ids), spans)
    listed = [prompt.inputs(at) for at in range(len(ids))]
    inputs = {key: np.stack([row[key] for row in listed]) for key in listed[0]}
    args = loaded.program, loaded.weights, [prompt.fed(at, one) for at, one in enumerate(ids)]
    slots = {}
    if prompt.given.tile:  # which stand beside the text
        width = loaded.config.hidden_size
        given = {ENCODED: np.concatenate([np.zeros((int(not rows), width)), *rows])}
        evaluate(*args[:2], [0] * len(given[ENCODED]), [], ENCODED, given, stored=slots)
    embed = evaluate(*args, ["embed"], inputs=inputs, stored=dict(slots))["embed"]
    for at, row in enumerate(listed):
        embed[at] = row.get("embed", embed[at])
    inputs["embed"] = embed
    return evaluate(*args, ["logits"], inputs=inputs, stored=slots)["logits"]


@pytest.mark.parametrize("count", [1, 3])
def test_logits_in_float64_are_transformers_in_double(written, count):
    name, folder, model = written
    count = 1 if name in PADDED else count
    images, vision = [drawn(size) for size in SIZES[:count]], sight_of(folder)
    given = processed(name, folder, images)
    made = [vision.processor.prepare(image) for image in images]
    ids, token = prompt_of(name, folder, made), vision.processor.token
    logits = ideal_logits(open_checkpoint(folder), vision, made, ids)
    theirs = logits_of(name, model, given, ids, token)
    assert np.abs(logits - theirs).max() < TOLERANCE * np.abs(theirs).max()


@families("idefics3")
@pytest.mark.parametrize("size", [(40, 70), (56, 56), (300, 31), (8, 8)])
def test_idefics_text_is_that_of_its_processor(written, size):
    name, folder, _ = written
    given = processed(name, folder, [drawn(size)])
    processor = Idefics3Processor.__new__(Idefics3Processor)
    processor.fake_image_token, processor.image_token = "<fake_token_around_image>", "<image>"
    processor.global_image_tag, processor.image_seq_len = "<global-img>", 4
    text = processor.replace_image_token({"rows": given["rows"], "cols": given["cols"]}, 0)
    assert sight_of(folder).processor.prepare(drawn(size)).text == text


@families("lfm2_vl")
@pytest.mark.parametrize("size", [(40, 70), (56, 56), (300, 31), (8, 8), (150, 149)])
def test_lfm2_text_is_that_of_its_processor(written, size):
    name, folder, _ = written
    processor = Lfm2VlProcessor.__new__(Lfm2VlProcessor)
    vars(processor).update(
        image_token="<image>", image_start_token="<|image_start|>",
        image_end_token="<|image_end|>", image_thumbnail_token="<|img_thumbnail|>",
    )  # fmt: skip
    rules = json.loads((folder / "preprocessor_config.json").read_text())
    processor.image_processor = SimpleNamespace(use_thumbnail=True, **rules)
    given = processed(name, folder, [drawn(size)])
    text = processor.replace_image_token(
        given, 0, use_thumbnail=True, use_image_special_tokens=True, **rules
    )
    assert sight_of(folder).processor.prepare(drawn(size)).text == text


COHERE = {
    "boi_token": "<|START_OF_IMG|>", "eoi_token": "<|END_OF_IMG|>", "image_token": "<|IMG_PATCH|>",
    "img_line_break_token": "<|IMG_LINE_BREAK|>", "patch_size": 2,
}  # fmt: skip
AYA = {
    "start_of_img_token": COHERE["boi_token"], "end_of_img_token": COHERE["eoi_token"],
    "img_patch_token": COHERE["image_token"], "tile_token": "TILE", "patch_size": 28,
    "tile_global_token": "TILE_GLOBAL", "img_size": 56,
}  # fmt: skip


@families("cohere2_vision", "aya_vision")
@pytest.mark.parametrize("size", [(40, 70), (56, 56), (300, 31), (8, 8), (150, 149)], ids=str)
def test_coheres_text_is_that_of_its_processor(written, size):
    name, folder, _ = written
    own = {"cohere2_vision": (Cohere2VisionProcessor, COHERE),
           "aya_vision": (AyaVisionProcessor, AYA)}  # fmt: skip
    kind, marks = own[name]
    processor = kind.__new__(kind)
    vars(processor).update(marks)
    made = sight_of(folder).processor.prepare(drawn(size))
    given = processed(name, folder, [drawn(size)])
    assert len(made.tiles) == given["num_patches"][0]
    assert made.text == processor.replace_image_token(given, 0)


def test_canvases_of_command_a_vision_are_those_of_its_processor(tmp_path):
    """Of 20 images of all forms, smaller and larger than a tile."""
    vision_folders.cohere2_vision(tmp_path)
    processor, grids = sight_of(tmp_path).processor, set()
    for size in np.exp(np.random.default_rng(5).uniform(2, 5.5, (20, 2))).astype(int).tolist():
        image = drawn(size)
        given = processed("cohere2_vision", tmp_path, [image])
        theirs = pixels_of("cohere2_vision", given)
        made = processor.prepare(image)
        ours = patches_of("cohere2_vision", made, given)
        assert np.abs(ours - theirs).max() < 1e-6
        grids.add(processor.grid(*size))
    assert len(grids) > 5


@families(*MINICPM)
def test_minicpm_text_is_that_of_its_processor(written):
    """Slices of a large image, and the number of each image."""
    name, folder, _ = written
    images, sizes = [], [(40, 70), (130, 420), (420, 130), (150, 149), (9, 30)]
    processor = MiniCPMV4_6Processor.__new__(MiniCPMV4_6Processor)
    marks = {"image": "image", "slice": "slice", "image_id": "image_id"}
    for role, mark in marks.items():
        vars(processor).update({f"{role}_start_token": f"<{mark}>"})
        vars(processor).update({f"{role}_end_token": f"</{mark}>"})
    vars(processor).update(image_token="<|image_pad|>", slice_mode=True)
    images = [drawn(size) for size in sizes]
    given = processed(name, folder, images)
    divisor = 4 if name == "minicpm_ocr" else 16
    texts = [
        processor.replace_image_token(given, n, image_token_divisor=divisor)
        for n in range(len(sizes))
    ]
    text = "".join(["<|image_pad|>"] * len(sizes))
    theirs = "".join(processor._prepend_local_ids([text], texts, "<|image_pad|>"))
    with cortiq.load(folder, images=True, backend="reference") as model:
        assert (
            model.senses.expanded(
                text, model.senses.prepared([("image", one) for one in images], "")
            )
            == theirs
        )


@families("minicpmv")
def test_minicpmv_text_is_that_of_its_processor(written):
    _, folder, _ = written
    images = [drawn(size) for size in ((40, 70), (130, 420), (420, 130), (150, 149), (9, 30))]
    grids = minicpmv_folders.processed(images)["grids"]
    assert {down * across for down, across in grids} == {0, 2, 3}
    theirs = [minicpmv_folders.text_of(n, grid) for n, grid in enumerate(grids)]
    content = [*({"image": one} for one in images), {"type": "text", "text": "what?"}]
    with cortiq.load(folder, images=True, backend="reference") as model:
        prompt = model.chat_prompt([{"role": "user", "content": content}])
        text = "<turn>user\n" + "\n".join([*theirs, "what?"]) + "<eos><turn>assistant"
        assert list(prompt.ids) == model.tokenizer.encode(text, add_bos=False, parse_special=True)


@pytest.mark.parametrize("version", minicpmv_folders.MINICPM_V)
def test_versions_of_minicpmv_have_text_models_of_their_own(tmp_path, version):
    model, image = minicpmv_folders.minicpmv(tmp_path, version).double(), drawn((40, 70))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.architecture == minicpmv_folders.MINICPM_V[version]
    vision, given = sight_of(tmp_path), minicpmv_folders.processed([image])
    made = [vision.processor.prepare(image)]
    ids = prompt_of("minicpmv", tmp_path, made)
    logits = ideal_logits(checkpoint, vision, made, ids)
    theirs = logits_of("minicpmv", model, given, ids, vision.processor.token)
    assert np.abs(logits - theirs).max() < TOLERANCE * np.abs(theirs).max()


def test_a_minicpmv_that_does_not_fit_is_refused(tmp_path):
    minicpmv_folders.minicpmv(tmp_path)
    rules = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps(rules | {"image_feature_size": 7})
    )
    with pytest.raises(UnsupportedError, match="image_feature_size 7"):
        sight_of(tmp_path)
    words = json.loads((tmp_path / "tokenizer.json").read_text())
    words["added_tokens"] = [one for one in words["added_tokens"] if one["content"] != "<unk>"]
    words["model"]["vocab"]["<other>"] = words["model"]["vocab"].pop("<unk>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(FormatError, match="no token '<unk>'"):
        sight_of(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"version": 2.5}))
    with pytest.raises(UnsupportedError, match="minicpmv_text"):
        cortiq.load(tmp_path)


CONTENT = [
    {"type": "text", "text": "a"}, {"image": drawn((24, 30))}, {"type": "text", "text": "what?"},
    {"image": drawn((30, 20))}, {"type": "text", "text": "and?"},
]  # fmt: skip
MESSAGES = [{"role": "user", "content": CONTENT}]


def answers(folder, backend):
    """Digests: alone; with texts in a batch; in chunks that cut an image; drafted; reused."""
    with cortiq.load(folder, images=True, backend=backend, threads=1) as model:
        prompt = model.chat_prompt(MESSAGES)
        alone = model.generate(prompt, max_tokens=5, **EXACT)
        text = model.generate("hello", max_tokens=5, **EXACT)
        batch = model.generate_many(["hello", prompt, "other"], max_tokens=5, **EXACT)
        assert batch[0].digest == text.digest
        found = {"alone": alone, "batch": batch[1]}
        for rows in (1, 7) if backend == "reference" else (7,):
            found[f"chunks of {rows}"] = model.generate(
                prompt, max_tokens=5, chunk_rows=rows, **EXACT
            )
        if backend in ("reference", "cpu"):
            found["drafted"] = model.generate(prompt, max_tokens=5, draft="lookup", **EXACT)
        model.keep_prefixes()
        model.generate(prompt, max_tokens=5, **EXACT)
        again = model.generate(prompt, max_tokens=5, **EXACT)
        whole = len(again.prompt_ids) - 1
        recurrent = folder.name.startswith(
            ("qwen3_5", "qwen4_exp", "minicpmv4", "minicpm_", "glm5_next")
        )  # whose states are kept at some rows only
        assert again.stats.reused_tokens == whole or recurrent
        found["reused"] = again
        other = [dict(part) for part in CONTENT]
        other[3] = {"image": drawn((30, 20), seed=1)}
        moved = model.chat([{"role": "user", "content": other}], max_tokens=5, **EXACT)
        first = next(at for at, token in enumerate(alone.prompt_ids) if token not in prompt.ids[:2])
        spans = prompt.spans
        assert moved.stats.reused_tokens <= spans[1].places[0]
        assert first < moved.stats.reused_tokens or recurrent
        assert moved.digest != alone.digest
    digests = {name: made.digest for name, made in found.items()}
    assert len(set(digests.values())) == 1
    return alone.digest, text.digest


@pytest.fixture(scope="module")
def expected(written):
    name, folder, _ = written
    if name == "smolvlm":
        pytest.skip("its graphs are those of Idefics 3")
    return answers(folder, "reference")


def test_the_reference_has_one_digest_however_it_is_computed(written, expected):
    _, folder, _ = written
    with cortiq.load(folder, backend="reference") as model:
        assert model.generate("hello", max_tokens=5, **EXACT).digest == expected[1]


OTHERS = [name for name in backends() if name != "reference"]
QUICK = {("cpu", name) for name in FAMILIES} | {
    (backend, name) for backend in ("torch", "mlx") for name in ("gemma3", "qwen2_vl")
}
"""Pairs that are tried at every change: towers of others are made of the same parts."""


@pytest.mark.parametrize("backend", OTHERS)
def test_every_backend_has_the_references_digests(written, expected, backend):
    if (backend, written[0]) not in QUICK:
        pytest.skip("in the slow test")
    assert answers(written[1], backend) == expected


@pytest.mark.slow
@pytest.mark.parametrize("backend", OTHERS)
def test_every_backend_has_the_references_digests_of_every_family(written, expected, backend):
    if (backend, written[0]) in QUICK:
        pytest.skip("in the quick test")
    assert answers(written[1], backend) == expected


def test_an_image_moves_the_answer_and_text_around_it_stays(written):
    _, folder, _ = written
    with cortiq.load(folder, images=True, backend="cpu", threads=1) as model:
        digests = {
            model.chat(
                [{"role": "user", "content": [{"image": drawn((40, 70), seed)}]}],
                max_tokens=3, **EXACT,
            ).digest
            for seed in range(3)
        }  # fmt: skip
    assert len(digests) == 3


def test_images_and_places_have_to_fit(written, tmp_path):
    name, folder, _ = written
    if name == "smolvlm":
        pytest.skip("as Idefics 3")
    image = drawn((40, 70))
    with cortiq.load(folder, images=True, backend="cpu", threads=1) as model:
        marker = model.senses.of("image", "").processor.marker
        with pytest.raises(RequestError, match="places of images"):
            content = [{"image": image}, {"type": "text", "text": f"{marker} and"}]
            model.chat([{"role": "user", "content": content}])
        prompt = model.image_prompt("x", [image])
        with pytest.raises(RequestError, match="ids of images' rows"):
            ids = list(prompt.ids)
            ids.remove(model.senses.of("image", "").processor.token)
            model.image_prompt(ids, [image])
        for foreign in ("image_url", "input_image"):  # which the template would leave out
            content = [{"type": foreign, "image_url": {"url": "a.png"}}]
            with pytest.raises(RequestError, match=f"of the type {foreign!r}"):
                model.chat([{"role": "user", "content": content}])
        (tmp_path / "a.png").write_bytes(b"no image")
        with pytest.raises(RequestError, match=r"a\.png: the image cannot be decoded"):
            model.image_prompt("x", str(tmp_path / "a.png"))  # a single one needs no list
        with pytest.raises(RequestError, match="more than 64 images"):
            model.image_prompt("x", [image] * 65)
        same = model.generate(list(prompt.ids), images=[image], max_tokens=3, **EXACT)
        assert same.digest == model.generate(prompt, max_tokens=3, **EXACT).digest
    with cortiq.load(folder, backend="cpu", threads=1) as model:
        with pytest.raises(RequestError, match="not loaded to see"):
            model.generate("x", images=[image])
        with pytest.raises(RequestError, match="not loaded to see"):
            model.chat([{"role": "user", "content": [{"image": image}]}])


def test_sizes_of_glm_5_next_are_those_of_its_processor(tmp_path):
    vision_folders.glm5_next(tmp_path)
    random, config = np.random.default_rng(5), vision_family(open_checkpoint(tmp_path)).config
    for least, most in ((2, 12), (16, 8000), (7, 7), (1, 1)):
        limits = {"min_image_tokens": least, "max_image_tokens": most}
        ours = glm5_next.Processor(config, limits)
        theirs = Glm5NextImageProcessorPil(patch_size=4, **limits)
        for height, width in np.exp(random.uniform(0, 7, (200, 2))).astype(int).tolist():
            down, across = ours.fitted_size(height, width)
            count = theirs.get_number_of_image_patches(height, width)
            assert down * across == count * 16 and down * across <= ours.most * 16


@pytest.mark.parametrize(
    "rules",
    [
        {"min_image_tokens": 9, "max_image_tokens": 8}, {"max_image_tokens": 1 << 40},
        {"min_image_tokens": "1"}, {"patch_expand_factor": 2},
    ],
    ids=str,
)  # fmt: skip
def test_rules_of_glm_5_next_that_do_not_fit_are_refused(tmp_path, rules):
    vision_folders.glm5_next(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(rules))
    with pytest.raises((FormatError, UnsupportedError), match=r"rows|patch_expand_factor"):
        sight_of(tmp_path)


def test_the_layer_that_drafts_of_a_glm_ocr_is_left_alone(tmp_path):
    vision_folders.glm_ocr(tmp_path)
    before, file = seen(tmp_path), tmp_path / "model.safetensors"
    config = json.loads((tmp_path / "config.json").read_text())
    save_file(
        load_file(file) | {f"model.language_model.layers.3.{name}.weight": np.ones((2, 2), "f4")
                           for name in ("eh_proj", "self_attn.q_proj")},
        file,
    )  # fmt: skip
    with pytest.raises(FormatError, match=r"layers\.3\.eh_proj\.weight is not used"):
        seen(tmp_path)
    config["text_config"]["num_nextn_predict_layers"] = 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert seen(tmp_path) == before


@pytest.mark.parametrize(
    "rules",
    [
        {"split_image": True}, {"max_image_size": 560},
        {"max_image_size": 300, "min_image_size": 301}, {"max_image_size": "490"},
    ],
    ids=str,
)  # fmt: skip
def test_rules_of_aria_that_do_not_fit_are_refused(tmp_path, rules):
    vision_folders.aria(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(rules))
    words = "split_image|number of rows for so many|edges of"
    with pytest.raises((FormatError, UnsupportedError), match=words):
        sight_of(tmp_path)


def test_kimi_vl_is_a_kimi_k25_under_other_names(tmp_path):
    """Whose class in transformers is the oracle of the tower and of the text model."""
    folders = [tmp_path / name for name in ("kimi_k25", "kimi_vl")]
    for folder in folders:
        folder.mkdir()
    vision_folders.kimi_k25(folders[0])
    model = vision_folders.kimi_vl(folders[1]).double()
    images, vision = [drawn(size) for size in ((20, 31), (30, 24))], sight_of(folders[1])
    made = [vision.processor.prepare(image) for image in images]
    given = processed("kimi_k25", folders[0], images)
    for ours, theirs in zip(made, rows_of("kimi_k25", model, given), strict=True):
        assert np.abs(ideal_rows(vision, ours) - theirs).max() < TOLERANCE * np.abs(theirs).max()
    ids, token = prompt_of("kimi_vl", folders[1], made), vision.processor.token
    logits = ideal_logits(open_checkpoint(folders[1]), vision, made, ids)
    theirs = logits_of("kimi_k25", model, given, ids, token)
    assert np.abs(logits - theirs).max() < TOLERANCE * np.abs(theirs).max()
    assert seen(folders[1]) == seen(folders[0])
    rules = folders[1] / "preprocessor_config.json"
    rules.write_text(rules.read_text().replace("true", "false"))
    with pytest.raises(UnsupportedError, match="cut to whole squares"):
        sight_of(folders[1])


def test_mistral_large_4_is_read_under_either_names(tmp_path):
    """Published ones, whose heads turn neighbouring values, and transformers'."""
    model = vision_folders.mistral_large4(tmp_path)
    image, before = drawn((40, 70)), seen(tmp_path)
    assert "vision_encoder.ln_pre.weight" in load_file(tmp_path / "model.safetensors")
    model.float().save_pretrained(tmp_path, save_original_format=False)
    assert "model.vision_tower.ln_pre.weight" in load_file(tmp_path / "model.safetensors")
    (theirs,) = rows_of("mistral_large4", model.double(), processed("pixtral", tmp_path, [image]))
    vision = sight_of(tmp_path)
    ours = ideal_rows(vision, vision.processor.prepare(image))
    assert np.abs(ours - theirs).max() < TOLERANCE * np.abs(theirs).max()
    assert seen(tmp_path) == before


def seen(folder):
    """Digests of the logits of an answer about an image."""
    with cortiq.load(folder, images=True, backend="cpu", threads=1) as model:
        prompt = model.image_prompt("what?", [drawn((40, 70))])
        return model.generate(prompt, max_tokens=3, **EXACT).step_digests


def test_a_conversion_keeps_the_tower(written, tmp_path):
    _, folder, _ = written
    kept = convert_model(str(folder), tmp_path / "kept", "keep")
    assert kept.notes == () and seen(kept.path) == seen(folder)
    assert CliRunner().invoke(cli, ["inspect", str(kept.path), "--check"]).exit_code == 0
    again = convert_model(str(kept.path), tmp_path / "again", "w8").path
    once = convert_model(str(folder), tmp_path / "once", "w8").path
    assert seen(again) == seen(once) != seen(folder)
    tower = open_checkpoint(again)
    part = tower.part(vision_family(tower).module.PREFIXES)
    assert {part.info(name).type for name in part.tensor_names} == {"F32"}


def test_a_tower_that_no_family_reads_is_left_out_and_said(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    vision_folders.lfm2_vl(source)
    config = source / "config.json"
    config.write_text(config.read_text().replace('"lfm2_vl"', '"lfm9_vl"'))
    made = convert_model(str(source), tmp_path / "out")
    assert len(made.notes) == 1 and "reads no images" in made.notes[0]
    assert convert_model(str(tmp_path / "out"), tmp_path / "again").notes == ()


def test_a_model_without_a_tower_says_so(tmp_path):
    with pytest.raises(UnsupportedError, match="reads no images"):
        cortiq.load("synthetic:tiny-llama", images=True)


MOVES = {
    "minicpmv4_6": [
        {"insert_layer_id": 0}, {"vision_config.layer_norm_eps": 0.1},
        {"vision_config.hidden_act": "relu"},
    ],
    "gemma3": [{"vision_config.layer_norm_eps": 0.1}, {"vision_config.hidden_act": "relu"}],
    "idefics3": [{"vision_config.layer_norm_eps": 0.1}],
    "qwen2_vl": [{"vision_config.rope_parameters.rope_theta": 100.0}],
    "qwen2_5_vl": [
        {"vision_config.window_size": 16}, {"vision_config.fullatt_block_indexes": [0]},
        {"vision_config.rope_parameters.rope_theta": 100.0}, {"vision_config.hidden_act": "gelu"},
    ],
    "qwen3_vl": [
        {"vision_config.deepstack_visual_indexes": [1, 2]}, {"vision_config.hidden_act": "relu"},
    ],
    "qwen3_5": [{"vision_config.rope_parameters.rope_theta": 100.0}],
    "qwen4_exp": [{"vision_config.hidden_act": "relu"}],
    "llava": [
        {"vision_config.layer_norm_eps": 0.1}, {"vision_config.hidden_act": "relu"},
        {"projector_hidden_act": "relu"}, {"vision_feature_layer": -3},
    ],
    "llava_next": [{"vision_feature_layer": 1}],
    "internvl": [{"vision_config.layer_norm_eps": 1.0}, {"vision_feature_layer": 1}],
    "glm4v": [
        {"vision_config.hidden_act": "relu"}, {"vision_config.rms_norm_eps": 1.0},
        {"vision_config.rope_parameters.rope_theta": 100.0},
    ],
    "glm_ocr": [{"vision_config.hidden_act": "relu"}, {"vision_config.rms_norm_eps": 1.0}],
    "glm5_next": [
        {"vision_config.hidden_act": "relu"}, {"vision_config.swiglu_limit": 0.1},
        {"vision_config.rope_parameters.rope_theta": 100.0},
    ],
    "cohere2_vision": [{"vision_config.layer_norm_eps": 0.1}],
    "aya_vision": [{"adapter_layer_norm_eps": 1.0}, {"vision_feature_layer": 1}],
    "aria": [
        {"vision_config.hidden_act": "relu"}, {"vision_config.layer_norm_eps": 99.0},
        {"vision_feature_layer": 1},
    ],
    "pixtral": [{"vision_config.hidden_act": "relu"}, {"vision_feature_layer": 1}],
    "kimi_k25": [
        {"vision_config.hidden_act": "relu"}, {"projection_layer_norm_eps": 1.0},
        {"vision_config.rope_parameters.rope_theta": 2.0},
    ],
    "gemma4": [
        {"vision_config.rms_norm_eps": 0.1}, {"vision_config.hidden_activation": "relu"},
        {"vision_config.rope_parameters.rope_theta": 2.0},
    ],
    "gemma4_small": [{"vision_config.use_clipped_linears": False}],
    "lfm2_vl": [
        {"vision_config.layer_norm_eps": 0.1}, {"vision_config.hidden_act": "relu"},
        {"projector_hidden_act": "relu"},
    ],
    "mllama": [
        {"vision_config.hidden_act": "relu"}, {"vision_config.norm_eps": 1.0},
        {"vision_config.intermediate_layers_indices": [2, 0]},
    ],
    "mistral3": [
        {"vision_config.rope_parameters.rope_theta": 100.0}, {"text_config.rms_norm_eps": 1.0},
        {"projector_hidden_act": "relu"}, {"vision_feature_layer": 0},
    ],
}  # fmt: skip


def test_an_option_of_the_tower_moves_the_rows(written, tmp_path):
    name, folder, _ = written
    image = sight_of(folder).processor.prepare(drawn((40, 70)))
    before = ideal_rows(sight_of(folder), image)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    for change in MOVES.get(name, []):
        edited = json.loads(json.dumps(config))
        for path, value in change.items():
            *way, last = path.split(".")
            place = edited
            for key in way:
                place = place[key]
            place[last] = value
        (tmp_path / "config.json").write_text(json.dumps(edited))
        vision = sight_of(tmp_path)
        moved = ideal_rows(vision, vision.processor.prepare(drawn((40, 70))))
        assert np.abs(moved - before).max() > 1e-3 * np.abs(before).max()


WRONG = {
    "minicpmv4_6": [
        {"downsample_mode": "2x"}, {"insert_layer_id": 3}, {"drop_vision_last_layer": True},
        {"merge_kernel_size": [1, 2]}, {"merger_times": 0},
    ],
    "gemma3": [
        {"mm_tokens_per_image": 5},
        {"vision_config": {"patch_size": 0}},
        {"text_config": {"sliding_window": 3}},
    ],
    "idefics3": [{"scale_factor": 3}],
    "smolvlm": [{"vision_config": {"unknown_key": 1}}],
    "qwen2_vl": [{"vision_config": {"hidden_act": "relu"}}, {"vision_config": {"depth": 3}}],
    "qwen2_5_vl": [{"vision_config": {"window_size": 7}}, {"vision_config": {"depth": 2}}],
    "qwen3_vl": [
        {"vision_config": {"deepstack_visual_indexes": [1, 0]}},
        {"vision_config": {"deepstack_visual_indexes": [0, 3]}},
        {"vision_config": {"num_position_embeddings": 50}},
    ],
    "llava": [
        {"vision_feature_layer": 9}, {"vision_feature_select_strategy": "some"},
        {"vision_config": {"model_type": "other"}}, {"vision_config": {"image_size": 70}},
        {"projector_hidden_act": "none"},
    ],
    "llava_next": [{"vision_feature_select_strategy": "full"}],
    "pixtral": [
        {"vision_feature_select_strategy": "default"}, {"vision_feature_layer": [1, -1]},
    ],
    "glm4v": [{"vision_config": {"image_size": 24}}, {"vision_config": {"attention_bias": True}}],
    "cohere2_vision": [
        {"downsample_factor": 3}, {"downsample_factor": 0}, {"alignment_intermediate_size": 35},
        {"alignment_intermediate_size": 0},
    ],
    "aya_vision": [
        {"vision_feature_layer": [1, 2]}, {"vision_feature_select_strategy": "default"},
    ],
    "aria": [
        {"vision_feature_layer": [1, 2]}, {"vision_feature_layer": 3},
        {"projector_patch_to_query_dict": {"49": 1 << 40}},
        {"projector_patch_to_query_dict": {"x": []}}, {"projector_patch_to_query_dict": [3]},
    ],
    "mllama": [
        {"vision_config": {"intermediate_layers_indices": [0, 3]}},
        {"vision_config": {"vision_output_dim": 73}}, {"vision_config": {"max_num_tiles": 17}},
        {"vision_config": {"supported_aspect_ratios": [[1, 1], [2, 1]]}},
        {"vision_config": {"image_size": 57}}, {"vision_config": {"unknown_key": 1}},
    ],
    "glm_ocr": [{"vision_config": {"attention_bias": False}}],
    "glm5_next": [
        {"vision_config": {"projection_intermediate_size": 41}},
    ],
    "internvl": [
        {"vision_feature_layer": [1, -1]}, {"downsample_ratio": 0.3},
        {"vision_config": {"norm_type": "none"}}, {"vision_feature_select_strategy": "full"},
    ],
    "mistral3": [{"vision_feature_layer": [1, -1]}, {"spatial_merge_size": 3}],
    "kimi_k25": [
        {"vision_config": {"pos_emb_width": 4}}, {"vision_config": {"merge_kernel_size": [1, 1]}},
    ],
    "gemma4": [
        {"vision_config": {"use_clipped_linears": True}}, {"text_config": {"sliding_window": 3}},
        {"vision_config": {"pooling_kernel_size": 3}}, {"vision_config": {"head_dim": 14}},
        {"vision_config": {"position_embedding_size": 3}},
    ],
    "gemma4_small": [
        {"text_config": {"pad_token_id": 1000}}, {"text_config": {"pad_token_id": "x"}},
    ],
    "lfm2_vl": [
        {"vision_config": {"num_patches": 15}}, {"downsample_factor": 0}, {"downsample_factor": 3},
    ],
}  # fmt: skip


def test_configurations_that_do_not_fit_are_refused_by_name(written, tmp_path):
    name, folder, _ = written
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    for change in WRONG.get(name, []):
        inner = {
            key: {**config[key], **v} if isinstance(v, dict) else v for key, v in change.items()
        }
        (tmp_path / "config.json").write_text(json.dumps(config | inner))
        with pytest.raises((FormatError, UnsupportedError)) as error:
            sight_of(tmp_path)
        assert error.value.where is not None


@pytest.mark.parametrize("option", [{"merger_times": 2}, {"downsample_mode": "4x"}], ids=str)
def test_rows_of_minicpm_with_another_number_of_merges(tmp_path, option):
    model = vision_folders.minicpmv4_6(tmp_path, **option).double()
    vision, image = sight_of(tmp_path), drawn((150, 149))
    given = processed("minicpmv4_6", tmp_path, [image])
    if "merger_times" in option:  # whose processor knows of one
        given["pixel_values"] = given["pixel_values"][..., : 14 * 64]
        given["target_sizes"] = given["target_sizes"][:1]
    made = vision.processor.prepare(image)
    (theirs,) = rows_of("minicpmv4_6", model, given)
    ours = ideal_rows(vision, made)
    assert len(made.tiles[0].stages) == {"2": 2, "4x": 0}[str(next(iter(option.values())))]
    assert np.abs(ours[: len(theirs)] - theirs).max() < TOLERANCE * np.abs(theirs).max()


def test_a_digest_is_of_everything_that_the_model_sees(written):
    _, folder, _ = written
    image = sight_of(folder).processor.prepare(drawn((40, 70)))
    tile = image.tiles[0]
    changed = tile.patches.copy()
    changed[-1, -1] += 0.5
    others = [
        dataclasses.replace(image, text=image.text + " "), dataclasses.replace(image, grid=(9, 9)),
        dataclasses.replace(image, tiles=(dataclasses.replace(tile, patches=changed),)),
        dataclasses.replace(
            image, tiles=(dataclasses.replace(tile, squares=tile.squares[1:]), *image.tiles[1:])
        ),
    ]  # fmt: skip
    assert len({image.digest, *(other.digest for other in others)}) == 5


def test_a_receipt_is_about_its_images(written, tmp_path):
    """On other backends, in its own file, and against other images, other places, none."""
    name, folder, _ = written
    if name == "smolvlm":
        pytest.skip("as Idefics 3")
    image, text = drawn((40, 70)), {"type": "text", "text": "what?"}
    with cortiq.load(folder, images=True, backend="cpu", threads=1) as model:
        content = [{"image": image}, text, {"image": drawn((20, 21))}]
        made = model.chat([{"role": "user", "content": content}], max_tokens=4, **EXACT)
        receipt = made.receipt()
        assert model.verify(receipt, images=[image, drawn((20, 21))]).identical
        for given in ([image], [], [image] * 3):
            with pytest.raises(RequestError, match="is about 2 images"):
                model.verify(receipt, images=given)
        other = model.verify(receipt, images=[drawn((20, 21)), image])
        assert [d.field for d in other.differences] == ["images"]
        ids = list(receipt.claim.prompt_ids)
        at = ids.index(model.senses.of("image", "").processor.token)
        ids[at] = 3
        claim = dataclasses.replace(receipt.claim, prompt_ids=tuple(ids))
        edited = model.verify(
            dataclasses.replace(receipt, claim=claim), images=[image, drawn((20, 21))]
        )
        assert edited.differences[0].field == "prompt_ids"
        plain = model.generate("hello", max_tokens=3, **EXACT).receipt()
        assert plain.claim.images == () and "images" not in plain.as_object()["claim"]
    receipt.write(tmp_path / "r.json")
    read = cortiq.Receipt.read(tmp_path / "r.json")
    assert read == receipt and len(read.claim.images) == 2
    images = [Image.fromarray(image), drawn((20, 21))]
    assert cortiq.verify(read, folder, images=images, backend="reference").identical
    with cortiq.load(folder, backend="cpu", threads=1) as model:
        assert model.verify(plain).identical


def test_a_text_has_the_same_bits_whether_the_model_sees(written):
    """Also where rows are fed without a request: scores, logits, embeddings."""
    name, folder, _ = written
    if name in ("idefics3", "smolvlm"):
        pytest.skip("its trunk's rows supply nothing")
    found = []
    for sees in (False, True):
        with cortiq.load(folder, images=sees, backend="cpu", threads=1) as model:
            made = model.generate("hello hello", max_tokens=5, draft="lookup", **EXACT)
            score = model.score("hello world " * 20, window=64)
            likely = model.likelihoods("hello", [[9, 8]])
            rows = model.logits("hello").tobytes(), model.embed("hello").tobytes()
            found.append((made.digest, model.fingerprint, repr(score), repr(likely), *rows))
    assert found[0] == found[1]


def test_the_command_line_generates_and_verifies_with_an_image(written, tmp_path):
    from click.testing import CliRunner

    from cortiq.cli.main import cli

    name, folder, _ = written
    if name != "gemma3":
        pytest.skip("the commands know no families")
    Image.fromarray(drawn((40, 70))).save(tmp_path / "a.png")
    Image.fromarray(drawn((40, 70), seed=1)).save(tmp_path / "b.png")
    image, receipt = str(tmp_path / "a.png"), str(tmp_path / "r.json")
    model = [str(folder), "--backend", "cpu", "--threads", "1"]

    def run(*arguments):
        done = CliRunner().invoke(cli, [*arguments])
        return done.exit_code, done.output, done.exception

    options = ["--temperature", "0", "-n", "4", "--ignore-eos"]
    code, output, _ = run(
        "generate", *model, "--image", image, "--chat", "-p", "what?", *options,
        "--receipt", receipt, "--json",
    )  # fmt: skip
    assert code == 0
    content = [{"image": image}, {"type": "text", "text": "what?"}]
    with cortiq.load(folder, images=True, backend="cpu", threads=1) as opened:
        made = opened.chat([{"role": "user", "content": content}], max_tokens=4, **EXACT)
    assert json.loads(output)["digest"] == made.digest
    assert run("verify", receipt, *model, "--image", image)[0] == 0
    assert run("verify", receipt, *model, "--image", str(tmp_path / "b.png"))[0] == 1
    _, _, error = run("verify", receipt, *model)
    assert isinstance(error, RequestError) and "about 1 images" in str(error)


@pytest.mark.parametrize(
    ("bound", "message"),
    [(None, "input_min"), ([0.0], "without a value"), ([np.nan], "no number"), ([1.0, 2.0], "one")],
    ids=str,
)
def test_bounds_of_clipped_matrices_are_checked(tmp_path, bound, message):
    vision_folders.gemma4_small(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(key for key in tensors if key.endswith("0.mlp.up_proj.input_min"))
    high = name.replace("_min", "_max")
    changed = {name: np.array(bound, np.float32), high: np.array([-1.0], np.float32)}
    del tensors[name]
    save_file(tensors | (changed if bound else {}), tmp_path / "model.safetensors")
    with pytest.raises((FormatError, UnsupportedError), match=message) as error:
        sight_of(tmp_path)
    assert str(error.value.where).startswith(str(tmp_path))


def test_penalties_see_what_an_images_rows_are_fed_as(tmp_path):
    """Also where a prefix is reused, and where a receipt is computed again."""
    vision_folders.gemma4_small(tmp_path)
    options = {**EXACT, "max_tokens": 4, "repetition_penalty": 1.5}
    with cortiq.load(tmp_path, images=True, backend="cpu", threads=1) as model:
        prompt = model.chat_prompt(MESSAGES)
        alone = model.generate(prompt, **options)
        images = [part["image"] for part in CONTENT if "image" in part]
        assert model.verify(alone.receipt(), images=images).identical
        model.keep_prefixes()
        model.generate(prompt, **options)
        again = model.generate(prompt, **options)
        assert again.stats.reused_tokens and again.digest == alone.digest
