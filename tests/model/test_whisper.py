"""Whisper against transformers, in double; and one digest anywhere."""

from __future__ import annotations

import dataclasses
import wave

import pytest
from click.testing import CliRunner

pytest.importorskip("transformers")

import numpy as np
import torch
import transformers
import whisper_folders
from installed import backends

import cortiq
from cortiq.cli.main import cli
from cortiq.convert.run import convert_model
from cortiq.engine.prompt_encoded import EncodedPrompt
from cortiq.errors import RequestError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.hearing.encode import neighbours
from cortiq.hearing.features import FeatureRules
from cortiq.hearing.load import load_hearing
from cortiq.hearing.speech import SpeechMasks
from cortiq.hearing.whisper import CONVOLVED, FRAMES, HIDDEN, STRIDE
from cortiq.ir.encoded import ENCODED, LAST_ENCODED
from cortiq.model.hearing import SoundPrompt
from cortiq.models import load_program
from cortiq.numerics.masks import allowed_ids
from cortiq_reference.ideal import evaluate

TOLERANCE = 1e-5
CONFIGS = (
    {},
    {"num_mel_bins": 128, "decoder_layers": 1, "activation_function": "relu"},
    {"d_model": 48, "encoder_attention_heads": 2, "decoder_attention_heads": 6,
     "tie_word_embeddings": False},
)  # fmt: skip


def tone(hertz=300.0, seconds=0.7, rate=16000):
    at = np.arange(int(rate * seconds)) / rate
    return (np.sin(2 * np.pi * hertz * at) * (0.2 + 0.5 * at)).astype(np.float32)


@pytest.fixture(scope="module", params=range(len(CONFIGS)))
def written(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"whisper{request.param}")
    return folder, whisper_folders.whisper(folder, **CONFIGS[request.param]).double()


def ideal_rows(hearing, frames):
    """An encoder's rows in float64."""
    program, weights = hearing.program, hearing.weights
    near = neighbours(frames, 1)
    made = evaluate(program, weights, [0] * len(near), [CONVOLVED], FRAMES, {"frame": near})
    rows = neighbours(made[CONVOLVED], STRIDE)
    count = len(rows)
    inputs = {"frame": rows, "last": np.full(count, count - 1)}
    return evaluate(program, weights, [0] * count, [HIDDEN], inputs=inputs)[HIDDEN]


def test_logits_in_float64_are_transformers_in_double(written):
    folder, model = written
    checkpoint = open_checkpoint(folder)
    loaded = load_program(checkpoint, weight_format="f32")
    hearing = load_hearing(checkpoint, loaded.config, "f32")
    frames = hearing.rules.prepare(tone()).frames
    rows = ideal_rows(hearing, frames)
    features = torch.tensor(frames.T[None]).double()
    ids = [5, 7, 9, 30, 60, 21, 22]
    with torch.no_grad():
        theirs = model.model.encoder(features).last_hidden_state[0].numpy()
        logits = model(input_features=features, decoder_input_ids=torch.tensor([ids])).logits[0]
    assert rows.shape == theirs.shape
    assert np.abs(rows - theirs).max() < TOLERANCE * np.abs(theirs).max()
    given, slots = (loaded.program, loaded.weights), {}
    evaluate(*given, [0] * len(rows), [], ENCODED, {ENCODED: rows}, slots)
    last = {LAST_ENCODED: np.full(len(ids), len(rows) - 1)}
    ours = evaluate(*given, ids, ["logits"], inputs=last, stored=slots)["logits"]
    assert np.abs(ours - logits.numpy()).max() < TOLERANCE * np.abs(logits.numpy()).max()


SLOW = pytest.mark.slow
LONGER = [1, 2, 5, 8, *range(70, 80), 9, 9, 9]
EXACT = {"temperature": 0, "ignore_eos": True, "max_tokens": 6}


def answers(folder, backend):
    """Digests: alone; in a batch of other sounds; in chunks; drafted; with prefixes reused."""
    with cortiq.load(folder, backend=backend, threads=1) as model:
        first, other = (model.sound_prompt((tone(hertz), 16000)) for hertz in (300.0, 900.0))
        longer = model.sound_prompt((tone(300.0), 16000), LONGER)
        alone = model.generate(longer, **EXACT)
        assert model.generate(first, **EXACT).digest != model.generate(other, **EXACT).digest
        batch = model.generate_many([other, longer, first], **EXACT)
        found = {"alone": alone, "batch": batch[1]}
        found["chunks"] = model.generate(longer, chunk_rows=3, **EXACT)
        found["drafted"] = model.generate(longer, draft="lookup", **EXACT)
        model.keep_prefixes()
        model.generate(longer, **EXACT)
        found["reused"] = model.generate(longer, **EXACT)
        assert found["reused"].stats.reused_tokens == len(longer.ids) - 1
        elsewhere = model.generate(dataclasses.replace(longer, encoded=other.encoded), **EXACT)
        assert elsewhere.stats.reused_tokens == 0 and elsewhere.digest != alone.digest
        digests = {name: made.digest for name, made in found.items()}
        assert set(digests.values()) == {alone.digest}, digests
        return alone.digest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("whisper")
    whisper_folders.whisper(path)
    return path


@pytest.fixture(scope="module")
def wanted(folder):
    return answers(folder, "reference")


OTHERS = [name for name in backends() if name != "reference"]


@pytest.mark.parametrize("backend", OTHERS)
def test_every_backend_has_the_references_digest(folder, wanted, backend):
    with cortiq.load(folder, backend=backend, threads=1) as model:
        prompt = model.sound_prompt((tone(300.0), 16000), LONGER)
        assert model.generate(prompt, **EXACT).digest == wanted


@pytest.mark.parametrize(
    "backend", [name if name == "cpu" else pytest.param(name, marks=SLOW) for name in OTHERS]
)
def test_batches_chunks_drafts_and_prefixes_have_it_too(folder, wanted, backend):
    """Slow where a whole stack of libraries starts: of 15 s on wgpu 6.6 are calls of its native
    library (44 pipelines among them take 3.8), 4.9 reading its C header.
    """
    assert answers(folder, backend) == wanted


def theirs_of(folder, samples, **options):
    """Ids that transformers generates greedily after the prompt."""
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).double()
    frames = FeatureRules(chunk_length=whisper_folders.SECONDS).prepare(samples).frames
    features = torch.tensor(frames.T[None]).double()
    made = model.generate(features, max_new_tokens=12, do_sample=False, **options)
    return made[0].tolist()


def words(model, ids):
    """Ids but those of the end."""
    return [token for token in ids if token != model.hearing.speech.end]


@pytest.mark.parametrize("language", ["de", "fr"])
@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_transcriptions_are_those_of_transformers(folder, language, task):
    samples = tone(500.0)
    theirs = theirs_of(folder, samples, language=language, task=task)
    with cortiq.load(folder, weight_format="f32") as model:
        made = model.transcribe((samples, 16000), language=language, task=task, max_tokens=12,
                                fallback=None)  # fmt: skip
        ids = made.generations[0].token_ids
        assert words(model, ids) == words(model, theirs)[-len(words(model, ids)) :]
        assert made.language == language and made.task == task and made.duration == 0.7
        assert made.text == model.tokenizer.decode(words(model, ids)).strip()


def test_the_language_is_that_which_transformers_detects(folder):
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    with cortiq.load(folder, weight_format="f32") as ours:
        for hertz in (200.0, 700.0, 2000.0):
            samples = tone(hertz)
            frames = ours.hearing.rules.prepare(samples).frames
            found = model.detect_language(torch.tensor(frames.T[None]))
            heard = ours.transcribe((samples, 16000), max_tokens=1).language
            token = ours.hearing.speech.languages[heard]
            assert token == int(found[0])


def test_masks_of_times_are_the_rules_of_transformers(folder):
    settings = transformers.GenerationConfig.from_pretrained(folder)
    begin = 3
    rules = transformers.generation.WhisperTimeStampLogitsProcessor(settings, begin)
    rules.max_initial_timestamp_index = 50
    with cortiq.load(folder) as model:
        speech, size = model.hearing.speech, model.program.facts["vocab_size"]
    masks = SpeechMasks(speech, size, begin, timed=True)
    first, drawn = speech.first_time, np.random.default_rng(3)
    texts = [[], [first], [first, 90], [first, 90, first + 9], [first, 90, first + 9, first + 9],
             [first, 90, first + 9, first + 9, 91], [first, 90, first + 9, speech.end]]  # fmt: skip
    for text in texts:
        ids = [speech.start, 2, 5, *text]
        scores = torch.tensor(drawn.standard_normal((1, size)))
        scores[:, :first] += 50  # words are likelier than all times together: no rule of ids
        allowed = torch.isfinite(rules(torch.tensor([ids]), scores))[0].numpy()
        ours = allowed_ids(masks(ids), size)
        wanted = [token for token in np.flatnonzero(allowed) if token not in speech.suppressed]
        wanted = [t for t in wanted if text or t not in speech.first_suppressed]
        assert ours.tolist() == wanted, text


def test_a_long_sound_is_heard_window_by_window(folder):
    samples, seen = tone(400.0, 5.0), []
    with cortiq.load(folder) as model:
        made = model.transcribe((samples, 16000), language="en", max_tokens=10, fallback=None,
                                on_part=seen.append, prompt="before")  # fmt: skip
        assert len(made.generations) >= 3 and tuple(seen) == made.parts
        ends = [part.end for part in made.parts]
        assert all(part.start <= part.end <= 5.01 for part in made.parts)
        assert ends == sorted(ends) and made.duration == 5.0


def test_a_prompt_without_a_sound_is_refused_and_sounds_by_other_models(folder):
    with cortiq.load(folder) as model:
        with pytest.raises(RequestError, match="transcribes speech, and there is no sound"):
            model.generate([1, 2], max_tokens=2)
        with pytest.raises(RequestError, match="no language 'xx'"):
            model.transcribe((tone(), 16000), language="xx")
        with pytest.raises(RequestError, match="no task"):
            model.transcribe((tone(), 16000), language="en", task="sing")
    with cortiq.load("synthetic:tiny-ties") as model:
        with pytest.raises(RequestError, match="transcribes no speech"):
            model.transcribe((tone(), 16000))
        prompt = SoundPrompt([1, 2], EncodedPrompt(1, lambda: np.zeros((1, 4), np.float32), "00"))
        with pytest.raises(RequestError, match="transcribes no speech"):
            model.generate(prompt, max_tokens=2)


def test_texts_alone_are_refused_wherever_they_are_fed(folder, tmp_path):
    with cortiq.load(folder, backend="cpu", threads=1) as model:
        for feed in (
            lambda text: model.score(text, window=20), model.logits, model.embed,
            model.token_embeddings,
            lambda text: model.likelihoods(text, [[5]]),
            lambda text: model.save_prefix(text, tmp_path / "a.prefix"),
        ):  # fmt: skip
            with pytest.raises(RequestError, match="transcribes speech, and there is no sound"):
                feed("hello")
    asked = ["bench", str(folder), "--prompt-tokens", "4", "--new-tokens", "2", "--repeats", "1"]
    found = CliRunner().invoke(cli, [*asked, "--backend", "cpu", "--threads", "1"]).exception
    assert isinstance(found, RequestError) and "transcribes speech, and there is no sound" in str(
        found
    )


def test_a_conversion_keeps_the_encoder(folder, tmp_path):
    def heard(path):
        with cortiq.load(path, backend="cpu", threads=1) as model:
            prompt = model.sound_prompt((tone(), 16000))
            return model.generate(prompt, max_tokens=4, temperature=0).step_digests

    made = convert_model(str(folder), tmp_path / "out", "keep")
    assert made.notes == () and heard(made.path) == heard(folder)
    once = convert_model(str(folder), tmp_path / "once", "w8").path
    assert heard(convert_model(str(made.path), tmp_path / "again", "w8").path) == heard(once)


def test_a_receipt_holds_the_sound(folder, tmp_path):
    sound, other = ((tone(hertz), 16000) for hertz in (400.0, 401.0))
    with cortiq.load(folder, backend="cpu", threads=1) as model:
        made = model.generate(model.sound_prompt(sound), max_tokens=4, temperature=0)
        made.receipt().write(tmp_path / "r.json")
        receipt = cortiq.Receipt.read(tmp_path / "r.json")
        assert model.verify(receipt, audio=sound).identical
        (found,) = model.verify(receipt, audio=other).differences
        assert found.field == "sound"
        with pytest.raises(RequestError, match="none is given"):
            model.verify(receipt)
    whole = (sound[0] * 32768).astype("<i2")
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 16000, len(whole), "NONE", ""))
        file.writeframes(whole.tobytes())
    with cortiq.load(folder, backend="reference") as model:
        made = model.generate(model.sound_prompt(tmp_path / "a.wav"), max_tokens=3, temperature=0)
        made.receipt().write(tmp_path / "r.json")
    how = ("--audio", str(tmp_path / "a.wav"), "--backend", "cpu")
    done = CliRunner().invoke(cli, ["verify", str(tmp_path / "r.json"), str(folder), *how])
    assert done.exit_code == 0, done.output
