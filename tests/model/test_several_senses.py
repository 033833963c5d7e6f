"""A model that sees and hears against transformers, in double; and one digest anywhere."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")

import numpy as np
import spoken_folders
import torch
from ideal_senses import ideal_rows, sound_rows
from installed import backends
from transformers import WhisperFeatureExtractor
from vision_oracles import processed

import cortiq
from cortiq.convert.run import convert_model
from cortiq.engine.prompt_images import ImageSpan, with_spans
from cortiq.errors import FormatError, OptionError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.tokenizer.tokenizer import Tokenizer
from cortiq.vision.load import load_vision, sound_family, vision_family
from cortiq_reference.ideal import evaluate

TOLERANCE, RATE = 1e-5, 16000
EXACT = {"temperature": 0, "ignore_eos": True, "max_tokens": 4}


def drawn(size, seed=0):
    return np.random.default_rng([seed, *size]).integers(0, 256, (*size, 3), dtype=np.uint8)


def tone(length, hertz=300.0):
    at = np.arange(length) / RATE
    return (np.sin(2 * np.pi * hertz * at) * (0.2 + 0.1 * at)).astype(np.float32)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder, and transformers' model in double."""
    folder = tmp_path_factory.mktemp("omni")
    return folder, spoken_folders.qwen2_5_omni(folder).double()


def senses_of(folder):
    """Return what sees and what hears."""
    checkpoint = open_checkpoint(folder)
    families = vision_family(checkpoint), sound_family(checkpoint)
    return [load_vision(checkpoint, family, "f32") for family in families]


def features_of(sounds):
    rules = spoken_folders.RULES | {"chunk_length": 4}
    rules.pop("feature_extractor_type")
    made = WhisperFeatureExtractor(**rules)(
        sounds, padding="max_length", return_attention_mask=True, return_tensors="pt",
        sampling_rate=RATE,
    )  # fmt: skip
    return {
        "input_features": made["input_features"].double(),
        "feature_attention_mask": made["attention_mask"],
    }


def frames_of(sound, features, number):
    """transformers' features of a sound, in the windows that it is heard in."""
    kept = features["feature_attention_mask"][number].bool()
    frames = features["input_features"][number][:, kept].numpy()
    return [frames[:, 40 * n :][:, :40] for n in range(len(sound.windows))]


PROMPTS = {
    "image": [(40, 70)], "sound": [4001], "sounds": [321, 6400, 12961], "long": [70001],
    "both": [(40, 70), 4001], "mixed": [6561, (20, 31), (40, 70), 1601, (30, 20)],
}  # fmt: skip


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_in_float64_are_transformers_in_double(written, prompt):
    """An integer is a sound of so many samples, a pair an image's size."""
    folder, model = written
    sees, hears = senses_of(folder)
    images = [drawn(size) for size in PROMPTS[prompt] if isinstance(size, tuple)]
    sounds = [tone(n, 200.0 + n % 700) for n in PROMPTS[prompt] if isinstance(n, int)]
    given = {}
    if images:
        seen = processed("qwen2_5_vl", folder, images)
        given |= {key: seen[key] for key in ("pixel_values", "image_grid_thw")}
        given["pixel_values"] = given["pixel_values"].double()
    given |= features_of(sounds) if sounds else {}
    made, text = [], "a"
    spoken = 0
    for size in PROMPTS[prompt]:
        if isinstance(size, tuple):
            one = sees.processor.prepare(drawn(size))
            made.append((one, sees, ideal_rows(sees, one)))
            text += f"<|vision_bos|>{one.text}<|vision_eos|>b"
            continue
        one = hears.processor.prepare(sounds[spoken])
        assert one.rows == hears.processor.rows_of(size)
        made.append((one, hears, sound_rows(hears, one, frames_of(one, given, spoken))))
        text += f"<|audio_bos|>{one.text}<|audio_eos|>c"
        spoken += 1
    ids = Tokenizer.from_folder(folder).encode(text + "what?", parse_special=True)
    trunk = load_program(open_checkpoint(folder), weight_format="f32", images=sees.processor.rows)
    spans, after = [], 0
    for one, sense, rows in made:
        first = ids.index(sense.processor.token, after)
        after = first + one.rows
        places = tuple(range(first, after))
        spans.append(ImageSpan(places, lambda rows=rows: rows, one.digest, one.grid))
    fed = with_spans(None, trunk.program, len(ids), spans)
    listed = [fed.inputs(at) for at in range(len(ids))]
    inputs = {"axes": np.stack([row["axes"] for row in listed])}
    args = trunk.program, trunk.weights, ids
    embed = evaluate(*args, ["embed"], inputs=inputs)["embed"]
    for at, row in enumerate(listed):
        embed[at] = row.get("embed", embed[at])
    logits = evaluate(*args, ["logits"], inputs={**inputs, "embed": embed})["logits"]
    with torch.no_grad():
        theirs = model(
            input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)).long(), **given
        ).logits[0].numpy()  # fmt: skip
    assert np.abs(logits - theirs).max() < TOLERANCE * np.abs(theirs).max()


IMAGE, SOUND = {"image": drawn((24, 30))}, {"audio": (tone(4001), RATE)}
OTHER = {"audio": (tone(2600, 700.0), RATE)}


def said(*parts):
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}]


def answers(folder, backend):
    """Digests: alone; with texts in a batch; in chunks; drafted; with a prefix reused."""
    with cortiq.load(folder, images=True, backend=backend, threads=1) as model:
        prompt = model.chat_prompt(said(SOUND, IMAGE, OTHER))
        alone = model.generate(prompt, **EXACT)
        text = model.generate("hello", **EXACT)
        batch = model.generate_many(["hello", prompt], **EXACT)
        assert batch[0].digest == text.digest
        found = [alone, batch[1], model.generate(prompt, chunk_rows=7, **EXACT)]
        found.append(model.generate(prompt, draft="lookup", **EXACT))
        model.keep_prefixes()
        model.generate(prompt, **EXACT)
        found.append(model.generate(prompt, **EXACT))
        assert found[-1].stats.reused_tokens == len(prompt.ids) - 1
        assert {one.digest for one in found} == {alone.digest}
        turned = model.generate(model.chat_prompt(said(IMAGE, SOUND, OTHER)), **EXACT)
        assert turned.digest != alone.digest
        return alone.digest, text.digest


@pytest.fixture(scope="module")
def wanted(written):
    return answers(written[0], "reference")


@pytest.mark.parametrize(
    "backend",
    [
        name if name == "cpu" else pytest.param(name, marks=pytest.mark.slow)
        for name in backends()
        if name != "reference"
    ],
)
def test_every_backend_has_the_references_digests(written, wanted, backend):
    assert answers(written[0], backend) == wanted


def test_a_model_hears_without_being_asked_to_see(written, wanted):
    """A text and a sound have the same bits whether the model sees or not."""
    found = []
    for images in (False, True):
        with cortiq.load(written[0], images=images, backend="cpu", threads=1) as model:
            assert model.has_medium("audio") and model.has_medium("image") == images
            found.append(model.chat(said(SOUND), **EXACT).digest)
            assert model.generate("hello", **EXACT).digest == wanted[1]
            if not images:
                with pytest.raises(RequestError, match="not loaded to see images"):
                    model.chat_prompt(said(IMAGE))
    assert found[0] == found[1]


def test_a_receipt_holds_images_and_sounds(written, tmp_path):
    with cortiq.load(written[0], images=True, backend="cpu", threads=1) as model:
        made = model.chat(said(SOUND, IMAGE, OTHER), **EXACT)
        receipt, sounds = made.receipt(), [SOUND["audio"], OTHER["audio"]]
        images = [IMAGE["image"]]
        assert len(receipt.claim.images) == 3
        assert model.verify(receipt, images=images, audio=sounds).identical
        (found,) = model.verify(receipt, images=images, audio=sounds[::-1]).differences
        assert found.field in ("images", "prompt_ids")
        with pytest.raises(RequestError, match="about 3 images, 1 are given"):
            model.verify(receipt, images=images)
    assert cortiq.verify(receipt, written[0], images=images, audio=sounds).identical


def test_a_conversion_keeps_both(written, tmp_path):
    made = convert_model(str(written[0]), tmp_path / "out", "keep")
    assert made.notes == ()
    found = []
    for folder in (written[0], made.path):
        with cortiq.load(folder, images=True, backend="cpu", threads=1) as model:
            found.append(model.chat(said(IMAGE, SOUND), **EXACT).digest)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "change",
    [
        {"audio_config": {"n_window": 21}}, {"audio_config": {"output_dim": 60}},
        {"audio_config": {"scale_embedding": True}}, {"vision_config": {"window_size": 7}},
    ],
    ids=str,
)  # fmt: skip
def test_configurations_that_do_not_fit_are_refused(tmp_path, change):
    spoken_folders.qwen2_5_omni(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for section, keys in change.items():
        config["thinker_config"][section] |= keys
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises((FormatError, UnsupportedError)) as error:
        senses_of(tmp_path)
    assert str(tmp_path) in str(error.value.where)


def test_what_cannot_be_is_refused(written):
    with cortiq.load(written[0], images=True, backend="cpu", threads=1) as model:
        with pytest.raises(RequestError, match="too short"):
            model.chat_prompt(said({"audio": (np.zeros(320, np.float32), RATE)}))
        with pytest.raises(RequestError, match="rows: the context has"):
            model.chat_prompt(said(*[{"audio": (tone(64000), RATE)}] * 6))
    with pytest.raises(OptionError, match="hears and sees"):
        cortiq.load(written[0], images=True, devices=2, backend="cpu")
