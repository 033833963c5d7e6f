"""Large checkpoints, made up for measurements: a Llama or a Mixtral of random weights.

A GGUF file has its matrices in Q4_K; a folder in bf16, FP8 (scales of 128 by 128) or NVFP4
(modelopt's), with a tokenizer of single bytes. Bytes repeat after some MiB.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

WIDTH, INNER, HEADS, KV_HEADS, VOCABULARY = 2048, 8192, 16, 4, 32000
SHAPES = {
    "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH // 4, WIDTH),
    "self_attn.v_proj": (WIDTH // 4, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER),
    "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,),
}  # fmt: skip
IN_GGUF = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
EXPERTS = 8
EXPERT_SHAPES = {
    name: shape for name, shape in SHAPES.items() if not name.startswith("mlp.")
} | {"block_sparse_moe.gate": (EXPERTS, WIDTH)} | {
    f"block_sparse_moe.experts.{expert}.{name}": shape for expert in range(EXPERTS)
    for name, shape in {"w1": (INNER, WIDTH), "w3": (INNER, WIDTH), "w2": (WIDTH, INNER)}.items()
}  # fmt: skip
"""A Mixtral's layer."""
LAYER = sum(prod(shape) for shape in SHAPES.values())
TABLE = VOCABULARY * WIDTH
CHUNK = 1 << 22


class FileTensor(NamedTuple):
    """A tensor of a folder, and the bytes that are repeated to fill it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pattern: bytes

    @property
    def nbytes(self) -> int:
        """Its size."""
        return prod(self.shape) * BYTES[self.dtype]


def tensors(
    layers: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES
) -> dict[str, tuple[int, ...]]:
    """Return shapes by name, as a folder has them."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens": (VOCABULARY, WIDTH)}
    for layer in range(layers):
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in shapes.items()}
    return found | {"model.norm": (WIDTH,)}


@cache
def _bf16(size: int) -> bytes:
    values = np.random.default_rng(0).standard_normal(size).astype("<f4") * 0.02
    return (values.view("<u4") >> 16).astype("<u2").tobytes()


@cache
def _bytes(stop: int) -> bytes:
    return np.random.default_rng(0).integers(0, stop, CHUNK, np.uint8).tobytes()


def bf16(name: str, shape: tuple[int, ...]) -> Iterator[FileTensor]:
    """Yield a tensor's entry in bf16."""
    yield FileTensor(f"{name}.weight", "BF16", shape, _bf16(CHUNK))


def fp8(name: str, shape: tuple[int, ...]) -> Iterator[FileTensor]:
    """Yield a matrix's codes in E4M3, and a scale for 128 rows and columns."""
    yield FileTensor(f"{name}.weight", "F8_E4M3", shape, _bytes(0x70))
    blocks = tuple(-(-n // 128) for n in shape)
    scales = np.full(1 << 10, 1e-4, "<f4").tobytes()
    yield FileTensor(f"{name}.weight_scale_inv", "F32", blocks, scales)


def nvfp4(name: str, shape: tuple[int, ...]) -> Iterator[FileTensor]:
    """Yield a matrix's codes in E2M1, an E4M3 scale for 16 columns, and one for all."""
    height, width = shape
    yield FileTensor(f"{name}.weight", "U8", (height, width // 2), _bytes(256))
    yield FileTensor(f"{name}.weight_scale", "F8_E4M3", (height, width // 16), b"\x38" * (1 << 16))
    yield FileTensor(f"{name}.weight_scale_2", "F32", (), np.full(1, 1e-3, "<f4").tobytes())


FOLDERS: Mapping[
    str, tuple[Callable[[str, tuple[int, ...]], Iterator[FileTensor]], dict[str, Any]]
] = {
    "bf16": (bf16, {}),
    "fp8": (fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "nvfp4": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "experts": (bf16, {}),
}
"""Writer of a folder's matrices by format, and the `quantization_config` that goes with it."""
BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}


def write_folder(folder: Path, gigabytes: float) -> Path:
    """Write a folder of so many bytes; its name is the format. The table and norms are in bf16."""
    entries, quantisation = FOLDERS[folder.name]
    mixture = folder.name == "experts"
    shapes = EXPERT_SHAPES if mixture else SHAPES

    def stored(layers: int) -> list[FileTensor]:
        return [
            part
            for name, shape in tensors(layers, shapes).items()
            for part in (entries if "proj" in name else bf16)(name, shape)
        ]

    one, two = (sum(part.nbytes for part in stored(count)) for count in (1, 2))
    layers = max(1, 1 + round((gigabytes * 1e9 - one) / (two - one)))
    folder.mkdir(parents=True)
    config = {
        "model_type": "mixtral" if mixture else "llama",
        "vocab_size": VOCABULARY, "hidden_size": WIDTH,
        "intermediate_size": INNER, "num_hidden_layers": layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        **({"quantization_config": quantisation} if quantisation else {}),
        **({"num_local_experts": EXPERTS, "num_experts_per_tok": 2} if mixture else {}),
    }  # fmt: skip
    vocabulary = {letter: i for i, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config))
    header, end, parts = {}, 0, stored(layers)
    for part in parts:
        start, end = end, end + part.nbytes
        entry = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": [start, end]}
        header[part.name] = entry
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part in parts:
            for start in range(0, part.nbytes, len(part.pattern)):
                file.write(part.pattern[: part.nbytes - start])
    return folder


def write_q4_k(path: Path, gigabytes: float) -> Path:
    """Write a GGUF file of so many bytes, matrices in Q4_K."""
    rate = 144 / 256
    layers = max(1, round((gigabytes * 1e9 - rate * TABLE) / (rate * LAYER)))
    path.parent.mkdir(parents=True)
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, value in {
        "context_length": 2048, "embedding_length": WIDTH, "block_count": layers,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
        "feed_forward_length": INNER, "rope.dimension_count": WIDTH // HEADS,
    }.items():  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    kind, block = gguf.GGMLQuantizationType.Q4_K, np.full(144, 0x35, np.uint8)
    block[:4] = np.array([1e-4, 1e-4], "<f2").view(np.uint8)
    names = {}
    for name, shape in tensors(layers).items():
        *_, layer = name.removeprefix("model.").split(".")[:2]
        stem = name.split(".", 3)[-1]
        own = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}.get(name)
        names[f"{own or f'blk.{layer}.{IN_GGUF[stem]}'}.weight"] = shape
    for name, shape in names.items():
        if len(shape) == 1:
            writer.add_tensor_info(name, shape, np.dtype("f4"), 4 * shape[0])
        else:
            size = prod(shape) // 256 * 144
            raw = (*shape[:-1], shape[-1] // 256 * 144)
            writer.add_tensor_info(name, raw, np.dtype("u1"), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for shape in names.values():
        flat = np.ones(shape, "f4") if len(shape) == 1 else np.tile(block, prod(shape) // 256)
        writer.write_tensor_data(flat)
    writer.close()
    return path
