"""Gemma 3n's tower and encoder in a file of llama.cpp's: the rows and answers of the folder."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")
pytest.importorskip("gguf")

import gemma3n_folders
import gguf
import numpy as np
import spoken_folders
from families_2026 import gemma3n_tensors, gemma3n_values
from gguf_files import GGUF, close_writer
from ideal_senses import ideal_rows, sound_rows
from safetensors.numpy import load_file, save_file
from test_mmproj import write_text
from test_mmproj_omni import senses_of
from test_mmproj_sounds import given, shaped, without
from test_spoken import EXACT, RATE, tone
from test_vision import drawn

import cortiq
from cortiq.errors import FormatError, UnsupportedError

ON_CPU = {"backend": "cpu", "threads": 1, "weight_format": "f32"}
UNSAID = {"conf_attention_context_left", "conf_attention_chunk_size", "conf_reduction_factor"}
HALVED = "a.pre_encode.out.weight"
"""A matrix that the converter writes in half precision, whatever is asked for."""


def write_folder(folder):
    """Write a model with the windows of published ones, which files do not say."""
    folder.mkdir()
    kept = {k: v for k, v in spoken_folders.GEMMA3N_ENCODER.items() if k not in UNSAID}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spoken_folders, "GEMMA3N_ENCODER", kept)
        gemma3n_folders.gemma3n(folder, laurel_rank=64, altup_num_inputs=4)
    config = folder / "config.json"
    whole = json.loads(config.read_text()) | {"audio_soft_tokens_per_image": 188}
    config.write_text(json.dumps(whole))
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.audio_tower.subsample_conv_projection.input_proj_linear.weight"
    tensors[name] = tensors[name].astype(np.float16).astype(np.float32)
    save_file(tensors, file)


def file_name(name, names):
    """Return what the converter calls a tensor of a folder; None for one of the text model."""
    tower = "model.vision_tower.timm_model.blocks."
    if name.startswith(tower):
        return f"v.blk.{name.removeprefix(tower)}"
    if not name.startswith(("model.vision_tower", "model.audio_tower", "model.embed_")):
        return None
    if name.startswith("model.embed_tokens"):
        return None
    if name.endswith(".norm.weight") and "subsample" in name:  # by the number before
        return f"a.conv1d.{name.split('conv_')[-1][0]}.norm.weight"
    old = name.replace("model.audio_tower.conformer.", "conformer.layers.")
    return names.get_name(old, try_suffixes=(".weight", ".bias"))


def write_file(path, folder, change=lambda values, tensors: None):
    """Write tower and encoder as llama.cpp's converter does, by the names of the package gguf."""
    config = json.loads((folder / "config.json").read_text())
    rules = json.loads((folder / "preprocessor_config.json").read_text())
    sound, width = config["audio_config"], config["text_config"]["hidden_size"]
    edge, names = rules["size"]["height"], gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 128)
    values = {
        "vision.projector_type": "gemma3nv", "audio.projector_type": "gemma3na",
        "vision.projection_dim": width, "audio.projection_dim": width,
        "vision.image_size": edge, "vision.patch_size": edge // rules["image_seq_length"],
        "vision.embedding_length": config["vision_config"]["hidden_size"],
        "vision.feed_forward_length": 8192, "vision.block_count": 128,
        "vision.attention.head_count": 8, "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.image_mean": [0.0] * 3, "vision.image_std": [1.0] * 3,
        "audio.embedding_length": sound["hidden_size"], "audio.feed_forward_length": 6144,
        "audio.block_count": sound["conf_num_hidden_layers"],
        "audio.attention.head_count": sound["conf_num_attention_heads"],
        "audio.attention.layer_norm_epsilon": 1e-5,
        "audio.num_mel_bins": sound["input_feat_size"],
    }  # fmt: skip
    tensors = {}
    for old, array in load_file(folder / "model.safetensors").items():
        if (name := file_name(old, names)) is not None:
            tensors[name] = array.astype(np.float16) if name == HALVED else array
    tensors["v.conv_stem.conv.bias"] = tensors["v.conv_stem.conv.bias"][None, :, None, None]
    change(values, tensors)
    writer = gguf.GGUFWriter(path, "clip")
    for key, value in values.items():
        kinds = {float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        kinds.get(type(value), writer.add_uint32)(f"clip.{key}", value)
    for own, array in tensors.items():
        writer.add_tensor(own, np.ascontiguousarray(array))
    close_writer(writer)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder, and the text model's file with the other beside it."""
    place = tmp_path_factory.mktemp("gemma3n")
    write_folder(place / "folder")
    how = GGUF("gemma3n", values=gemma3n_values, tensors=gemma3n_tensors)
    write_text(place / "model.gguf", place / "folder", how)
    write_file(place / "mmproj-model-f32.gguf", place / "folder")
    return place / "folder", place / "model.gguf"


def test_rows_are_those_of_the_folder(written):
    """`test_gemma3n_sees.py` and `test_spoken.py` hold the folder's to transformers' in double."""
    (sees, hears), (seen, heard) = (senses_of(place) for place in written[::-1])
    image, other = (one.processor.prepare(drawn((40, 70))) for one in (sees, seen))
    assert image.digest == other.digest and image.text == other.text
    assert np.array_equal(ideal_rows(sees, image), ideal_rows(seen, image))
    sound, other = (one.processor.prepare(tone(9001)) for one in (hears, heard))
    assert sound.digest == other.digest and sound.text == other.text
    rows = [sound_rows(one, sound, [w.frames for w in sound.windows]) for one in (hears, heard)]
    assert np.array_equal(*rows)


SAID = [
    {"role": "user", "content": [
        {"audio": (tone(4001), RATE)}, {"image": drawn((24, 30))}, {"type": "text", "text": "a?"},
    ]}
]  # fmt: skip


def test_answers_about_images_and_sounds_are_the_folders(written):
    made = []
    for place in (written[1].parent, written[0]):
        with cortiq.load(place, images=True, **ON_CPU) as model:
            one = model.chat(SAID, max_tokens=3, **EXACT)
            made.append((one.prompt_ids, one.step_digests))
    assert made[0] == made[1]


def beside(written, place, change):
    """Write the file with changes beside the text model; return the latter."""
    (place / "model.gguf").write_bytes(written[1].read_bytes())
    write_file(place / "mmproj.gguf", written[0], change)
    return place / "model.gguf"


def test_kernels_in_half_precision_are_read(written, tmp_path):
    def halved(values, tensors):
        for name in [one for one in tensors if tensors[one].ndim > 1 and "stem" not in one]:
            tensors[name] = tensors[name].astype(np.float16)

    sees, _ = senses_of(beside(written, tmp_path, halved))
    seen, _ = senses_of(written[0])
    image = sees.processor.prepare(drawn((40, 70)))
    made, whole = ideal_rows(sees, image), ideal_rows(seen, image)
    assert 0 < np.abs(made - whole).max() < 0.02 * np.abs(whole).max()


@pytest.mark.parametrize("sense", ["vision", "audio"])
def test_a_file_with_one_of_both_is_of_that_sense(written, tmp_path, sense):
    def alone(values, tensors):
        starts = ("v.", "mm.") if sense == "audio" else ("a.", "mm.a.")
        for name in [one for one in tensors if one.startswith(starts)]:
            if sense == "vision" or not name.startswith("mm.a."):
                del tensors[name]
        other = "vision" if sense == "audio" else "audio"
        for key in [one for one in values if one.startswith(other)]:
            del values[key]
        values["projector_type"] = values.pop(f"{sense}.projector_type")

    place = beside(written, tmp_path, alone)
    how = {"images": True} if sense == "vision" else {"sounds": True}
    with cortiq.load(place, **how, **ON_CPU) as model:
        assert model.has_medium("image") == (sense == "vision")
        assert model.has_medium("audio") == (sense == "audio")


HOSTILE = {
    "no size": without("vision.image_size"),
    "no side of a patch": given(**{"vision.patch_size": 0}),
    "no width": without("audio.embedding_length"), "no table": without("mm.embedding.weight"),
    "no table of sounds": without("mm.a.embedding.weight"),
    "no kernels": without("a.blk.0.conv_dw.weight"),
    "no norm of a convolution": without("a.conv1d.1.norm.weight"),
    "no stem": without("v.conv_stem.conv.weight"),
    "a number as a table": shaped("mm.embedding.weight", lambda array: array[:1, 0]),
    "a flat bias": shaped("v.conv_stem.conv.bias", lambda array: array[0, :-1]),
    "another text model's": given(**{"audio.projection_dim": 77}),
    "another family's": given(**{"audio.projector_type": "gemma4a"}),
    "means that are none": given(**{"vision.image_mean": [0.0]}),
    "another row's width": given(**{"vision.embedding_length": 21}),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_tower_is_said(written, tmp_path, what):
    with pytest.raises((FormatError, UnsupportedError)) as caught:
        senses_of(beside(written, tmp_path, HOSTILE[what]))
    assert str(tmp_path) in str(caught.value) or what.startswith(("means", "another row"))
