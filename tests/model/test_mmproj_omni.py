"""A file of llama.cpp's that a model both sees and hears with: the folder's rows and answers."""

from __future__ import annotations

import json
import wave

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")
pytest.importorskip("gguf")

import gguf
import numpy as np
import spoken_folders
from click.testing import CliRunner
from gguf_files import GGUF, close_writer
from ideal_senses import ideal_rows, sound_rows
from PIL import Image
from safetensors.numpy import load_file
from test_mmproj import SECTIONS, write_seeing, write_text
from test_mmproj_sounds import given, shaped, without, write_hearing
from test_spoken import EXACT, RATE, tone
from test_vision import drawn

import cortiq
from cortiq.cli.main import cli
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.numerics.sinusoids import sinusoids
from cortiq.vision.load import load_vision, sound_family, vision_family
from cortiq.vision.mmproj import with_mmproj

ON_CPU = {"backend": "cpu", "threads": 1, "weight_format": "f32"}
SAID = [
    {"role": "user", "content": [
        {"audio": (tone(40001), RATE)}, {"image": drawn((24, 30))},
        {"type": "text", "text": "what?"},
    ]}
]  # fmt: skip


def write_folder(folder):
    """Write a thinker with the windows of published ones, which files do not say."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spoken_folders, "as_thinker", lambda *_: None)
        spoken_folders.qwen2_5_omni(folder, audio_config={"n_window": 100})
    rules = folder / "preprocessor_config.json"
    rules.write_text(json.dumps(json.loads(rules.read_text()) | {"chunk_length": 300}))


def write_file(path, folder, change=lambda values, tensors: None):
    """Write tower and encoder as llama.cpp's converter does, with its table of positions."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    config = json.loads((folder / "config.json").read_text())
    sound = config["audio_config"]
    values = {
        "projection_dim": config["text_config"]["hidden_size"],
        "embedding_length": sound["d_model"], "feed_forward_length": sound["encoder_ffn_dim"],
        "block_count": sound["encoder_layers"], "num_mel_bins": sound["num_mel_bins"],
        "attention.head_count": sound["encoder_attention_heads"],
        "attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    tensors = {"a.position_embd.weight": sinusoids(1500, sound["d_model"])}
    for old, array in load_file(folder / "model.safetensors").items():
        if old.startswith("audio_tower.") and "bos_eos" not in old:
            array = array[:, None] if "conv" in old and old.endswith("bias") else array
            tensors[names.get_name(old, try_suffixes=(".weight", ".bias"))] = array
    change(values, tensors)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("clip.projector_type", "qwen2.5o")
    write_hearing(writer, values, tensors)
    write_seeing(writer, folder, "qwen2_5_vl")
    close_writer(writer)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder, and the text model's file with the other beside it."""
    place = tmp_path_factory.mktemp("omni")
    write_folder(place / "folder")
    how = GGUF("qwen2vl", lambda config: SECTIONS)
    write_text(place / "model.gguf", place / "folder", how)
    write_file(place / "mmproj-model-f32.gguf", place / "folder")
    return place / "folder", place / "model.gguf"


def senses_of(place):
    """Return what sees and what hears."""
    checkpoint = with_mmproj(open_checkpoint(place))
    families = vision_family(checkpoint), sound_family(checkpoint)
    return [load_vision(checkpoint, family, "f32") for family in families]


def test_rows_are_those_of_the_folder(written):
    """`test_several_senses.py` holds the folder's to transformers' in double."""
    (sees, hears), (seen, heard) = (senses_of(place) for place in written[::-1])
    for length in (1600, 33001, 70001):
        sound, other = (one.processor.prepare(tone(length)) for one in (hears, heard))
        assert sound.digest == other.digest and len(sound.windows) == -(-length // 32000)
        rows = [
            sound_rows(loaded, sound, [window.frames.T for window in sound.windows])
            for loaded in (hears, heard)
        ]
        assert np.array_equal(*rows)
    for size in ((40, 70), (20, 31)):
        image, other = (one.processor.prepare(drawn(size)) for one in (sees, seen))
        assert image.digest == other.digest
        assert np.allclose(ideal_rows(sees, image), ideal_rows(seen, image), atol=1e-5)


def test_answers_about_images_and_sounds_are_the_folders(written):
    made = []
    for place in (written[1].parent, written[0]):
        with cortiq.load(place, images=True, **ON_CPU) as model:
            assert model.has_medium("image") and model.has_medium("audio")
            one = model.chat(SAID, max_tokens=3, **EXACT)
            made.append((one.prompt_ids, one.step_digests))
    assert made[0] == made[1]


def test_sounds_are_heard_without_the_tower(written):
    """The same bits as with it; nothing is heard where it is not asked for."""
    content = [[part for part in SAID[0]["content"] if "image" not in part], SAID[0]["content"]]
    heard, both = ([{"role": "user", "content": one}] for one in content)
    digests = []
    for how in ({"sounds": True}, {"images": True}):
        with cortiq.load(written[1], **how, **ON_CPU) as model:
            assert model.has_medium("image") == ("images" in how)
            digests.append(model.chat(heard, max_tokens=3, **EXACT).digest)
    assert digests[0] == digests[1]
    for how, prompt, why in (({"sounds": True}, both, "to see images"), ({}, heard, "--sounds")):
        model, refused = cortiq.load(written[1], **how, **ON_CPU), pytest.raises(RequestError)
        with model, refused as caught:
            model.chat_prompt(prompt)
        assert why in str(caught.value)


def test_the_command_line_sees_and_hears_with_a_file(written, tmp_path):
    sound, image = tmp_path / "a.wav", tmp_path / "b.png"
    with wave.open(str(sound), "wb") as out:
        out.setparams((1, 2, RATE, 4001, "NONE", ""))
        out.writeframes((tone(4001) * 32767).astype("<i2").tobytes())
    Image.fromarray(drawn((24, 30))).save(image)
    how = ["--backend", "cpu", "--threads", "1", "--max-tokens", "3", "--temperature", "0"]
    files = ["--audio", str(sound), "--image", str(image), "--chat", "-p", "what?", "--json"]
    said = []
    for place in written[::-1]:
        done = CliRunner().invoke(cli, ["generate", str(place), *files, *how])
        assert done.exit_code == 0, done.output
        said.append(json.loads(done.stdout)["text"])
    assert said[0] == said[1]


HOSTILE = {
    "no width": without("embedding_length"), "no positions": without("a.position_embd.weight"),
    "other positions": shaped("a.position_embd.weight", lambda array: array[::-1]),
    "short positions": shaped("a.position_embd.weight", lambda array: array[:, :-2]),
    "flat positions": shaped("a.position_embd.weight", lambda array: array.reshape(-1)),
    "halved positions": shaped("a.position_embd.weight", lambda array: array.astype(np.float16)),
    "no last norm": without("a.post_ln.weight"), "no projector": without("mm.a.fc.weight"),
    "a narrow projector": shaped("mm.a.fc.weight", lambda array: array[:-1]),
    "another text model's": given(projection_dim=77), "an odd width": given(embedding_length=31),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_encoder_is_said(written, tmp_path, what):
    (tmp_path / "model.gguf").write_bytes(written[1].read_bytes())
    write_file(tmp_path / "mmproj.gguf", written[0], HOSTILE[what])
    with pytest.raises((FormatError, UnsupportedError)) as caught:
        senses_of(tmp_path / "model.gguf")
    assert str(tmp_path) in str(caught.value)
