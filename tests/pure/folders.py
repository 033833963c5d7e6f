"""Small Hugging Face folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import safetensors.numpy


def write_llama(folder: Path, model_type: str) -> None:
    """A Hugging Face folder of one small layer."""
    shapes = {
        "embed_tokens": (40, 16), "norm": (16,), "layers.0.input_layernorm": (16,),
        "layers.0.post_attention_layernorm": (16,), "layers.0.self_attn.q_proj": (16, 16),
        "layers.0.self_attn.k_proj": (16, 16), "layers.0.self_attn.v_proj": (16, 16),
        "layers.0.self_attn.o_proj": (16, 16), "layers.0.mlp.gate_proj": (32, 16),
        "layers.0.mlp.up_proj": (32, 16), "layers.0.mlp.down_proj": (16, 32),
    }  # fmt: skip
    weights = {f"model.{name}.weight": np.ones(shape, "<f4") for name, shape in shapes.items()}
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    config = {
        "model_type": model_type, "vocab_size": 40, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
