"""Tiny folders with quantised matrices, as other programs write them, and what they stand for.

A scheme takes a matrix of plain floats and returns its parts by the ends of their names, and the
float64 matrix that they mean, by the library that defines the format or by its document.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from checkpoints import Case, draw_weights
from compressed_tensors.compressors import (
    IntQuantizationCompressor,
    MXFP4PackedCompressor,
    MXFP8QuantizationCompressor,
    NVFP4PackedCompressor,
    PackedQuantizationCompressor,
)
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from quantised_tables import (
    bitsandbytes_rows,
    bitsandbytes_table,
    e5m2_rows,
    hqq_groups,
    modelopt_int4,
    modelopt_nvfp4_32,
    quark_groups,
    ternary,
    ternary_floats,
)
from safetensors.torch import load_file, save_file

SIZES = {
    "vocab_size": 96, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 0.02,
    "max_position_embeddings": 256,
}  # fmt: skip
TOKENS = np.random.default_rng(4).integers(0, 96, 20).tolist()
Parts = dict[str, torch.Tensor]
Packed = tuple[Parts, np.ndarray]


@dataclass(frozen=True)
class Scheme:
    """A way of quantising.

    Attributes
    ----------
    pack : a matrix to its parts and their meaning.
    config : `quantization_config`, or what stands in its place under `key`.
    layout : that the matrices should be read in.
    everywhere : whether embedding and head are quantised, too.
    """

    name: str
    pack: Callable[[torch.Tensor], Packed]
    config: Mapping[str, Any]
    layout: str
    key: str = "quantization_config"
    everywhere: bool = False
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def write(scheme: Scheme, folder: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Write a folder; return its matrices in float64, and transformers' logits of them."""
    options = SIZES | {"tie_word_embeddings": False}
    config = Case(scheme.name, "LlamaConfig", options).build()
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(config).eval()
    draw_weights(model)
    model.save_pretrained(folder)
    plain, tensors, meant = load_file(folder / "model.safetensors"), {}, {}
    for name, value in plain.items():
        ends = ("_proj.weight", "lm_head.weight", "embed_tokens.weight")
        if name.endswith(ends if scheme.everywhere else ends[0]):
            parts, meant[name] = scheme.pack(value.float())
            stem = name.removesuffix(".weight")
            tensors |= {f"{stem}.{end}": part.contiguous() for end, part in parts.items()}
            tensors |= {f"{stem}.{end}": part.clone() for end, part in scheme.extra.items()}
        else:
            tensors[name] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    said = json.loads((folder / "config.json").read_text()) | {scheme.key: dict(scheme.config)}
    (folder / "config.json").write_text(json.dumps(said))
    model = model.double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in meant:
                parameter.copy_(torch.from_numpy(meant[name]))
        logits = model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    return meant, logits


def grouped(x: torch.Tensor, group: int) -> torch.Tensor:
    return x.double().reshape(len(x), -1, group)


def repeated(values: torch.Tensor, columns: int) -> torch.Tensor:
    """A number a group for each of its columns."""
    return values.double().repeat_interleave(columns // values.shape[1], dim=1)


def scale_of(x: torch.Tensor, group: int, most: float, dtype: torch.dtype) -> torch.Tensor:
    """A scale for each group of each row, in its type, that brings the largest to `most`."""
    return (grouped(x, group).abs().amax(-1) / most).to(dtype)


def integers(bits: int, group: int, symmetric: bool, dtype: torch.dtype) -> Any:
    """compressed-tensors' pack-quantized; the library packs, and unpacks the codes again."""

    def pack(x: torch.Tensor) -> Packed:
        columns = x.shape[1]
        size = columns if group < 0 else group
        args = QuantizationArgs(
            num_bits=bits, type="int", symmetric=symmetric,
            strategy="channel" if group < 0 else "group", group_size=None if group < 0 else group,
        )  # fmt: skip
        scale = scale_of(x, size, 2 ** (bits - 1) - 1, dtype)
        zero = torch.zeros_like(scale, dtype=torch.int8)
        if not symmetric:
            limit = min(2 ** (bits - 1), 20)
            zero = torch.randint(-limit, limit, scale.shape, dtype=torch.int8)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        state = {"weight": x, "weight_scale": scale.float(), "weight_zero_point": zero}
        parts = PackedQuantizationCompressor.compress(state, scheme)
        parts["weight_scale"] = scale
        codes = unpack_from_int32(parts["weight_packed"], bits, x.shape).double()
        meant = (codes - repeated(zero, columns)) * repeated(scale, columns)
        return parts, meant.numpy()

    return pack


def int8_channel(x: torch.Tensor) -> Packed:
    args = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="channel")
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    scale = scale_of(x, x.shape[1], 127, torch.bfloat16)
    parts = IntQuantizationCompressor.compress({"weight": x, "weight_scale": scale.float()}, scheme)
    parts["weight_scale"] = scale
    return parts, (parts["weight"].double() * scale.double()).numpy()


def e4m3(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn)


def fp8_blocks(end: str, dtype: torch.dtype, rows: int = 128, columns: int = 128) -> Any:
    """A scale for each block of rows and columns, ragged at the edges."""

    def pack(x: torch.Tensor) -> Packed:
        height, width = x.shape
        grid = -(-height // rows), -(-width // columns)
        scale = (torch.rand(grid).add(0.5) * 2.0 ** -torch.randint(6, 9, grid)).to(dtype)
        each = scale.double().repeat_interleave(rows, 0)[:height]
        each = each.repeat_interleave(columns, 1)[:, :width]
        codes = e4m3(x.double() / each)
        return {"weight": codes, end: scale}, (codes.double() * each).numpy()

    return pack


def fp8_one(end: str, of_rows: bool, dtype: torch.dtype) -> Any:
    """A scale a matrix, or one a row."""

    def pack(x: torch.Tensor) -> Packed:
        scale = (x.abs().amax(1, keepdim=True) if of_rows else x.abs().max()) / 448
        scale = scale.to(dtype)
        codes = e4m3(x.double() / scale.double())
        return {"weight": codes, end: scale}, (codes.double() * scale.double()).numpy()

    return pack


def nvfp4(divides: bool) -> Any:
    """compressed-tensors' NVFP4, and modelopt's names for the same codes."""

    def pack(x: torch.Tensor) -> Packed:
        whole = (448.0 * 6.0 / x.abs().max()).float().reshape(1)
        scale = (grouped(x, 16).abs().amax(-1) / 6 * whole.double()).to(torch.float8_e4m3fn)
        args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        state = {"weight": x, "weight_scale": scale.float(), "weight_global_scale": whole}
        parts = NVFP4PackedCompressor.compress(state, scheme)
        codes = unpack_fp4_from_uint8(parts["weight_packed"], *x.shape).double()
        if divides:
            each = repeated(scale, x.shape[1]) / whole.double()
            return parts, (codes * each).numpy()
        factor = (1 / whole).reshape(())
        each = repeated(scale, x.shape[1]) * factor.double()
        names = {"weight": parts["weight_packed"], "weight_scale": parts["weight_scale"]}
        return names | {"weight_scale_2": factor}, (codes * each).numpy()

    return pack


def exponents(x: torch.Tensor, most: float) -> torch.Tensor:
    """Powers of two for groups of 32 columns, below which the largest is `most`."""
    return torch.exp2(torch.floor(torch.log2(grouped(x, 32).abs().amax(-1) / most)))


def mxfp4(x: torch.Tensor) -> Packed:
    args = QuantizationArgs(
        num_bits=4, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8
    )
    scheme, scale = QuantizationScheme(targets=["Linear"], weights=args), exponents(x, 4)
    state = {"weight": x, "weight_scale": scale.float()}
    parts = MXFP4PackedCompressor.compress(state, scheme)
    codes = unpack_fp4_from_uint8(parts["weight_packed"], *x.shape).double()
    stored = torch.exp2(parts["weight_scale"].double() - 127)
    return parts, (codes * repeated(stored, x.shape[1])).numpy()


def mxfp8(x: torch.Tensor) -> Packed:
    args = QuantizationArgs(
        num_bits=8, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8
    )
    scheme, scale = QuantizationScheme(targets=["Linear"], weights=args), exponents(x, 256)
    parts = MXFP8QuantizationCompressor.compress(
        {"weight": x, "weight_scale": scale.float()}, scheme
    )
    stored = torch.exp2(parts["weight_scale"].double() - 127)
    meant = parts["weight"].double() * repeated(stored, x.shape[1])
    return parts, meant.numpy()


def in_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [n, count] one after the other, the lowest bit first, in int32 words."""
    ends = (codes[..., None] >> np.arange(bits)) & 1
    flat = ends.reshape(len(codes), -1).astype(np.uint8)
    return np.packbits(flat, axis=1, bitorder="little").view("<i4")


def gptq(bits: int, group: int, symmetric: bool, version: int = 1, shuffled: bool = False) -> Any:
    """GPTQ's tensors by its document: words go down the columns, zero points across."""

    def pack(x: torch.Tensor) -> Packed:
        rng = np.random.default_rng(x.shape[0])
        height, columns = x.shape
        size = columns if group < 0 else group
        scale = (rng.random((columns // size, height)) * 0.02 + 0.001).astype(np.float16)
        codes = rng.integers(0, 2**bits, (columns, height))
        zero = np.full(scale.shape, 2 ** (bits - 1))
        if not symmetric:
            zero = rng.integers(1, 2**bits, scale.shape)
        index = np.arange(columns) // size
        index = rng.permutation(index) if shuffled else index
        stored = zero - 1 if version == 1 else zero
        parts = {
            "qweight": in_words(codes.T, bits).T,
            "qzeros": in_words(stored, bits),
            "scales": scale,
            "g_idx": index.astype(np.int32),
        }
        meant = ((codes - zero[index]) * scale.astype(np.float64)[index]).T
        return {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in parts.items()}, meant

    return pack


def awq(x: torch.Tensor, group: int = 64) -> Packed:
    """AutoAWQ's gemm packing by its document: eight outputs a word, ordered 0 2 4 6 1 3 5 7."""
    rng = np.random.default_rng(x.shape[0])
    height, columns = x.shape
    scale = (rng.random((columns // group, height)) * 0.02 + 0.001).astype(np.float16)
    codes, zero = (rng.integers(0, 16, (n, height)) for n in (columns, len(scale)))

    def words(values: np.ndarray) -> torch.Tensor:
        word = np.zeros((len(values), height // 8), np.uint32)
        for nibble, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            word |= values[:, column::8].astype(np.uint32) << np.uint32(4 * nibble)
        return torch.from_numpy(word.view(np.int32))

    each = [np.repeat(values, group, axis=0) for values in (zero, scale.astype(np.float64))]
    parts = {"qweight": words(codes), "qzeros": words(zero), "scales": torch.from_numpy(scale)}
    return parts, ((codes - each[0]) * each[1]).T


def mlx(bits: int, group: int) -> Any:
    """MLX's own quantisation, and its codes with float64 scales and biases."""

    def pack(x: torch.Tensor) -> Packed:
        import mlx.core as mx

        words, *sides = mx.quantize(mx.array(x.numpy()), group_size=group, bits=bits)
        exact = [torch.from_numpy(np.array(side)).to(torch.float16) for side in sides]
        ones = [mx.ones_like(sides[0]), mx.zeros_like(sides[0])]
        codes = mx.dequantize(words, *ones, group_size=group, bits=bits)
        scale, bias = (repeated(side, x.shape[1]) for side in exact)
        meant = torch.from_numpy(np.array(codes)).double() * scale + bias
        packed = torch.from_numpy(np.array(words).view(np.uint32))
        return {"weight": packed, "scales": exact[0], "biases": exact[1]}, meant.numpy()

    return pack


def mlx_float(mode: str, group: int) -> Any:
    """MLX's modes of narrow floats, dequantised by itself: exact in float32."""

    def pack(x: torch.Tensor) -> Packed:
        import mlx.core as mx

        bits = 8 if mode == "mxfp8" else 4
        words, scales = mx.quantize(mx.array(x.numpy()), mode=mode)
        meant = mx.dequantize(
            words, scales, mode=mode, group_size=group, bits=bits, dtype=mx.float32
        )
        parts = {"weight": np.array(words).view(np.uint32), "scales": np.array(scales)}
        parts = {end: torch.from_numpy(part) for end, part in parts.items()}
        return parts, np.array(meant).astype(np.float64)

    return pack


def compressed(form: str, bits: int, kind: str = "int", **weights: Any) -> dict[str, Any]:
    """compressed-tensors' configuration."""
    scheme = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind, **weights}}
    return {
        "quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": scheme},
        "ignore": ["lm_head", "re:.*vision.*"], "quantization_status": "compressed",
    }  # fmt: skip


def _pack(bits: int, group: int, symmetric: bool, dtype: torch.dtype, layout: str) -> Scheme:
    name = f"pack-{bits}-{group}{'' if symmetric else '-asym'}"
    config = compressed("pack-quantized", bits, symmetric=symmetric, group_size=group)
    return Scheme(name, integers(bits, group, symmetric, dtype), config, layout)


def _gptq(bits: int, group: int, symmetric: bool, layout: str, **more: Any) -> Scheme:
    said = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric,
        "desc_act": more.get("shuffled", False),
        "checkpoint_format": "gptq_v2" if more.get("version") == 2 else "gptq",
    }  # fmt: skip
    name = f"gptq-{bits}-{group}{'' if symmetric else '-asym'}" + "".join(f"-{k}" for k in more)
    return Scheme(name, gptq(bits, group, symmetric, **more), said, layout)


def _table(name: str, nested: bool) -> Scheme:
    said = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": name}
    pack = bitsandbytes_table(name, nested)
    return Scheme(f"bnb-{name}{'-nested' if nested else ''}", pack, said, f"{name}b32")


def _modelopt(algorithm: str, pack: Callable[[torch.Tensor], Packed], layout: str) -> Scheme:
    said = {"quant_method": "modelopt", "quant_algo": algorithm}
    return Scheme(f"modelopt-{algorithm}", pack, said, layout)


def fp8_beside_blocks(x: torch.Tensor) -> Packed:
    """modelopt's FP8 in blocks, whose scales have an axis of 1 for the rows and the columns."""
    parts, meant = fp8_blocks("weight_scale", F32)(x)
    parts["weight_scale"] = parts["weight_scale"][:, None, :, None]
    return parts, meant


QUARK = {"quant_method": "quark", "export": {"pack_method": "order"}, "exclude": ["lm_head"],
         "global_quant_config": {"weight": {"dtype": "uint4", "qscheme": "per_group"}}}  # fmt: skip
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BITNET = {
    "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline",
}  # fmt: skip
ONLINE = {"quantization_mode": "online"}
SCHEMES = [
    _pack(4, 32, True, BF16, "i4b32"), _pack(4, 64, False, BF16, "i4b32m"),
    _pack(4, -1, True, F32, "i4b32"), _pack(8, 64, True, BF16, "i8b32"),
    _pack(8, 32, False, BF16, "i8b32m"), _pack(3, 32, True, F16, "i4b32"),
    Scheme("int8", int8_channel, compressed("int-quantized", 8), "i8b32"),
    Scheme("nvfp4", nvfp4(True), compressed("nvfp4-pack-quantized", 4, "float"), "e2m1b16"),
    Scheme("mxfp4", mxfp4, compressed("mxfp4-pack-quantized", 4, "float"), "MXFP4"),
    Scheme("mxfp8", mxfp8, compressed("mxfp8-quantized", 8, "float"), "e4m3b32"),
    Scheme("fp8-channel", fp8_one("weight_scale", True, BF16),
           compressed("float-quantized", 8, "float"), "e4m3b32"),
    _gptq(4, 32, True, "i4b32"), _gptq(4, 64, False, "i4b32m"), _gptq(2, 64, False, "i4b32"),
    _gptq(3, 32, False, "i4b32"), _gptq(8, 64, True, "i8b32"),
    _gptq(8, 32, False, "i8b32m", version=2),
    _gptq(4, -1, True, "i4b32", version=2), _gptq(4, 32, False, "i4b32m", shuffled=True),
    _gptq(4, 64, True, "i4b32", shuffled=True), _gptq(3, 32, False, "i4b32", shuffled=True),
    Scheme("awq", awq, {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm",
                        "zero_point": True}, "i4b32m"),
    *(Scheme(f"mlx-{bits}-{group}", mlx(bits, group), {"bits": bits, "group_size": group},
             "i4b32m" if bits <= 4 else "i8b32m", "quantization", everywhere=True)
      for bits, group in ((2, 32), (3, 64), (4, 64), (5, 32), (6, 64), (8, 32))),
    *(Scheme(f"mlx-{mode}", mlx_float(mode, group), {"mode": mode, "bits": 4, "group_size": group},
             layout, "quantization", everywhere=True)
      for mode, group, layout in (("mxfp4", 32, "MXFP4"), ("nvfp4", 16, "e2m1b16"),
                                  ("mxfp8", 32, "e4m3b32"))),
    Scheme("fp8-block", fp8_blocks("weight_scale_inv", F32),
           FP8 | {"weight_block_size": [128, 128]}, "e4m3b32"),
    Scheme("fp8-block-bf16", fp8_blocks("weight_scale", BF16, 48, 64),
           FP8 | {"weight_block_size": [48, 64]}, "e4m3b32"),
    Scheme("fp8-tensor", fp8_one("weight_scale_inv", False, BF16), FP8, "e4m3b32",
           extra={"input_scale": torch.ones(()), "k_scale": torch.ones(())}),
    Scheme("fbgemm", fp8_one("weight_scale", True, F32), {"quant_method": "fbgemm_fp8"}, "e4m3b32"),
    Scheme("modelopt-nvfp4", nvfp4(False), {"quant_method": "modelopt", "quant_algo": "NVFP4"},
           "e2m1b16", extra={"input_scale": torch.ones(())}),
    _modelopt("W4A16_AWQ", modelopt_int4, "i4b32"),
    _modelopt("W4A8_NVFP4_FP8", modelopt_nvfp4_32, "e2m1b16"),
    _modelopt("W8A8_SQ_PER_CHANNEL", int8_channel, "i8b32"),
    _modelopt("fp8_pb_wo", fp8_beside_blocks, "e4m3b32"),
    _table("nf4", False), _table("nf4", True), _table("fp4", True),
    Scheme("bnb-int8", bitsandbytes_rows, {"quant_method": "bitsandbytes", "load_in_8bit": True,
                                           "llm_int8_skip_modules": ["lm_head"]}, "i8b32"),
    Scheme("hqq-4", hqq_groups(4, 64), {"quant_method": "hqq"}, "i4b32m"),
    Scheme("bitnet", ternary(False), BITNET, "i4b32"),
    Scheme("bitnet-divides", ternary(True), {"quant_method": "bitnet"}, "i4b32"),
    Scheme("bitnet-online", ternary_floats(BF16), BITNET | ONLINE, "i4b32"),
    Scheme("bitnet-online-f16", ternary_floats(F16), BITNET | ONLINE, "i4b32"),
    Scheme("bitnet-online-f32", ternary_floats(F32), BITNET | ONLINE, "i4b32"),
    Scheme("hqq-4-across", hqq_groups(4, 16, 0), {"quant_method": "hqq"}, "f32"),
    Scheme("hqq-8", hqq_groups(8, 32), {"quant_method": "hqq"}, "i8b32m"),
    Scheme("quark-uint4", quark_groups, QUARK, "i4b32m"),
    Scheme("fp8-e5m2", e5m2_rows, FP8, "f32"),
]  # fmt: skip
