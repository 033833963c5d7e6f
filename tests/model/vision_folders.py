"""Small folders of models that see, written by transformers, with tokenizers and templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TEXT = {
    "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
SIGLIP = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 56, "patch_size": 14,
}  # fmt: skip
CONTROL = ["<pad>", "<bos>", "<eos>", "<turn>"]


def write_tokenizer(
    folder: Path, control: list[str], template: str, last: Sequence[str] = ()
) -> dict[str, int]:
    """Write a tokenizer of bytes with these control tokens, and a chat template; return ids.

    Parameters
    ----------
    last : control tokens whose ids come after those of the bytes.
    """
    names = [*CONTROL, *control]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: i for i, name in enumerate([*names, *letters, *last])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in [*names, *last]])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return vocabulary


def template_of(image: str) -> str:
    """A chat template whose images are this text."""
    return (
        "{{ bos_token }}{% for m in messages %}<turn>{{ m.role }}\n"
        "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        "{% if p.type == 'image' %}" + image + "{% elif p.type == 'text' %}{{ p.text }}{% endif %}"
        "{% endfor %}{% endif %}<eos>{% endfor %}<turn>assistant\n"
    )


def saved(folder: Path, config: Any, name: str, seed: int = 1) -> Any:
    """Write a random model; return it."""
    torch.manual_seed(seed)
    model = getattr(transformers, name)._from_config(config, experts_implementation="eager")
    model = model.float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.tie_weights()
    model.save_pretrained(folder)
    return model


def gemma3(folder: Path, **sight: Any) -> Any:
    """Write a Gemma 3 with 4 rows an image unless asked otherwise."""
    control = ["<start_of_image>", "<image_soft_token>", "<end_of_image>"]
    ids = write_tokenizer(folder, control, template_of(control[0]))
    rows = sight.pop("mm_tokens_per_image", 4)
    text = TEXT | {
        "vocab_size": len(ids), "sliding_window": 9, "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=text, vision_config=SIGLIP | sight, mm_tokens_per_image=rows,
        boi_token_index=ids[control[0]], image_token_index=ids[control[1]],
        eoi_token_index=ids[control[2]],
    )  # fmt: skip
    edge = (SIGLIP | sight)["image_size"]
    rules = {
        "size": {"height": edge, "width": edge},
        "image_processor_type": "Gemma3ImageProcessor",
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return saved(folder, config, "Gemma3ForConditionalGeneration")


def idefics3(folder: Path, kind: str = "Idefics3", **sight: Any) -> Any:
    """Write an Idefics 3 (or SmolVLM) with tiles of 4 rows."""
    tiles = [f"<row_{y}_col_{x}>" for y in range(1, 5) for x in range(1, 5)]
    control = ["<image>", "<fake_token_around_image>", "<global-img>", *tiles]
    ids = write_tokenizer(folder, control, template_of(control[0]))
    text = TEXT | {"vocab_size": len(ids), "model_type": "llama"}
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=SIGLIP | sight, scale_factor=2,
        image_token_id=ids[control[0]],
    )  # fmt: skip
    edge = (SIGLIP | sight)["image_size"]
    rules = {
        "size": {"longest_edge": 2 * edge}, "max_image_size": {"longest_edge": edge},
        "do_image_splitting": True, "image_processor_type": f"{kind}ImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return saved(folder, config, f"{kind}ForConditionalGeneration")


def qwen_folder(
    folder: Path, sections: list[int], head_dim: int | None, pad: str = "<|image_pad|>"
) -> tuple[dict, dict]:
    """Write tokenizer and processor of a Qwen; return keys of its text model and of the whole."""
    control = [pad, "<|vision_start|>", "<|vision_end|>"]
    start, end = control[1:]
    ids = write_tokenizer(folder, control, template_of(start + control[0] + end))
    rope = {"rope_type": "default", "rope_theta": 1e3, "mrope_section": sections}
    text = TEXT | {"vocab_size": len(ids), "hidden_size": 64, "rope_parameters": rope}
    text.pop("head_dim")
    text |= {"head_dim": head_dim} if head_dim else {}
    rules = {
        "size": {"shortest_edge": 256, "longest_edge": 2048}, "patch_size": 4,
        "merge_size": 2, "temporal_patch_size": 2, "image_processor_type": "Qwen2VLImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    whole = {
        "image_token_id": ids[control[0]], "vision_start_token_id": ids[start],
        "vision_end_token_id": ids[end], "video_token_id": 3,
    }  # fmt: skip
    return text, whole


def qwen2_vl(folder: Path, **sight: Any) -> Any:
    """Write a Qwen2-VL with patches of 4 pixels."""
    text, whole = qwen_folder(folder, [4, 2, 2], None)
    tower = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4,
             "mlp_ratio": 2} | sight  # fmt: skip
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=tower, **whole)
    return saved(folder, config, "Qwen2VLForConditionalGeneration")


def qwen2_5_vl(folder: Path, **sight: Any) -> Any:
    """Write a Qwen2.5-VL with patches of 4 pixels, windows of 6 and a layer without them."""
    text, whole = qwen_folder(folder, [4, 2, 2], None)
    tower = {"depth": 3, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2,
             "patch_size": 4, "intermediate_size": 40, "window_size": 24,
             "fullatt_block_indexes": [1]} | sight  # fmt: skip
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=tower, **whole)
    return saved(folder, config, "Qwen2_5_VLForConditionalGeneration")


QWEN3_TOWER = {
    "depth": 3, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2, "patch_size": 4,
    "intermediate_size": 40, "num_position_embeddings": 49,
}  # fmt: skip


def qwen3_vl(folder: Path, **sight: Any) -> Any:
    """Write a Qwen3-VL whose text model adds rows of two layers of the tower."""
    text, whole = qwen_folder(folder, [4, 2, 2], 16)
    tower = QWEN3_TOWER | {"deepstack_visual_indexes": [0, 1]} | sight
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=tower, **whole)
    return saved(folder, config, "Qwen3VLForConditionalGeneration")


def qwen3_vl_moe(folder: Path, **sight: Any) -> Any:
    """Write a Qwen3-VL with experts."""
    text, whole = qwen_folder(folder, [4, 2, 2], 16)
    text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    tower = QWEN3_TOWER | {"deepstack_visual_indexes": [1]} | sight
    config = transformers.Qwen3VLMoeConfig(text_config=text, vision_config=tower, **whole)
    return saved(folder, config, "Qwen3VLMoeForConditionalGeneration")


def qwen3_5(folder: Path, **sight: Any) -> Any:
    """Write a Qwen 3.5 that sees."""
    text, whole = qwen_folder(folder, [2, 1, 1], 32)
    text |= LINEAR
    text["rope_parameters"] |= {"partial_rotary_factor": 0.25}
    config = transformers.Qwen3_5Config(
        text_config=text, vision_config=QWEN3_TOWER | sight, **whole
    )
    return saved(folder, config, "Qwen3_5ForConditionalGeneration")


def qwen4_exp(folder: Path, **sight: Any) -> Any:
    """Write a Qwen 3.8 Flash Next that sees; a query takes two windows of keys."""
    text, whole = qwen_folder(folder, [2, 1, 1], 32)
    text |= LINEAR | {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24, "hc_count": 2, "hc_lowrank": 8, "eos_token_id": 2,
        "ple_layer_ids": [1], "ple_embed_dim": 32, "heads_per_ngram": 2, "split_ngram_parts": 1,
        "ngram_vocab_size_base": 60, "indexer_n_heads": 8, "indexer_kv_heads": 1,
        "indexer_head_dim": 16, "indexer_budget": 8, "indexer_compress_ratio": 4,
    }  # fmt: skip
    text["rope_parameters"] |= {"partial_rotary_factor": 0.25}
    config = transformers.Qwen4ExpConfig(
        text_config=text, vision_config=QWEN3_TOWER | sight, **whole
    )
    return saved(folder, config, "Qwen4ExpForConditionalGeneration")


CLIP = SIGLIP | {"model_type": "clip_vision_model", "num_hidden_layers": 3}


def llava(folder: Path, kind: str = "Llava", **sight: Any) -> Any:
    """Write a LLaVA with 16 rows an image; kind "LlavaNext": with tiles, too."""
    ids = write_tokenizer(folder, ["<image>"], template_of("<image>"))
    text = TEXT | {"vocab_size": len(ids), "model_type": "llama"}
    more = {"image_grid_pinpoints": [[56, 112], [112, 56], [112, 112], [168, 56]]}
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=CLIP | sight, image_token_index=ids["<image>"],
        **(more if kind == "LlavaNext" else {}),
    )  # fmt: skip
    edge = (CLIP | sight)["image_size"]
    rules = {
        "size": {"shortest_edge": edge}, "crop_size": {"height": edge, "width": edge},
        "image_processor_type": f"{kind}ImageProcessor", **(more if kind == "LlavaNext" else {}),
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return saved(folder, config, f"{kind}ForConditionalGeneration")


def llava_next(folder: Path, **sight: Any) -> Any:
    """Write a LLaVA-NeXT."""
    return llava(folder, "LlavaNext", **sight)


PIXTRAL = SIGLIP | {"model_type": "pixtral", "num_hidden_layers": 3, "head_dim": 12}


LARGE4 = {key: value for key, value in TEXT.items() if key != "head_dim"} | {
    "num_key_value_heads": 4, "moe_intermediate_size": 24, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6,
    "v_head_dim": 12, "index_n_heads": 4, "index_head_dim": 8, "index_topk": 512,
}  # fmt: skip


def pixtral(folder: Path, kind: str = "Llava", **sight: Any) -> Any:
    """Write a Pixtral, a row a patch of 14 pixels; kind "Mistral3": a row for four."""
    control = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]
    ids = write_tokenizer(folder, control, template_of("[IMG]"))
    text = TEXT | {"vocab_size": len(ids), "model_type": "mistral", "rms_norm_eps": 1e-3}
    more = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    if kind == "MistralLarge4":
        text = LARGE4 | {"vocab_size": len(ids), "rms_norm_eps": 1e-3}
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=PIXTRAL | sight, image_token_index=ids["[IMG]"],
        **(more if kind == "Llava" else {}),
    )  # fmt: skip
    rules = {
        "size": {"longest_edge": 70 if kind == "Llava" else 112},
        "patch_size": {"height": 14, "width": 14} if kind == "Llava" else 28,
        "image_processor_type": "PixtralImageProcessor",
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return saved(folder, config, f"{kind}ForConditionalGeneration")


def mistral3(folder: Path, **sight: Any) -> Any:
    """Write a Mistral 3."""
    return pixtral(folder, "Mistral3", **sight)


def mistral_large4(folder: Path, **sight: Any) -> Any:
    """Write a Mistral Large 4, under published names."""
    return pixtral(folder, "MistralLarge4", **sight)


def aria(folder: Path, **sight: Any) -> Any:
    """Write an Aria of 12 rows an image, of 7 × 7 patches at most."""
    ids = write_tokenizer(folder, ["<|img|>"], template_of("<|img|>"))
    text = TEXT | {
        "vocab_size": len(ids), "hidden_size": 64, "moe_num_experts": 4, "moe_topk": 2,
        "moe_num_shared_experts": 1,
    }  # fmt: skip
    tower = SIGLIP | {"image_size": 490, "patch_size": 70, "model_type": "idefics3_vision"}
    config = transformers.AriaConfig(
        text_config=text, vision_config=tower | sight, image_token_index=ids["<|img|>"],
        projector_patch_to_query_dict={49: 12, 196: 20},
    )  # fmt: skip
    rules = {
        "max_image_size": 490, "min_image_size": 100, "split_image": False,
        "image_processor_type": "AriaImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return saved(folder, config, "AriaForConditionalGeneration")


def mllama(folder: Path, text: Mapping[str, Any] | None = None, **sight: Any) -> Any:
    """Write a Llama 3.2 Vision of tiles of 17 rows, with layers that attend to images."""
    ids = write_tokenizer(folder, [], template_of("<|image|>"), ["<|image|>"])
    control = ids["<|image|>"]  # the table has rows for it, the head none
    usual = TEXT | {
        "vocab_size": control, "num_hidden_layers": 5, "cross_attention_layers": [1, 4],
        "hidden_size": 64,
    }  # fmt: skip
    del usual["head_dim"]
    tower = SIGLIP | {
        "attention_heads": 2, "num_global_layers": 2, "num_hidden_layers": 3,
        "intermediate_layers_indices": [0, 2], "vision_output_dim": 72,
    }  # fmt: skip
    del tower["num_attention_heads"]
    tower |= sight
    config = transformers.MllamaConfig(
        text_config=usual | dict(text or {}), vision_config=tower, image_token_index=control
    )
    edge, most = tower["image_size"], tower.get("max_num_tiles", 4)
    rules = {
        "size": {"height": edge, "width": edge}, "max_image_tiles": most,
        "image_processor_type": "MllamaImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return saved(folder, config, "MllamaForConditionalGeneration")


def cohere2_vision(folder: Path, kind: str = "Cohere2Vision", **sight: Any) -> Any:
    """Write a Command A Vision of tiles of 4 rows; kind "AyaVision": an Aya Vision."""
    aya = kind == "AyaVision"
    control = ["<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>"]
    ids = write_tokenizer(folder, control, template_of("<image>" if aya else control[0]))
    text = TEXT | {"vocab_size": len(ids), "model_type": "cohere2", "sliding_window": 9}
    tower = SIGLIP | {"model_type": "siglip_vision_model", "vision_use_head": not aya}
    sizes = {} if aya else {"alignment_intermediate_size": 36}
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=tower | sight, image_token_id=ids[control[0]], **sizes
    )  # fmt: skip
    name = "GotOcr2" if aya else kind
    rules = {
        "size": {"height": 56, "width": 56}, "max_patches": 5, "crop_to_patches": True,
        "image_processor_type": f"{name}ImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return saved(folder, config, f"{kind}ForConditionalGeneration")


def aya_vision(folder: Path, **sight: Any) -> Any:
    """Write an Aya Vision."""
    return cohere2_vision(folder, "AyaVision", **sight)


def internvl(folder: Path, **sight: Any) -> Any:
    """Write an InternVL of tiles of 4 rows."""
    control = ["<IMG_CONTEXT>", "<img>", "</img>"]
    ids = write_tokenizer(folder, control, template_of(control[0]))
    text = TEXT | {"vocab_size": len(ids), "model_type": "qwen2"}
    text.pop("head_dim")
    config = transformers.InternVLConfig(
        text_config=text, image_token_id=ids[control[0]], image_seq_length=4,
        vision_config=SIGLIP | {"layer_scale_init_value": 0.5, "use_qk_norm": True} | sight,
    )  # fmt: skip
    edge = (SIGLIP | sight)["image_size"]
    rules = {
        "size": {"height": edge, "width": edge}, "max_patches": 5, "crop_to_patches": True,
        "image_processor_type": "GotOcr2ImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return saved(folder, config, "InternVLForConditionalGeneration")


GLM_TOWER = {
    "depth": 2, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2, "patch_size": 4,
    "intermediate_size": 48, "image_size": 28,
}  # fmt: skip


def glm4v(folder: Path, kind: str = "Glm4v", **sight: Any) -> Any:
    """Write a GLM-4.1V; kind "Glm4vMoe": with experts; kind "GlmOcr": of its tower."""
    text, whole = qwen_folder(folder, [4, 2, 2], None, "<|image|>")
    whole = {key.replace("vision_", "image_"): value for key, value in whole.items()}
    text["rope_parameters"] |= {"partial_rotary_factor": 1.0}
    if kind == "Glm4vMoe":
        text |= {
            "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=GLM_TOWER | sight, **whole
    )
    return saved(folder, config, f"{kind}ForConditionalGeneration")


def glm_ocr(folder: Path, **sight: Any) -> Any:
    """Write a GLM-OCR."""
    return glm4v(folder, "GlmOcr", **sight)


def glm5_next(folder: Path, **sight: Any) -> Any:
    """Write a GLM 5 Next of 2 to 12 rows an image, all of whose keys a query sees."""
    text, whole = qwen_folder(folder, [4, 2, 2], None, "<|image|>")
    whole = {key.replace("vision_", "image_"): value for key, value in whole.items()}
    text = {key: value for key, value in text.items() if key != "rope_parameters"} | {
        "num_key_value_heads": 4, "q_lora_rank": 14, "kv_lora_rank": 16, "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 0, "v_head_dim": 12, "index_n_heads": 8, "index_head_dim": 9,
        "index_topk": 512, "index_kpool": 4, "linear_head_dim": 10, "linear_num_heads": 3,
        "linear_conv_kernel_dim": 3, "n_routed_experts": 4, "moe_intermediate_size": 24,
        "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "hc_mult": 2,
        "hc_sinkhorn_iters": 3, "layer_types": ["linear_attention", *["indexed_attention"] * 2],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    }  # fmt: skip
    tower = GLM_TOWER | {"projection_intermediate_size": 40, "swiglu_limit": 0.3} | sight
    config = transformers.Glm5NextConfig(text_config=text, vision_config=tower, **whole)
    rules = {
        "min_image_tokens": 2, "max_image_tokens": 12, "patch_size": 4, "merge_size": 2,
        "temporal_patch_size": 2, "image_processor_type": "Glm5NextImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return saved(folder, config, "Glm5NextForConditionalGeneration")


def glm4v_moe(folder: Path, **sight: Any) -> Any:
    """Write a GLM-4.5V."""
    return glm4v(folder, "Glm4vMoe", **sight)


def lfm2_vl(folder: Path, **sight: Any) -> Any:
    """Write an LFM2-VL with a table of 4 × 4 positions, and tiles of 4 rows."""
    control = ["<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"]
    control += [f"<|img_row_{y}_col_{x}|>" for y in range(1, 5) for x in range(1, 5)]
    ids = write_tokenizer(folder, control, template_of(control[0]))
    text = TEXT | {
        "vocab_size": len(ids), "model_type": "lfm2", "conv_L_cache": 3, "norm_eps": 1e-3,
        "layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False,
    }  # fmt: skip
    text.pop("head_dim")
    tower = SIGLIP | {"num_patches": 16, "vision_use_head": False} | sight
    tower.pop("image_size")
    config = transformers.Lfm2VlConfig(
        text_config=text, vision_config=tower | {"model_type": "siglip2_vision_model"},
        image_token_id=ids["<image>"], projector_hidden_size=32,
    )  # fmt: skip
    rules = {
        "size": {"height": 56, "width": 56}, "tile_size": 56, "encoder_patch_size": 14,
        "min_image_tokens": 2, "max_image_tokens": 6, "max_tiles": 4, "downsample_factor": 2,
        "image_processor_type": "Lfm2VlImageProcessorFast",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return saved(folder, config, "Lfm2VlForConditionalGeneration")


GEMMA_SOUNDS = ["<|audio|>", "<|audio>", "<audio|>"]


def bound_clipped(tower: Any) -> None:
    """Give the clipped matrices of a tower bounds that count."""
    for name, bound in tower.named_buffers():
        if name.endswith(("_min", "_max")):
            sign = -1 if name.endswith("_min") else 1
            bound.copy_(sign * (torch.rand(()) * 0.5 + 0.2))


def gemma4(
    folder: Path, together: bool = True, small: bool = False,
    hears: dict[str, Any] | None = None, **sight: Any,
) -> Any:  # fmt: skip
    """Write a Gemma 4 of 6 rows an image at most; small: as E2B, with per-layer inputs.

    Parameters
    ----------
    hears : keys of `audio_config`; None for one that hears nothing.
    """
    control = ["<|image|>", "<|image>", "<image|>", *(GEMMA_SOUNDS if hears else ())]
    template = template_of(control[0])
    if hears:
        part = "{% elif p.type == 'audio' %}<|audio|>{% elif p.type == 'text'"
        template = template.replace("{% elif p.type == 'text'", part)
    ids = write_tokenizer(folder, control, template)
    text = TEXT | {
        "vocab_size": len(ids), "sliding_window": 9, "hidden_size_per_layer_input": 0,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "use_bidirectional_attention": "vision" if together else None, "global_head_dim": 32,
    }  # fmt: skip
    if small:
        text |= {
            "hidden_size_per_layer_input": 6, "num_kv_shared_layers": 1, "pad_token_id": 3,
            "use_double_wide_mlp": True, "vocab_size_per_layer_input": len(ids),
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        }  # fmt: skip
    tower = {
        "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "patch_size": 6,
        "pooling_kernel_size": 2, "position_embedding_size": 20, "standardize": True,
    } | sight  # fmt: skip
    config = transformers.Gemma4Config(
        text_config=text, vision_config=tower, audio_config=hears, image_token_id=ids["<|image|>"],
        boi_token_id=ids["<|image>"], eoi_token_id=ids["<image|>"],
        audio_token_id=ids.get("<|audio|>", 258881),
    )  # fmt: skip
    rules = {
        "patch_size": 6, "max_soft_tokens": 6, "pooling_kernel_size": 2, "do_normalize": False,
        "image_mean": [0.0] * 3, "image_std": [1.0] * 3,
        "image_processor_type": "Gemma4ImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    if hears:
        extractor = {"feature_extractor_type": "Gemma4AudioFeatureExtractor", "feature_size": 16}
        written = {"image_processor": rules, "feature_extractor": extractor}
        (folder / "processor_config.json").write_text(json.dumps(written))
    made = saved(folder, config, "Gemma4ForConditionalGeneration")
    if tower["standardize"]:
        sight_model = made.model.vision_tower
        sight_model.std_bias.copy_(torch.randn(24) * 0.1)
        sight_model.std_scale.copy_(torch.rand(24) + 0.5)
        made.save_pretrained(folder)
    if tower.get("use_clipped_linears"):
        bound_clipped(made.model.vision_tower)
        made.save_pretrained(folder)
    if hears and hears.get("use_clipped_linears", True):
        bound_clipped(made.model.audio_tower)
        made.save_pretrained(folder)
    return made


def gemma4_small(folder: Path, **sight: Any) -> Any:
    """Write a Gemma 4 with per-layer inputs and clipped matrices, as E2B and E4B have them."""
    own = {"use_clipped_linears": True, "standardize": False} | sight
    return gemma4(folder, together=False, small=True, **own)


MINICPM = ["<|image_pad|>", "<image>", "</image>", "<slice>", "</slice>", "<image_id>",
           "</image_id>"]  # fmt: skip
LINEAR = {
    "layer_types": ["linear_attention", "full_attention", "full_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip


def minicpmv4_6(folder: Path, kind: str = "MiniCPMV4_6", **sight: Any) -> Any:
    """Write a MiniCPM-V 4.6 of slices near 112² pixels; kind "MiniCPMOcr": of four times the rows.

    Keys of the folder's top among `sight` are written there.
    """
    ids = write_tokenizer(folder, MINICPM, template_of(MINICPM[0]))
    rope = {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.25}
    text = TEXT | LINEAR | {
        "vocab_size": len(ids), "hidden_size": 64, "head_dim": 32, "rope_parameters": rope,
        "model_type": "qwen3_5_text",
    }  # fmt: skip
    top = {key: sight.pop(key) for key in ("downsample_mode", "merger_times") if key in sight}
    if kind == "MiniCPMV4_7":
        rope["mrope_section"] = [2, 1, 1]
        names = {f"{role}_id": f"<{'/' * (role.split('_')[1] == 'end')}{role.split('_')[0]}>"
                 for role in ("image_start", "image_end", "slice_start", "slice_end")}  # fmt: skip
        top |= {role: ids[name] for role, name in names.items()} | {"newline_id": ids["Ċ"]}
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=SIGLIP | {"num_hidden_layers": 3} | sight,
        image_token_id=ids[MINICPM[0]], video_token_id=3, insert_layer_id=1, **top,
    )  # fmt: skip
    rules = {
        "scale_resolution": 112, "max_slice_nums": 4, "patch_size": 14,
        "downsample_mode": config.downsample_mode,
        "image_processor_type": f"{kind}ImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return saved(folder, config, f"{kind}ForConditionalGeneration")


def minicpmv4_7(folder: Path, **sight: Any) -> Any:
    """Write a MiniCPM-V 4.7: a 4.6 whose configuration knows the ids of markers."""
    return minicpmv4_6(folder, "MiniCPMV4_7", **sight)


def minicpm_ocr(folder: Path, **sight: Any) -> Any:
    """Write a MiniCPM-OCR."""
    return minicpmv4_6(folder, "MiniCPMOcr", **sight)


def kimi_k25(folder: Path, **sight: Any) -> Any:
    """Write a Kimi K2.5 of at most 24 patches of 6 pixels, and a table of 5 × 5 positions."""
    ids = write_tokenizer(folder, ["<|media_pad|>"], template_of("<|media_pad|>"))
    text = TEXT | {
        "vocab_size": len(ids), "num_key_value_heads": 4, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1, "q_lora_rank": 14, "kv_lora_rank": 16, "v_head_dim": 12,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "model_type": "deepseek_v3",
    }  # fmt: skip
    text.pop("head_dim")
    tower = {
        "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 2, "patch_size": 6, "pos_emb_height": 5, "pos_emb_width": 5,
    } | sight  # fmt: skip
    config = transformers.Kimi_K25Config(
        text_config=text, vision_config=tower, image_token_id=ids["<|media_pad|>"],
        projection_hidden_size=32, video_token_id=3, tie_word_embeddings=False,
    )  # fmt: skip
    rules = {
        "patch_size": 6, "max_patches": 24, "size": {"max_height": 8, "max_width": 8},
        "image_processor_type": "Kimi_K25ImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    made = saved(folder, config, "Kimi_K25ForConditionalGeneration")
    file = folder / "model.safetensors"
    published = {  # what transformers writes, and what the published folder has
        "language_model.model.blocks.": "language_model.model.layers.",
        "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
        "model.mm_projector.": "mm_projector.",
    }
    tensors = load_file(file)
    for theirs, name in published.items():
        tensors = {
            name + key.removeprefix(theirs) if key.startswith(theirs) else key: tensor
            for key, tensor in tensors.items()
        }
    save_file(tensors, file)
    return made


def kimi_vl(folder: Path) -> Any:
    """Write a Kimi-VL: a Kimi K2.5 with the names and keys that Kimi-VL's folders have."""
    made = kimi_k25(folder)
    file = folder / "model.safetensors"
    names = {f"mm_projector.proj.{n}.": f"linear_{n // 2 + 1}." for n in (0, 2)}
    names |= {"mm_projector.": ""}
    tensors = {}
    for name, tensor in load_file(file).items():
        theirs = next((one for one in names if name.startswith(one)), None)
        own = (
            f"multi_modal_projector.{names[theirs]}{name.removeprefix(theirs)}" if theirs else name
        )
        tensors[own] = tensor
    save_file(tensors, file)
    config = json.loads((folder / "config.json").read_text())
    sight = config["vision_config"]
    config |= {"model_type": "kimi_vl", "media_placeholder_token_id": config.pop("image_token_id")}
    for edge in ("height", "width"):
        sight[f"init_pos_emb_{edge}"] = sight.pop(f"pos_emb_{edge}")
    sight["model_type"] = "moonvit"
    (folder / "config.json").write_text(json.dumps(config))
    rules = {
        "in_token_limit": 24, "patch_size": 6, "pad_input": True, "num_pooled_tokens": 1024,
        "merge_kernel_size": [2, 2], "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        "image_processor_type": "KimiVLImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return made


def minicpmv(folder: Path, **sight: Any) -> Any:
    """Write a MiniCPM-V; see `minicpmv_folders`, which writes files with what this module has."""
    import minicpmv_folders

    return minicpmv_folders.minicpmv(folder, **sight)
