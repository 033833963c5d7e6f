"""Encoders of sound in llama.cpp's files: the rows and answers of the folder that they are of."""

from __future__ import annotations

import json
import re
import wave

import pytest
from click.testing import CliRunner

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import gguf
import numpy as np
import spoken_folders
from gguf_files import GGUF, close_writer
from ideal_senses import sound_rows
from safetensors.numpy import load_file
from test_mmproj import write_text
from test_spoken import EXACT, RATE, hearing_of, messages, tone

import cortiq
from cortiq.cli.main import cli
from cortiq.convert.run import convert_model
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.vision.load import load_vision, sound_family
from cortiq.vision.mmproj import with_mmproj

LLAMA = GGUF("llama", permuted=True)
TEXTS = {"ultravox": LLAMA, "qwen2_audio": GGUF("qwen2"), "voxtral": LLAMA}
KINDS = {"ultravox": "ultravox", "qwen2_audio": "qwen2a", "voxtral": "voxtral"}
ON_CPU = {"backend": "cpu", "threads": 1, "weight_format": "f32"}


def write_encoder(path, folder, name, *, mixed=False, change=lambda values, tensors: None):
    """Write the encoder as llama.cpp's converter does, by the names of the package gguf."""
    config = json.loads((folder / "config.json").read_text())
    sound = config["audio_config"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    values = {
        "projection_dim": config["text_config"]["hidden_size"],
        "embedding_length": sound.get("d_model", sound.get("hidden_size")),
        "feed_forward_length": sound.get("encoder_ffn_dim", sound.get("intermediate_size")),
        "block_count": sound.get("encoder_layers", sound.get("num_hidden_layers")),
        "attention.head_count": sound.get("encoder_attention_heads")
        or sound["num_attention_heads"],
        "num_mel_bins": sound["num_mel_bins"], "attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    if name != "qwen2_audio":
        values["projector.stack_factor"] = {"ultravox": 8, "voxtral": 4}[name]
    tensors = {}
    for tensor, array in load_file(folder / "model.safetensors").items():
        old = tensor.removeprefix("model.")
        if old.startswith(("audio_tower", "multi_modal_projector")):
            old = old.replace("multi_modal_projector", "audio.multi_modal_projector")
            array = array[:, None] if "conv" in old and old.endswith("bias") else array
            tensors[names.get_name(old, try_suffixes=(".weight", ".bias"))] = array
    change(values, tensors)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string(f"clip.{'audio.' if mixed else ''}projector_type",
                      values.pop("kind", KINDS[name]))  # fmt: skip
    write_hearing(writer, values, tensors)
    close_writer(writer)


def write_hearing(writer, values, tensors):
    """Write what an encoder of sound has in a file, which may hold a tower, too."""
    writer.add_bool("clip.has_audio_encoder", True)
    for key, value in values.items():
        add = {float: writer.add_float32, str: writer.add_string}.get(type(value))
        (add or writer.add_uint32)(f"clip.audio.{key}", value)
    for own, array in tensors.items():
        kind = gguf.GGMLQuantizationType.Q8_0 if array.dtype == np.uint8 else None
        writer.add_tensor(own, np.ascontiguousarray(array, array.dtype), raw_dtype=kind)


@pytest.fixture(scope="module", params=list(TEXTS))
def written(request, tmp_path_factory):
    """A family's name, its folder, and the text model's file with the encoder's beside it."""
    name, place = request.param, tmp_path_factory.mktemp(request.param)
    folder = place / "folder"
    folder.mkdir()
    getattr(spoken_folders, name)(folder)
    write_text(place / "model.gguf", folder, TEXTS[name])
    write_encoder(place / "mmproj-model-f32.gguf", folder, name)
    return name, folder, place / "model.gguf"


def hearing_of_file(file):
    checkpoint = with_mmproj(open_checkpoint(file))
    return load_vision(checkpoint, sound_family(checkpoint), "f32")


def rows_of(loaded, sound):
    return sound_rows(loaded, sound, [window.frames.T for window in sound.windows])


def test_rows_are_those_of_the_folder(written):
    """`test_spoken.py` holds the folder's rows to transformers' in double."""
    _, folder, file = written
    ours, theirs = hearing_of_file(file), hearing_of(folder)
    for length in (1600, 4001, 36000):
        sound, other = (one.processor.prepare(tone(length)) for one in (ours, theirs))
        assert sound.digest == other.digest
        assert np.array_equal(rows_of(ours, sound), rows_of(theirs, sound))


def test_convolutions_in_half_precision_and_a_kind_of_audio_alone_are_read(written, tmp_path):
    """As the converter writes files; those of several modalities say the kind of each."""
    name, folder, file = written

    def halved(values, tensors):
        for tensor in [one for one in tensors if "conv" in one and one.endswith("weight")]:
            tensors[tensor] = tensors[tensor].astype(np.float16)

    (tmp_path / "model.gguf").write_bytes(file.read_bytes())
    write_encoder(tmp_path / "mmproj.gguf", folder, name, mixed=True, change=halved)
    ours, theirs = hearing_of_file(tmp_path / "model.gguf"), hearing_of(folder)
    sound = ours.processor.prepare(tone(4001))
    made, whole = rows_of(ours, sound), rows_of(theirs, sound)
    assert 0 < np.abs(made - whole).max() < 0.02 * np.abs(whole).max()


def test_answers_of_a_file_with_an_encoder_are_the_folders(written):
    """By name, and by the folder that both files are in."""
    _, folder, file = written
    digests = []
    for place, how in ((file, {"images": True}), (file.parent, {"images": True}), (folder, {})):
        with cortiq.load(place, **how, **ON_CPU) as model:
            made = model.generate(model.chat_prompt(messages()), max_tokens=3, **EXACT)
            digests.append((made.prompt_ids, made.step_digests))
    assert digests[0] == digests[1] == digests[2]


def test_matrices_of_eight_bits_are_read(written, tmp_path):
    name, folder, file = written

    def quantised(values, tensors):
        kind = gguf.GGMLQuantizationType.Q8_0
        for tensor in [one for one in tensors if re.search(r"(attn_\w+|a\.mlp\.1)\.weight", one)]:
            tensors[tensor] = gguf.quants.quantize(tensors[tensor], kind)

    (tmp_path / "model.gguf").write_bytes(file.read_bytes())
    write_encoder(tmp_path / "mmproj.gguf", folder, name, change=quantised)
    ours, theirs = hearing_of_file(tmp_path / "model.gguf"), hearing_of(folder)
    sound = ours.processor.prepare(tone(4001))
    made, whole = rows_of(ours, sound), rows_of(theirs, sound)
    assert 0 < np.abs(made - whole).max() < 0.05 * np.abs(whole).max()


def test_the_command_line_hears_with_a_file(written, tmp_path):
    _, _, file = written
    sound = tmp_path / "a.wav"
    with wave.open(str(sound), "wb") as out:
        out.setparams((1, 2, RATE, 4001, "NONE", ""))
        out.writeframes((tone(4001) * 32767).astype("<i2").tobytes())
    how = ["--backend", "cpu", "--threads", "1", "--max-tokens", "3", "--temperature", "0"]
    args = ["generate", str(file), "--audio", str(sound), "-p", "what?", "--json", *how]
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0, done.output
    with cortiq.load(file, sounds=True, backend="cpu", threads=1) as model:
        made = model.generate(model.audio_prompt("what?", [sound]), max_tokens=3, temperature=0)
    assert json.loads(done.stdout)["text"] == made.text


def test_without_being_asked_a_file_hears_nothing(written):
    with cortiq.load(written[2], **ON_CPU) as model, pytest.raises(RequestError, match="--sounds"):
        model.chat_prompt(messages())


def test_a_conversion_says_that_the_encoder_is_to_be_copied(written, tmp_path):
    _, _, file = written
    (said,) = convert_model(str(file), tmp_path / "new.gguf", "keep").notes
    assert "need mmproj-model-f32.gguf" in said


def without(*keys):
    def change(values, tensors):
        for key in keys:
            (values if key in values else tensors).pop(key)

    return change


def given(**changed):
    return lambda values, tensors: values.update(
        {key.replace("__", "."): value for key, value in changed.items()}
    )


def shaped(name, make):
    def change(values, tensors):
        tensors[name] = make(tensors[name])

    return change


HOSTILE = {
    "no width": without("embedding_length"), "no layers": without("block_count"),
    "no epsilon": without("attention.layer_norm_epsilon"),
    "no places": without("a.position_embd.weight"),
    "no convolution": without("a.conv1d.1.weight"), "no layer": without("a.blk.1.ffn_up.weight"),
    "another text model's": given(projection_dim=77),
    "another epsilon": given(attention__layer_norm_epsilon=1e-3),
    "a text for an epsilon": given(attention__layer_norm_epsilon="small"),
    "a text for a count": given(block_count="two"), "no heads": given(attention__head_count=0),
    "heads that share badly": given(attention__head_count=5),
    "no bands": given(num_mel_bins=0), "many bands": given(num_mel_bins=1 << 30),
    "many layers": given(block_count=1 << 31), "wide": given(embedding_length=1 << 31),
    "another width": given(embedding_length=48),
    "an odd window": shaped("a.position_embd.weight", lambda array: array[:7]),
    "a flat table": shaped("a.position_embd.weight", lambda array: array.reshape(-1)),
    "a short bias": shaped("a.conv1d.2.bias", lambda array: array[:5]),
    "a wide bias": shaped("a.conv1d.2.bias", lambda array: np.repeat(array, 2, 1)),
    "a kernel of four": shaped("a.conv1d.1.weight", lambda a: np.concatenate([a, a[..., :1]], 2)),
    "an image's kind": given(kind="gemma3"), "no kind": given(kind=""),
    **{f"labelled {kind}": given(kind=kind) for kind in KINDS.values()},
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_encoder_is_said(written, tmp_path, what):
    name, folder, file = written
    if what == f"labelled {KINDS[name]}":
        pytest.skip("it is that")
    (tmp_path / "model.gguf").write_bytes(file.read_bytes())
    write_encoder(tmp_path / "mmproj.gguf", folder, name, change=HOSTILE[what])
    with pytest.raises((FormatError, UnsupportedError)) as caught:
        hearing_of_file(tmp_path / "model.gguf")
    assert str(caught.value)


STACKS = {
    "none": without("projector.stack_factor"), "zero": given(projector__stack_factor=0),
    "another": given(projector__stack_factor=7), "a text": given(projector__stack_factor="8"),
    "a vector": shaped("mm.a.mlp.1.weight", lambda array: array[0]),
    "an odd gate": shaped("mm.a.mlp.1.weight", lambda array: array[:-1]),
    "no first matrix": without("mm.a.mlp.1.weight"), "no second": without("mm.a.mlp.2.weight"),
}  # fmt: skip


@pytest.mark.parametrize("what", STACKS)
def test_what_is_no_projector_of_stacked_rows_is_said(written, tmp_path, what):
    name, folder, file = written
    if name == "qwen2_audio":
        pytest.skip("its rows are means")
    (tmp_path / "model.gguf").write_bytes(file.read_bytes())
    write_encoder(tmp_path / "mmproj.gguf", folder, name, change=STACKS[what])
    with pytest.raises((FormatError, UnsupportedError)):
        hearing_of_file(tmp_path / "model.gguf")


def test_a_text_model_without_the_token_of_sounds_is_said(written, tmp_path):
    name, folder, file = written
    if name == "ultravox":
        pytest.skip("its rows have no token")
    token = {"qwen2_audio": "<|AUDIO|>", "voxtral": "[AUDIO]"}[name].encode()
    data = file.read_bytes()
    assert data.count(token) > 1  # in the vocabulary, and in the template
    (tmp_path / "model.gguf").write_bytes(data.replace(token, token[:-1] + b"!"))
    write_encoder(tmp_path / "mmproj.gguf", folder, name)
    with pytest.raises(FormatError, match="has no token"):
        hearing_of_file(tmp_path / "model.gguf")


def test_a_published_ultravox_names_what_is_read(tmp_path):
    """Its folder has the encoder alone; the file beside the text model is made from that."""
    folder = tmp_path / "folder"
    folder.mkdir()
    spoken_folders.ultravox(folder)
    write_text(tmp_path / "model.gguf", folder, TEXTS["ultravox"])
    write_encoder(tmp_path / "mmproj.gguf", folder, "ultravox")
    config = json.loads((folder / "config.json").read_text())
    config["text_model_id"] = "an/other-model"
    del config["text_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError) as caught:
        cortiq.load(folder, backend="cpu")
    assert "GGUF" in caught.value.hint and "mmproj" in caught.value.hint
    with cortiq.load(tmp_path, images=True, **ON_CPU) as model:
        assert model.generate(model.chat_prompt(messages()), max_tokens=3, **EXACT).token_ids
