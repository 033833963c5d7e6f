"""A model that sees and hears against transformers, in double; and one digest anywhere."""

from __future__ import annotations

import json
from contextlib import nullcontext
from unittest.mock import patch

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")

import numpy as np
import spoken_folders
import torch
from ideal_senses import ideal_rows, sound_rows
from installed import backends
from transformers import WhisperFeatureExtractor
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
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


FAMILIES = ("qwen2_5_omni", "qwen3_omni", "gemma4")
MARKS = {
    "qwen2_5_omni": ("<|vision_bos|>", "<|vision_eos|>", "<|audio_bos|>", "<|audio_eos|>"),
    "qwen3_omni": ("<|vision_start|>", "<|vision_end|>", "<|audio_start|>", "<|audio_end|>"),
    "gemma4": ("", "", "", ""),
}
"""Around an image and a sound, where the family's own text for these has no marks."""


@pytest.fixture(scope="module", params=FAMILIES)
def named(request, tmp_path_factory):
    """A family's name, folder, and transformers' model in double."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, getattr(spoken_folders, request.param)(folder).double()


@pytest.fixture(scope="module")
def written(named):
    return named[1:]


def senses_of(folder):
    """Return what sees and what hears."""
    checkpoint = open_checkpoint(folder)
    families = vision_family(checkpoint), sound_family(checkpoint)
    return [load_vision(checkpoint, family, "f32") for family in families]


def extracted(sounds, **how):
    rules = spoken_folders.RULES | {"chunk_length": 4}
    rules.pop("feature_extractor_type")
    made = WhisperFeatureExtractor(**rules)(
        sounds, return_attention_mask=True, return_tensors="pt", sampling_rate=RATE, **how
    )
    return made["input_features"].double(), made["attention_mask"]


def features_of(name, sounds):
    """Qwen3-Omni's sounds are extracted one by one: transformers' padding changes their ends."""
    if name == "gemma4":
        extractor = Gemma4AudioFeatureExtractor(feature_size=16)
        made = [
            extractor._extract_spectrogram(one.astype(float), np.ones(len(one))) for one in sounds
        ]
        most = max(len(mask) for _, mask in made)
        frames = [np.pad(one, ((0, most - len(one)), (0, 0))) for one, _ in made]
        masks = [np.pad(mask, (0, most - len(mask))) for _, mask in made]
        return {
            "input_features": torch.tensor(np.stack(frames)),
            "input_features_mask": torch.tensor(np.stack(masks)),
        }
    if name == "qwen2_5_omni":
        features, mask = extracted(sounds, padding="max_length")
    else:
        found = [extracted([one], padding=True, truncation=False) for one in sounds]
        most = max(mask.shape[1] for _, mask in found)
        pads = [(0, most - mask.shape[1]) for _, mask in found]
        pairs = list(zip(found, pads, strict=True))
        features = torch.cat([torch.nn.functional.pad(one, pad) for (one, _), pad in pairs])
        mask = torch.cat([torch.nn.functional.pad(one, pad) for (_, one), pad in pairs])
    return {"input_features": features, "feature_attention_mask": mask}


def frames_of(name, sound, features, number):
    """transformers' features of a sound, in the windows that it is heard in."""
    if name == "gemma4":
        kept = features["input_features_mask"][number].bool()
        return [features["input_features"][number][kept].numpy()[None]]
    kept = features["feature_attention_mask"][number].bool()
    frames = features["input_features"][number][:, kept].numpy()
    if name == "qwen2_5_omni":
        return [frames[:, 40 * n :][:, :40] for n in range(len(sound.windows))]
    whole = sum(window.frames.shape[0] * window.frames.shape[1] for window in sound.windows)
    frames, found = np.pad(frames.T, ((0, whole - frames.shape[1]), (0, 0))), []
    for window in sound.windows:
        shape = window.frames.shape
        found.append(frames[: shape[0] * shape[1]].reshape(shape))
        frames = frames[shape[0] * shape[1] :]
    return found


PROMPTS = {
    "image": [(40, 70)], "sound": [4001], "sounds": [321, 6400, 12961], "long": [70001],
    "both": [(40, 70), 4001], "mixed": [6561, (20, 31), (40, 70), 1601, (30, 20)],
}  # fmt: skip
"""Integers are sounds of so many samples, pairs images' sizes."""
OMNI3 = {
    "sounds": [16160, 40100, 32000], "mixed": [17561, (20, 31), (40, 70), 16001, (30, 20)],
}  # fmt: skip
"""Qwen3-Omni's: transformers fills the pieces of short sounds up with zeros beside longer ones."""


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_in_float64_are_transformers_in_double(named, prompt):
    name, folder, model = named
    parts = (OMNI3 if name == "qwen3_omni" else {}).get(prompt, PROMPTS[prompt])
    seen_from, seen_to, heard_from, heard_to = MARKS[name]
    sees, hears = senses_of(folder)
    images = [drawn(size) for size in parts if isinstance(size, tuple)]
    sounds = [tone(n, 200.0 + n % 700) for n in parts if isinstance(n, int)]
    given = {}
    if images:
        seen = processed("gemma4_small" if name == "gemma4" else "qwen2_5_vl", folder, images)
        keys = "pixel_values", "image_grid_thw", "image_position_ids"
        given |= {key: seen[key] for key in keys if key in seen}
        given["pixel_values"] = given["pixel_values"].double()
    given |= features_of(name, sounds) if sounds else {}
    made, text = [], "a"
    spoken = 0
    for size in parts:
        if isinstance(size, tuple):
            one = sees.processor.prepare(drawn(size))
            made.append((one, sees, ideal_rows(sees, one)))
            text += f"{seen_from}{one.text}{seen_to}b"
            continue
        one = hears.processor.prepare(sounds[spoken])
        assert one.rows == hears.processor.rows_of(size)
        made.append((one, hears, sound_rows(hears, one, frames_of(name, one, given, spoken))))
        text += f"{heard_from}{one.text}{heard_to}c"
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
    names = [key for key in listed[0] if key != "embed"]
    inputs = {key: np.stack([row[key] for row in listed]) for key in names}
    args = trunk.program, trunk.weights, [fed.fed(at, one) for at, one in enumerate(ids)]
    embed = evaluate(*args, ["embed"], inputs=inputs)["embed"]
    for at, row in enumerate(listed):
        embed[at] = row.get("embed", embed[at])
    logits = evaluate(*args, ["logits"], inputs={**inputs, "embed": embed})["logits"]
    # Gemma's encoder of sound computes parts in float32, and some of double with those
    stays = patch.object(torch.Tensor, "float", torch.Tensor.double) if name == "gemma4" else None
    with torch.no_grad(), stays or nullcontext():
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


def test_a_model_hears_without_being_asked_to_see(named, written, wanted):
    """A text and a sound have the same bits whether the model sees or not; Gemma 4 is asked."""
    if named[0] == "gemma4":
        with cortiq.load(written[0], backend="cpu", threads=1) as model:
            assert not model.has_medium("audio")
            assert model.generate("hello", **EXACT).digest == wanted[1]
            with pytest.raises(RequestError, match="takes no sounds"):
                model.chat_prompt(said(SOUND))
        made = []
        for how in ({"sounds": True}, {"images": True}, {"images": True, "sounds": True}):
            with cortiq.load(written[0], **how, backend="cpu", threads=1) as model:
                assert model.has_medium("audio") and model.has_medium("image") == ("images" in how)
                made.append(model.chat(said(SOUND), **EXACT))
                assert model.generate("hello", **EXACT).digest == wanted[1]
        assert len({one.digest for one in made}) == 1
        assert cortiq.verify(made[0].receipt(), written[0], audio=[SOUND["audio"]]).identical
        return
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
    ("name", "change"),
    [
        ("qwen2_5_omni", {"audio_config": {"n_window": 21}}),
        ("qwen2_5_omni", {"audio_config": {"output_dim": 60}}),
        ("qwen2_5_omni", {"audio_config": {"scale_embedding": True}}),
        ("qwen2_5_omni", {"vision_config": {"window_size": 7}}),
        ("qwen3_omni", {"audio_config": {"n_window_infer": 99}}),
        ("qwen3_omni", {"audio_config": {"n_window": 0}}),
        ("qwen3_omni", {"audio_config": {"output_dim": 60}}),
        ("qwen3_omni", {"audio_config": {"max_source_positions": 12}}),
        ("qwen3_omni", {"vision_config": {"apply_vit_abs_pos_embed": False}}),
        ("gemma4", {"audio_config": {"attention_context_right": 1}}),
        ("gemma4", {"audio_config": {"attention_chunk_size": 8}}),
        ("gemma4", {"audio_config": {"subsampling_conv_channels": [16]}}),
        ("gemma4", {"audio_config": {"subsampling_conv_channels": [20, 8]}}),
        ("gemma4", {"audio_config": {"num_attention_heads": 3}}),
    ],
    ids=str,
)  # fmt: skip
def test_configurations_that_do_not_fit_are_refused(tmp_path, name, change):
    getattr(spoken_folders, name)(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for section, keys in change.items():
        config.get("thinker_config", config)[section] |= keys
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises((FormatError, UnsupportedError)) as error:
        senses_of(tmp_path)
    assert str(tmp_path) in str(error.value.where)


def test_what_cannot_be_is_refused(named, written):
    with cortiq.load(written[0], images=True, backend="cpu", threads=1) as model:
        with pytest.raises(RequestError, match="too short"):
            model.chat_prompt(said({"audio": (np.zeros(159, np.float32), RATE)}))
        with pytest.raises(RequestError, match="rows: the context has"):
            model.chat_prompt(said(*[{"audio": (tone(64000), RATE)}] * 10))
    if named[0] == "gemma4":
        return
    with pytest.raises(OptionError, match="of both sounds and images, needs one"):
        cortiq.load(written[0], images=True, devices=2, backend="cpu")


@pytest.mark.slow
def test_gemma_sees_on_several_devices_and_hears_on_one(tmp_path):
    """6 s: two ranks are processes."""
    spoken_folders.gemma4(tmp_path)
    digests = []
    for devices in (1, 2):
        with cortiq.load(tmp_path, images=True, devices=devices, backend="cpu") as model:
            assert model.has_medium("audio") == (devices == 1)
            assert any("takes no audio" in note for note in model.notes) == (devices == 2)
            digests.append(model.chat(said(IMAGE), **EXACT).digest)
    assert digests[0] == digests[1]
