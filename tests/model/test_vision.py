"""Models that see against transformers: pixels, tokens, towers, trunks; and one digest anywhere."""

from __future__ import annotations

import dataclasses
import json

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")

import numpy as np
import torch
import vision_folders
from installed import backends
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import cortiq
from cortiq.engine.prompt_images import ImageSpan, with_spans
from cortiq.errors import FormatError, OptionError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.tokenizer.tokenizer import Tokenizer
from cortiq.vision.load import load_vision, vision_family
from cortiq.vision.tower import PROJECTOR, square_of
from cortiq_reference.ideal import evaluate

TOLERANCE = 1e-5
SIZES = ((40, 70), (100, 30), (20, 21), (150, 149))
"""Height and width of images: wide, tall, small, large."""
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5")
FAMILIES = ("gemma3", "idefics3", "smolvlm", *QWEN)
EXACT = {"temperature": 0, "ignore_eos": True}


def write(name, folder, **sight):
    if name == "smolvlm":
        return vision_folders.idefics3(folder, "SmolVLM", **sight)
    return getattr(vision_folders, name)(folder, **sight)


@pytest.fixture(scope="module", params=FAMILIES)
def written(request, tmp_path_factory):
    """A family's name, folder, and transformers' model in double."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, write(request.param, folder).double()


def drawn(size, seed=0):
    return np.random.default_rng([seed, *size]).integers(0, 256, (*size, 3), dtype=np.uint8)


def sight_of(folder, weight_format="f32"):
    checkpoint = open_checkpoint(folder)
    return load_vision(checkpoint, vision_family(checkpoint), weight_format)


def processed(name, folder, images):
    """Run the processor of transformers on images."""
    rules = json.loads((folder / "preprocessor_config.json").read_text())
    rules = {key: value for key, value in rules.items() if key != "image_processor_type"}
    kind = {"gemma3": Gemma3ImageProcessorPil, **dict.fromkeys(QWEN, Qwen2VLImageProcessorPil)}
    processor = kind.get(name, Idefics3ImageProcessorPil)(**rules)
    more = {"return_row_col_info": True} if name in ("idefics3", "smolvlm") else {}
    return processor([Image.fromarray(one) for one in images], return_tensors="pt", **more)


def patches_of(name, made):
    """Our patches of an image in the order and form of transformers' pixel values."""
    if name in QWEN:
        (tile,) = made.tiles
        return tile.patches[tile.squares.reshape(-1)]
    tiles = np.stack([tile.patches for tile in made.tiles]).reshape(-1, 4, 4, 3, 14, 14)
    return tiles.transpose(0, 3, 1, 4, 2, 5).reshape(-1, 3, 56, 56)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pixels_are_those_of_transformers_processor(written, size):
    name, folder, _ = written
    image = drawn(size)
    theirs = processed(name, folder, [image])["pixel_values"].numpy()
    ours = patches_of(name, sight_of(folder).processor.prepare(image))
    assert np.abs(ours - theirs.reshape(ours.shape)).max() < 1e-6  # a grey level is 8e-3


def ideal_rows(vision, image):
    """The rows of an image in float64, with those of layers beside them."""
    program, rows = vision.program, []
    graph, names = program.graphs[PROJECTOR], program.trunk.outputs
    for tile in image.tiles:
        count = len(tile.patches)
        inputs = {"patch": tile.patches, "last": np.full(count, count - 1), **tile.inputs}
        zeros = [0] * count
        hidden = evaluate(program, vision.weights, zeros, names, inputs=inputs)
        squares = [hidden[name][tile.squares] for name in names]
        given = {
            square_of(n): part.reshape(len(part), *graph.values[square_of(n)].shape)
            for n, part in enumerate(squares)
        }
        kept = tile.squares.shape
        given |= {"shares": np.full(kept, 1 / kept[1])} if "shares" in graph.inputs else {}
        made = evaluate(program, vision.weights, zeros[: kept[0]], graph.outputs, PROJECTOR, given)
        rows.append(np.concatenate([made[name] for name in graph.outputs], axis=1))
    return np.concatenate(rows)


def rows_of(name, model, given):
    """transformers' rows of images, in double."""
    pixels = given["pixel_values"].double()
    with torch.no_grad():
        if name == "gemma3":
            return list(model.get_image_features(pixel_values=pixels).pooler_output.numpy())
        if name in QWEN:
            grids = {"image_grid_thw": given["image_grid_thw"]}
            found = model.model.get_image_features(pixel_values=pixels, **grids)
            rows = torch.cat(found.pooler_output)
            deep = [torch.cat(list(one)) for one in getattr(found, "deepstack_features", ())]
            rows = torch.cat([rows, *deep], dim=1)
            return np.split(rows.numpy(), np.cumsum([len(x) for x in found.pooler_output])[:-1])
        mask = {"pixel_attention_mask": given["pixel_attention_mask"]}
        found = model.model.get_image_features(pixel_values=pixels, **mask).pooler_output
        return [torch.cat(list(found)).numpy()]


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


def spans_of(ids, token, images, rows):
    places = [at for at, one in enumerate(ids) if one == token]
    spans = []
    for image, own in zip(images, rows, strict=True):
        here, places = places[: image.rows], places[image.rows :]
        spans.append(ImageSpan(tuple(here), lambda own=own: own, image.digest, image.grid))
    assert places == []
    return spans


@pytest.mark.parametrize("count", [1, 3])
def test_logits_in_float64_are_transformers_in_double(written, count):
    name, folder, model = written
    if name in ("idefics3", "smolvlm"):
        count = 1  # its processor pads several images to one number of tiles
    images, vision = [drawn(size) for size in SIZES[:count]], sight_of(folder)
    given = processed(name, folder, images)
    made = [vision.processor.prepare(image) for image in images]
    rows = [ideal_rows(vision, image) for image in made]
    ids, token = prompt_of(name, folder, made), vision.processor.token
    loaded = load_program(
        open_checkpoint(folder), weight_format="f32", images=vision.processor.rows
    )
    prompt = with_spans(None, loaded.program, len(ids), spans_of(ids, token, made, rows))
    listed = [prompt.inputs(at) for at in range(len(ids))]
    inputs = {key: np.stack([row[key] for row in listed]) for key in listed[0]}
    args = loaded.program, loaded.weights, ids
    embed = evaluate(*args, ["embed"], inputs=inputs)["embed"]
    for at, row in enumerate(listed):
        embed[at] = row.get("embed", embed[at])
    logits = evaluate(*args, ["logits"], inputs={**inputs, "embed": embed})["logits"]
    seen = torch.tensor([[int(one == token) for one in ids]])
    more = {key: given[key] for key in ("image_grid_thw", "pixel_attention_mask") if key in given}
    types = {"gemma3": "token_type_ids", **dict.fromkeys(QWEN, "mm_token_type_ids")}
    more |= {types[name]: seen} if name in types else {}
    pixels = given["pixel_values"].double()
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor([ids]), pixel_values=pixels, **more).logits[0]
    assert np.abs(logits - theirs.numpy()).max() < TOLERANCE * theirs.abs().max()


@pytest.mark.parametrize("size", [(40, 70), (56, 56), (300, 31), (8, 8)])
def test_idefics_text_is_that_of_its_processor(written, size):
    name, folder, _ = written
    if name != "idefics3":
        pytest.skip("the others have a token for each row, and those around them")
    given = processed(name, folder, [drawn(size)])
    processor = Idefics3Processor.__new__(Idefics3Processor)
    processor.fake_image_token, processor.image_token = "<fake_token_around_image>", "<image>"
    processor.global_image_tag, processor.image_seq_len = "<global-img>", 4
    text = processor.replace_image_token({"rows": given["rows"], "cols": given["cols"]}, 0)
    assert sight_of(folder).processor.prepare(drawn(size)).text == text


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
        assert again.stats.reused_tokens == len(again.prompt_ids) - 1
        found["reused"] = again
        other = [dict(part) for part in CONTENT]
        other[3] = {"image": drawn((30, 20), seed=1)}
        moved = model.chat([{"role": "user", "content": other}], max_tokens=5, **EXACT)
        first = next(at for at, token in enumerate(alone.prompt_ids) if token not in prompt.ids[:2])
        spans = prompt.spans
        assert first < moved.stats.reused_tokens <= spans[1].places[0]
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


OTHERS = [
    pytest.param(name, marks=[] if name in ("cpu", "torch", "mlx") else pytest.mark.slow)
    for name in backends()
    if name != "reference"
]
"""A software driver of Vulkan takes ten seconds for what the others do in one."""


@pytest.mark.parametrize("backend", OTHERS)
def test_every_backend_has_the_references_digests(written, expected, backend):
    if written[0] == "idefics3" and backend != "cpu":
        pytest.skip("its tower is Gemma 3's, its trunk Llama's")
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


def test_images_and_places_have_to_fit(written):
    name, folder, _ = written
    if name == "smolvlm":
        pytest.skip("as Idefics 3")
    image = drawn((40, 70))
    with cortiq.load(folder, images=True, backend="cpu", threads=1) as model:
        marker = model.sight.processor.marker
        with pytest.raises(RequestError, match="places of images"):
            content = [{"image": image}, {"type": "text", "text": f"{marker} and"}]
            model.chat([{"role": "user", "content": content}])
        prompt = model.image_prompt("x", [image])
        with pytest.raises(RequestError, match="ids of images' rows"):
            ids = list(prompt.ids)
            ids.remove(model.sight.processor.token)
            model.image_prompt(ids, [image])
        with pytest.raises(RequestError, match="more than 64 images"):
            model.image_prompt("x", [image] * 65)
        same = model.generate(list(prompt.ids), images=[image], max_tokens=3, **EXACT)
        assert same.digest == model.generate(prompt, max_tokens=3, **EXACT).digest
    with cortiq.load(folder, backend="cpu", threads=1) as model:
        with pytest.raises(RequestError, match="not loaded to see"):
            model.generate("x", images=[image])
        with pytest.raises(RequestError, match="not loaded to see"):
            model.chat([{"role": "user", "content": [{"image": image}]}])


def test_a_model_without_a_tower_says_so(tmp_path):
    with pytest.raises(UnsupportedError, match="reads no images"):
        cortiq.load("synthetic:tiny-llama", images=True)


MOVES = {
    "gemma3": [{"vision_config.layer_norm_eps": 0.1}, {"vision_config.hidden_act": "relu"}],
    "idefics3": [{"vision_config.layer_norm_eps": 0.1}],
    "smolvlm": [],
    "qwen2_vl": [{"vision_config.rope_parameters.rope_theta": 100.0}],
}


def test_an_option_of_the_tower_moves_the_rows(written, tmp_path):
    name, folder, _ = written
    image = sight_of(folder).processor.prepare(drawn((40, 70)))
    before = ideal_rows(sight_of(folder), image)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    for change in MOVES[name]:
        edited = json.loads(json.dumps(config))
        for path, value in change.items():
            *way, last = path.split(".")
            place = edited
            for key in way:
                place = place[key]
            place[last] = value
        (tmp_path / "config.json").write_text(json.dumps(edited))
        moved = ideal_rows(sight_of(tmp_path), image)
        assert np.abs(moved - before).max() > 1e-3 * np.abs(before).max()


WRONG = {
    "gemma3": [
        {"mm_tokens_per_image": 5},
        {"vision_config": {"patch_size": 0}},
        {"text_config": {"sliding_window": 3}},
    ],
    "idefics3": [{"scale_factor": 3}],
    "smolvlm": [{"vision_config": {"unknown_key": 1}}],
    "qwen2_vl": [{"vision_config": {"hidden_act": "relu"}}, {"vision_config": {"depth": 3}}],
}


def test_configurations_that_do_not_fit_are_refused_by_name(written, tmp_path):
    name, folder, _ = written
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    for change in WRONG[name]:
        inner = {
            key: {**config[key], **v} if isinstance(v, dict) else v for key, v in change.items()
        }
        (tmp_path / "config.json").write_text(json.dumps(config | inner))
        with pytest.raises((FormatError, UnsupportedError)) as error:
            sight_of(tmp_path)
        assert error.value.where is not None


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
            image, tiles=(dataclasses.replace(tile, squares=tile.squares[::-1]), *image.tiles[1:])
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
        at = ids.index(model.sight.processor.token)
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


def test_images_are_for_one_device(written):
    with pytest.raises(OptionError, match="one device"):
        cortiq.load(written[1], images=True, devices=2, backend="cpu")


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
