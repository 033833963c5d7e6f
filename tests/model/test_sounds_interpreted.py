"""Sounds on Triton, interpreted: the reference's digests."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

import numpy as np
import phi4mm_folders
import spoken_folders
import whisper_folders
from installed import INTERPRETED

import cortiq

pytestmark = pytest.mark.skipif(
    "triton" not in INTERPRETED, reason="it is compiled, or not here: other tests have it"
)
SOUND = np.sin(np.arange(700) / 8).astype(np.float32), 16000
SLOW = ("ultravox", "qwen2_5_omni", "qwen3_omni", "gemma4", "gemma3n", "phi4_multimodal")
EXACT = {"temperature": 0, "ignore_eos": True, "max_tokens": 2}


def writer_of(name):
    """What writes a folder of a family."""
    return getattr(spoken_folders, name, None) or getattr(phi4mm_folders, name)


def heard(model):
    return model.sound_prompt(SOUND, [1, 2])


def asked(model):
    return model.audio_prompt("a", [SOUND])


@pytest.mark.parametrize(
    ("write", "prompt"),
    [
        (lambda folder: whisper_folders.whisper(folder, encoder_layers=1, decoder_layers=1), heard),
        (spoken_folders.qwen2_audio, asked),
        *(pytest.param(writer_of(name), asked, marks=pytest.mark.slow) for name in SLOW),
    ],
    ids=["whisper", "qwen2_audio", *SLOW],
)
def test_sounds_have_the_references_digest(tmp_path, write, prompt):
    """They take 3 to 5 s in the interpreter: each program of a kernel is many calls of NumPy."""
    write(tmp_path)
    digests, sounds = [], write in [writer_of(name) for name in SLOW[-3:]]
    for backend in ("reference", "triton"):
        with cortiq.load(tmp_path, sounds=sounds, backend=backend, threads=1) as model:
            digests.append(model.generate(prompt(model), **EXACT).digest)
    assert digests[0] == digests[1]
