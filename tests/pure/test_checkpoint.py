"""One interface over GGUF files and Hugging Face folders."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from gguf_bytes import File, scalar, small, tensor, text

from cortiq.errors import CortiqError, FormatError, ModelNotFoundError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.formats.fetch import KNOWN_MODELS

WEIGHTS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16)}
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "eos_token_id": 2}


def write_folder(folder: Path, config: dict[str, Any] = CONFIG, **files: Any) -> Path:
    """A Hugging Face folder; extra files by name without suffix, as JSON."""
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file(WEIGHTS, folder / "model.safetensors")
    for name, content in {"config": config, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def write_gguf(path: Path, *entries: bytes) -> Path:
    file = small()
    file.entries += entries
    path.write_bytes(bytes(file))
    return path


def refusal(path: Path, kind: type[CortiqError] = FormatError) -> str:
    with pytest.raises(kind) as caught:
        open_checkpoint(path)
    return str(caught.value)


def test_a_gguf_file_is_a_checkpoint(tmp_path):
    ids = (("eos", 7), ("eot", 3), ("eom", 7))
    entries = [scalar(f"tokenizer.ggml.{name}_token_id", "I", value) for name, value in ids]
    template = text("tokenizer.chat_template", "{{ messages }}")
    path = write_gguf(tmp_path / "m.gguf", template, *entries)
    model = open_checkpoint(path)
    assert (model.kind, model.architecture, model.path) == ("gguf", "llama", path)
    assert model.config["a.u8"] == 255 and model.tokenizer_source is model.config
    assert model.eos_token_ids == (3, 7) and model.chat_template == "{{ messages }}"
    assert model.tensor_names == ("first", "second.weight") and "first" in model
    second = model.tensor("second.weight")
    assert (second.name, second.shape, second.type) == ("second.weight", (1, 32), "Q4_1")
    assert second.raw.tolist() == [list(range(20))]
    assert model.model_hash() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_huggingface_folder_is_a_checkpoint(tmp_path):
    folder = write_folder(
        tmp_path / "m",
        generation_config={"eos_token_id": [2, 9, 5]},
        tokenizer_config={"chat_template": "{{ bos_token }}"},
    )
    model = open_checkpoint(folder)
    assert (model.kind, model.architecture) == ("huggingface", "llama")
    assert model.config == CONFIG and model.tokenizer_source == folder
    assert model.eos_token_ids == (2, 5, 9) and model.chat_template == "{{ bos_token }}"
    assert set(model.tensor_names) == {"w", "b"}
    w = model.tensor("w")
    assert w.type == "F32" and w.raw.view(np.float32).tolist() == WEIGHTS["w"].tolist()
    assert model.info("b").shape == (4,) and model.info("b").type == "F16"


def test_a_missing_tensor_is_named(tmp_path):
    for path in write_gguf(tmp_path / "m.gguf"), write_folder(tmp_path / "m"):
        with pytest.raises(FormatError, match=r"has no tensor 'lm_head\.weight'"):
            open_checkpoint(path).tensor("lm_head.weight")


def test_the_template_file_comes_before_the_tokenizer_config(tmp_path):
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    folder = write_folder(tmp_path / "m", tokenizer_config={"chat_template": named})
    assert open_checkpoint(folder).chat_template == "D"
    (folder / "chat_template.jinja").write_text("J")
    assert open_checkpoint(folder).chat_template == "J"
    assert open_checkpoint(write_folder(tmp_path / "n")).chat_template is None


def test_the_hash_of_a_folder_follows_config_and_weights_only(tmp_path):
    folder = write_folder(tmp_path / "m")
    first = open_checkpoint(folder).model_hash()
    lines = [
        f"{name}\0{hashlib.sha256((folder / name).read_bytes()).hexdigest()}\n"
        for name in ("config.json", "model.safetensors")
    ]
    assert first == hashlib.sha256("".join(lines).encode()).hexdigest()
    (folder / "README.md").write_text("changed")
    assert open_checkpoint(folder).model_hash() == first
    (folder / "config.json").write_text(json.dumps(CONFIG | {"rope_theta": 1}))
    assert open_checkpoint(folder).model_hash() != first


def test_a_folder_with_one_gguf_model_opens_it(tmp_path):
    for number in 1, 2:
        entries = [scalar("split.no", "H", number - 1), scalar("split.count", "H", 2)]
        entries.append(text("general.architecture", "llama"))
        file = File(entries, [tensor(f"t{number}", [4], 0, 0)], bytes(16))
        (tmp_path / f"m-{number:05}-of-00002.gguf").write_bytes(bytes(file))
    model = open_checkpoint(tmp_path)
    assert model.tensor_names == ("t1", "t2") and len(model.model_hash()) == 64
    write_gguf(tmp_path / "other.gguf")
    message = refusal(tmp_path)
    assert "several GGUF models" in message and "m-00001-of-00002.gguf, other.gguf" in message


def test_a_repository_of_gguf_files_with_a_config_is_a_gguf_folder(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert open_checkpoint(tmp_path).kind == "gguf"


def test_what_is_no_model_is_refused(tmp_path):
    refusal(tmp_path / "absent", ModelNotFoundError)
    refusal(tmp_path / ("x" * 5000), ModelNotFoundError)
    assert "neither config.json nor" in refusal(tmp_path)
    for name in "model.bin", "model.pt":
        (tmp_path / name).write_bytes(b"GGUF")
        assert "pickle" in refusal(tmp_path / name, UnsupportedError)
    (tmp_path / "notes.txt").write_text("hello")
    assert "not a GGUF file" in refusal(tmp_path / "notes.txt")
    folder = write_folder(tmp_path / "m")
    assert f"open the folder instead: {folder}" in refusal(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(folder, UnsupportedError)


def test_quantised_folders_are_refused_by_method(tmp_path):
    config = CONFIG | {"quantization_config": {"quant_method": "eetq", "bits": 4}}
    message = refusal(write_folder(tmp_path / "m", config), UnsupportedError)
    assert "quantization_config asks for 'eetq'" in message and "compressed-tensors" in message
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    assert "says gptq, but no tensor" in refusal(write_folder(tmp_path / "n", config))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "has no model_type"),
        ({"model_type": ["llama"]}, "model_type is not a string"),
        (CONFIG | {"eos_token_id": "</s>"}, "neither an id nor a list of ids"),
        (CONFIG | {"eos_token_id": [[1]]}, "neither an id nor a list of ids"),
        (CONFIG | {"eos_token_id": [True]}, "neither an id nor a list of ids"),
        ([], "is not a JSON object"),
    ],
)
def test_malformed_configs_are_refused(tmp_path, config, message):
    text = refusal(write_folder(tmp_path / "m", config))
    assert message in text and "config.json" in text


@pytest.mark.parametrize("data", [b"", b"{", b'{"a": 1, "a": 2}', b"\xff\xfe", b"[" * 100_000])
def test_malformed_json_is_refused(tmp_path, data):
    folder = write_folder(tmp_path / "m")
    (folder / "config.json").write_bytes(data)
    assert "config.json" in refusal(folder)


def test_malformed_gguf_metadata_is_refused(tmp_path):
    template = scalar("tokenizer.chat_template", "I", 5)
    assert "not a string" in refusal(write_gguf(tmp_path / "m.gguf", template))
    (tmp_path / "n.gguf").write_bytes(bytes(File()))
    assert "has no general.architecture" in refusal(tmp_path / "n.gguf")


@pytest.mark.parametrize(
    ("fixture", "name", "architecture"),
    [("smollm2_path", "smollm2", "llama"), ("gemma3_path", "gemma3-270m", "gemma3")],
)
def test_the_hash_of_a_pulled_model_is_the_known_one(request, fixture, name, architecture):
    model = open_checkpoint(request.getfixturevalue(fixture))
    assert model.architecture == architecture
    assert model.model_hash() == KNOWN_MODELS[name].sha256
    assert (model.chat_template is None) == (name == "gemma3-270m")
