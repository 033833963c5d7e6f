"""Matrices as other programs store them, for `files`: types and arrays by tensors' names."""

from __future__ import annotations

import json

import numpy as np

from cortiq.formats.packed_tables import NF4


def packed_parts(stem: str, height: int, width: int) -> dict[str, tuple[str, np.ndarray]]:
    """A matrix quantised in the way that its name chooses: several methods in one folder."""
    rng = np.random.default_rng(len(stem))

    def numbers(high: int, *shape: int) -> np.ndarray:
        return rng.integers(0, high, shape)

    ones = np.full((height, width // 32), 0.01, "<f4")
    if "q_proj" in stem:
        words = numbers(1 << 31, height, width // 8).astype("<i4")
        parts = {"weight_packed": ("I32", words), "weight_scale": ("F32", ones),
                 "weight_shape": ("I64", np.array([height, width], "<i8"))}  # fmt: skip
    elif "gate" in stem:
        words = numbers(1 << 31, width // 8, height).astype("<i4")
        parts = {"qweight": ("I32", words), "scales": ("F32", ones.T),
                 "qzeros": ("I32", numbers(1 << 31, width // 32, height // 8).astype("<i4")),
                 "g_idx": ("I32", (np.arange(width) // 32).astype("<i4"))}  # fmt: skip
    elif "up" in stem:
        parts = {"weight_packed": ("U8", numbers(256, height, width // 2).astype("u1")),
                 "weight_scale": ("F8_E4M3", numbers(0x70, height, width // 16).astype("u1")),
                 "weight_global_scale": ("F32", np.array([900.0], "<f4"))}  # fmt: skip
    else:
        parts = {"weight": ("F8_E4M3", numbers(0x70, height, width).astype("u1")),
                 "weight_scale_inv": ("BF16", np.full((1, 1), 0x3C00, "<u2"))}  # fmt: skip
    return {f"{stem}.{end}": part for end, part in parts.items()}


def other_parts(stem: str, height: int, width: int) -> dict[str, tuple[str, np.ndarray]]:
    """A matrix quantised by one of four other programs."""
    rng = np.random.default_rng(len(stem))

    def codes(*shape: int) -> np.ndarray:
        return rng.integers(0, 256, shape).astype("u1")

    if "q_proj" in stem or "gate" in stem:
        parts = table_parts(codes(height * width // 2, 1), height, width)
    elif "k_proj" in stem:
        parts = {"weight": ("I8", codes(height, width)),
                 "SCB": ("F32", np.full(height, 0.5, "<f4"))}  # fmt: skip
    elif "v_proj" in stem or "up" in stem:
        parts = hqq_parts(codes(height // 2, width), height, width)
    else:
        parts = {"weight": ("F8_E5M2", codes(height, width) & np.uint8(0xBF)),
                 "weight_scale": ("F32", np.full((height, 1), 0.1, "<f4"))}  # fmt: skip
    return {f"{stem}.{end}": part for end, part in parts.items()}


def table_parts(
    codes: np.ndarray, height: int, width: int, kind: str = "fp4"
) -> dict[str, tuple[str, np.ndarray]]:
    """A matrix of bitsandbytes with scales of scales."""
    fp4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3]) / 12
    table = np.array(NF4) / 31908 if kind == "nf4" else np.concatenate([fp4, -fp4])
    said = {"quant_type": kind, "blocksize": 32, "shape": [height, width],
            "nested_blocksize": 256, "nested_offset": 0.1}  # fmt: skip
    text = np.frombuffer(json.dumps(said).encode(), "u1")
    runs = height * width // 32
    return {
        "weight": ("U8", codes.astype("u1")),
        "weight.absmax": ("U8", np.arange(runs, dtype="u1")),
        "weight.quant_map": ("F32", np.asarray(table, "<f4")),
        "weight.nested_absmax": ("F32", np.full(-(-runs // 256), 0.01, "<f4")),
        "weight.nested_quant_map": ("F32", np.linspace(-1, 1, 256).astype("<f4")),
        f"weight.quant_state.bitsandbytes__{kind}": ("U8", text),
    }


def hqq_parts(
    codes: np.ndarray, height: int, width: int, group: int = 32, axis: int = 1
) -> dict[str, tuple[str, np.ndarray]]:
    """A matrix of HQQ's."""
    groups = height * width // group
    return {
        "W_q": ("U8", codes.astype("u1")), "scale": ("F16", np.full((groups, 1), 0.01, "<f2")),
        "zero": ("F16", np.full((groups, 1), 7.5, "<f2")),
        "shape": ("I64", np.array([height, width], "<i8")),
        "group_size": ("I32", np.array(group, "<i4")), "axis": ("I32", np.array(axis, "<i4")),
        "packing": ("U8", np.frombuffer(b"4bit_u8", "u1")),
    }  # fmt: skip


def mixed_parts(stem: str, height: int, width: int) -> dict[str, tuple[str, np.ndarray]]:
    """A matrix of a folder of two precisions: FP8 rows in attention, NVFP4 in the MLP."""
    rng = np.random.default_rng(len(stem))
    if "self_attn" in stem:
        parts = {"weight": ("F8_E4M3", rng.integers(0, 0x70, (height, width)).astype("u1")),
                 "weight_scale": ("BF16", np.full((height, 1), 0x3C00, "<u2"))}  # fmt: skip
    else:
        packed, scales = (height, width // 2), (height, width // 16)
        parts = {"weight_packed": ("U8", rng.integers(0, 256, packed).astype("u1")),
                 "weight_scale": ("F8_E4M3", rng.integers(0, 0x70, scales).astype("u1")),
                 "weight_global_scale": ("F32", np.array([900.0], "<f4"))}  # fmt: skip
    return {f"{stem}.{end}": part for end, part in parts.items()}


def _words(rng: np.random.Generator, *shape: int) -> tuple[str, np.ndarray]:
    return "I32", rng.integers(0, 1 << 31, shape).astype("<i4")


def quark_parts(stem: str, height: int, width: int) -> dict[str, tuple[str, np.ndarray]]:
    """A matrix of Quark's, eight outputs a word."""
    rng, groups = np.random.default_rng(len(stem)), width // 32
    parts = {"weight": _words(rng, width, height // 8),
             "weight_scale": ("BF16", np.full((groups, height), 0x3C00, "<u2")),
             "weight_zero_point": _words(rng, groups, height // 8)}  # fmt: skip
    return {f"{stem}.{end}": part for end, part in parts.items()}


def late_parts(stem: str, height: int, width: int) -> dict[str, tuple[str, np.ndarray]]:
    """A matrix of bitsandbytes' NF4, of GPTQ with its columns in an order of its own, of modelopt's
    INT4, or of HQQ with groups across the rows.
    """
    rng = np.random.default_rng(len(stem))
    if "q_proj" in stem or "o_proj" in stem:
        codes = rng.integers(0, 256, (height * width // 2, 1)).astype("u1")
        parts = table_parts(codes, height, width, "nf4")
    elif "v_proj" in stem:
        parts = {"weight": ("U8", rng.integers(0, 256, (height // 2, width)).astype("u1")),
                 "weight_scale": ("F32", np.full((height, width // 32), 0.01, "<f4"))}  # fmt: skip
    elif "down" in stem:
        groups, column = width // 32, np.arange(width)
        parts = {"qweight": _words(rng, width // 8, height),
                 "scales": ("F16", np.full((groups, height), 0.01, "<f2")),
                 "qzeros": _words(rng, groups, height // 8),
                 "g_idx": ("I32", rng.permutation(column // 32).astype("<i4"))}  # fmt: skip
    else:
        codes = rng.integers(0, 256, (8, height * width // 16))
        parts = hqq_parts(codes, height, width, group=16, axis=0)
    return {f"{stem}.{end}": part for end, part in parts.items()}


def stacked_parts(stem: str) -> dict[str, tuple[str, np.ndarray]]:
    """The matrices of an expert: w1 in NVFP4, w3 in FP8, w2 in plain floats."""
    rng = np.random.default_rng(len(stem))
    codes, scales = rng.integers(0, 256, (64, 16)), rng.integers(0, 0x70, (64, 2))
    return {
        f"{stem}.w1.weight": ("U8", codes.astype("u1")),
        f"{stem}.w1.weight_scale": ("F8_E4M3", scales.astype("u1")),
        f"{stem}.w1.weight_scale_2": ("F32", np.array(0.01, "<f4")),
        f"{stem}.w3.weight": ("F8_E4M3", rng.integers(0, 0x70, (64, 32)).astype("u1")),
        f"{stem}.w3.weight_scale_inv": ("F32", np.full((1, 1), 0.01, "<f4")),
        f"{stem}.w2.weight": ("F32", rng.standard_normal((32, 64)).astype("<f4")),
    }
