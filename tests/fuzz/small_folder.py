"""A small model of one layer, as a folder: what the mutants of folders begin with."""

from __future__ import annotations

import json

import numpy as np
from safetensors.numpy import save

from cortiq.tokenizer.byte_level import byte_alphabet

WIDTH, VOCABULARY = 32, 300
SHAPES = {
    "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32),
    "ffn_gate": (48, 32), "ffn_up": (48, 32), "ffn_down": (32, 48), "attn_norm": (32,),
    "ffn_norm": (32,),
}  # fmt: skip
FOLDER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
CONFIG = {
    "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": True,
    "rope_scaling": {"type": "linear", "factor": 2.0}, "architectures": ["LlamaForCausalLM"],
    "eos_token_id": [2, 3], "torch_dtype": "float32",
}  # fmt: skip


def weights() -> dict[str, np.ndarray]:
    """Tensors of one layer, by GGUF's names without prefix and end."""
    rng = np.random.default_rng(0)
    tensors = {n: rng.standard_normal(s).astype("f4") * 0.1 for n, s in SHAPES.items()}
    return tensors | {"token_embd": rng.standard_normal((VOCABULARY, WIDTH)).astype("f4")}


def folder_files() -> dict[str, bytes]:
    """Return the same model as a folder."""
    tensors = weights()
    named = {f"model.layers.0.{own}.weight": tensors[name] for name, own in FOLDER.items()}
    named["model.embed_tokens.weight"] = tensors["token_embd"]
    named["model.norm.weight"] = np.ones(WIDTH, "f4")
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors": save(named),
        "tokenizer.json": byte_level_json(),
        "tokenizer_config.json": json.dumps({"chat_template": template}).encode(),
        "generation_config.json": json.dumps({"eos_token_id": 2}).encode(),
    }


def byte_level_json() -> bytes:
    """A tokenizer.json of all bytes, two merges, and a token of its own."""
    pieces = [*byte_alphabet(), "he", "ll"]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}  # fmt: skip
    added = {"id": len(pieces), "content": "<end>", "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}  # fmt: skip
    model = {"type": "BPE", "vocab": {piece: n for n, piece in enumerate(pieces)},
             "merges": ["h e", "l l"]}  # fmt: skip
    made = {"version": "1.0", "added_tokens": [added], "normalizer": {"type": "NFC"},
            "pre_tokenizer": level, "post_processor": level, "decoder": level,
            "model": model}  # fmt: skip
    return json.dumps(made).encode()
