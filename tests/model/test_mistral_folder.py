"""Voxtral's folders in Mistral's own form: the rows and answers of transformers' folder."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("transformers")

import mistral_folders
import numpy as np
import spoken_folders
from ideal_senses import sound_rows
from safetensors.numpy import load_file, save_file
from test_spoken import EXACT, RATE, hearing_of, messages, tone

import cortiq
from cortiq.convert.run import convert_model
from cortiq.errors import CortiqError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq_reference.ideal import evaluate

ON_CPU = {"backend": "cpu", "threads": 1, "weight_format": "f32"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Mistral's folder, and transformers'."""
    place = tmp_path_factory.mktemp("voxtral")
    theirs, ours = place / "theirs", place / "ours"
    theirs.mkdir()
    ours.mkdir()
    spoken_folders.voxtral(theirs)
    mistral_folders.published(ours, theirs)
    return ours, theirs


def test_rows_and_logits_are_those_of_transformers_folder(folders):
    """Its places are rounded by torch, whose sines of large numbers are less exact."""
    ours, theirs = map(hearing_of, folders)
    for length in (1600, 36000):
        sound, other = (one.processor.prepare(tone(length)) for one in (ours, theirs))
        assert len(sound.windows) == len(other.windows)
        frames = [window.frames.T for window in sound.windows]
        made, wanted = (sound_rows(one, sound, frames) for one in (ours, theirs))
        assert np.abs(made - wanted).max() < 1e-4 * np.abs(wanted).max()
    ids, logits = [1, 60, 70, 3, 200, 61], []
    for folder in folders:
        trunk = load_program(open_checkpoint(folder), weight_format="f32")
        logits.append(evaluate(trunk.program, trunk.weights, ids, ["logits"])["logits"])
    assert np.array_equal(*logits)


def test_it_speaks_and_hears_as_published(folders, tmp_path):
    """Also when it is converted to a folder of ours."""
    digests = []
    convert_model(str(folders[0]), tmp_path / "new", "keep")
    for place in (folders[0], tmp_path / "new"):
        with cortiq.load(place, backend="cpu", threads=1) as model:
            prompt = model.chat_prompt(messages())
            digests.append(model.generate(prompt, max_tokens=3, **EXACT).step_digests)
    assert digests[0] == digests[1]


def test_the_chat_template_is_mistral_commons(folders):
    """As version 1.13.1 of the package writes form 7, but that it has no system with sounds."""
    sound = tone(4000), RATE
    said = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": [{"audio": sound}, {"type": "text", "text": "w?"}]},
        {"role": "assistant", "content": "ok"}, {"role": "user", "content": "and  now?"},
    ]  # fmt: skip
    with cortiq.load(folders[0], **ON_CPU) as model:
        ids, tokenizer = model.chat_prompt(said).ids, model.tokenizer
        text = "<s>[SYSTEM_PROMPT]be short[/SYSTEM_PROMPT][INST][BEGIN_AUDIO]"
        text += "[AUDIO]" * 25 + "w?[/INST]ok</s>[INST]and  now?[/INST]"
        assert list(ids) == tokenizer.encode(text, parse_special=True, add_bos=False)


def changed(**keys):
    return lambda given: given.update(keys)


def of_encoder(**keys):
    return lambda given: given["multimodal"]["whisper_model_args"]["encoder_args"].update(keys)


def without(*path):
    def change(given):
        for key in path[:-1]:
            given = given[key]
        del given[path[-1]]

    return change


ARGS = ("multimodal", "whisper_model_args")
HOSTILE = {
    "no Voxtral": without("multimodal"), "no encoder": without(*ARGS, "encoder_args"),
    "a list": changed(multimodal={"whisper_model_args": []}),
    "no rows side by side": without(*ARGS, "downsample_args"),
    "no width": without(*ARGS, "encoder_args", "dim"),
    "no rules of features": without(*ARGS, "encoder_args", "audio_encoding_args"),
    "a causal encoder": of_encoder(causal=True), "turned": of_encoder(pos_embed="rope"),
    "an unknown key": of_encoder(shiny=1), "an unknown key of the text": changed(shiny=1),
    "experts": changed(moe={"num_experts": 8}), "quantised": changed(quantization={"a": 1}),
    "many places": of_encoder(max_source_positions=100 << 30),
    "no places": of_encoder(max_source_positions=0),
    "places in words": of_encoder(max_source_positions="1500"),
    "an infinite number of places": of_encoder(max_source_positions=float("inf")),
    "wide": of_encoder(dim=1 << 40), "no heads": of_encoder(n_heads=0),
    "heads of another width": of_encoder(head_dim=9),
    "many layers": of_encoder(n_layers=1 << 40),
    "no head in the text": changed(n_heads=0), "an odd head": changed(head_dim=7),
    "a vast head": changed(head_dim=1 << 50), "a head in words": changed(head_dim="16"),
    "no text width": without("dim"), "a text width in words": changed(dim="64"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_configuration_that_is_none_is_said(folders, tmp_path, what):
    place = tmp_path / "model"
    shutil.copytree(folders[0], place)
    given = json.loads((place / "params.json").read_text())
    HOSTILE[what](given)
    (place / "params.json").write_text(json.dumps(given))
    with pytest.raises(CortiqError):
        cortiq.load(place, **ON_CPU)


@pytest.mark.parametrize("what", ["strange", "twice", "missing", "no token", "no tokenizer"])
def test_files_that_do_not_fit_are_said(folders, tmp_path, what):
    place = tmp_path / "model"
    shutil.copytree(folders[0], place)
    tensors = load_file(place / "consolidated.safetensors")
    if what == "strange":
        tensors["layers.0.attention.wz.weight"] = tensors["norm.weight"]
    if what == "twice":
        tensors["tok_embeddings.weight"] = tensors["mm_whisper_embeddings.tok_embeddings.weight"]
    if what == "missing":
        del tensors["layers.1.ffn_norm.weight"]
    save_file(tensors, place / "consolidated.safetensors")
    if what == "no token":
        text = (place / "tekken.json").read_text().replace("[AUDIO]", "[NOISE]")
        (place / "tekken.json").write_text(text)
    if what == "no tokenizer":
        (place / "tekken.json").unlink()
    with pytest.raises(CortiqError):
        cortiq.load(place, **ON_CPU)


def test_the_hash_is_of_params_and_weights(folders, tmp_path):
    place = tmp_path / "model"
    shutil.copytree(folders[0], place)
    hashes = {open_checkpoint(folders[0]).model_hash(), open_checkpoint(place).model_hash()}
    assert len(hashes) == 1
    given = json.loads((place / "params.json").read_text()) | {"norm_eps": 1e-3}
    (place / "params.json").write_text(json.dumps(given))
    assert open_checkpoint(place).model_hash() not in hashes
