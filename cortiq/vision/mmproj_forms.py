"""Kinds of towers in llama.cpp's files: what their metadata and tensors are called in folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cortiq.formats.gguf import GGUFFile
from cortiq.vision.image import CLIP_DEVIATION, CLIP_MEAN, RESAMPLING

Metadata = Mapping[str, Any]
NUMBERS = {name: number for number, name in RESAMPLING.items()}
VISION = "clip.vision."
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


def _gemma3_keys(file: GGUFFile) -> dict[str, Any]:
    """Return rows of an image: squares of 4 × 4 patches unless the file says; norms hold 1 + w."""
    metadata = file.metadata
    side = metadata["clip.vision.image_size"] // metadata["clip.vision.patch_size"]
    pool = metadata.get("clip.vision.projector.scale_factor", 4)
    return {
        "model_type": "gemma3", "mm_tokens_per_image": (side // pool) ** 2, "soft_offset": 0.0,
    }  # fmt: skip


def _gemma3_rules(metadata: Metadata) -> dict[str, Any]:
    edge = metadata["clip.vision.image_size"]
    return {"size": {"height": edge, "width": edge}, "resample": NUMBERS["bilinear"]}


def _idefics3_rules(metadata: Metadata) -> dict[str, Any]:
    edge = metadata["clip.vision.image_size"]
    longest = metadata.get("clip.vision.preproc_image_size", 4 * edge)
    return {
        "size": {"longest_edge": longest}, "max_image_size": {"longest_edge": edge},
        "resample": NUMBERS["lanczos"],
    }  # fmt: skip


def _llava_keys(file: GGUFFile) -> dict[str, Any]:
    """Return the layers that are read: those that the file names, or its last one.

    A file leaves out the layers after the one that is read.
    """
    count = int(file.metadata["clip.vision.block_count"])
    read = file.metadata.get("clip.vision.feature_layer")
    layers = [count] if read is None else [int(n) for n in read]
    return {"model_type": "llava", "vision_feature_layer": layers}


def _llava_rules(metadata: Metadata) -> dict[str, Any]:
    edge = metadata["clip.vision.image_size"]
    return {
        "size": {"shortest_edge": edge}, "crop_size": {"height": edge, "width": edge},
        "resample": NUMBERS["bicubic"], "image_mean": CLIP_MEAN, "image_std": CLIP_DEVIATION,
    }  # fmt: skip


def _qwen_rules(metadata: Metadata) -> dict[str, Any]:
    """Return the limits of pixels, where the file has them."""
    names = {"min_pixels": "image_min_pixels", "max_pixels": "image_max_pixels"}
    found = {key: metadata.get(f"{VISION}{name}") for key, name in names.items()}
    return {key: int(value) for key, value in found.items() if value is not None}


def _qwen2_sight(file: GGUFFile) -> dict[str, Any]:
    """Return the keys of Qwen2-VL, whose `hidden_size` is the text model's."""
    width, inner = (file.metadata[VISION + f"{n}_length"] for n in ("embedding", "feed_forward"))
    return {"embed_dim": width, "mlp_ratio": inner / width}


def _qwen2_5_sight(file: GGUFFile) -> dict[str, Any]:
    """Return windows, and the layers without them: the last of every so many."""
    every, count = (int(file.metadata[VISION + n]) for n in ("n_wa_pattern", "block_count"))
    window = int(file.metadata.get(f"{VISION}window_size", 112))
    return {"window_size": window, "fullatt_block_indexes": [*range(every - 1, count, every)]}


def _qwen3_sight(file: GGUFFile) -> dict[str, Any]:
    """Return the layers whose rows are the text model's, too."""
    deep = file.metadata.get(f"{VISION}is_deepstack_layers", ())
    return {"deepstack_visual_indexes": [n for n, flag in enumerate(deep) if flag]}


def _qwen(
    kind: str,
    sight: Callable[[GGUFFile], dict[str, Any]],
    mlp: Mapping[str, str],
    merger: Mapping[str, str],
) -> Form:
    """Return the form of a Qwen's tower."""
    outside = {"v.patch_embd": "patch_embed.proj", "v.position_embd": "pos_embed"}
    return Form(
        "<|image_pad|>", "visual.",
        {name: f"visual.merger.{mine}" for name, mine in merger.items()},
        lambda file: {"model_type": kind}, _qwen_rules,
        fields=QWEN_FIELDS, sight=sight, blocks="blocks", outside=outside, frames=True,
        in_layer={**QWEN_LAYER, **{name: f"mlp.{mine}" for name, mine in mlp.items()}},
    )  # fmt: skip


def _pixtral_keys(file: GGUFFile) -> dict[str, Any]:
    """Return whether rows are of squares (Mistral 3), and whether matrices have biases."""
    merge = int(file.metadata.get(f"{VISION}spatial_merge_size", 1))
    keys = {"multimodal_projector_bias": "mm.1.bias" in file.tensors, "vision_feature_layer": -1}
    if merge > 1:
        return {**keys, "model_type": "mistral3", "spatial_merge_size": merge}
    return {**keys, "model_type": "llava", "vision_feature_select_strategy": "full"}


def _pixtral_rules(metadata: Metadata) -> dict[str, Any]:
    return {"size": {"longest_edge": metadata[f"{VISION}image_size"]}}


def _internvl_sight(file: GGUFFile) -> dict[str, Any]:
    """Return what a layer has by the tensors that there are."""
    first = "v.blk.0."
    means = "v.post_ln.weight" not in file.tensors
    return {
        "attention_bias": f"{first}attn_q.bias" in file.tensors, "use_mean_pooling": means,
        "use_qk_norm": f"{first}attn_q_norm.weight" in file.tensors,
        "norm_type": "layer_norm" if f"{first}ln1.bias" in file.tensors else "rms_norm",
        "hidden_act": "gelu",
    }  # fmt: skip


def _internvl_rules(metadata: Metadata) -> dict[str, Any]:
    """Return tiles as the family has them, in the numbers that the file says."""
    edge = metadata[f"{VISION}image_size"]
    names = {"min_patches": "preproc_min_tiles", "max_patches": "preproc_max_tiles"}
    found = {key: metadata.get(f"{VISION}{name}") for key, name in names.items()}
    tiles = {key: int(value) for key, value in found.items() if value is not None}
    return {"size": {"height": edge, "width": edge}, **tiles}


FORMS: Mapping[str, Form] = {
    "gemma3": Form(
        "<image_soft_token>", "vision_tower.vision_model.",
        {
            "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
            "mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm",
        },
        _gemma3_keys, _gemma3_rules,
    ),
    "idefics3": Form(
        "<image>", "model.vision_model.",
        {"mm.model.fc": "model.connector.modality_projection.proj"},
        lambda file: {
            "model_type": "idefics3",
            "scale_factor": file.metadata.get("clip.vision.projector.scale_factor", 4),
        },
        _idefics3_rules,
    ),
    "mlp": Form(
        "<image>", "vision_tower.vision_model.",
        {
            "mm.0": "multi_modal_projector.linear_1", "mm.2": "multi_modal_projector.linear_2",
            "v.class_embd": "vision_tower.vision_model.embeddings.class_embedding",
        },
        _llava_keys, _llava_rules, sight=lambda file: {"model_type": "clip_vision_model"},
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
        _pixtral_keys, _pixtral_rules, blocks="transformer.layers",
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
        _internvl_rules, sight=_internvl_sight, blocks="encoder.layer",
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
    "qwen2vl_merger": _qwen(
        "qwen2_vl", _qwen2_sight, {"ffn_up": "fc1", "ffn_down": "fc2"},
        {"v.post_ln": "ln_q", "mm.0": "mlp.0", "mm.2": "mlp.2"},
    ),
    "qwen2.5vl_merger": _qwen(
        "qwen2_5_vl", _qwen2_5_sight,
        {"ffn_up": "up_proj", "ffn_gate": "gate_proj", "ffn_down": "down_proj"},
        {"v.post_ln": "ln_q", "mm.0": "mlp.0", "mm.2": "mlp.2"},
    ),
    "qwen3vl_merger": _qwen(
        "qwen3_vl", _qwen3_sight, {"ffn_up": "linear_fc1", "ffn_down": "linear_fc2"},
        {"v.post_ln": "norm", "mm.0": "linear_fc1", "mm.2": "linear_fc2"},
    ),
}  # fmt: skip
"""By `clip.projector_type`."""
