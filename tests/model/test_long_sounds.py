"""Long sounds against transformers: times, windows, scores, and what is drawn again."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

pytest.importorskip("transformers")

import numpy as np
import torch
import transformers
import whisper_folders
from installed import backends
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

import cortiq
from cortiq.engine.masks import LogitMasks
from cortiq.errors import RequestError
from cortiq.hearing.fallback import FallbackRules, compression_ratio
from cortiq.hearing.speech import SpeechMasks
from cortiq.model import transcribe
from cortiq.model.transcribe import TranscriptionJob
from cortiq.numerics.masks import allowed_ids, mask_of

RATE, FRAME = 16000, 160
FRAMES = 100 * whisper_folders.SECONDS
SEEDS = (1, 2)


def sweep(seconds, hertz=300.0):
    at = np.arange(int(RATE * seconds)) / RATE
    return (np.sin(2 * np.pi * hertz * at * (1 + at)) * 0.5).astype(np.float32)


@pytest.fixture(scope="module", params=SEEDS)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(f"whisper{request.param}")
    whisper_folders.whisper(path, request.param)
    return path


@pytest.fixture(scope="module")
def model(folder):
    with cortiq.load(folder, backend="cpu", weight_format="f32", threads=1) as model:
        yield model


def theirs_of(folder, model, samples, monkeypatch, **more):
    """Let transformers transcribe a sound, window by window; it hears our spectrograms."""

    def segment(seek, cur_bsz, **_):
        assert cur_bsz == 1
        start = int(seek[0]) * FRAME
        made = model.hearing.rules.prepare(samples[start:]).frames
        return torch.tensor(made.T[None]).double()

    monkeypatch.setattr(WhisperGenerationMixin, "_get_input_segment", staticmethod(segment))
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(folder).double()
    theirs.generation_config.max_initial_timestamp_index = 50
    frames = len(samples) // FRAME
    features = torch.zeros((1, 80, max(frames, FRAMES + 1))).double()
    seen = torch.zeros((1, features.shape[-1]), dtype=torch.long)
    seen[0, :frames] = 1
    options = {"return_segments": True, "return_timestamps": True, "language": "de",
               "task": "transcribe", "max_new_tokens": 16, "temperature": 0.0}  # fmt: skip
    options |= more
    return theirs.generate(features, attention_mask=seen, **options)


def test_windows_and_parts_are_those_of_transformers(folder, model, monkeypatch):
    samples = sweep(5.0)
    monkeypatch.setattr(transcribe, "LEAST_SECONDS", 0.0)
    made = theirs_of(folder, model, samples, monkeypatch)
    ours = model.transcribe((samples, RATE), language="de", max_tokens=16, fallback=None)
    words = model.hearing.speech
    wanted = []
    for one in made["segments"][0]:
        ids = [t for t in one["tokens"].tolist() if words.seconds(t) is None and t != words.end]
        begin, end = (round(min(float(one[key]), 5.0), 4) for key in ("start", "end"))
        wanted.append((begin, end, ids))
    found = [(round(p.start, 4), round(p.end, 4), list(p.token_ids)) for p in ours.parts]
    assert found == [one for one in wanted if one[2]]
    assert len(ours.generations) > 2


def test_times_are_drawn_where_all_together_are_likelier_than_any_word(folder, model):
    settings = transformers.GenerationConfig.from_pretrained(folder)
    rules = transformers.generation.WhisperTimeStampLogitsProcessor(settings, 3)
    rules.max_initial_timestamp_index = 50
    speech, size = model.hearing.speech, model.program.facts["vocab_size"]
    masks, draws = SpeechMasks(speech, size, 3, timed=True), np.random.default_rng(5)
    first, narrowed = speech.first_time, 0
    for lift in (-3.0, -1.0, 0.0, 0.5, 1.0, 4.0):
        for text in ([], [first], [first, 90], [first, 90, first + 9], [first, 90, first + 9, 91]):
            ids = [speech.start, 2, 5, *text]
            scores = draws.standard_normal(size).astype(np.float32)
            scores[first:] += lift
            scores[list(speech.suppressed)] = -np.inf
            if not text:
                scores[list(speech.first_suppressed)] = -np.inf
            allowed = torch.isfinite(rules(torch.tensor([ids]), torch.tensor(scores[None])))[0]
            scores[np.isinf(scores)] = 0
            ours = masks.narrowed(ids, scores)
            assert allowed_ids(ours, size).tolist() == np.flatnonzero(allowed).tolist(), (
                lift,
                text,
            )
            narrowed += ours != masks(ids)
    assert narrowed > 5


def test_scores_are_those_of_transformers(folder, model, monkeypatch):
    samples, seen = sweep(1.9), []

    def need(self, ids, outputs, index, processors, settings, size, temperature):
        mean = self._retrieve_avg_logprobs(outputs[index]["scores"], ids, temperature)
        seen.append((float(mean), float(processors[0].no_speech_prob[index])))
        return False, False

    monkeypatch.setattr(WhisperGenerationMixin, "_need_fallback", need)
    theirs_of(folder, model, samples, monkeypatch, logprob_threshold=-1.0, no_speech_threshold=0.6)
    made = model.transcribe((samples, RATE), language="de", timestamps=True, max_tokens=16,
                            fallback=None)  # fmt: skip
    assert made.scores[0].mean_logprob == pytest.approx(seen[0][0], abs=1e-4)
    assert made.scores[0].no_speech == pytest.approx(seen[0][1], rel=1e-3)


def test_a_ratio_is_that_of_the_text_and_its_zlib_stream():
    assert compression_ratio("") == 0 and compression_ratio("said once") < 1.2
    assert compression_ratio("again and " * 40) > 2.4


def heard(model, rules, **options):
    options = {"language": "de", "max_tokens": 8, "fallback": rules, **options}
    return model.transcribe((sweep(1.5), RATE), **options)


def test_a_text_that_repeats_or_is_a_guess_is_drawn_again(model):
    never = FallbackRules((0.0, 0.3, 0.7), 1e9, -1e9, 1.0)
    for rules, temperature in (
        (never, 0.0),
        (FallbackRules((0.0, 0.3, 0.7), -1.0, -1e9, 1.0), 0.7),
        (FallbackRules((0.0, 0.3, 0.7), 1e9, -1e-9, 1.0), 0.7),
    ):
        made = heard(model, rules)
        assert {one.temperature for one in made.scores} == {temperature}
        assert made.text == heard(model, rules).text
        alone = heard(model, None, temperature=temperature)
        assert made.text == alone.text
    assert heard(model, FallbackRules(), temperature=0.5).scores[0].temperature == 0.5


def test_a_guess_where_nothing_is_likely_said_is_silence(model):
    made = heard(model, FallbackRules((0.0, 0.5), 1e9, -1e-9, 0.0))
    assert made.text == "" and made.parts == () and len(made.generations) == 1
    assert made.scores[0].silent and made.scores[0].temperature == 0.0


SLOW = pytest.mark.slow
OTHERS = [name if name == "reference" else pytest.param(name, marks=SLOW)
          for name in backends() if name != "cpu"]  # fmt: skip


@pytest.mark.parametrize("backend", OTHERS)
def test_every_backend_writes_the_same(folder, model, backend):
    """Slow but for the reference: 2 to 10 s each."""
    options = {"temperature": 0.4, "timestamps": True, "max_tokens": 5}
    with cortiq.load(folder, backend=backend, weight_format="f32", threads=1) as other:
        ours, theirs = (heard(one, None, **options) for one in (model, other))
    assert [one.digest for one in ours.generations] == [one.digest for one in theirs.generations]
    assert (ours.parts, ours.scores) == (theirs.parts, theirs.scores)


class Likelier(LogitMasks):
    """Allows the ids whose logits are above a bound, and those of a mask in any case."""

    def __init__(self, size, kept, above):
        self.size, self.kept, self.above = size, kept, above

    def __call__(self, ids):
        return None

    def narrowed(self, ids, logits):
        return mask_of({*self.kept, *np.flatnonzero(logits > self.above).tolist()}, self.size)


def test_a_narrowed_mask_draws_what_that_mask_draws():
    ids, options = [1, 2, 3], {"max_tokens": 6, "seed": 4, "confidence": True, "ignore_eos": True}
    with cortiq.load("synthetic:tiny-ties", backend="cpu", threads=1) as model:
        size = model.program.facts["vocab_size"]
        kept = [5, 9, 17, 30]
        fixed = mask_of(kept, size)
        for temperature in (0.0, 0.8):
            options["temperature"] = temperature
            wanted = model.generate(ids, masks=lambda ids: fixed, **options)
            for draft in (None, "lookup"):
                made = model.generate(ids, masks=Likelier(size, kept, 1e9), draft=draft, **options)
                assert (made.token_ids, made.digest) == (wanted.token_ids, wanted.digest)
            assert all(a > b for a, b in zip(made.confidence, wanted.confidence, strict=True))
        alone = model.generate(ids, masks=Likelier(size, [7], 1e9), **options)
        assert set(alone.token_ids) == {7} and alone.confidence == (1.0,) * 6
        with pytest.raises(RequestError, match="allows none"):
            model.generate(ids, masks=Likelier(size, [], 1e9), **options)
        assert math.isclose(sum(alone.confidence), 6)


def theirs_parted(speech, ids, length):
    """Parts of a window's ids and the seconds understood, by transformers."""
    frames, tick = torch.tensor([round(length * 100)]), 0.02
    segments, seek = WhisperGenerationMixin._retrieve_segment(
        torch.tensor(ids), [None], torch.zeros(1).double(), speech.first_time, frames, tick,
        tick / 2, 2, 0, 0, False, torch.zeros((1, 3)),
    )  # fmt: skip
    words = [[t for t in s["tokens"].tolist() if t < speech.end] for s in segments]
    times = [[round(min(float(s[key]), length), 4) for key in ("start", "end")] for s in segments]
    found = [(*pair, own) for pair, own in zip(times, words, strict=True) if own]
    return found, int(seek) / 100


def test_ends_of_windows_are_those_of_transformers(model):
    """Texts that end by words, by a time alone, and by two; of several parts, and of one."""
    speech, job = model.hearing.speech, TranscriptionJob(model, sweep(1.0), "de")
    first, chosen, length = speech.first_time, random.Random(7), 1.9
    words = [model.tokenizer.token_id(letter) for letter in "abc"]
    speech = dataclasses.replace(speech, end=first - 1)
    for _ in range(60):
        at, ids = chosen.randrange(10), []
        for _ in range(chosen.randrange(4)):
            begin, at = at, at + chosen.randrange(30) + 1
            ids += [first + begin, *chosen.choices(words, k=2), first + at]
        ids += chosen.choice(([], [first + at], [first + at, *words]))
        if len(ids) < 2:
            continue
        parts, seconds = job._parted([*ids, job.own.speech.end], length)
        wanted, seek = theirs_parted(speech, ids, length)
        assert [(round(p.start, 4), round(p.end, 4), list(p.token_ids)) for p in parts] == wanted
        assert seconds == pytest.approx(min(max(seek, transcribe.LEAST_SECONDS), length))
