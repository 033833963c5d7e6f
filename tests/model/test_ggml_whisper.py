"""Whisper in whisper.cpp's files: the bits of a folder of the same numbers, and hostile files."""

from __future__ import annotations

import struct

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import gguf
import numpy as np
import whisper_folders

import cortiq
from cortiq.convert.run import convert_model
from cortiq.errors import CortiqError, FormatError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.formats.ggml_whisper import LANGUAGES, SIZES, open_ggml_whisper

FIELDS = {"d_model": 64, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256}
TIMES = 50 * whisper_folders.SECONDS + 1
IDS = 256 + 2 + 3 + 6 + TIMES
SOUND = (np.sin(np.arange(20000) / 8), 16000)


THEIRS = (
    ("encoder_attn_layer_norm", "cross_attn_ln"), ("self_attn_layer_norm", "attn_ln"),
    ("final_layer_norm", "mlp_ln"), ("encoder_attn", "cross_attn"), ("self_attn", "attn"),
    ("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "out"),
    ("fc1", "mlp.0"), ("fc2", "mlp.2"), ("layers", "blocks"),
    ("encoder.layer_norm", "encoder.ln_post"), ("decoder.layer_norm", "decoder.ln"),
    ("embed_positions.weight", "positional_embedding"), ("embed_tokens", "token_embedding"),
)  # fmt: skip


def their_name(name):
    """The name that OpenAI's code has for a tensor of a folder."""
    name = name.removeprefix("model.")
    for mine, theirs in THEIRS:
        name = name.replace(mine, theirs)
    return name


def written(folder, kind="F32"):
    """Bytes of a file with the numbers of a folder, matrices in a type of ggml."""
    opened = open_checkpoint(folder)
    values = (IDS, TIMES - 1, 64, 4, 2, 40, 64, 2, 3, 80, 0)
    data = b"lmgg" + struct.pack("<11i", *values)
    data += struct.pack("<2i", 80, 201) + bytes(4 * 80 * 201)
    words = [bytes([n]) for n in range(256)]
    data += struct.pack("<i", len(words)) + b"".join(b"\1\0\0\0" + word for word in words)
    assert len(values) == len(SIZES)
    for name in opened.tensor_names:
        if name == "proj_out.weight":
            continue
        found = opened.tensor(name)
        array = found.raw.view("<f4").reshape(found.shape)
        number = gguf.GGMLQuantizationType[kind]
        if array.ndim != 2 or "positions" in name:
            number = gguf.GGMLQuantizationType.F32
        theirs = their_name(name).encode()
        shape = (*array.shape, 1) if ".conv" in name and array.ndim == 1 else array.shape
        data += struct.pack("<3i", len(shape), len(theirs), number)
        data += struct.pack(f"<{len(shape)}i", *shape[::-1]) + theirs
        data += gguf.quants.quantize(np.array(array), number).tobytes()
    return data


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    whisper_folders.whisper(folder, **FIELDS, vocab_size=IDS)
    return folder, written(folder)


def logits_of(path, **options):
    with cortiq.load(path, backend="cpu", threads=1, **options) as model:
        prompt = model.sound_prompt(SOUND, [1, 2, 3])
        return model.generate(prompt, max_tokens=5, temperature=0, ignore_eos=True).digest


def test_a_file_has_the_folders_bits(pair, tmp_path):
    folder, data = pair
    path = tmp_path / "ggml-tiny.bin"
    made = bytearray(data)
    struct.pack_into("<i", made, 24, 30)  # convert-h5-to-ggml.py writes max_length there
    path.write_bytes(made)
    assert logits_of(path) == logits_of(folder)
    assert open_ggml_whisper(path).config()["max_target_positions"] == 40


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q5_0"])
def test_codes_are_computed_as_they_are(pair, tmp_path, kind):
    """Compare with a folder of the numbers that the codes stand for, in the file's own format."""
    path = tmp_path / f"ggml-tiny-{kind}.bin"
    path.write_bytes(written(pair[0], kind))
    number = gguf.GGMLQuantizationType[kind]
    name = "model.decoder.layers.0.fc1.weight"
    found, plain = (open_checkpoint(p).tensor(name) for p in (path, pair[0]))
    assert found.type == kind
    values = plain.raw.view("<f4").reshape(plain.shape)
    assert found.raw.tobytes() == gguf.quants.quantize(np.array(values), number).tobytes()
    assert logits_of(path) != logits_of(pair[0])


def test_text_is_written_and_a_converted_folder_writes_the_same(pair, tmp_path):
    path = tmp_path / "ggml-tiny.bin"
    path.write_bytes(pair[1])
    convert_model(str(path), tmp_path / "made", "keep")
    texts = []
    for given in (path, tmp_path / "made"):
        with cortiq.load(given, backend="cpu", threads=1) as model:
            assert model.tokenizer.encode("hé") == [ord("h"), 0xC3, 0xA9]
            made = model.transcribe(SOUND, fallback=None)
            texts.append([one.token_ids for one in made.generations])
    assert texts[0] == texts[1] and texts[0][0]


def test_special_tokens_are_whispers():
    transformers = pytest.importorskip("transformers")
    known = transformers.models.whisper.tokenization_whisper.LANGUAGES
    assert tuple(known) == LANGUAGES


def test_damaged_files_are_refused(pair, tmp_path):
    path, data = tmp_path / "ggml-tiny.bin", pair[1]
    for end in (4, 40, 60, 1000, 70000, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:end])
        with pytest.raises(FormatError):
            open_ggml_whisper(path)
    many = bytearray(data)  # ids for as many times as a file can claim
    struct.pack_into("<2i", many, 4, 2**31 - 1, 2**31 - 1 - (2**31 - 1) % 50 - 50 * 8)
    path.write_bytes(many)
    with pytest.raises(FormatError, match="words for 2147483647 ids"):
        open_ggml_whisper(path)
    rng = np.random.default_rng(5)
    start = 48 + 8 + 4 * 80 * 201
    for _ in range(60):
        made = bytearray(data)
        place = int(rng.integers(4, 48) if rng.integers(2) else rng.integers(start, start + 1500))
        made[place] ^= int(rng.integers(1, 256))
        path.write_bytes(made)
        try:
            open_checkpoint(path).close()
        except CortiqError:
            continue
