"""Small CMF files: a one-layer Llama whose matrices have any encodings, masks, and a skill."""

from __future__ import annotations

import json
import struct

import numpy as np

from cortiq.formats.cmf.encode import encode
from cortiq.formats.cmf.writer import TrailingSections, file_parts

WIDTH, INNER, VOCABULARY = 64, 96, 300
SHAPES = {
    "self_attn.q_proj.weight": (WIDTH, WIDTH), "self_attn.k_proj.weight": (32, WIDTH),
    "self_attn.v_proj.weight": (32, WIDTH), "self_attn.o_proj.weight": (WIDTH, WIDTH),
    "mlp.gate_proj.weight": (INNER, WIDTH), "mlp.up_proj.weight": (INNER, WIDTH),
    "mlp.down_proj.weight": (WIDTH, INNER), "input_layernorm.weight": (WIDTH,),
    "post_attention_layernorm.weight": (WIDTH,),
}  # fmt: skip
ARCH = {
    "arch_name": "llama", "hidden_size": WIDTH, "intermediate_size": INNER, "num_layers": 1,
    "num_attention_heads": 4, "num_kv_heads": 2, "head_dim": 16, "vocab_size": VOCABULARY,
    "layer_types": ["FullAttention"], "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}  # fmt: skip
MIXED = (
    "q8_row", "q8_2f", "q4_block", "q4_tiled", "q4tp", "q2tp", "vbit", "vbit_ro", "q1", "q1s",
    "q1t", "f16",
)  # fmt: skip


def values_of(seed=0):
    """The model's tensors by name."""
    rng = np.random.default_rng(seed)
    found = {f"model.layers.0.{n}": rng.standard_normal(s) * 0.1 for n, s in SHAPES.items()}
    found["model.embed_tokens.weight"] = rng.standard_normal((VOCABULARY, WIDTH))
    found["model.norm.weight"] = 1 + 0.1 * rng.standard_normal(WIDTH)
    return {name: value.astype(np.float32) for name, value in found.items()}


def tensors_of(values, encodings=MIXED):
    """Tensors with their bytes: matrices in turn in these encodings, vectors in f32."""
    found, turn = [], 0
    for name, value in values.items():
        dtype = "f32"
        if value.ndim == 2:
            dtype = encodings[turn % len(encodings)]
            turn += 1
        data = value.tobytes() if dtype == "f32" else encode(dtype, value)
        found.append((name, dtype, value.shape, data))
    return found


def header_of(**more):
    """A header of the model."""
    bundle = {"eos_token_ids": [2, 3], "bos_token_id": 1, "chat_template": "{{ messages }}"}
    return {
        "format": "cmf", "version": 2, "arch": ARCH, "quant_type": "VBIT",
        "tokenizer_config": bundle, **more,
    }  # fmt: skip


def masks_section(layers=1, loops=1):
    """A section of one mask, all of it used but neuron 3 of the first row."""
    row = np.full(INNER // 8, 255, np.uint8)
    rows = np.tile(row, (layers * loops, 1))
    rows[0, 0] &= 0xF7
    blob = rows.tobytes() + bytes([15]) * layers + b"\1"
    listed = {"task_id": 7, "name": "task", "sparsity": 0.1, "blob_len": len(blob)}
    meta, at = b"", 0
    while True:
        meta = json.dumps({"default_task": 7, "masks": [listed | {"blob_off": at}]}).encode()
        if at == -(-(8 + len(meta)) // 8) * 8:
            break
        at = -(-(8 + len(meta)) // 8) * 8
    return (struct.pack("<II", 1, len(meta)) + meta).ljust(at, b"\0") + blob


def cmf_bytes(encodings=MIXED, sections=None, **more):
    """The bytes of a file."""
    sections = TrailingSections() if sections is None else sections
    return b"".join(file_parts(header_of(**more), tensors_of(values_of(), encodings), sections))
