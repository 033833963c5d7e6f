"""Phi-4 multimodal's sounds against transformers in double; and one digest anywhere."""

from __future__ import annotations

import json
import shutil
from unittest.mock import patch

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

import numpy as np
import phi4mm_folders
import torch
from ideal_senses import ideal_rows, sound_rows
from installed import backends
from safetensors.torch import load_file, save_file
from transformers import Phi4MultimodalFeatureExtractor
from vision_oracles import processed

import cortiq
from cortiq.engine.prompt_images import ImageSpan, with_spans
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.formats.own_adapter import own_adapter
from cortiq.ir.images import ImageRows
from cortiq.models import load_program
from cortiq.tokenizer.tokenizer import Tokenizer
from cortiq.vision.load import load_vision, sound_family, vision_family
from cortiq_reference.ideal import evaluate

TOLERANCE, RATE = 1e-5, 16000
EXACT = {"temperature": 0, "ignore_eos": True}
FORMS = ("folders", "published")
LENGTHS = (400, 1679, 1680, 9000)
"""Samples: of a frame, of 8 and 9 frames, and of odd ones."""
LONG = (640240, 640400, 1280500)
"""Samples of a whole run of rows, of one more row, and of two runs and one more row."""


def noise(count, seed=1):
    at = np.random.default_rng(seed).standard_normal(count) * 0.1
    return at.astype(np.float32)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Folders of both forms with both adapters, and transformers' model in double."""
    root = tmp_path_factory.mktemp("phi4mm")
    folder = root / FORMS[0]
    folder.mkdir()
    model = phi4mm_folders.phi4_multimodal(folder)
    names = ("vision", "speech")
    for n, name in enumerate(names):
        adapted = phi4mm_folders.with_adapter(folder, model, name, 7 + n)
        model = adapted if n else adapted.unload()
    adapted.load_adapter(str(folder / "vision-lora"), adapter_name="vision")
    phi4mm_folders.as_published(root / FORMS[1], folder, names)
    return root, adapted.double()


def hearing_of(folder):
    checkpoint = open_checkpoint(folder)
    return load_vision(checkpoint, sound_family(checkpoint), "f32")


def features_of(sound):
    """Frames by transformers' extractor, every number of it in double."""
    extract = Phi4MultimodalFeatureExtractor()
    sizes = extract([sound], sampling_rate=RATE, return_tensors="pt")["audio_embed_sizes"]
    double = patch.object(torch, "float32", torch.float64)
    with double, patch.object(torch, "complex64", torch.complex128):
        given = torch.tensor(sound[None].astype(np.float64)), torch.tensor([len(sound)])
        return extract._torch_extract_fbank_features(*given), sizes


def their_logits(model, ids, sound, seen=None):
    frames, sizes = features_of(sound)
    given = phi4mm_folders._of(seen, slice(None)) if seen else {}
    with torch.no_grad():
        made = model(
            input_ids=torch.tensor([ids]), audio_input_features=frames, audio_embed_sizes=sizes,
            **given,
        )  # fmt: skip
    return made.logits[0].numpy()


def our_logits(folder, ids, made, adapter):
    """Logits in float64 of a prompt with these rows, each with its token."""
    checkpoint = open_checkpoint(folder)
    adapters = [own_adapter(checkpoint, adapter)] if adapter else []
    trunk = load_program(checkpoint, weight_format="f32", adapters=adapters, images=ImageRows())
    spans = [
        ImageSpan(
            tuple(at for at, one in enumerate(ids) if one == token), lambda rows=rows: rows, ""
        )
        for token, rows in made
    ]
    prompt = with_spans(None, trunk.program, len(ids), spans)
    args = trunk.program, trunk.weights, [prompt.fed(at, one) for at, one in enumerate(ids)]
    embed = evaluate(*args, ["embed"])["embed"]
    for token, rows in made:
        embed[[at for at, one in enumerate(ids) if one == token]] = rows
    return evaluate(*args, ["logits"], inputs={"embed": embed})["logits"]


def frames_of(loaded, sound):
    """transformers' frames of the windows of a sound, less the means and by the scales of bands."""
    frames, config, found = features_of(sound)[0].numpy()[0], loaded.processor.config, []
    frames = (frames - np.array(config.mean)) * np.array(config.scale)
    for start in range(0, len(frames), 4000):
        found.append(frames[None, max(0, start - 8) : start + 4000])
    return found


@pytest.mark.parametrize("count", [*LENGTHS, LONG[1]])
def test_features_are_those_of_the_extractor(written, count):
    rules, sound = hearing_of(written[0] / FORMS[0]).processor.rules, noise(count)
    ours, theirs = rules.spectrogram(sound), features_of(sound)[0].numpy()[0]
    assert ours.shape == theirs.shape == (rules.frames_of(count), 80)
    assert np.abs(ours - theirs).max() < 2e-6


@pytest.mark.parametrize(
    ("form", "count"), [*((FORMS[0], n) for n in LENGTHS[1:]), (FORMS[1], LENGTHS[2])], ids=str
)
def test_logits_in_float64_are_transformers_in_double(written, form, count):
    root, model = written
    folder, sound = root / form, noise(count, count)
    loaded = hearing_of(folder)
    made, token = loaded.processor.prepare(sound), loaded.processor.token
    rows = sound_rows(loaded, made, frames_of(loaded, sound))
    ids = Tokenizer.from_folder(folder).encode(f"a{made.text}what?", parse_special=True)
    theirs = their_logits(model, ids, sound)
    ours = our_logits(folder, ids, [(token, rows)], "speech")
    assert np.abs(ours - theirs).max() < TOLERANCE * np.abs(theirs).max()


@pytest.mark.parametrize(
    "count", [n if n == LONG[1] else pytest.param(n, marks=pytest.mark.slow) for n in LONG]
)
def test_rows_of_long_sounds_are_those_of_transformers_in_double(written, count):
    """Runs of 500 rows, of which the last is filled up with zeros that the others see."""
    loaded, sound = hearing_of(written[0] / FORMS[0]), noise(count)
    made, (frames, sizes) = loaded.processor.prepare(sound), features_of(sound)
    assert made.rows == loaded.processor.rows_of(count) == int(sizes[0])
    assert [len(window.squares) for window in made.windows][:-1] == [500] * (LONG.index(count))
    ours = sound_rows(loaded, made, frames_of(loaded, sound))
    embed = written[1].get_base_model().model.embed_tokens_extend.audio_embed
    ids = torch.full((1, made.rows), loaded.processor.token)
    with torch.no_grad():
        theirs = embed(ids, torch.zeros(1, *ours.shape).double(), frames, sizes)[0].numpy()
    assert np.abs(ours - theirs).max() < TOLERANCE * np.abs(theirs).max()


def test_beside_images_sounds_have_the_other_projection_and_adapter(written):
    root, model = written
    folder, sound = root / FORMS[0], noise(3000)
    image = np.random.default_rng(3).integers(0, 256, (40, 70, 3)).astype(np.uint8)
    checkpoint = open_checkpoint(folder)
    sees, hears = load_vision(checkpoint, vision_family(checkpoint), "f32"), hearing_of(folder)
    seen, alone = sees.processor.prepare(image), hears.processor.prepare(sound)
    heard = hears.processor.among(alone, {"image", "audio"})
    assert heard.digest != alone.digest
    assert hears.processor.among(alone, {"audio"}).digest == alone.digest
    text = f"a{seen.text}b{heard.text}what?"
    ids = Tokenizer.from_folder(folder).encode(text, parse_special=True)
    model.set_adapter("vision")
    theirs = their_logits(model, ids, sound, processed("phi4_multimodal", folder, [image]))
    model.set_adapter("speech")
    made = [
        (sees.processor.token, ideal_rows(sees, seen)),
        (hears.processor.token, sound_rows(hears, heard, frames_of(hears, sound))),
    ]
    ours = our_logits(folder, ids, made, "vision")
    assert np.abs(ours - theirs).max() < TOLERANCE * np.abs(theirs).max()


def said(*parts):
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}]


def answer(folder, backend, *parts, **options):
    with cortiq.load(folder, sounds=True, images=True, backend=backend, threads=1) as model:
        prompt = model.chat_prompt(said(*(parts or ({"audio": (noise(4000), RATE)},))))
        return model.generate(prompt, max_tokens=3, **EXACT, **options)


@pytest.fixture(scope="module")
def wanted(written):
    return answer(written[0] / FORMS[0], "cpu").digest


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "wgpu" else name
        for name in backends()
        if name != "cpu"
    ],
)
def test_every_backend_has_the_same_digest(written, wanted, backend):
    assert answer(written[0] / FORMS[0], backend).digest == wanted


def test_batches_chunks_and_both_forms_have_it_too(written, wanted):
    root, _ = written
    assert answer(root / FORMS[1], "cpu").digest == wanted
    assert answer(root / FORMS[0], "cpu", chunk_rows=2).digest == wanted
    with cortiq.load(root / FORMS[0], sounds=True, backend="cpu", threads=1) as model:
        assert {one.name for one in model.adapters.listed} == {"speech"}
        prompt = model.chat_prompt(said({"audio": (noise(4000), RATE)}))
        both = model.generate_many(["hello", prompt], max_tokens=3, **EXACT)
        assert both[1].digest == wanted


def test_prompts_take_the_adapter_of_what_is_in_them(written, tmp_path):
    """Without the folder of the adapter rows of sounds are computed without one."""
    root, _ = written
    plain, sound = tmp_path / "plain", {"audio": (noise(4000), RATE)}
    shutil.copytree(root / FORMS[0], plain)
    shutil.rmtree(plain / "speech-lora")
    with cortiq.load(plain, sounds=True, backend="cpu", threads=1) as model:
        assert any("no adapter 'speech'" in note for note in model.notes)
        bare = model.chat(said(sound), max_tokens=3, **EXACT).digest
    assert bare != answer(root / FORMS[0], "cpu").digest
    image = {"image": np.zeros((30, 30, 3), np.uint8)}
    both, other = answer(root / FORMS[0], "cpu", image, sound), answer(plain, "cpu", image, sound)
    assert both.digest == other.digest


def test_a_sound_of_less_than_a_frame_is_refused(written):
    with pytest.raises(RequestError, match="too short"):
        hearing_of(written[0] / FORMS[0]).processor.prepare(noise(399))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunk_size": 18}, "chunk_size"), ({"bias_symmetric": True}, "bias_symmetric"),
        ({"num_attention_heads": 3}, "3 heads share"),
        ({"num_attention_heads": 160, "hidden_size": 160}, "160"),
        ({"time_reduction": 6}, "frames a row"), ({"kernel_size": 1}, "kernels of 1"),
        ({"input_size": 40}, "80 bands"), ({"ext_pw_out_channel": 64}, "hidden_size"),
        ({"depthwise_multiplier": 2}, "depthwise_multiplier"), ({"activation": "selu"}, "selu"),
        ({"bias_max_distance": 2**30}, "not floats"), ({"num_blocks": 4}, "missing"),
        ({"relative_attention_bias_args": [1]}, "no object"), ({"downsample_rate": 2}, "rate"),
    ],
    ids=str,
)  # fmt: skip
def test_an_encoder_of_another_form_is_refused(written, tmp_path, change, message):
    shutil.copytree(written[0] / FORMS[0], tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["audio_config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises((FormatError, UnsupportedError), match=message):
        hearing_of(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"n_fft": 256}, {"win_length": 1}, {"preemphasis": 0.9}, {"mel_max_frequency": 9000},
        {"mel_min_frequency": 7700}, {"hop_length": 0}, {"audio_feat_stride": 2},
        {"feature_extractor_type": "WhisperFeatureExtractor"}, {"audio_compression_rate": 4},
    ],
    ids=str,
)  # fmt: skip
def test_features_of_another_form_are_refused(written, tmp_path, change):
    shutil.copytree(written[0] / FORMS[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "processor_config.json").write_text(json.dumps({"audio_processor": change}))
    with pytest.raises((FormatError, UnsupportedError)):
        hearing_of(tmp_path)


def test_absurd_statistics_are_refused(written, tmp_path):
    shutil.copytree(written[0] / FORMS[0], tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if name.endswith("global_invstd"))
    tensors[name][3] = 2.0**21
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match="statistics of bands"):
        hearing_of(tmp_path)
