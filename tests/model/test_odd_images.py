"""Images of every form, and configurations of every kind: rows, or an error of ours."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")

import numpy as np
import spoken_folders
import vision_folders
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

import cortiq
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.hearing import qwen3_omni
from cortiq.model.source import open_source
from cortiq.numerics.sinusoids import sinusoids
from cortiq.options import LoadOptions
from cortiq.vision.load import vision_family

FORMS = ((1, 1), (1, 199), (200, 1), (7, 1400), (1400, 8), (33, 6000), (90, 91), (3000, 20))
"""Heights and widths."""
EXACT = {"temperature": 0, "ignore_eos": True, "max_tokens": 2}


def processor_of(folder, **rules):
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | rules))
    return vision_family(open_checkpoint(folder)).processor


def drawn(size):
    return np.random.default_rng(size).integers(0, 256, (*size, 3), dtype=np.uint8)


@pytest.mark.parametrize("limits", [(256, 2048), (2048, 2048), (64, 64), (4096, 1 << 20)], ids=str)
def test_the_tower_of_a_qwen_takes_the_largest_image_that_is_made(tmp_path, limits):
    """Narrow images, and those that are grown to the least, pass the limit of pixels."""
    vision_folders.qwen2_vl(tmp_path)
    ours, passed = processor_of(tmp_path, min_pixels=limits[0], max_pixels=limits[1]), 0
    for height, width in np.exp(np.random.default_rng(3).uniform(0, 7.5, (500, 2))).astype(int):
        if max(height, width) > 200 * min(height, width):
            continue
        size = ours.fitted_size(int(height), int(width))
        assert size == smart_resize(height, width, 8, *limits)
        assert size[0] * size[1] // 16 <= ours.most
        passed += size[0] * size[1] > limits[1]
    assert passed or limits[1] == 1 << 20


@pytest.mark.parametrize("size", [(1, 3000), (2, 246), (3000, 1)], ids=str)
def test_the_short_edge_of_a_pixtral_image_is_not_shrunk_to_nothing(tmp_path, size):
    """It is a line of squares then; its own processor divides by 0."""
    vision_folders.pixtral(tmp_path)
    ours = processor_of(tmp_path)
    assert ours.prepare(drawn(size)).rows == -(-ours.longest // ours.square)


@pytest.mark.parametrize("name", ["qwen2_vl", "glm4v", "pixtral", "mistral_large4", "lfm2_vl"])
def test_an_image_of_any_form_is_read_or_refused(name, tmp_path):
    getattr(vision_folders, name)(tmp_path)
    read = 0
    with cortiq.load(tmp_path, images=True, backend="cpu", threads=1) as model:
        for size in FORMS:
            try:
                prompt = model.chat_prompt([{"role": "user", "content": [{"image": drawn(size)}]}])
            except RequestError as error:
                assert "edge" in str(error) or "rows: the context" in str(error)
                continue
            model.generate(prompt, **EXACT)
            read += 1
    assert read > 1


def test_a_prompt_with_an_image_is_not_saved_as_a_text(tmp_path):
    """Its rows would be those of the ids that stand for the image."""
    vision_folders.gemma3(tmp_path)
    with cortiq.load(tmp_path, images=True, backend="cpu", threads=1) as model:
        prompt = model.image_prompt("x", [drawn((9, 9))])
        with pytest.raises(RequestError, match="a prompt with images or sounds"):
            model.save_prefix(prompt, tmp_path / "prefix")
        assert model.save_prefix("hello", tmp_path / "prefix") > 1


WRONG = {
    "qwen2_vl": (
        {"text_config": {"rope_parameters": ["mrope_section"]}},
        {"text_config": {"rope_parameters": 5, "rope_scaling": "mrope_section"}},
        {"vision_config": {"spatial_merge_size": 1 << 20}},
        {"vision_config": {"embed_dim": 1 << 30}},
    ),
    "gemma3": (
        {"text_config": {"rope_parameters": {"full_attention": ["a"], "rope_type": "default"}}},
        {"text_config": {"rope_parameters": {"sliding_attention": 5}}},
    ),
    "gemma4": (
        {"text_config": {"rope_parameters": {"full_attention": "ab"}}},
        {"text_config": {"per_layer_config": {"0": 5}}},
        {"text_config": {"per_layer_config": {"1": {"head_dim": "a"}}}},
        {"text_config": {"hidden_size_per_layer_input": 6, "pad_token_id": 3, "vocab_size": "9"}},
        {"audio_config": {"attention_context_left": 1 << 30, "attention_chunk_size": 1 << 30}},
    ),
    "mistral3": ({"vision_config": {"hidden_size": 1 << 30}}, {"spatial_merge_size": 1 << 15}),
    "kimi_k25": (
        {"vision_config": {"num_attention_heads": 1 << 30, "head_dim": 64}},
    ),
}  # fmt: skip


def changed(config, change):
    """Return a configuration with some keys of its sections in place of what these have."""
    merged = dict(config)
    for key, value in change.items():
        inner = isinstance(value, dict) and isinstance(config.get(key), dict)
        merged[key] = {**config[key], **value} if inner else value
    return merged


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder_of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            kind = spoken_folders if name == "gemma4" else vision_folders
            getattr(kind, name)(made[name])
        return made[name]

    return folder_of


@pytest.mark.parametrize(
    ("name", "change"), [(name, one) for name, several in WRONG.items() for one in several], ids=str
)
def test_a_value_of_another_kind_or_size_is_refused(folders, name, change, tmp_path):
    """Without tables of gigabytes on the way."""
    shutil.copytree(folders(name), tmp_path / "changed")
    file = tmp_path / "changed" / "config.json"
    file.write_text(json.dumps(changed(json.loads(file.read_text()), change)))
    with pytest.raises((FormatError, UnsupportedError)) as error:
        open_source(str(tmp_path / "changed"), LoadOptions(images=True, sounds=name == "gemma4"))
    assert len(str(error.value).splitlines()) <= 3


def test_places_of_a_sound_are_made_for_its_own_pieces_alone(tmp_path, monkeypatch):
    """The number in the file is how many there may be."""

    def few(count, width):
        assert count < 100
        return sinusoids(count, width)

    monkeypatch.setattr(qwen3_omni, "sinusoids", few)
    spoken_folders.qwen3_omni(tmp_path)
    sound = (np.sin(np.arange(16000) / 20).astype(np.float32), 16000)
    content = [{"role": "user", "content": [{"audio": sound}]}]
    found = []
    for most in (None, 1 << 29):
        if most:
            file = tmp_path / "config.json"
            whole = json.loads(file.read_text())
            whole["thinker_config"]["audio_config"]["max_source_positions"] = most
            file.write_text(json.dumps(whole))
        with cortiq.load(tmp_path, backend="cpu", threads=1) as model:
            found.append(model.chat(content, **EXACT).digest)
    assert found[0] == found[1]
