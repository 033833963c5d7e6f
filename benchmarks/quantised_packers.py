"""Matrices put through other programs' quantisers, and what their codes mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

Packed = tuple[dict[str, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Format:
    """A format: its quantiser, and what config.json says under a key."""

    name: str
    pack: Callable[[torch.Tensor], Packed]
    config: Mapping[str, Any]
    key: str = "quantization_config"


def spread(values: torch.Tensor, columns: int) -> torch.Tensor:
    """Repeat a number of each group for each of its columns, in float64."""
    return values.double().repeat_interleave(columns // values.shape[1], 1)


def grid(x: torch.Tensor, bits: int, group: int, middle: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales in float16, and zero points among unsigned codes, of groups."""
    parts = x.reshape(len(x), -1, group)
    if middle:
        scale = parts.abs().amax(2) / (2 ** (bits - 1) - 1)
        return scale.half(), torch.full(scale.shape, 2.0 ** (bits - 1))
    low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    scale = ((high - low) / (2**bits - 1)).half()
    return scale, torch.round(-low / scale.float()).clamp(0, 2**bits - 1)


def codes_of(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, bits: int) -> torch.Tensor:
    """Return unsigned codes in float64."""
    width = x.shape[1]
    codes = torch.round(x.double() / spread(scale, width)) + spread(zero, width)
    return codes.clamp(0, 2**bits - 1)


def compressed(x: torch.Tensor, bits: int, group: int, middle: bool) -> Packed:
    """Pack integers by compressed-tensors."""
    from compressed_tensors.compressors import PackedQuantizationCompressor
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    scale, zero = grid(x, bits, group, middle)
    args = QuantizationArgs(
        num_bits=bits, type="int", symmetric=middle, strategy="group", group_size=group
    )
    scheme, shift = QuantizationScheme(targets=["Linear"], weights=args), 2 ** (bits - 1)
    state = {"weight": x, "weight_scale": scale.float(),
             "weight_zero_point": (zero - shift).to(torch.int8)}  # fmt: skip
    parts = PackedQuantizationCompressor.compress(state, scheme)
    parts["weight_scale"] = scale
    codes = unpack_from_int32(parts["weight_packed"], bits, x.shape).double() + shift
    return parts, (codes - spread(zero, x.shape[1])) * spread(scale, x.shape[1])


def compressed_floats(x: torch.Tensor, kind: str) -> Packed:
    """Pack narrow floats by compressed-tensors."""
    from compressed_tensors import compressors
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    bits, group = (8 if kind == "mxfp8" else 4), (16 if kind == "nvfp4" else 32)
    more = {"scale_dtype": torch.uint8} if kind != "nvfp4" else {}
    strategy = "tensor_group" if kind == "nvfp4" else "group"
    args = QuantizationArgs(
        num_bits=bits, type="float", strategy=strategy, group_size=group, **more
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    largest = x.reshape(len(x), -1, group).abs().amax(2)
    state, whole = {"weight": x}, torch.ones(1)
    if kind == "nvfp4":
        whole = (448.0 * 6.0 / x.abs().max()).float().reshape(1)
        scale = (largest / 6 * whole).to(torch.float8_e4m3fn)
        state |= {"weight_scale": scale.float(), "weight_global_scale": whole}
    else:
        most = 256 if bits == 8 else 4
        state["weight_scale"] = torch.exp2(torch.floor(torch.log2(largest / most)))
    name = {"nvfp4": "NVFP4Packed", "mxfp4": "MXFP4Packed", "mxfp8": "MXFP8Quantization"}[kind]
    parts = getattr(compressors, f"{name}Compressor").compress(state, scheme)
    stored = parts["weight_scale"].double()
    factor = stored / whole.double() if kind == "nvfp4" else torch.exp2(stored - 127)
    if bits == 8:
        return parts, parts["weight"].double() * spread(factor, x.shape[1])
    codes = unpack_fp4_from_uint8(parts["weight_packed"], *x.shape)
    return parts, codes.double() * spread(factor, x.shape[1])


def int8_rows(x: torch.Tensor) -> Packed:
    """Pack rows of int8 by compressed-tensors."""
    from compressed_tensors.compressors import IntQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="channel")
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    scale = (x.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
    parts = IntQuantizationCompressor.compress({"weight": x, "weight_scale": scale.float()}, scheme)
    parts["weight_scale"] = scale
    return parts, parts["weight"].double() * scale.double()


def fp8(x: torch.Tensor, rows: int, columns: int, end: str) -> Packed:
    """Write E4M3 under scales of blocks of rows and columns."""
    height, width = x.shape
    rows, columns = (rows or height), (columns or width)
    grid_of = -(-height // rows), -(-width // columns)
    padded = torch.zeros(grid_of[0] * rows, grid_of[1] * columns)
    padded[:height, :width] = x
    scale = padded.reshape(grid_of[0], rows, grid_of[1], columns).abs().amax((1, 3)) / 448
    each = scale.repeat_interleave(rows, 0)[:height].repeat_interleave(columns, 1)[:, :width]
    codes = (x.double() / each.double()).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": codes, end: scale}, codes.double() * each.double()


def gptq(x: torch.Tensor, bits: int, middle: bool, ordered: bool = True) -> Packed:
    """Pack by GPTQModel."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    group, width = 64, x.shape[1]
    index = torch.arange(width, dtype=torch.int32) // group
    order = torch.arange(width) if ordered else torch.randperm(width)
    scale, zero = grid(x[:, order], bits, group, middle)
    index = index[torch.argsort(order)]
    module = TorchLinear(
        bits=bits, group_size=group, sym=middle, desc_act=not ordered, in_features=width,
        out_features=len(x), bias=False, register_buffers=True,
    )  # fmt: skip
    linear = nn.Linear(width, len(x), bias=False)
    linear.weight.data = x.clone()
    module.pack_original(linear, scale.float(), zero, index)
    parts = {n: getattr(module, n) for n in ("qweight", "qzeros", "scales", "g_idx")}
    module.post_init()
    each = scale.double()[:, index]
    codes = (module.dequantize_weight().T.double() / each).round()  # it computes in 16 bits
    return parts, codes * each


def awq(x: torch.Tensor) -> Packed:
    """Pack by AutoAWQ."""
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import reverse_awq_order, unpack_awq

    scale, zero = grid(x, 4, 64, False)
    linear = nn.Linear(x.shape[1], len(x), bias=False)
    linear.weight.data = x.clone()
    made = WQLinear_GEMM.from_linear(
        linear, 4, 64, scales=scale.float().T.contiguous(), zeros=zero.T.contiguous()
    )
    codes, points = reverse_awq_order(*unpack_awq(made.qweight, made.qzeros, 4), 4)
    points = (points & 15).double().repeat_interleave(64, 0)
    meant = ((codes & 15).double() - points).T * spread(scale, x.shape[1])
    return {n: getattr(made, n) for n in ("qweight", "qzeros", "scales")}, meant


def bitsandbytes(x: torch.Tensor, table: str, nested: bool) -> Packed:
    """Quantise by bitsandbytes."""
    import bitsandbytes as bnb
    from bitsandbytes import functional

    kind = partial(bnb.nn.Linear4bit, quant_type=table, compress_statistics=nested)
    if table == "int8":
        kind = partial(bnb.nn.Linear8bitLt, has_fp16_weights=False)
    module = kind(x.shape[1], len(x), bias=False)
    module.load_state_dict({"weight": x.half() if table == "int8" else x})
    module = module.to("cpu")
    parts = module.state_dict()
    if table == "int8":
        return parts, parts["weight"].double() * parts["SCB"].double()[:, None] / 127
    return parts, functional.dequantize_4bit(module.weight.data, module.weight.quant_state)


def hqq(x: torch.Tensor, bits: int) -> Packed:
    """Quantise by HQQ, whose zero points are no integers."""
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer

    linear = nn.Linear(x.shape[1], len(x), bias=False)
    linear.weight.data = x.clone()
    config = BaseQuantizeConfig(nbits=bits, group_size=64, axis=1)
    module = HQQLinear(linear, config, compute_dtype=torch.float16, device="cpu")
    meta = module.meta
    codes = Quantizer.unpack[meta["packing"]](module.W_q, dtype=torch.uint8).double()
    meant = (codes - meta["zero"].double()) * meta["scale"].double()
    return module.state_dict(), meant.reshape(x.shape)


def quark(x: torch.Tensor) -> Packed:
    """Pack by Quark."""
    from quark.torch.utils.pack import Pack_4_bits

    scale, zero = grid(x, 4, 64, False)
    codes, packer = codes_of(x, scale, zero, 4), Pack_4_bits("per_group", "uint4")
    parts = {
        "weight": packer.pack(codes.to(torch.int32), True), "weight_scale": scale.T,
        "weight_zero_point": packer.pack(zero.to(torch.int32), True),
    }  # fmt: skip
    return parts, (codes - spread(zero, x.shape[1])) * spread(scale, x.shape[1])


def modelopt(x: torch.Tensor, kind: str) -> Packed:
    """Quantise by modelopt."""
    from modelopt.torch.quantization import qtensor

    made_by = getattr(qtensor, f"{kind.upper()}QTensor")
    if kind == "nvfp4":
        made, scale, whole = made_by.quantize(x, 16, try_tensorrt=False)
        parts = {"weight": made._quantized_data, "weight_scale": scale.reshape(len(x), -1),
                 "weight_scale_2": whole}  # fmt: skip
        options = {"scale": scale, "double_scale": whole.double(), "block_sizes": {-1: 16}}
        return parts, made.dequantize(torch.float64, **options)
    made, scale = made_by.quantize(x) if kind == "mxfp8" else made_by.quantize(x, 32)
    options = {} if kind == "mxfp8" else {"block_sizes": {-1: 32}}
    parts = {"weight": made._quantized_data, "weight_scale": scale.reshape(len(x), -1)}
    return parts, made.dequantize(torch.float64, scale=scale, **options)


def mlx(x: torch.Tensor, bits: int, mode: str) -> Packed:
    """Quantise by MLX."""
    import mlx.core as mx

    given = mx.array(x.numpy())
    if mode != "affine":
        words, scales = mx.quantize(given, mode=mode)
        group = 16 if mode == "nvfp4" else 32
        meant = mx.dequantize(
            words, scales, mode=mode, group_size=group, bits=bits, dtype=mx.float32
        )
        parts = {"weight": np.array(words).view(np.uint32), "scales": np.array(scales)}
        return {n: torch.from_numpy(p) for n, p in parts.items()}, torch.from_numpy(np.array(meant))
    words, *sides = mx.quantize(given, group_size=64, bits=bits)
    scale, bias = (torch.from_numpy(np.array(side)).half() for side in sides)
    ones = [mx.ones_like(sides[0]), mx.zeros_like(sides[0])]
    codes = torch.from_numpy(np.array(mx.dequantize(words, *ones, group_size=64, bits=bits)))
    meant = codes.double() * spread(scale, x.shape[1]) + spread(bias, x.shape[1])
    packed = torch.from_numpy(np.array(words).view(np.uint32))
    return {"weight": packed, "scales": scale, "biases": bias}, meant


def _compressed(name: str, form: str, bits: int, kind: str, pack: Any) -> Format:
    scheme = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind}}
    said = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"g": scheme}}
    return Format(name, pack, said)


def _gptq(name: str, bits: int, middle: bool, ordered: bool = True) -> Format:
    said = {"quant_method": "gptq", "bits": bits, "group_size": 64, "sym": middle,
            "desc_act": not ordered, "checkpoint_format": "gptq_v2"}  # fmt: skip
    return Format(name, partial(gptq, bits=bits, middle=middle, ordered=ordered), said)


BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
QUARK = {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "uint4"}}}
FORMATS = (
    *(_compressed(f"pack-{b}{'' if m else '-asym'}", "pack-quantized", b, "int",
                  partial(compressed, bits=b, group=64, middle=m))
      for b in (4, 8) for m in (True, False)),
    _compressed("int8 rows", "int-quantized", 8, "int", int8_rows),
    _compressed("fp8 rows", "float-quantized", 8, "float",
                partial(fp8, rows=1, columns=0, end="weight_scale")),
    *(_compressed(k, form, b, "float", partial(compressed_floats, kind=k)) for k, b, form in (
        ("nvfp4", 4, "nvfp4-pack-quantized"), ("mxfp4", 4, "mxfp4-pack-quantized"),
        ("mxfp8", 8, "mxfp8-quantized"))),
    Format("fp8 blocks", partial(fp8, rows=128, columns=128, end="weight_scale_inv"),
           {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    _gptq("gptq-4", 4, True), _gptq("gptq-4-asym", 4, False), _gptq("gptq-8", 8, True),
    _gptq("gptq-4-desc_act", 4, False, False),
    Format("awq-4", awq, {"quant_method": "awq", "version": "gemm", "bits": 4}),
    *(Format(f"bnb-{t}{'-nested' if n else ''}", partial(bitsandbytes, table=t, nested=n),
             BNB | {"bnb_4bit_quant_type": t})
      for t, n in (("nf4", False), ("nf4", True), ("fp4", False))),
    Format("bnb-int8", partial(bitsandbytes, table="int8", nested=False),
           {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    *(Format(f"hqq-{b}", partial(hqq, bits=b), {"quant_method": "hqq"}) for b in (4, 8)),
    Format("quark-uint4", quark, QUARK),
    *(Format(f"modelopt-{k}", partial(modelopt, kind=k), {"quant_method": "modelopt"})
      for k in ("nvfp4", "mxfp4", "mxfp8")),
    *(Format(f"mlx-{m}-{b}", partial(mlx, bits=b, mode=m), {"mode": m, "bits": b, "group_size": g},
             "quantization")
      for m, b, g in (("affine", 4, 64), ("affine", 8, 64), ("mxfp4", 4, 32), ("nvfp4", 4, 16),
                      ("mxfp8", 8, 32))),
)  # fmt: skip
"""Every format of 4 and 8 bits."""
