"""Models with sounds in their prompts against transformers, in double; and one digest anywhere."""

from __future__ import annotations

import json
from types import SimpleNamespace
from unittest.mock import patch

import pytest

pytest.importorskip("transformers")

import numpy as np
import spoken_folders
import torch
from ideal_senses import sound_rows
from installed import backends
from transformers import WhisperFeatureExtractor
from transformers.models.gemma3n.feature_extraction_gemma3n import Gemma3nAudioFeatureExtractor

import cortiq
from cortiq.engine.prompt_images import ImageSpan, with_spans
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.tokenizer.tokenizer import Tokenizer
from cortiq.vision.load import load_vision, sound_family
from cortiq_reference.ideal import evaluate

TOLERANCE = 1e-5
FAMILIES = ("qwen2_audio", "voxtral", "ultravox", "gemma3n")
RATE, WINDOW = 16000, 16000 * spoken_folders.SECONDS
LENGTHS = (161, 1600, 4001, 11200, WINDOW, WINDOW + 4000)
"""Samples: of a few rows, odd ones, a whole window, and more."""
EXACT = {"temperature": 0, "ignore_eos": True}


def tone(length, hertz=300.0):
    at = np.arange(length) / RATE
    return (np.sin(2 * np.pi * hertz * at) * (0.2 + 0.1 * at)).astype(np.float32)


@pytest.fixture(scope="module", params=FAMILIES)
def written(request, tmp_path_factory):
    """A family's name, folder, and transformers' model in double."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, getattr(spoken_folders, request.param)(folder).double()


def hearing_of(folder):
    checkpoint = open_checkpoint(folder)
    return load_vision(checkpoint, sound_family(checkpoint), "f32")


def features_of(name, sounds):
    """Features of transformers' extractor, and the mask of frames where the model takes one."""
    if name == "gemma3n":
        extract, found = Gemma3nAudioFeatureExtractor(feature_size=16), []
        rough = [extract([sound], return_tensors="np")["input_features"] for sound in sounds]
        extract.window = 0.5 * (1 - np.cos(2 * np.pi * np.arange(512) / 512))
        for sound, near in zip(sounds, rough, strict=True):
            # in double: a tone leaks into bands where float32 has nothing else
            padded = np.pad(sound.astype(float), (0, -len(sound) % 128))
            made, _ = extract._extract_spectrogram(padded, np.ones(len(padded)))
            assert near.shape == (1, *made.shape) and np.abs(near - made).mean() < 0.01
            found.append(torch.tensor(made[None]))
        return {"input_features": found}
    rules = {k: v for k, v in spoken_folders.RULES.items() if k != "feature_extractor_type"}
    extract, how = WhisperFeatureExtractor(**rules), {"sampling_rate": RATE}
    if name == "qwen2_audio":
        made = extract(sounds, padding="max_length", return_attention_mask=True,
                       return_tensors="pt", **how)  # fmt: skip
        mask = {"feature_attention_mask": made["attention_mask"]}
        return {"input_features": made["input_features"].double(), **mask}
    parts = []
    for sound in sounds:
        if name == "ultravox":
            made = extract([np.pad(sound, (0, max(0, 320 - len(sound))))], padding=True,
                           truncation=False, pad_to_multiple_of=160, return_tensors="pt",
                           **how)["input_features"][0]  # fmt: skip
            parts += made.double().split(100 * spoken_folders.SECONDS, dim=1)
            continue
        made = extract([sound], padding=True, truncation=False, pad_to_multiple_of=WINDOW,
                       return_tensors="pt", **how)["input_features"][0]  # fmt: skip
        parts += made.split(100 * spoken_folders.SECONDS, dim=1)
    return {"input_features": parts if name == "ultravox" else torch.stack(parts).double()}


def their_logits(name, model, ids, places, features):
    """Logits of the family's model; Ultravox's rows stand at `places`."""
    tokens = torch.tensor([ids])
    if name == "gemma3n":
        return gemma3n_logits(model, tokens, features["input_features"])
    with torch.no_grad():
        if name != "ultravox":
            return model(
                input_ids=tokens, attention_mask=torch.ones(1, len(ids)).long(), **features
            ).logits[0]
        embed = model.language_model.get_input_embeddings()(tokens)
        rows = [model.rows(one[None]) for one in features["input_features"]]
        embed[0, places] = torch.cat(rows)
        return model.language_model(inputs_embeds=embed).logits[0]


def gemma3n_logits(model, tokens, features):
    """transformers computes parts in float32, and reads what its batch has behind a sound's end."""
    tower = model.model.audio_tower

    def one_by_one(found, mask, **given):
        rows = [tower(one, torch.zeros(one.shape[:2]).bool()).last_hidden_state for one in features]
        most = max(one.shape[1] for one in rows)
        pads = [(0, 0, 0, most - one.shape[1]) for one in rows]
        masks = [torch.arange(most)[None] >= one.shape[1] for one in rows]
        rows = [torch.nn.functional.pad(one, pad) for one, pad in zip(rows, pads, strict=True)]
        rows = model.model.embed_audio(inputs_embeds=torch.cat(rows))
        return SimpleNamespace(pooler_output=rows, audio_mel_mask=torch.cat(masks))

    double = patch.object(torch, "float32", torch.float64)
    stays = patch.object(torch.Tensor, "float", torch.Tensor.double)
    alone = patch.object(model.model, "get_audio_features", one_by_one)
    mask = torch.zeros(len(features), 1).bool()
    with torch.no_grad(), double, stays, alone:
        return model(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), input_features=mask.double(),
            input_features_mask=mask,
        ).logits[0]  # fmt: skip


@pytest.mark.parametrize("lengths", [*((n,) for n in LENGTHS), LENGTHS[1:4]], ids=str)
def test_logits_in_float64_are_transformers_in_double(written, lengths):
    name, folder, model = written
    sounds, loaded = [tone(n, 200.0 + n % 700) for n in lengths], hearing_of(folder)
    if min(lengths) < {"qwen2_audio": 2 * 160, "gemma3n": 513}.get(name, 0):
        with pytest.raises(RequestError, match="too short"):
            loaded.processor.prepare(sounds[0])
        return
    features = features_of(name, sounds)
    made, rest, rows = [loaded.processor.prepare(one) for one in sounds], [], []
    rest = [one.numpy() for one in features["input_features"]]
    for sound in made:
        rows.append(sound_rows(loaded, sound, rest[: len(sound.windows)]))
        del rest[: len(sound.windows)]
    text = "".join("ab"[n % 2] + sound.text for n, sound in enumerate(made)) + "what?"
    tokenizer, token = Tokenizer.from_folder(folder), loaded.processor.token
    if token is None:
        text = text.replace(loaded.processor.marker, tokenizer.reserved_token)
        token = tokenizer.token_id(tokenizer.reserved_token)
    ids = tokenizer.encode(text, parse_special=True)
    trunk = load_program(open_checkpoint(folder), weight_format="f32", images=loaded.processor.rows)
    own = (token, *loaded.processor.ends)
    places, spans = [at for at, one in enumerate(ids) if one in own], []
    theirs = their_logits(name, model, ids, places, features)
    for sound, own in zip(made, rows, strict=True):
        here, places = places[: sound.rows], places[sound.rows :]
        spans.append(ImageSpan(tuple(here), lambda own=own: own, sound.digest))
    assert places == []
    prompt = with_spans(None, trunk.program, len(ids), spans)
    args = trunk.program, trunk.weights, [prompt.fed(at, one) for at, one in enumerate(ids)]
    embed = evaluate(*args, ["embed"])["embed"]
    for at in range(len(ids)):
        embed[at] = prompt.inputs(at).get("embed", embed[at])
    logits = evaluate(*args, ["logits"], inputs={"embed": embed})["logits"]
    assert np.abs(logits - theirs.numpy()).max() < TOLERANCE * theirs.abs().max()


def test_ultravox_of_before_norms_its_rows_last(tmp_path):
    """Version 0.4 and older have the second norm after the second matrix."""
    model = spoken_folders.ultravox(tmp_path, ln_mid=False).double()
    loaded, sound = hearing_of(tmp_path), tone(4001)
    (frames,) = features_of("ultravox", [sound])["input_features"]
    rows = sound_rows(loaded, loaded.processor.prepare(sound), [frames.numpy()])
    with torch.no_grad():
        theirs = model.rows(frames[None]).numpy()
    assert np.abs(rows - theirs).max() < TOLERANCE * np.abs(theirs).max()


@pytest.mark.parametrize("part", ["text", "audio"])
def test_ultravox_without_one_of_its_models_is_refused(tmp_path, part):
    """Published folders name the text model, and some the encoder, by their repositories."""
    spoken_folders.ultravox(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config[f"{part}_model_id"] = "an/other-model"
    del config[f"{part}_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="that of 'an/other-model'"):
        cortiq.load(tmp_path, backend="reference")


@pytest.mark.parametrize(
    "change",
    [
        {"conf_attention_context_right": 1}, {"sscp_conv_kernel_size": [[3, 3], [5, 3]]},
        {"sscp_conv_channel_size": [8]}, {"conf_num_attention_heads": 3},
        {"input_feat_size": 20}, {"vocab_size": 3}, {"conf_reduction_factor": 4},
    ],
    ids=str,
)  # fmt: skip
def test_configurations_of_gemma_3n_that_do_not_fit_are_refused(tmp_path, change):
    spoken_folders.gemma3n(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["audio_config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises((FormatError, UnsupportedError)) as error:
        hearing_of(tmp_path)
    assert str(tmp_path) in str(error.value.where)


def test_gemma_3n_hears_without_seeing_where_that_is_asked(tmp_path):
    spoken_folders.gemma3n(tmp_path)
    with cortiq.load(tmp_path, backend="cpu", threads=1) as model:
        assert not model.has_medium("audio")
        text = model.generate("hello", max_tokens=4, **EXACT)
    with cortiq.load(tmp_path, sounds=True, backend="cpu", threads=1) as model:
        assert model.has_medium("audio") and not model.has_medium("image")
        assert model.generate("hello", max_tokens=4, **EXACT).digest == text.digest
        with pytest.raises(RequestError, match="not loaded to see images"):
            model.chat_prompt([{"role": "user", "content": [{"image": np.zeros((8, 8, 3), "u1")}]}])
        prompt = model.chat_prompt([{"role": "user", "content": [{"audio": (tone(900), RATE)}]}])
        ids, token = prompt.ids, model.senses.of("audio", "").token
        (end,) = model.senses.of("audio", "").processor.ends
        assert ids.count(token) == 47 and ids.count(end) == 1
        assert prompt.spans[0].places[-1] == ids.index(end)


def content(hertz=300.0):
    first, second = (tone(4001, hertz), RATE), (tone(2600, 700.0), RATE)
    return [
        {"type": "text", "text": "a"}, {"audio": first}, {"type": "text", "text": "what?"},
        {"audio": second}, {"type": "text", "text": "and?"},
    ]  # fmt: skip


def messages(hertz=300.0):
    return [{"role": "user", "content": content(hertz)}]


def asked(folder):
    """Whether a family hears only where that is asked for."""
    return sound_family(open_checkpoint(folder)).processor.asked_for


def answers(folder, backend):
    """Digests: alone; with texts in a batch; in chunks that cut a sound; drafted; reused."""
    with cortiq.load(folder, sounds=asked(folder), backend=backend, threads=1) as model:
        prompt, other = model.chat_prompt(messages()), model.chat_prompt(messages(900.0))
        alone = model.generate(prompt, max_tokens=4, **EXACT)
        text = model.generate("hello", max_tokens=4, **EXACT)
        batch = model.generate_many(["hello", prompt, other], max_tokens=4, **EXACT)
        assert batch[0].digest == text.digest and batch[2].digest != alone.digest
        found = {"alone": alone, "batch": batch[1]}
        found["chunks"] = model.generate(prompt, max_tokens=4, chunk_rows=7, **EXACT)
        found["drafted"] = model.generate(prompt, max_tokens=4, draft="lookup", **EXACT)
        model.keep_prefixes()
        model.generate(prompt, max_tokens=4, **EXACT)
        found["reused"] = model.generate(prompt, max_tokens=4, **EXACT)
        assert found["reused"].stats.reused_tokens == len(prompt.ids) - 1
        elsewhere = model.generate(other, max_tokens=4, **EXACT)
        assert elsewhere.stats.reused_tokens < prompt.spans[0].places[0] + 1
        digests = {name: made.digest for name, made in found.items()}
        assert set(digests.values()) == {alone.digest}, digests
        return alone.digest


@pytest.fixture(scope="module")
def wanted(written):
    return answers(written[1], "reference")


OTHERS = [name for name in backends() if name != "reference"]


@pytest.mark.parametrize("backend", OTHERS)
def test_every_backend_has_the_references_digest(written, wanted, backend):
    with cortiq.load(written[1], sounds=asked(written[1]), backend=backend, threads=1) as model:
        made = model.generate(model.chat_prompt(messages()), max_tokens=4, **EXACT)
        assert made.digest == wanted


@pytest.mark.parametrize(
    "backend",
    [name if name == "cpu" else pytest.param(name, marks=pytest.mark.slow) for name in OTHERS],
)
def test_batches_chunks_drafts_and_prefixes_have_it_too(written, wanted, backend):
    """On the others 4 to 15 s."""
    assert answers(written[1], backend) == wanted
