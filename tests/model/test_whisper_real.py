"""A published Whisper model, in CTranslate2's form: spoken words come out right, everywhere."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import whisper_folders
from installed import backends

import cortiq
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.formats.ctranslate2 import FILE, PARTS, PLAIN, is_ctranslate2

DATA = Path(__file__).parents[1] / "data"
SPOKEN = {
    "spoken.ogg": "My name is Sarah. I live in New York and I work for a small company.",
    "spoken-numbers.ogg": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10.",
}
"""The sentences that espeak-ng was given, as Whisper writes them."""
TIMED = SPOKEN | {"spoken-numbers.ogg": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"}
"""With times: after 10 all of them together are more likely than the full stop."""


@pytest.fixture(scope="module")
def real(whisper_path):
    pytest.importorskip("soundfile")
    with cortiq.load("whisper-tiny.en", backend="cpu") as model:
        yield model


@pytest.mark.parametrize("file", SPOKEN)
def test_spoken_words_are_written_down(real, file):
    made = real.transcribe(DATA / file)
    assert made.text == SPOKEN[file] and made.language == ""
    timed = real.transcribe(DATA / file, timestamps=True)
    assert timed.text == TIMED[file] and timed.scores[0].no_speech < 0.5
    assert 0 <= timed.parts[0].start < timed.parts[-1].end <= timed.duration


def test_an_english_model_knows_one_language_and_task(real):
    with pytest.raises(RequestError, match="English only"):
        real.transcribe(DATA / "spoken.ogg", language="de")
    with pytest.raises(RequestError, match="English only"):
        real.transcribe(DATA / "spoken.ogg", task="translate")


@pytest.mark.slow
@pytest.mark.parametrize("backend", [name for name in backends() if name != "cpu"])
def test_the_digest_is_the_same_on_every_backend(real, backend):
    prompt = real.sound_prompt(DATA / "spoken.ogg")
    wanted = real.generate(prompt, max_tokens=3, temperature=0).digest
    with cortiq.load("whisper-tiny.en", backend=backend) as model:
        prompt = model.sound_prompt(DATA / "spoken.ogg")
        assert model.generate(prompt, max_tokens=3, temperature=0).digest == wanted


def put(name, shape, kind, data):
    text = name.encode() + b"\0"
    head = struct.pack("<H", len(text)) + text + struct.pack("<B", len(shape))
    sizes = struct.pack(f"<{len(shape)}I", *shape)
    return head + sizes + struct.pack("<BI", kind, len(data)) + data


def ct2_tensors(folder):
    """Arrays of a Hugging Face folder, joined and named as CTranslate2 has them."""
    opened = open_checkpoint(folder)

    def array(name):
        found = opened.tensor(name)
        return found.raw.view("<f4").reshape(found.shape)

    for name, own in PLAIN.items():
        yield name, array(f"model.{own}")
    for side, count in (("encoder", 2), ("decoder", 3)):
        for n, (name, parts) in ((n, part) for n in range(count) for part in PARTS.items()):
            if side == "encoder" and name.startswith("attention"):
                continue
            here = f"model.{side}.layers.{n}"
            weights = [array(f"{here}.{part}.weight") for part in parts]
            biases = [
                np.zeros(len(weights[0]), "<f4") if part.endswith("k_proj")
                else array(f"{here}.{part}.bias") for part in parts
            ]  # fmt: skip
            roles = ("gamma", "beta") if name.endswith("norm") else ("weight", "bias")
            for role, pieces in zip(roles, (weights, biases), strict=True):
                yield f"{side}/layer_{n}/{name}/{role}", np.concatenate(pieces)


def ct2_folder(source, target, kind=0):
    """Write a folder of Hugging Face's as one of CTranslate2's."""
    form = {0: "<f4", 1: "i1"}[kind]
    tensors = ct2_tensors(source)
    made = [put(name, a.shape, kind, a.astype(form).tobytes()) for name, a in tensors]
    heads = (("encoder", 4), ("decoder", 2))
    made += [put(f"{side}/num_heads", (), 2, struct.pack("<h", n)) for side, n in heads]
    text = b"WhisperSpec\0"
    head = struct.pack("<IH", 6, len(text)) + text + struct.pack("<II", 3, len(made))
    (target / FILE).write_bytes(head + b"".join(made) + struct.pack("<I", 0))
    given = json.loads((source / "generation_config.json").read_text())
    config = {"lang_ids": list(given["lang_to_id"].values()), "suppress_ids": [],
              "suppress_ids_begin": given["begin_suppress_tokens"]}  # fmt: skip
    (target / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "preprocessor_config.json"):
        shutil.copy(source / name, target / name)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "ct2"))
    pytest.importorskip("transformers")
    whisper_folders.whisper(source)
    ct2_folder(source, target)
    return source, target


def test_both_forms_have_one_digest(pair):
    at = np.arange(20000) / 16000
    sound, digests = (np.sin(2000 * at), 16000), []
    for folder in pair:
        with cortiq.load(folder, backend="cpu") as model:
            prompt = model.sound_prompt(sound, [1, 2, 3])
            digests.append(model.generate(prompt, max_tokens=5, temperature=0).digest)
    assert is_ctranslate2(pair[1]) and digests[0] == digests[1]


def test_damaged_files_are_refused(pair, tmp_path):
    whole = (pair[1] / FILE).read_bytes()
    for name in ("config.json", "tokenizer.json", "preprocessor_config.json"):
        shutil.copy(pair[1] / name, tmp_path / name)

    def refused(data):
        (tmp_path / FILE).write_bytes(data)
        with pytest.raises((FormatError, UnsupportedError)):
            cortiq.load(tmp_path, backend="reference")

    for end in (30, 60, 1000, len(whole) // 2):
        refused(whole[:end])
    rng = np.random.default_rng(4)
    for _ in range(20):
        data = bytearray(whole)
        data[int(rng.integers(20, 60))] ^= int(rng.integers(1, 256))
        (tmp_path / FILE).write_bytes(data)
        try:
            open_checkpoint(tmp_path).close()
        except (FormatError, UnsupportedError):
            continue
    refused(whole.replace(b"decoder/embeddings/weight", b"decoder/embeddings/height"))


def test_quantised_codes_are_refused(pair, tmp_path):
    ct2_folder(pair[0], tmp_path, kind=1)
    with pytest.raises(UnsupportedError, match="quantised models of CTranslate2"):
        open_checkpoint(tmp_path)
