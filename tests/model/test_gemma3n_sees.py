"""Gemma 3n's sight against transformers and timm, in double; and one digest anywhere."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")

import gemma3n_folders
import mobilenet_v5
import numpy as np
import torch
from click.testing import CliRunner
from ideal_senses import ideal_rows
from installed import backends
from PIL import Image
from safetensors.numpy import load_file, save_file
from transformers.models.gemma3n.processing_gemma3n import Gemma3nProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

import cortiq
from cortiq.cli.main import cli
from cortiq.engine.prompt_images import ImageSpan, with_spans
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.tokenizer.tokenizer import Tokenizer
from cortiq.vision.load import load_vision, vision_family
from cortiq_reference.ideal import evaluate

TOLERANCE = 1e-5
EXACT = {"temperature": 0, "ignore_eos": True, "max_tokens": 4}


def drawn(size, seed=0):
    return np.random.default_rng([seed, *size]).integers(0, 256, (*size, 3), dtype=np.uint8)


@pytest.fixture(scope="module", params=gemma3n_folders.GEOMETRIES)
def written(request, tmp_path_factory):
    """A folder, and transformers' model in double."""
    folder = tmp_path_factory.mktemp("gemma3n")
    return folder, gemma3n_folders.gemma3n(folder, request.param).double()


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma3n")
    gemma3n_folders.gemma3n(folder)
    return folder


def sight_of(folder):
    checkpoint = open_checkpoint(folder)
    return load_vision(checkpoint, vision_family(checkpoint), "f32")


def processed(folder, images):
    """Run transformers' processor, with Pillow."""
    rules = json.loads((folder / "preprocessor_config.json").read_text())
    kept = ("do_normalize", "resample", "size")
    processor = SiglipImageProcessorPil(**{key: rules[key] for key in kept})
    made = processor([Image.fromarray(one) for one in images], return_tensors="pt")
    return made["pixel_values"]


@pytest.mark.parametrize("size", [(40, 70), (150, 149)], ids=str)
def test_pixels_are_those_of_transformers_processor(written, size):
    folder, _ = written
    given = processed(folder, [drawn(size)])[0].numpy()
    (tile,) = sight_of(folder).processor.prepare(drawn(size)).tiles
    ours = tile.patches.reshape(-1, 3, 3, 3)[..., :2, :2]  # of each window, what it adds
    across = given.shape[1] // 8
    theirs = given.reshape(3, across, 4, 2, across, 4, 2).transpose(1, 4, 2, 5, 0, 3, 6)
    assert np.abs(ours - theirs.reshape(ours.shape)).max() < 1e-6  # a grey level is 4e-3
    edge = tile.patches.reshape(across, across, 4, 4, 3, 3, 3)
    assert (edge[-1, :, -1, :, :, 2] == 0).all() and (edge[:, -1, :, -1, :, :, 2] == 0).all()


def theirs_of(model, pixels):
    """transformers' rows of images, and of the token behind each."""
    with torch.no_grad():
        rows = model.model.get_image_features(pixel_values=pixels.double()).pooler_output
        end = model.model.embed_vision(input_ids=torch.tensor([[model.config.eoi_token_id]]))
    return [torch.cat([one, end[0]]).numpy() for one in rows]


@pytest.mark.parametrize("size", [(40, 70), (150, 149)], ids=str)
def test_rows_in_float64_are_transformers_in_double(written, size):
    folder, model = written
    vision = sight_of(folder)
    (theirs,) = theirs_of(model, processed(folder, [drawn(size)]))
    ours = ideal_rows(vision, vision.processor.prepare(drawn(size)))
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < TOLERANCE * np.abs(theirs).max()


def test_the_oracles_tower_is_timms():
    """It is timm's in shapes, and in values where all widths are an eighth."""
    timm = pytest.importorskip("timm")
    name, published = "mobilenetv5_300m_enc", (64, timm_stages(), 2048, 16)
    with torch.device("meta"):
        pair = timm.create_model(name), mobilenet_v5.MobileNetV5(*published).timm_model
    theirs, ours = ({n: p.shape for n, p in one.state_dict().items()} for one in pair)
    assert ours == theirs
    small = timm.create_model(name, channel_multiplier=0.125, msfa_output_resolution=2)
    small = small.double().eval()
    with torch.no_grad():
        for part in small.parameters():
            part.add_(torch.randn_like(part) * 0.1)
    oracle = mobilenet_v5.MobileNetV5(64, timm_stages(8), 2048, 2).double()
    oracle.timm_model.load_state_dict(small.state_dict())
    pixels = torch.rand(1, 3, 64, 64).double()
    with torch.no_grad():
        found = small(pixels)
        assert (oracle(pixels).last_hidden_state - found).abs().max() < 1e-9 * found.abs().max()


def timm_stages(divisor=1):
    """timm's blocks of the published tower, all widths divided."""

    def inverted(wide, times, start, middle=0, stride=1, before=0):
        inner = (before or wide) * times // divisor
        return ("uir", wide // divisor, inner, start, middle, stride)

    first, second, third, fourth = 128, 256, 640, 1280
    attention = [("mqa", 12, 64, 3), inverted(third, 2, 0)]
    last = [("mqa", 16, 96, 0), inverted(fourth, 2, 0)]
    edges = [("er", first // divisor, inner, 3, stride)
             for inner, stride in ((256, 2), (512 // divisor, 1), (512 // divisor, 1))]  # fmt: skip
    return (
        edges,
        [inverted(second, 6, 3, 5, 2, first), *(inverted(second, 4, k) for k in (5, 3, 5, 3))],
        [inverted(third, 6, 5, 5, 2, second), *[inverted(third, 4, 5)] * 7, inverted(third, 1, 0),
         *attention * 14],
        [inverted(fourth, 6, 5, 5, 2, third), *last * 19],
    )  # fmt: skip


def spans_of(ids, tokens, images, rows):
    places, spans = [at for at, one in enumerate(ids) if one in tokens], []
    for image, own in zip(images, rows, strict=True):
        here, places = places[: image.rows], places[image.rows :]
        spans.append(ImageSpan(tuple(here), lambda own=own: own, image.digest))
    assert places == []
    return spans


@pytest.mark.parametrize("count", [1, 3])
def test_logits_in_float64_are_transformers_in_double(written, count):
    folder, model = written
    images = [drawn(size) for size in ((40, 70), (150, 149), (64, 64))[:count]]
    vision = sight_of(folder)
    made = [vision.processor.prepare(image) for image in images]
    text = "".join("ab"[n % 2] + image.text for n, image in enumerate(made)) + "what?"
    ids = Tokenizer.from_folder(folder).encode(text, parse_special=True)
    tokens = (vision.processor.token, *vision.processor.ends)
    spans = spans_of(ids, tokens, made, [ideal_rows(vision, image) for image in made])
    loaded = load_program(
        open_checkpoint(folder), weight_format="f32", images=vision.processor.rows
    )
    prompt = with_spans(None, loaded.program, len(ids), spans)
    args = loaded.program, loaded.weights, [0 if one in tokens else one for one in ids]
    assert list(args[2]) == [prompt.fed(at, one) for at, one in enumerate(ids)]
    embed = evaluate(*args, ["embed"])["embed"]
    for at in range(len(ids)):
        embed[at] = prompt.inputs(at).get("embed", embed[at])
    logits = evaluate(*args, ["logits"], inputs={"embed": embed})["logits"]
    pixels = processed(folder, images).double()
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor([ids]), pixel_values=pixels).logits[0].numpy()
    assert np.abs(logits - theirs).max() < TOLERANCE * np.abs(theirs).max()


def test_the_text_of_an_image_is_that_of_transformers_processor(published):
    tokenizer = Tokenizer.from_folder(published)

    class Given:
        audio_token_id = image_token_id = 0
        boi_token, image_token, eoi_token = (
            "<start_of_image>", "<image_soft_token>", "<end_of_image>",
        )  # fmt: skip
        boa_token = audio_token = eoa_token = ""

    with pytest.MonkeyPatch.context() as patched:
        base = Gemma3nProcessor.__mro__[1]
        patched.setattr(base, "__init__", lambda self, **_: None)
        text = Gemma3nProcessor(None, None, Given, image_seq_length=4).replace_image_token({}, 0)
    assert sight_of(published).processor.prepare(drawn((40, 70))).text == text
    with cortiq.load(published, images=True) as model:
        prompt = model.chat_prompt(MESSAGES)
        whole = f"<bos><turn>user\na{text}what?{text}<eos><turn>assistant"
        assert list(prompt.ids) == tokenizer.encode(whole, add_bos=False, parse_special=True)


MESSAGES = [{"role": "user", "content": [
    {"type": "text", "text": "a"}, {"image": drawn((24, 30))}, {"type": "text", "text": "what?"},
    {"image": drawn((30, 20))},
]}]  # fmt: skip


def answers(folder, backend):
    """Digests of a prompt with images, alone and in a batch; and of a text."""
    with cortiq.load(folder, images=True, backend=backend, threads=1) as model:
        prompt = model.chat_prompt(MESSAGES)
        alone, text = model.generate(prompt, **EXACT), model.generate("hello", **EXACT)
        together = model.generate_many(["other", prompt], **EXACT)
        assert together[1].digest == alone.digest
        tone = np.sin(np.arange(4000) / 9).astype(np.float32)
        sounds = [{"audio": (tone, 16000)}, {"image": drawn((24, 30))}]
        both = model.chat([{"role": "user", "content": sounds}], **EXACT)
        return alone.digest, text.digest, both.digest


@pytest.fixture(scope="module")
def expected(published):
    return answers(published, "cpu")


OTHERS = [name for name in backends() if name != "cpu"]


@pytest.mark.parametrize(
    "backend",
    [pytest.param(n, marks=() if n in ("torch", "mlx") else pytest.mark.slow) for n in OTHERS],
)
def test_all_backends_have_one_digest(published, expected, backend):
    assert answers(published, backend) == expected


def test_a_text_has_the_same_digest_without_images(published, expected):
    with cortiq.load(published, backend="cpu") as model:
        assert model.generate("hello", **EXACT).digest == expected[1]


@pytest.mark.parametrize("images", [False, True])
def test_ids_of_images_and_sounds_are_refused_in_a_text(published, images):
    """transformers gives them rows of the senses' vocabularies, which no table of a text has."""
    config = json.loads((published / "config.json").read_text())
    first, count = (config["vision_config"]["vocab_offset"], config["text_config"]["vocab_size"])
    with cortiq.load(published, backend="cpu", threads=1, images=images) as model:
        model.generate([first - 1, 0], **EXACT)
        for at in range(first, count):
            with pytest.raises(RequestError, match="part of an image or a sound") as caught:
                model.generate([3, at, 4], **EXACT)
            assert "position 1" in str(caught.value) and str(first) in str(caught.value)


def test_generate_takes_images(published, tmp_path):
    Image.fromarray(drawn((40, 70))).save(tmp_path / "a.png")
    args = ["generate", str(published), "--image", str(tmp_path / "a.png"), "--chat", "-p", "what?"]
    made = CliRunner().invoke(cli, [*args, "--max-tokens", "3", "--ignore-eos", "--json"])
    assert made.exit_code == 0, made.output


def changed(folder, target, file, change):
    """Copy a folder, with a JSON file changed."""
    for one in folder.iterdir():
        (target / one.name).write_bytes(one.read_bytes())
    given = json.loads((target / file).read_text())
    (target / file).write_text(json.dumps(change(given)))


@pytest.mark.parametrize(
    ("file", "change", "kind", "what"),
    [
        ("preprocessor_config.json", {"size": {"height": 64, "width": 96}}, UnsupportedError,
         "images of 64 × 96 pixels"),
        ("preprocessor_config.json", {"size": {"height": 80, "width": 80}}, UnsupportedError,
         "multiples of 32"),
        ("preprocessor_config.json", {"image_seq_length": 9}, FormatError, "image_seq_length 9"),
        ("preprocessor_config.json", {"size": {"height": 96, "width": 96}, "image_seq_length": 9},
         FormatError, "image_seq_length 9"),
        ("config.json", {"vision_soft_tokens_per_image": 9}, FormatError, "image_seq_length 4"),
        ("config.json", {"eoi_token_id": 3}, FormatError, "that stand for images"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(published, tmp_path, file, change, kind, what):
    changed(published, tmp_path, file, lambda given: given | change)
    with pytest.raises(kind, match=what):
        sight_of(tmp_path)


@pytest.mark.parametrize("architecture", ["resnet50", "mobilenetv5_base"])
def test_other_towers_of_timm_are_refused(published, tmp_path, architecture):
    def change(given):
        given["vision_config"]["architecture"] = architecture
        return given

    changed(published, tmp_path, "config.json", change)
    with pytest.raises(UnsupportedError, match=architecture):
        sight_of(tmp_path)


TOWER = "model.vision_tower.timm_model."


@pytest.mark.parametrize(
    ("name", "shape", "what"),
    [
        ("blocks.3.0.dw_mid.conv.weight", (44, 1, 4, 4), "kernels of"),
        ("blocks.2.4.pw_exp.conv.weight", None, "is missing|not used|does not hold"),
        ("conv_stem.conv.weight", None, "is missing"),
        ("blocks.0.1.conv_exp.weight", (20, 12, 3), "four axes"),
        ("blocks.2.3.attn.query.proj.weight", (15, 24, 1, 1), "share no such queries"),
        ("blocks.1.1.dw_start.conv.weight", (15, 1, 5, 5), "not floats"),
        ("blocks.3.2.layer_scale.gamma", (31,), "should be"),
    ],
)
def test_a_tower_whose_tensors_do_not_fit_is_refused(published, tmp_path, name, shape, what):
    changed(published, tmp_path, "config.json", lambda given: given)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop(TOWER + name)
    if shape is not None:
        tensors[TOWER + name] = np.zeros(shape, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match=what):
        sight_of(tmp_path)
