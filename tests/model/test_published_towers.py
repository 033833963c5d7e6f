"""Towers of published configurations: read whole, and as large as transformers makes them."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod

import pytest

pytest.importorskip("transformers")

import spoken_folders
import torch
import transformers
from safetensors.torch import save_file

from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models.registry import family_for, read_config
from cortiq.vision.load import sound_family, vision_family

GEMMA3 = {
    "model_type": "gemma3", "image_token_index": 262144, "boi_token_index": 255999,
    "eoi_token_index": 256000, "mm_tokens_per_image": 256, "initializer_range": 0.02,
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "sliding_window": 1024, "vocab_size": 262208,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "vision_config": {
        "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
        "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27,
        "patch_size": 14, "vision_use_head": False,
    },
}  # fmt: skip
SMOLVLM = {
    "model_type": "idefics3", "image_token_id": 49190, "scale_factor": 4, "vocab_size": 49280,
    "tie_word_embeddings": False,
    "text_config": {
        "_flash_attn_2_enabled": True, "architectures": ["VLlama3ForCausalLM"], "head_dim": 64,
        "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": True,
        "max_position_embeddings": 8192, "model_type": "llama", "neftune_noise_alpha": 0.0,
        "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
        "pad_token_id": 2, "perceiver_config": {"resampler_depth": 6}, "pixel_shuffle_factor": 4,
        "qk_layer_norms": False, "rms_norm_eps": 1e-5, "rope_interleaved": False,
        "rope_theta": 100000, "torch_dtype": "bfloat16", "use_resampler": False,
        "vocab_size": 49280,
    },
    "vision_config": {
        "hidden_size": 768, "image_size": 512, "max_image_size": {"longest_edge": 512},
        "model_type": "idefics3_vision", "num_attention_heads": 12, "patch_size": 16,
        "size": {"longest_edge": 2048}, "tie_word_embeddings": False, "use_base_siglip": False,
    },
}  # fmt: skip
QWEN2_VL = {
    "model_type": "qwen2_vl", "vision_start_token_id": 151652, "vision_end_token_id": 151653,
    "vision_token_id": 151654, "image_token_id": 151655, "video_token_id": 151656,
    "hidden_act": "silu", "hidden_size": 1536, "intermediate_size": 8960,
    "max_position_embeddings": 32768, "max_window_layers": 28, "num_attention_heads": 12,
    "num_hidden_layers": 28, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "sliding_window": 32768, "tie_word_embeddings": True, "use_sliding_window": False,
    "vocab_size": 151936, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {
        "depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3,
        "hidden_size": 1536, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
        "temporal_patch_size": 2,
    },
}  # fmt: skip
RULES = {
    "gemma3": {"size": {"height": 896, "width": 896}, "resample": 2, "do_pan_and_scan": None},
    "idefics3": {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512},
                 "resample": 1, "do_image_splitting": True},
    "qwen2_vl": {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "merge_size": 2,
                 "temporal_patch_size": 2},
}  # fmt: skip
PARTS = {
    "gemma3": ("model.vision_tower", "model.multi_modal_projector"),
    "idefics3": ("model.vision_model", "model.connector"),
    "qwen2_vl": ("model.visual",),
}


def made_by_transformers(given):
    """Make the model of transformers without any memory."""
    values = {key: value for key, value in given.items() if key not in ("model_type", "vocab_size")}
    if "text_config" not in given:
        text = {
            key: value for key, value in given.items() if not key.startswith(("vision", "image"))
        }
        sight = given["vision_config"]
        return transformers.Qwen2VLConfig(text_config=text, vision_config=sight)
    kind = {"gemma3": transformers.Gemma3Config, "idefics3": transformers.Idefics3Config}
    return kind[given["model_type"]](**values)


@pytest.mark.parametrize("given", [GEMMA3, SMOLVLM, QWEN2_VL], ids=lambda one: one["model_type"])
def test_a_published_tower_has_its_parameters(given, tmp_path):
    name = given["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(given))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(RULES[name]))
    save_file({"lm_head.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    read_config(family_for(checkpoint), checkpoint)
    family = vision_family(checkpoint)
    program = family.module.build(family.config, family.processor.most)
    ours = sum(prod(spec.shape) for spec in program.weights.values())
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(made_by_transformers(given))
    theirs = sum(p.numel() for part in PARTS[name] for p in model.get_submodule(part).parameters())
    assert ours == theirs > 5e7


LLAVA = {
    "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
    "model_type": "clip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 24,
    "patch_size": 14, "projection_dim": 768, "vocab_size": 32000,
}  # fmt: skip
CLIP_RULES = {
    "crop_size": {"height": 336, "width": 336}, "do_center_crop": True, "resample": 3,
    "size": {"shortest_edge": 336},
}  # fmt: skip
SQUARES = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "merge_size": 2}
NEWER = {
    "Qwen2_5_VL": ({"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
                    "out_hidden_size": 3584}, SQUARES, 6e8),
    "Qwen3VL": ({"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
                 "out_hidden_size": 2560, "deepstack_visual_indexes": [5, 11, 17]},
                {"size": {"shortest_edge": 65536, "longest_edge": 16777216}}, 3e8),
    "Llava": (LLAVA, CLIP_RULES, 2.9e8),
    "LlavaNext": (LLAVA, CLIP_RULES | {
        "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
    }, 2.9e8),
    "Mistral3": ({"head_dim": 64, "hidden_size": 1024, "image_size": 1540, "model_type": "pixtral",
                  "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24,
                  "patch_size": 14, "rope_theta": 10000.0},
                 {"size": {"longest_edge": 1540}, "patch_size": 14}, 3e8),
    "InternVL": ({"image_size": [448, 448], "patch_size": [14, 14], "hidden_size": 1024,
                  "attention_bias": True, "num_hidden_layers": 24},
                 {"size": {"height": 448, "width": 448}, "max_patches": 12}, 3e8),
    "Glm4v": ({"depth": 24, "hidden_size": 1536, "intermediate_size": 13696, "num_heads": 12,
               "out_hidden_size": 4096, "image_size": 336},
              {"size": {"shortest_edge": 12544, "longest_edge": 9633792}}, 5e8),
    "Gemma4": ({"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16,
                "num_key_value_heads": 16, "head_dim": 72, "num_hidden_layers": 27},
               {"max_soft_tokens": 280}, 4e8),
    "Kimi_K25": ({"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16,
                  "num_hidden_layers": 27},
                 {"media_proc_cfg": {"in_patch_limit": 16384}}, 4e8),
    "MiniCPMV4_6": ({"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16,
                     "num_hidden_layers": 27, "image_size": 980, "patch_size": 14}, {}, 4e8),
    "MistralLarge4": ({"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 30,
                       "num_attention_heads": 16, "patch_size": 14, "image_size": 1540,
                       "hidden_act": "silu", "model_type": "pixtral"},
                      {"size": {"longest_edge": 1540}, "patch_size": 14}, 1.6e9),
    "GlmOcr": ({"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
                "out_hidden_size": 1536}, {"size": {"shortest_edge": 12544,
                                                    "longest_edge": 9633792}}, 3e8),
    "Glm5Next": ({"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
                  "out_hidden_size": 4096}, {}, 4e8),
    "Aria": ({"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16,
              "num_hidden_layers": 27, "image_size": 980, "patch_size": 14,
              "model_type": "idefics3_vision"}, {"split_image": False}, 4e8),
    "Cohere2Vision": ({"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16,
                       "num_hidden_layers": 27, "image_size": 512, "patch_size": 16,
                       "model_type": "siglip_vision_model"}, {}, 4e8),
    "AyaVision": ({"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16,
                   "num_hidden_layers": 27, "image_size": 364, "patch_size": 14,
                   "model_type": "siglip_vision_model", "vision_use_head": False},
                  {"size": {"height": 364, "width": 364}, "crop_to_patches": True}, 4e8),
    "Lfm2Vl": ({"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16,
                "num_hidden_layers": 26, "model_type": "siglip2_vision_model",
                "vision_use_head": False}, {"size": {"height": 512, "width": 512}}, 4e8),
}  # fmt: skip
"""A family's published tower, rules of its processor, and parameters that it has more than."""
UNREAD = {"Llava": ".layers.23.", "LlavaNext": ".layers.23."}
"""Layers of the tower that come after the one that is read."""


@pytest.mark.parametrize("name", NEWER)
def test_a_newer_published_tower_has_its_parameters(name, tmp_path):
    sight, rules, least = NEWER[name]
    width = sight.get("out_hidden_size", 1024)
    text = {
        "hidden_size": width,
        "num_hidden_layers": 1,
        "vocab_size": 64,
        "num_attention_heads": 8,
    }
    if name in ("Qwen2_5_VL", "GlmOcr"):
        sections = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
        text["rope_parameters"] = sections
    kinds = {"Llava": "llama", "LlavaNext": "llama", "Mistral3": "mistral", "InternVL": "qwen2",
             "Lfm2Vl": "lfm2", "MiniCPMV4_6": "qwen3_5_text",
             "Cohere2Vision": "cohere2", "AyaVision": "cohere2"}  # fmt: skip
    text |= {"model_type": kinds[name]} if name in kinds else {}
    text |= {"hidden_size_per_layer_input": 0} if name == "Gemma4" else {}
    text |= {"num_key_value_heads": 8, "pad_token_id": 0} if name == "Glm5Next" else {}
    config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=sight)
    given = json.loads(json.dumps(config.to_dict())) | {"vision_config": sight}
    if name == "MiniCPMV4_6":  # whose id is the tokenizer's
        given["image_token_id"] = 9
    if name == "Kimi_K25":  # as it was first published
        more = {
            "init_pos_emb_height": 64,
            "init_pos_emb_width": 64,
            "pos_emb_type": "divided_fixed",
        }
        given["vision_config"] = {f"vt_{key}": value for key, value in sight.items()} | more
    (tmp_path / "config.json").write_text(json.dumps(given))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(rules))
    save_file({"lm_head.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    family = vision_family(open_checkpoint(tmp_path))
    program = family.module.build(family.config, family.processor.most)
    ours = sum(prod(spec.shape) for spec in program.weights.values())
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config).model
    unused = "vision_tower.post_layernorm" if name in {*UNREAD, "Aria", "AyaVision"} else "-"
    skipped = ("language_model.", unused, "vision_tower.vision_model.post", "vision_tower.head.")
    theirs = sum(
        p.numel() for key, p in model.named_parameters()
        if not key.startswith(skipped) and UNREAD.get(name, "-") not in key
    )  # fmt: skip
    assert ours == theirs > least


GEMMA_RULES = {
    "feature_extractor_type": "Gemma4AudioFeatureExtractor", "dither": 0.0, "feature_size": 128,
    "fft_length": 512, "fft_overdrive": False, "frame_length": 320, "hop_length": 160,
    "input_scale_factor": 1.0, "max_frequency": 8000.0, "mel_floor": 0.001, "min_frequency": 0.0,
    "padding_side": "right", "padding_value": 0.0, "per_bin_mean": None, "per_bin_stddev": None,
    "preemphasis": 0.0, "preemphasis_htk_flavor": True, "return_attention_mask": True,
    "sampling_rate": 16000,
}  # fmt: skip
OMNI_RULES = {
    "feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": 30, "feature_size": 128,
    "hop_length": 160, "n_fft": 400, "n_samples": 480000, "nb_max_frames": 3000,
    "sampling_rate": 16000, "dither": 0.0, "padding_side": "right", "padding_value": 0.0,
    "return_attention_mask": True,
}  # fmt: skip
GEMMA3N_RULES = GEMMA_RULES | {
    "feature_extractor_type": "Gemma3nAudioFeatureExtractor", "fft_length": 1024,
    "fft_overdrive": True, "frame_length": 512, "max_frequency": 7600.0, "mel_floor": 1e-5,
    "min_frequency": 125.0, "preemphasis": 0.97, "image_processor_type": "SiglipImageProcessorFast",
}  # fmt: skip
GEMMA3N = {"conf_positional_bias_size": 256, "conf_attention_invalid_logits_value": -1e9}
"""Keys of folders that the first version of transformers wrote."""
HEARING = {
    "Gemma3n": (GEMMA3N, {"vocab_size": 262400}, GEMMA3N_RULES, 6.5e8),
    "Gemma4": ({}, {"hidden_size": 1536, "vocab_size": 262144}, GEMMA_RULES, 2.9e8),
    "Qwen3OmniMoeThinker": ({"output_dim": 2048}, {"hidden_size": 2048}, OMNI_RULES, 6e8),
}
"""Sizes of E2B (3n, 4) and Qwen3-Omni 30B A3B: of the encoder and the text; rules, parameters."""


@pytest.mark.parametrize("name", HEARING)
def test_a_published_encoder_of_sound_has_its_parameters(name, tmp_path):
    sizes, text, rules, least = HEARING[name]
    kind = getattr(transformers, f"{name}Config")
    few = {"layer_types": ["full_attention"], "num_kv_shared_layers": 0}
    few = few if name == "Gemma3n" else {}
    config = kind(audio_config=sizes, text_config=text | few | {"num_hidden_layers": 1})
    (tmp_path / "config.json").write_text(config.to_json_string(use_diff=False))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(rules))
    save_file({"lm_head.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    family = sound_family(checkpoint)
    given = family.config
    if given.__dict__.get("use_clipped_linears"):
        given = replace(given, use_clipped_linears=False)
    program = family.module.build(given, family.processor.most)
    shapes = {name: prod(spec.shape) for name, spec in program.weights.items()}
    ours = sum(n for name, n in shapes.items() if not name.endswith(COMPUTED))
    with torch.device("meta"), spoken_folders.gemma3n_without_sight():
        model = getattr(transformers, f"{name}ForConditionalGeneration")._from_config(config)
    parts = [model.model.audio_tower, getattr(model.model, "embed_audio", None)]
    named = [pair for part in parts if part is not None for pair in part.named_parameters()]
    theirs = sum(p.numel() for name, p in named if not name.endswith(SOURCES))
    assert ours == theirs > least


COMPUTED = "distances.weight", "gain.weight"
SOURCES = (
    "relative_k_proj.weight", "per_dim_scale", "pos_proj.weight", "conv_0.norm.weight",
    "conv_1.norm.weight",
)  # fmt: skip
"""Tensors that are computed, and those they are computed of."""


def test_gemma_4s_padding_may_have_the_id_0(tmp_path):
    """E2B's does: rows of images and sounds have it in the table of per-layer inputs."""
    config = transformers.Gemma4Config(vision_config={}, audio_config={})
    (tmp_path / "config.json").write_text(config.to_json_string(use_diff=False))
    save_file({"lm_head.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    families = vision_family(checkpoint), sound_family(checkpoint)
    assert [family.processor.rows.token for family in families] == [0, 0]
