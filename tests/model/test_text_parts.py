"""Folders of models that also see and hear: their text part is read, whatever else is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from checkpoints import draw_weights
from family_harness import distance, logits_of
from safetensors.torch import load_file, save_file

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint

TEXT = {
    "vocab_size": 96, "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 256,
}  # fmt: skip
DELTA = {
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}  # fmt: skip
SIGHT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 2, "image_size": 28, "patch_size": 14}  # fmt: skip
QWEN_SIGHT = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
              "out_hidden_size": 40, "patch_size": 4, "num_position_embeddings": 16}  # fmt: skip
HEARING = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "d_model": 16,
           "output_dim": 40, "downsample_hidden_size": 8}  # fmt: skip
SECTIONS = {"rope_type": "default", "rope_theta": 1e3, "mrope_section": [4, 2, 2]}
NARROW = {"head_dim": ..., "hidden_size": 64, "rope_parameters": SECTIONS}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
HALF = SECTIONS | {"mrope_section": [2, 1, 1]}
TOKENS = np.random.default_rng(4).integers(0, 96, 24).tolist()
MODELS = {
    "qwen3_5": ("Qwen3_5", TEXT | DELTA, QWEN_SIGHT, {}),
    "gemma3": ("Gemma3", TEXT | {"sliding_window": 8}, SIGHT, {"mm_tokens_per_image": 4}),
    "mistral3": ("Mistral3", TEXT | {"model_type": "mistral"}, SIGHT | {"model_type": "pixtral"},
                 {}),
    "qwen3_vl": ("Qwen3VL", TEXT | {"rope_parameters": SECTIONS}, QWEN_SIGHT, {}),
}  # fmt: skip
OTHER_NAMES = {
    "qwen2_5_vl": ("Qwen2_5_VL", TEXT | NARROW, QWEN_SIGHT | {"out_hidden_size": 64}, {}),
    "qwen3_vl_moe": ("Qwen3VLMoe", TEXT | EXPERTS | {"rope_parameters": SECTIONS}, QWEN_SIGHT, {}),
    "glm4v_moe": (
        "Glm4vMoe",
        TEXT
        | EXPERTS
        | NARROW
        | {"n_routed_experts": 4, "num_experts": ..., "rope_parameters": HALF},
        QWEN_SIGHT | {"out_hidden_size": 64},
        {},
    ),
    "glm4v": ("Glm4v", TEXT | NARROW, QWEN_SIGHT | {"out_hidden_size": 64}, {}),
}
"""Models whose folders have the text model's tensors under plain names, or fused ones."""


def write(given: tuple[Any, ...], folder: Path) -> tuple[Path, np.ndarray]:
    """Write a folder of a text and a vision model; return transformers' logits of a text too."""
    name, text, sight, more = given
    text = {key: value for key, value in text.items() if value is not ...}
    config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=sight, **more)
    torch.manual_seed(5)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    if "num_experts_per_tok" in text:
        model.set_experts_implementation("eager")  # the other one has no double
    draw_weights(model.model.language_model)
    model.tie_weights()
    model.save_pretrained(folder)
    with torch.no_grad():
        logits = model.double()(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    return folder, logits


@pytest.fixture(scope="module", params=MODELS)
def written(request: Any, tmp_path_factory: Any) -> tuple[Path, np.ndarray]:
    """A folder of a text and a vision model, and the logits that transformers has for a text."""
    return write(MODELS[request.param], tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_text_part_under_other_names_has_transformers_logits(name, tmp_path):
    folder, logits = write(OTHER_NAMES[name], tmp_path)
    checkpoint = open_checkpoint(folder)
    assert not [name for name in checkpoint.tensor_names if "vision" in name or "visual" in name]
    assert distance(logits_of(checkpoint, TOKENS), logits) < 1e-5


def test_experts_may_lie_the_other_way_round(tmp_path):
    folder, logits = write(OTHER_NAMES["qwen3_vl_moe"], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    turned = {
        name: value.transpose(1, 2).contiguous() if ".experts." in name else value
        for name, value in tensors.items()
    }
    save_file(turned, folder / "model.safetensors", metadata={"format": "pt"})
    assert distance(logits_of(open_checkpoint(folder), TOKENS), logits) < 1e-5


def test_a_thinker_beside_a_talker_is_read(tmp_path):
    text = TEXT | EXPERTS | {"rope_parameters": {**SECTIONS}, "tie_word_embeddings": False}
    config = transformers.Qwen3OmniMoeThinkerConfig(
        text_config=text, vision_config=QWEN_SIGHT, audio_config=HEARING
    )
    torch.manual_seed(5)
    model = transformers.Qwen3OmniMoeThinkerForConditionalGeneration(config).eval()
    model.set_experts_implementation("eager")
    draw_weights(model.model)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        logits = model.double()(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    whole = {"model_type": "qwen3_omni_moe", "talker_config": {"text_config": {}},
             "thinker_config": json.loads((tmp_path / "config.json").read_text())}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(whole))
    tensors = load_file(tmp_path / "model.safetensors")
    named = {f"thinker.{name}": value for name, value in tensors.items()}
    named["talker.model.layers.0.mlp.gate.weight"] = torch.zeros(4)
    save_file(named, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert distance(logits_of(open_checkpoint(tmp_path), TOKENS), logits) < 1e-5


def test_text_part_has_transformers_logits(written):
    folder, logits = written
    checkpoint = open_checkpoint(folder)
    assert not [name for name in checkpoint.tensor_names if "vision" in name or "visual" in name]
    assert distance(logits_of(checkpoint, TOKENS), logits) < 1e-5


def test_names_of_before_are_read_too(written, tmp_path):
    folder, logits = written
    tensors = load_file(folder / "model.safetensors")
    older = {
        name.replace("model.language_model.", "language_model.model.").replace(
            "lm_head", "language_model.lm_head"
        ): value
        for name, value in tensors.items()
    }
    save_file(older, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert distance(logits_of(open_checkpoint(tmp_path), TOKENS), logits) < 1e-5


@pytest.mark.parametrize("layers", ["model.language_model.", "language_model.model."])
def test_a_text_only_export_may_keep_the_prefixes(layers, written, tmp_path):
    folder, logits = written
    config = json.loads((folder / "config.json").read_text())
    flat = config["text_config"] | {"tie_word_embeddings": config["tie_word_embeddings"]}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    tensors = {
        name.replace("model.language_model.", layers): value
        for name, value in load_file(folder / "model.safetensors").items()
        if "language_model" in name or name.startswith("lm_head")
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert distance(logits_of(open_checkpoint(tmp_path), TOKENS), logits) < 1e-5


def test_hash_is_of_the_whole_folder(written):
    folder, _ = written
    config = folder / "config.json"
    before, text = open_checkpoint(folder).model_hash(), config.read_text()
    config.write_text(text + " ")
    after = open_checkpoint(folder).model_hash()
    config.write_text(text)
    assert before != after


def test_missing_tensor_and_unknown_text_model_are_named(written, tmp_path):
    folder, _ = written
    tensors = load_file(folder / "model.safetensors")
    gone = next(name for name in tensors if name.endswith("layers.1.mlp.up_proj.weight"))
    del tensors[gone]
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match=r"layers\.1\.mlp\.up_proj"):
        logits_of(open_checkpoint(tmp_path), TOKENS)
    config["text_config"]["model_type"] = "nobodys"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="nobodys"):
        logits_of(open_checkpoint(tmp_path), TOKENS)


def test_first_folders_of_qwen2_vl_have_the_text_keys_at_the_top(tmp_path_factory, tmp_path):
    folder, logits = write(OTHER_NAMES["qwen2_5_vl"], tmp_path_factory.mktemp("qwen2_5_vl"))
    config = json.loads((folder / "config.json").read_text())
    inner = config.pop("text_config")
    turned = inner.pop("rope_parameters")
    old = {"type": "mrope", "mrope_section": turned["mrope_section"]}
    flat = inner | config | {"rope_scaling": old, "rope_theta": turned["rope_theta"]}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    tensors = {
        key.replace("model.language_model.", "model.").replace("model.visual.", "visual."): value
        for key, value in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert distance(logits_of(open_checkpoint(tmp_path), TOKENS), logits) < 1e-5
