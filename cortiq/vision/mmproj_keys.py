"""Keys of config.json and of the processor's file that llama.cpp's towers have as metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cortiq.errors import UnsupportedError
from cortiq.formats.gguf import GGUFFile
from cortiq.vision.image import CLIP_DEVIATION, CLIP_MEAN, RESAMPLING

Metadata = Mapping[str, Any]
NUMBERS = {name: number for number, name in RESAMPLING.items()}
VISION = "clip.vision."
RESAMPLED = (3, 4, 5, 6, 100045)
"""Versions of MiniCPM-V and MiniCPM-o in files: 2.6 twice, 4.0, 4.5 twice; all have 64 rows a slice
where the file does not say."""


def gemma3_keys(file: GGUFFile) -> dict[str, Any]:
    """Return rows of an image: squares of 4 × 4 patches unless the file says; norms hold 1 + w."""
    metadata = file.metadata
    side = metadata["clip.vision.image_size"] // metadata["clip.vision.patch_size"]
    pool = metadata.get("clip.vision.projector.scale_factor", 4)
    return {
        "model_type": "gemma3", "mm_tokens_per_image": (side // pool) ** 2, "soft_offset": 0.0,
    }  # fmt: skip


def gemma3_rules(metadata: Metadata) -> dict[str, Any]:
    """Return the size of the tile."""
    edge = metadata["clip.vision.image_size"]
    return {"size": {"height": edge, "width": edge}, "resample": NUMBERS["bilinear"]}


def idefics3_rules(metadata: Metadata) -> dict[str, Any]:
    """Return the longest edges of an image and of a tile."""
    edge = metadata["clip.vision.image_size"]
    longest = metadata.get("clip.vision.preproc_image_size", 4 * edge)
    return {
        "size": {"longest_edge": longest}, "max_image_size": {"longest_edge": edge},
        "resample": NUMBERS["lanczos"],
    }  # fmt: skip


def llava_keys(file: GGUFFile) -> dict[str, Any]:
    """Return the layers that are read: those that the file names, or its last one.

    A file leaves out the layers after the one that is read.
    """
    count = int(file.metadata["clip.vision.block_count"])
    read = file.metadata.get("clip.vision.feature_layer")
    layers = [count] if read is None else [int(n) for n in read]
    return {"model_type": "llava", "vision_feature_layer": layers}


def llava_rules(metadata: Metadata) -> dict[str, Any]:
    """Return the size of the image's middle."""
    edge = metadata["clip.vision.image_size"]
    return {
        "size": {"shortest_edge": edge}, "crop_size": {"height": edge, "width": edge},
        "resample": NUMBERS["bicubic"], "image_mean": CLIP_MEAN, "image_std": CLIP_DEVIATION,
    }  # fmt: skip


def qwen_rules(metadata: Metadata) -> dict[str, Any]:
    """Return the limits of pixels, where the file has them."""
    names = {"min_pixels": "image_min_pixels", "max_pixels": "image_max_pixels"}
    found = {key: metadata.get(f"{VISION}{name}") for key, name in names.items()}
    return {key: int(value) for key, value in found.items() if value is not None}


def qwen2_sight(file: GGUFFile) -> dict[str, Any]:
    """Return the keys of Qwen2-VL, whose `hidden_size` is the text model's."""
    width, inner = (file.metadata[VISION + f"{n}_length"] for n in ("embedding", "feed_forward"))
    return {"embed_dim": width, "mlp_ratio": inner / width}


def qwen2_5_sight(file: GGUFFile) -> dict[str, Any]:
    """Return windows, and the layers without them: the last of every so many."""
    every, count = (int(file.metadata[VISION + n]) for n in ("n_wa_pattern", "block_count"))
    window = int(file.metadata.get(f"{VISION}window_size", 112))
    return {"window_size": window, "fullatt_block_indexes": [*range(every - 1, count, every)]}


def qwen3_sight(file: GGUFFile) -> dict[str, Any]:
    """Return the layers whose rows are the text model's, too."""
    deep = file.metadata.get(f"{VISION}is_deepstack_layers", ())
    return {"deepstack_visual_indexes": [n for n, flag in enumerate(deep) if flag]}


def pixtral_keys(file: GGUFFile) -> dict[str, Any]:
    """Return whether rows are of squares (Mistral 3), and whether matrices have biases."""
    merge = int(file.metadata.get(f"{VISION}spatial_merge_size", 1))
    keys = {"multimodal_projector_bias": "mm.1.bias" in file.tensors, "vision_feature_layer": -1}
    if merge > 1:
        return {**keys, "model_type": "mistral3", "spatial_merge_size": merge}
    return {**keys, "model_type": "llava", "vision_feature_select_strategy": "full"}


def pixtral_rules(metadata: Metadata) -> dict[str, Any]:
    """Return the longest edge."""
    return {"size": {"longest_edge": metadata[f"{VISION}image_size"]}}


def internvl_sight(file: GGUFFile) -> dict[str, Any]:
    """Return what a layer has by the tensors that there are."""
    first = "v.blk.0."
    means = "v.post_ln.weight" not in file.tensors
    return {
        "attention_bias": f"{first}attn_q.bias" in file.tensors, "use_mean_pooling": means,
        "use_qk_norm": f"{first}attn_q_norm.weight" in file.tensors,
        "norm_type": "layer_norm" if f"{first}ln1.bias" in file.tensors else "rms_norm",
        "hidden_act": "gelu",
    }  # fmt: skip


def internvl_rules(metadata: Metadata) -> dict[str, Any]:
    """Return tiles as the family has them, in the numbers that the file says."""
    edge = metadata[f"{VISION}image_size"]
    names = {"min_patches": "preproc_min_tiles", "max_patches": "preproc_max_tiles"}
    found = {key: metadata.get(f"{VISION}{name}") for key, name in names.items()}
    tiles = {key: int(value) for key, value in found.items() if value is not None}
    return {"size": {"height": edge, "width": edge}, **tiles}


def minicpmv_keys(file: GGUFFile) -> dict[str, Any]:
    """Return the rows of a slice; UnsupportedError for versions of another projector."""
    version = int(file.metadata.get("clip.minicpmv_version", 0))
    if version not in RESAMPLED:
        hint = "MiniCPM-V 2.6, 4.0 and 4.5 are"
        raise UnsupportedError(
            f"version {version} of MiniCPM-V is not read", where=str(file.path), hint=hint
        )
    rows = int(file.metadata.get("clip.minicpmv_query_num", 0)) or 64
    return {"model_type": "minicpmv", "query_num": rows}


def minicpmv_sight(file: GGUFFile) -> dict[str, Any]:
    """Return the edge that learned positions are for; the file's is that of slices."""
    count = file.tensors["v.position_embd.weight"].shape[0]
    return {"image_size": math.isqrt(count) * int(file.metadata[f"{VISION}patch_size"])}


def minicpmv_rules(metadata: Metadata) -> dict[str, Any]:
    """Return the edge of a slice."""
    return {"scale_resolution": int(metadata[f"{VISION}image_size"])}
