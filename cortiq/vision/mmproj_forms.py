"""Kinds of towers in llama.cpp's files: what their metadata and tensors are called in folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cortiq.formats.gguf import GGUFFile
from cortiq.vision.mmproj_keys import (
    VISION,
    Metadata,
    gemma3_keys,
    gemma3_rules,
    idefics3_rules,
    internvl_rules,
    internvl_sight,
    llava_keys,
    llava_rules,
    minicpmv_keys,
    minicpmv_rules,
    minicpmv_sight,
    pixtral_keys,
    pixtral_rules,
    qwen2_5_sight,
    qwen2_sight,
    qwen3_sight,
    qwen_rules,
)

IN_LAYER: Mapping[str, str] = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj", "ln1": "layer_norm1", "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
}  # fmt: skip
OUTSIDE: Mapping[str, str] = {
    "v.patch_embd": "embeddings.patch_embedding",
    "v.position_embd": "embeddings.position_embedding", "v.post_ln": "post_layernorm",
}  # fmt: skip
FIELDS: Mapping[str, str] = {
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers", "attention.head_count": "num_attention_heads",
    "image_size": "image_size", "patch_size": "patch_size",
    "attention.layer_norm_epsilon": "layer_norm_eps",
}  # fmt: skip
QWEN_FIELDS: Mapping[str, str] = {
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "block_count": "depth", "attention.head_count": "num_heads", "patch_size": "patch_size",
}  # fmt: skip
QWEN_LAYER: Mapping[str, str] = {
    **{f"attn_{role}": f"attn.{role}" for role in ("q", "k", "v", "qkv")},
    "attn_out": "attn.proj", "ln1": "norm1", "ln2": "norm2",
}  # fmt: skip
GATED: Mapping[str, str] = {f"ffn_{role}": f"{role}_proj" for role in ("up", "gate", "down")}
MERGER: Mapping[str, str] = {"v.post_ln": "ln_q", "mm.0": "mlp.0", "mm.2": "mlp.2"}


@dataclass(frozen=True)
class Form:
    """A kind of such a file.

    Attributes
    ----------
    token : text of the token whose rows are an image's. tower : prefix of the tower in folders.
    tensors : of the projector, by name in the file, with or without its end.
    keys : further keys of config.json. rules : of the processor's file.
    fields : keys of `vision_config`, by the key of the metadata. sight : further ones.
    blocks, in_layer, outside : names of the tower's layers, tensors of a layer, others.
    frames : the kernel of patches has a tensor for each frame. bare : names without an end.
    permuted : regular expression of a layer's tensors whose heads have pairs side by side.
    """

    token: str
    tower: str
    tensors: Mapping[str, str]
    keys: Callable[[GGUFFile], dict[str, Any]]
    rules: Callable[[Metadata], dict[str, Any]]
    fields: Mapping[str, str] = field(default_factory=lambda: FIELDS)
    sight: Callable[[GGUFFile], dict[str, Any]] = lambda file: {}
    blocks: str = "encoder.layers"
    in_layer: Mapping[str, str] = field(default_factory=lambda: IN_LAYER)
    outside: Mapping[str, str] = field(default_factory=lambda: OUTSIDE)
    frames: bool = False
    bare: frozenset[str] = frozenset()
    permuted: str = ""


def _qwen(
    kind: str,
    sight: Callable[[GGUFFile], dict[str, Any]],
    mlp: Mapping[str, str],
    merger: Mapping[str, str],
    token: str = "<|image_pad|>",
) -> Form:
    """Return the form of a Qwen's tower."""
    outside = {"v.patch_embd": "patch_embed.proj", "v.position_embd": "pos_embed"}
    return Form(
        token, "visual.",
        {name: f"visual.merger.{mine}" for name, mine in merger.items()},
        lambda file: {"model_type": kind}, qwen_rules,
        fields=QWEN_FIELDS, sight=sight, blocks="blocks", outside=outside, frames=True,
        in_layer={**QWEN_LAYER, **{name: f"mlp.{mine}" for name, mine in mlp.items()}},
    )  # fmt: skip


FORMS: Mapping[str, Form] = {
    "gemma3": Form(
        "<image_soft_token>", "vision_tower.vision_model.",
        {
            "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
            "mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm",
        },
        gemma3_keys, gemma3_rules,
    ),
    "idefics3": Form(
        "<image>", "model.vision_model.",
        {"mm.model.fc": "model.connector.modality_projection.proj"},
        lambda file: {
            "model_type": "idefics3",
            "scale_factor": file.metadata.get("clip.vision.projector.scale_factor", 4),
        },
        idefics3_rules,
    ),
    "mlp": Form(
        "<image>", "vision_tower.vision_model.",
        {
            "mm.0": "multi_modal_projector.linear_1", "mm.2": "multi_modal_projector.linear_2",
            "v.class_embd": "vision_tower.vision_model.embeddings.class_embedding",
        },
        llava_keys, llava_rules, sight=lambda file: {"model_type": "clip_vision_model"},
        outside={**OUTSIDE, "v.pre_ln": "pre_layrnorm"},
    ),
    "pixtral": Form(
        "[IMG]", "vision_tower.",
        {
            "mm.1": "multi_modal_projector.linear_1", "mm.2": "multi_modal_projector.linear_2",
            "mm.input_norm": "multi_modal_projector.norm",
            "mm.patch_merger": "multi_modal_projector.patch_merger.merging_layer",
            "v.token_embd.img_break": "unread.img_break",  # a row of the text model's table
        },
        pixtral_keys, pixtral_rules, blocks="transformer.layers",
        sight=lambda file: {
            "model_type": "pixtral",
            "hidden_act": "silu" if file.metadata.get("clip.use_silu") else "gelu",
        },
        in_layer={
            **{f"attn_{role}": f"attention.{role}_proj" for role in ("q", "k", "v")},
            "attn_out": "attention.o_proj", "ln1": "attention_norm", "ln2": "ffn_norm",
            **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
        },
        fields={k: v for k, v in FIELDS.items() if v != "layer_norm_eps"},
        outside={"v.patch_embd": "patch_conv", "v.pre_ln": "ln_pre"},
        permuted=r"attention\.[qk]_proj\.(weight|bias)",
    ),
    "internvl": Form(
        "<IMG_CONTEXT>", "vision_tower.",
        {
            "mm.model.mlp.0": "multi_modal_projector.layer_norm",
            "mm.model.mlp.1": "multi_modal_projector.linear_1",
            "mm.model.mlp.3": "multi_modal_projector.linear_2",
            "v.class_embd": "vision_tower.embeddings.cls_token",
        },
        lambda file: {
            "model_type": "internvl",
            "downsample_ratio": 1 / file.metadata.get(f"{VISION}projector.scale_factor", 2),
        },
        internvl_rules, sight=internvl_sight, blocks="encoder.layer",
        in_layer={
            **{f"attn_{role}": f"attention.{role}_proj" for role in ("q", "k", "v")},
            **{f"attn_{role}_norm": f"attention.{role}_norm" for role in ("q", "k")},
            "attn_out": "attention.projection_layer", "ln1": "layernorm_before",
            "ln2": "layernorm_after", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
            "ls1": "lambda_1", "ls2": "lambda_2",
        },
        outside={
            "v.patch_embd": "embeddings.patch_embeddings.projection", "v.post_ln": "layernorm",
            "v.position_embd": "embeddings.position_embeddings",
        },
        bare=frozenset({"lambda_1", "lambda_2", "embeddings.position_embeddings"}),
    ),
    "resampler": Form(
        "<unk>", "vpm.",
        {
            **{f"resampler.attn.{role}": f"resampler.attn.{role}" for role in "qkv"},
            **{f"resampler.ln_{n}": f"resampler.ln_{n}" for n in ("q", "kv", "post")},
            "resampler.attn.out": "resampler.attn.out_proj", "resampler.kv": "resampler.kv_proj",
            "resampler.proj": "resampler.out",  # rows and columns are not swapped, as in folders
            "resampler.query": "resampler.query",
            "resampler.pos_embed_k": "resampler.pos_embed_k",
        },
        minicpmv_keys, minicpmv_rules, sight=minicpmv_sight,
    ),
    "qwen2vl_merger": _qwen(
        "qwen2_vl", qwen2_sight, {"ffn_up": "fc1", "ffn_down": "fc2"}, MERGER,
    ),
    "qwen2.5vl_merger": _qwen("qwen2_5_vl", qwen2_5_sight, GATED, MERGER),
    "qwen2.5o": _qwen("qwen2_5_omni_thinker", qwen2_5_sight, GATED, MERGER, "<|IMAGE|>"),
    "qwen3vl_merger": _qwen(
        "qwen3_vl", qwen3_sight, {"ffn_up": "linear_fc1", "ffn_down": "linear_fc2"},
        {"v.post_ln": "norm", "mm.0": "linear_fc1", "mm.2": "linear_fc2"},
    ),
}  # fmt: skip
"""By `clip.projector_type`."""
