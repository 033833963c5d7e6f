"""Matrices as bitsandbytes, HQQ and Quark pack them, by their documents, and their meaning."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import torch
from transformers.integrations.bitnet import pack_weights

Packed = tuple[dict[str, torch.Tensor], np.ndarray]
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
FP4 = tuple(n / 12 for n in (0, 0.0625, 8, 12, 4, 6, 2, 3))
TABLES = {"nf4": NF4, "fp4": (*FP4, *(-n for n in FP4))}


def bitsandbytes_table(name: str, nested: bool) -> Callable[[torch.Tensor], Packed]:
    """Codes of a table, the earlier one in the upper half of a byte, a scale for 64 elements."""

    def pack(x: torch.Tensor) -> Packed:
        table, runs = np.array(TABLES[name]), x.double().numpy().reshape(-1, 64)
        scale = np.abs(runs).max(axis=1).astype(np.float32).astype(np.float64)
        said = {"quant_type": name, "blocksize": 64, "dtype": "float32", "shape": list(x.shape)}
        parts = {"weight.quant_map": table.astype(np.float32)}
        if nested:
            numbers, offset = np.linspace(-1, 1, 256).astype(np.float32), float(scale.mean())
            groups = np.array_split(scale - offset, range(256, len(scale), 256))
            largest = np.array([np.abs(group).max() for group in groups], np.float32)
            each = np.repeat(largest, 256)[: len(scale)].astype(np.float64)
            place = np.abs(numbers - ((scale - offset) / each)[:, None]).argmin(axis=1)
            scale = numbers[place].astype(np.float64) * each + offset
            parts |= {"weight.absmax": place.astype(np.uint8), "weight.nested_absmax": largest,
                      "weight.nested_quant_map": numbers}  # fmt: skip
            said |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        else:
            parts["weight.absmax"] = scale.astype(np.float32)
        codes = np.abs(table - (runs / scale[:, None])[..., None]).argmin(axis=2)
        flat = codes.reshape(-1, 2).astype(np.uint8)
        parts["weight"] = flat[:, :1] << 4 | flat[:, 1:]
        state = np.frombuffer(json.dumps(said).encode(), np.uint8).copy()
        parts[f"weight.quant_state.bitsandbytes__{name}"] = state
        meant = (table[codes] * scale[:, None]).reshape(x.shape)
        return {end: torch.from_numpy(part) for end, part in parts.items()}, meant

    return pack


def bitsandbytes_rows(x: torch.Tensor) -> Packed:
    """Integers of 8 bits, of which 127 is a row's largest."""
    largest = x.abs().amax(1)
    codes = torch.round(x.double() / largest.double()[:, None] * 127).to(torch.int8)
    parts = {"weight": codes, "SCB": largest, "weight_format": torch.zeros((), dtype=torch.uint8)}
    return parts, (codes.double() * largest.double()[:, None] / 127).numpy()


def hqq_groups(bits: int, group: int, axis: int = 1) -> Callable[[torch.Tensor], Packed]:
    """Codes of 4 or 8 bits; of all rows, the first half lies in the upper halves of bytes."""

    def pack(x: torch.Tensor) -> Packed:
        rows = x.double().reshape((-1, group) if axis else (group, -1))
        low, high = rows.amin(axis, keepdim=True), rows.amax(axis, keepdim=True)
        scale = ((high - low) / (2**bits - 1)).half()
        zero = (-low / scale.double()).half()
        codes = torch.round(rows / scale.double() + zero.double()).clamp(0, 2**bits - 1)
        meant = (codes - zero.double()) * scale.double()
        codes, half = codes.to(torch.uint8), len(codes) // 2
        packed = codes if bits == 8 else codes[:half] << 4 | codes[half:]
        name = torch.tensor(list(f"{bits}bit_u8".encode()), dtype=torch.uint8)
        numbers = {"group_size": group, "axis": axis, "nbits": bits}
        parts = {"W_q": packed, "scale": scale, "zero": zero, "shape": torch.tensor(x.shape),
                 "packing": name, "round_zero": torch.zeros((), dtype=torch.uint8)}  # fmt: skip
        parts |= {end: torch.tensor(n, dtype=torch.int32) for end, n in numbers.items()}
        return parts, meant.reshape(x.shape).numpy()

    return pack


def quark_groups(x: torch.Tensor, group: int = 32) -> Packed:
    """Unsigned codes of 4 bits, eight outputs a word in their order, and zero points alike."""
    grouped = x.double().reshape(len(x), -1, group)
    low, high = grouped.amin(2), grouped.amax(2)
    scale = ((high - low) / 15).to(torch.bfloat16)
    zero = torch.round(-low / scale.double()).clamp(0, 15)
    each = [n.repeat_interleave(group, 1) for n in (scale.double(), zero)]
    codes = torch.round(x.double() / each[0] + each[1]).clamp(0, 15)

    def words(values: torch.Tensor) -> torch.Tensor:
        eights = values.T.long().reshape(values.shape[1], -1, 8)
        word = (eights << (4 * torch.arange(8))).sum(2)
        return torch.where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32)

    parts = {"weight": words(codes), "weight_scale": scale.T, "weight_zero_point": words(zero)}
    return parts, ((codes - each[1]) * each[0]).numpy()


def e5m2_rows(x: torch.Tensor) -> Packed:
    """FP8 of a wide range, under a scale a row."""
    scale = (x.abs().amax(1, keepdim=True) / 57344).float()
    codes = (x.double() / scale.double()).to(torch.float8_e5m2)
    parts = {"weight": codes, "weight_scale": scale}
    return parts, (codes.double() * scale.double()).numpy()


def modelopt_int4(x: torch.Tensor, group: int = 64) -> Packed:
    """modelopt's signed codes, those of two rows in a byte, the upper row's low."""
    scale = x.double().reshape(len(x), -1, group).abs().amax(2).div(7).float()
    each = scale.double().repeat_interleave(group, 1)
    codes = torch.round(x.double() / each).clamp(-8, 7)
    nibbles = (codes.to(torch.int16) & 15).to(torch.uint8)
    parts = {"weight": nibbles[::2] | nibbles[1::2] << 4, "weight_scale": scale}
    return parts, (codes * each).numpy()


def modelopt_nvfp4_32(x: torch.Tensor) -> Packed:
    """modelopt's E2M1 codes under an E4M3 scale for 32 of them, not 16 (W4A8_NVFP4_FP8)."""
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    whole = (x.abs().max() / (6 * 448)).float()
    scale = x.double().reshape(len(x), -1, 32).abs().amax(2) / 6 / whole.double()
    scale = scale.to(torch.float8_e4m3fn)
    each = (scale.double() * whole.double()).repeat_interleave(32, 1)
    place = ((x.double().abs() / each)[..., None] - numbers).abs().argmin(-1)
    codes = (place + 8 * (x < 0)).to(torch.uint8)
    meant = torch.where(x < 0, -numbers[place], numbers[place]) * each
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    return {"weight": packed, "weight_scale": scale, "weight_scale_2": whole}, meant.numpy()


def ternary(divides: bool) -> Callable[[torch.Tensor], Packed]:
    """BitNet's codes, packed by transformers."""

    def pack(x: torch.Tensor) -> Packed:
        mean = x.abs().mean()
        codes = torch.round(x / mean).clamp(-1, 1)
        scale = (1 / mean if divides else mean).bfloat16().reshape(1)
        factor = 1 / scale.double() if divides else scale.double()
        parts = {"weight": pack_weights(codes.clone()), "weight_scale": scale}
        return parts, (codes.double() * factor).numpy()

    return pack


def ternary_floats(dtype: torch.dtype) -> Callable[[torch.Tensor], Packed]:
    """Floats that BitNet's layers quantise when they are used, by the formula of transformers."""

    def pack(x: torch.Tensor) -> Packed:
        given = x.to(dtype)
        factor = 1.0 / given.float().abs().mean()
        meant = torch.round(given.float() * factor).clamp(-1, 1) / factor
        return {"weight": given}, meant.to(dtype).double().numpy()

    return pack
