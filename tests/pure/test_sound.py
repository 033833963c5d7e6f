"""Sound: spectrograms held to transformers', golden digests, files that lie or are damaged."""

from __future__ import annotations

import hashlib
import io
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.hearing import decode, sound
from cortiq.hearing.decode import sound_of
from cortiq.hearing.features import FeatureRules
from cortiq.numerics.doubles import exp64, log64
from cortiq.numerics.running_norm import running_norm
from cortiq.numerics.samples import resample, resample_weights
from cortiq.numerics.sinusoids import projected_sinusoids
from cortiq.numerics.spectrogram import (
    fourier,
    heard_frames,
    htk_filters,
    log_magnitudes,
    log_mel,
    mel_filters,
)


def noise(count, seed=0):
    return (np.random.default_rng([seed, count]).standard_normal(count) * 0.1).astype(np.float32)


def tone(rate, seconds=1.0, hertz=440.0):
    return np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate + 0.3)


@given(size=st.integers(1, 80) | st.sampled_from([400, 512]), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_the_transform_is_numpys(size, seed):
    x = np.random.default_rng(seed).standard_normal((2, 2, size, 3))
    re, im = fourier(*x)
    theirs = np.fft.fft(x[0] + 1j * x[1], axis=1)
    assert np.abs(re + 1j * im - theirs).max() < 1e-13 * size


def test_logarithm_and_exponential_are_within_units_of_the_last_place():
    x = 10.0 ** np.random.default_rng(1).uniform(-12, 12, 1000)
    assert np.abs(log64(x) - np.log(x)).max() < 1e-14
    assert np.abs(exp64(np.log(x)) / x - 1).max() < 1e-14


@pytest.mark.parametrize("bands", [80, 128])
def test_features_are_those_of_whispers_processor(bands):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.WhisperFeatureExtractor(feature_size=bands, chunk_length=2)
    assert np.abs(mel_filters(bands, 400, 16000) - theirs.mel_filters).max() < 1e-12
    rules = FeatureRules.of({"chunk_length": 2}, bands)
    for count in (400, 20001, 32000, 40000):
        samples = noise(count)
        ours = rules.prepare(samples).frames
        padded = np.pad(samples[:32000], (0, max(0, 32000 - count)))
        exact = theirs._np_extract_fbank_features(padded[None], "cpu")[0]
        whole = theirs(samples, sampling_rate=16000)["input_features"][0]
        assert ours.shape == (200, bands)
        assert np.abs(ours.T - exact).max() < 1e-6
        assert np.abs(ours.T - whole).max() < 1e-4  # torch has it in float32


GEMMA = 320, 512, 160
"""Samples of a frame, of its transform, and the step."""


@pytest.mark.parametrize("count", [1, 160, 161, 320, 321, 4001])
def test_features_are_those_of_gemmas_processor(count):
    """By NumPy's transform, and the filters' definition."""
    samples, filters = noise(count), htk_filters(16, 512, 16000, 0.0, 8000.0)
    mels = 2595 * np.log10(1 + 8000 / 700) / 17 * np.arange(18)
    corners = 700 * (10 ** (mels / 2595) - 1)
    bins = np.arange(257) * 16000 / 512
    theirs = [np.interp(bins, corners[b : b + 3], [0, 1, 0]) for b in range(16)]
    assert np.abs(filters - np.transpose(theirs)).max() < 1e-12
    padded = np.pad(samples.astype(float), (160, 0))
    frames = [padded[at : at + 320] for at in range(0, len(padded) - 320, 160)]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(320) / 320)
    wanted = [np.log(np.abs(np.fft.rfft(one * window, 512)) @ filters + 1e-3) for one in frames]
    found = log_magnitudes(samples, GEMMA, filters, 1e-3)
    assert len(found) == len(wanted) == heard_frames(count, 320, 160) == max(0, (count - 1) // 160)
    assert np.allclose(found, np.reshape(wanted, found.shape), rtol=1e-6, atol=1e-6)


def test_terms_by_distance_are_products_with_sines_and_cosines():
    matrix = np.random.default_rng(3).standard_normal((5, 12))
    angles = np.arange(4)[:, None] * 10000 ** (-np.arange(6) / 5)
    rows = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    assert np.abs(projected_sinusoids(matrix, 4) - rows @ matrix.T).max() < 1e-5


GOLDEN = {
    "magnitudes": "961eb9fe350bef6e",
    "HTK filters": "97880e0944ff551b",
    "distances": "ad4d16e5b9831825",
    "log_mel": "99decf16082dd62d",
    "silence": "93bf502ef72d6b60",
    "44100 to 16000": "3aefc2236bb9367b",
    "8000 to 16000": "89fd804447d9c992",
    "filters": "a285e94b596e49be",
}


def digests():
    samples = noise(4001, seed=7)
    htk = htk_filters(128, 512, 16000, 0.0, 8000.0)
    matrix = samples[:128].astype(float).reshape(8, 16)
    found = {
        "magnitudes": log_magnitudes(samples, GEMMA, htk, 1e-3),
        "HTK filters": htk,
        "distances": projected_sinusoids(matrix, 5),
        "log_mel": log_mel(samples, 400, 160, 80, 16000),
        "silence": log_mel(np.zeros(1600), 400, 160, 80, 16000),
        "44100 to 16000": resample(samples, 44100, 16000),
        "8000 to 16000": resample(samples, 8000, 16000),
        "filters": mel_filters(128, 400, 16000),
    }
    return {name: hashlib.sha256(value.tobytes()).hexdigest()[:16] for name, value in found.items()}


def test_digests_are_golden():
    assert digests() == GOLDEN


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000])
def test_a_tone_is_the_same_at_another_rate(rate):
    found = resample(tone(rate), rate, 16000)
    assert len(found) == 16000
    assert np.abs(found - tone(16000))[300:-300].max() < 1e-4


def test_what_is_above_the_band_is_taken_away():
    assert np.abs(resample(tone(48000, hertz=9000.0), 48000, 16000)[300:-300]).max() < 3e-3


def test_resampling_does_not_depend_on_the_pieces_it_is_done_in(monkeypatch):
    samples = noise(3000)
    whole = resample(samples, 44100, 16000)
    monkeypatch.setattr("cortiq.numerics.samples.CHUNK", 100)
    assert np.array_equal(resample(samples, 44100, 16000), whole)


def wav(samples, rate=16000, bits=16, kind=1, channels=1, size=None, before=b""):
    """Bytes of a WAV file."""
    align = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * align, align, bits)
    size = len(samples) if size is None else size
    data = b"fmt " + struct.pack("<I", 16) + form + before + b"data" + struct.pack("<I", size)
    return b"RIFF" + struct.pack("<I", 4 + len(data) + len(samples)) + b"WAVE" + data + samples


def test_every_encoding_gives_the_samples_that_soundfile_reads():
    soundfile = pytest.importorskip("soundfile")
    samples = np.stack([noise(1000), noise(1000, seed=1)], axis=1)
    for kind in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"):
        data = io.BytesIO()
        soundfile.write(data, samples, 22050, subtype=kind, format="WAV")
        ours = sound_of(data.getvalue())
        data.seek(0)
        theirs, rate = soundfile.read(data, dtype="float64")
        assert ours.rate == rate == 22050
        assert np.array_equal(ours.samples, (theirs.sum(axis=1) / 2).astype(np.float32))


def test_flac_ogg_and_mp3_are_decoded(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    samples = tone(16000, 0.5) * 0.5
    for kind, error in (("FLAC", 1e-4), ("OGG", 0.05), ("MP3", 0.05)):
        path = tmp_path / f"a.{kind.lower()}"
        soundfile.write(path, samples, 16000, format=kind)
        found = sound_of(path)
        assert found.rate == 16000 and abs(len(found.samples) - len(samples)) < 3000
        count = min(len(found.samples), len(samples))
        assert np.abs(found.samples[:count] - samples[:count])[2000:-2000].max() < error


def test_other_files_need_soundfile(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    with pytest.raises(RequestError, match="soundfile"):
        sound_of(b"fLaC" + bytes(100))


def test_paths_bytes_arrays_and_pairs_are_the_same_samples(tmp_path):
    whole = (noise(500) * 32767).astype("<i2")
    data = wav(whole.tobytes())
    (tmp_path / "a.wav").write_bytes(data)
    wanted = (whole / 32768).astype(np.float32)
    twice = np.stack([wanted] * 2, axis=1)
    arrays = [(whole, 16000), (wanted, 16000), (twice, 16000)]
    for given_as in (data, bytearray(data), tmp_path / "a.wav", str(tmp_path / "a.wav"), *arrays):
        assert np.array_equal(sound_of(given_as).samples, wanted)


def test_a_wav_from_a_pipe_goes_on_to_its_end():
    whole = wav(bytes(100), size=0x7FFFF024, before=b"LIST\x03\x00\x00\x00abc\x00")
    assert len(sound_of(whole).samples) == 50


@pytest.mark.parametrize("wrong", [
    None, 3, [1], (np.zeros(4), "16000"), (np.zeros(4), 10), (np.zeros((2, 2, 2)), 16000),
    (np.zeros(4, np.uint8), 16000), (np.full(4, np.nan), 16000), (np.full(4, 1e30), 16000),
    (np.zeros(0), 16000), (np.zeros((4, 40)), 16000), b"", b"no sound", "absent.wav", "a\0b", "/",
    wav(b""), wav(bytes(10), size=100), wav(bytes(10), rate=5), wav(bytes(10), channels=0),
    wav(bytes(12), kind=99), wav(bytes(12), kind=3, bits=16),
    wav(np.full(4, np.inf, "<f4").tobytes(), kind=3, bits=32), wav(bytes(10))[:20],
    wav(bytes(10), before=b"LIST\xff\xff\xff\x7f"), b"RIFF\0\0\0\0WAVEdata\4\0\0\0abcd",
], ids=lambda given: repr(given)[:20])  # fmt: skip
def test_what_is_no_sound_is_refused(wrong):
    with pytest.raises(RequestError):
        sound_of(wrong)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_files_end_in_a_clear_error(data):
    pytest.importorskip("soundfile")
    whole = bytearray(wav(noise(64).tobytes(), kind=3, bits=32))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, 60))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    try:
        found = sound_of(bytes(whole[:cut]))
    except RequestError:
        return
    assert len(found.samples) <= len(whole) and np.isfinite(found.samples).all()


def test_long_files_are_refused_before_memory_is_taken(monkeypatch):
    monkeypatch.setattr(sound, "MAX_FRAMES", 1000)
    monkeypatch.setattr(decode, "MAX_FRAMES", 1000)
    tracemalloc.start()
    with pytest.raises(RequestError, match="at most 1000"):
        sound_of(wav(bytes(1 << 20)))
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    monkeypatch.setattr(decode, "MAX_BYTES", 100)
    with pytest.raises(RequestError, match="more than 100 bytes"):
        sound_of(wav(bytes(200)))


@pytest.mark.parametrize("wrong, kind", [
    ({"hop_length": 0}, FormatError), ({"n_fft": 1 << 20}, FormatError),
    ({"feature_size": 128}, FormatError), ({"sampling_rate": "16000"}, FormatError),
    ({"dither": 0.1}, UnsupportedError), ({"feature_extractor_type": "Other"}, UnsupportedError),
    ({"n_fft": 4000, "sampling_rate": 1000, "chunk_length": 1}, FormatError),
], ids=str)  # fmt: skip
def test_rules_that_are_not_followed_are_refused(wrong, kind):
    with pytest.raises(kind):
        FeatureRules.of(wrong, 80)


def test_slow_samples_do_not_become_more_than_the_limit(monkeypatch):
    """A minute at 1,000 hertz is as long at 16,000, and has 16 times as many samples."""
    monkeypatch.setattr(sound, "MAX_FRAMES", 16_000)
    monkeypatch.setattr(sound, "resample", lambda *_: pytest.fail("resampled"))
    with pytest.raises(RequestError, match="lasts 60 seconds: at most 1"):
        sound.Sound(np.zeros(60_000, np.float32), 1000).at(16_000)


def test_a_filter_of_many_phases_takes_little_more_than_its_table():
    """Rates without a common factor; a server may be asked for any."""
    resample_weights.cache_clear()
    tracemalloc.start()
    back, weights = resample_weights(3001, 99_991)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert weights.shape == (3001, 2 * back + 2) and peak < 3 * weights.nbytes


def test_what_a_decoder_says_names_no_object_of_ours():
    pytest.importorskip("soundfile")
    with pytest.raises(RequestError, match="cannot be decoded: ") as told:
        sound_of(b"OggS" + bytes(100))
    assert "BytesIO" not in str(told.value)


def test_a_norm_by_all_rows_so_far_is_its_formula():
    """In exact order: numbers whose sums depend on it; a later row changes none before it."""
    grid = np.random.default_rng(4).standard_normal((5, 3, 7)).astype(np.float32) * 1e3
    sums, squares, wanted = 0.0, 0.0, []
    for t, row in enumerate(grid.reshape(5, -1).astype(np.float64)):
        own = 0.0
        for value in row:
            own += value
        sums, own = sums + own, 0.0
        less = [value - sums / (21.0 * (t + 1)) for value in row]
        for value in less:
            own += value * value
        squares += own
        scale = 1.0 / np.sqrt(squares / (21.0 * (t + 1)) + 1e-3)
        wanted.append([value * scale for value in less])
    made = running_norm(grid, 1e-3)
    assert (made.reshape(5, -1) == np.array(wanted).astype(np.float32)).all()
    assert (running_norm(grid[:3], 1e-3) == made[:3]).all()
