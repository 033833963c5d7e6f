"""Small folders of Gemma 3n that see and hear, whose towers for images are plain PyTorch's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mobilenet_v5
import spoken_folders
import transformers
import vision_folders
from transformers.models.gemma3n import modeling_gemma3n as gemma3n_model

WIDTH = 20
"""Channels of the tower's rows."""
GEOMETRIES = {
    "published": (64, 4, 8, (
        (("er", 12, 24, 3, 2), ("er", 12, 20, 3, 1)),
        (("uir", 16, 30, 3, 5, 2), ("uir", 16, 24, 5, 0, 1), ("uir", 16, 24, 3, 0, 1)),
        (("uir", 24, 40, 5, 5, 2), ("uir", 24, 28, 5, 0, 1), ("uir", 24, 24, 0, 0, 1),
         ("mqa", 2, 8, 3), ("uir", 24, 40, 0, 0, 1), ("mqa", 2, 8, 3), ("uir", 24, 32, 0, 0, 1)),
        (("uir", 32, 44, 5, 5, 2), ("mqa", 4, 8, 0), ("uir", 32, 40, 0, 0, 1), ("mqa", 4, 8, 0),
         ("uir", 32, 40, 0, 0, 1)),
    )),
    "odd": (96, 9, 5, (
        (("er", 7, 9, 3, 2), ("er", 11, 9, 5, 1), ("er", 11, 6, 3, 1)),
        (("uir", 13, 10, 7, 3, 2),),
        (("uir", 10, 12, 3, 3, 2), ("mqa", 3, 5, 5), ("uir", 10, 11, 3, 0, 1)),
        (("uir", 9, 12, 3, 7, 2), ("mqa", 1, 6, 0), ("uir", 9, 10, 5, 0, 1)),
    )),
    "halved first": (128, 4, 4, (
        (("er", 6, 8, 3, 2),),
        (("uir", 8, 10, 5, 0, 2), ("uir", 8, 10, 0, 0, 1)),
        (("uir", 8, 12, 0, 5, 2), ("mqa", 2, 4, 0), ("mqa", 2, 4, 3)),
        (("uir", 12, 12, 3, 0, 2), ("mqa", 2, 4, 0)),
    )),
}  # fmt: skip
"""Pixels of an edge, rows of an image, channels of the stem's map, blocks by stage."""
VISION = ["<end_of_image>", "<image_soft_token>", "<unused_image>"]
AUDIO = ["<end_of_audio>", "<audio_soft_token>", "<unused0>", "<unused1>"]


def with_tower(geometry: str) -> Any:
    """Return what makes Gemma 3n of transformers with a tower of plain PyTorch."""
    made = transformers.AutoModel.from_config
    _, rows, stem, stages = GEOMETRIES[geometry]

    def from_config(config: Any) -> Any:
        if "vision" not in config.model_type:
            return made(config)
        return mobilenet_v5.MobileNetV5(stem, stages, WIDTH, round(rows**0.5))

    return patch.object(gemma3n_model.AutoModel, "from_config", from_config)


def gemma3n(folder: Path, geometry: str = "published", **text: Any) -> Any:
    """Write a Gemma 3n that sees and hears."""
    edge, rows, _, _ = GEOMETRIES[geometry]
    control = ["<start_of_image>", "<start_of_audio>"]
    template = vision_folders.template_of("<image_soft_token>").replace(
        "{% elif p.type == 'text'",
        "{% elif p.type == 'audio' %}<audio_soft_token>{% elif p.type == 'text'",
    )
    ids = vision_folders.write_tokenizer(folder, control, template, [*VISION, *AUDIO])
    first, heard = ids[VISION[0]], ids[AUDIO[0]]
    config = transformers.Gemma3nConfig(
        text_config={
            "vocab_size": len(ids), "hidden_size": 64, "intermediate_size": 40,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "sliding_window": 9, "num_kv_shared_layers": 0, "laurel_rank": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": first,
            "activation_sparsity_pattern": [0.9, 0.0, 0.0],
        } | text,
        audio_config=spoken_folders.GEMMA3N_ENCODER | {"vocab_size": 4, "vocab_offset": heard},
        vision_config={"hidden_size": WIDTH, "vocab_size": 3, "vocab_offset": first},
        audio_token_id=ids[AUDIO[1]], eoa_token_id=heard, boa_token_id=ids[control[1]],
        audio_soft_tokens_per_image=47, vision_soft_tokens_per_image=rows,
        image_token_id=ids[VISION[1]], eoi_token_id=first, boi_token_id=ids[control[0]],
    )  # fmt: skip
    rules = {
        "feature_extractor_type": "Gemma3nAudioFeatureExtractor", "feature_size": 16,
        "size": {"height": edge, "width": edge}, "do_normalize": False, "resample": 2,
        "image_processor_type": "SiglipImageProcessorFast", "image_seq_length": rows,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    with with_tower(geometry):
        return vision_folders.saved(folder, config, "Gemma3nForConditionalGeneration")
