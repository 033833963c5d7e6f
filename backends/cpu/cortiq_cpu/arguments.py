"""Arguments of native ops: the structs of native/args.h, and the numbers of the op kinds.

Field names, their order and their meaning are those of the C file, which documents them. Pointers
are plain addresses: whoever fills a struct keeps the arrays alive.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

import numpy as np
import numpy.typing as npt

_POINTER, _INT32, _INT64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_UINT32, _FLOAT = ctypes.c_uint32, ctypes.c_float
_CTYPES = {"p": _POINTER, "i": _INT32, "l": _INT64, "u": _UINT32, "f": _FLOAT}


class OpKind(IntEnum):
    """`cortiq_kind`: the kernel that an op runs."""

    NOTHING = 0
    EMBED_ROWS = 1
    QUANTISE = 2
    MATMUL = 3
    MATMUL_CHOSEN = 4
    ADD = 5
    MULTIPLY = 6
    SCALE = 7
    BIAS = 8
    ACTIVATION = 9
    SOFT_CAP = 10
    RMS_NORM = 11
    LAYER_NORM = 12
    L2_NORM = 13
    ROPE = 14
    STORE_KV = 15
    ATTEND = 16
    CAUSAL_CONV = 17
    GATED_DELTA = 18
    ROUTE = 19
    COMBINE_EXPERTS = 20
    COPY = 21
    ARGMAX = 22
    TOP = 23
    DRAW = 24
    DIGEST = 25
    HEADS = 26
    LOG_SUM_EXP = 27
    SCALED = 28
    CHOOSE_BLOCKS = 29
    RECALL = 30
    PACKAGE = 31
    CHOOSE_KEYS = 32
    COMPRESS = 33
    LOW_RANK = 34
    PACKAGE_STEP = 35
    HASH_NGRAMS = 36


def _fields(**groups: str) -> tuple[tuple[str, type], ...]:
    """Return fields in order: each keyword is a type letter and a number, its value the names."""
    return tuple(
        (name, _CTYPES[letter[0]]) for letter, names in groups.items() for name in names.split()
    )


class ElementwiseArgs(ctypes.Structure):
    """`cortiq_elementwise`: ADD, MULTIPLY, SCALE, BIAS, ACTIVATION, SOFT_CAP."""

    _fields_ = _fields(
        p="a b out record",
        l="a_stride b_stride out_stride",
        i="inner width function",
        f="factor inverse",
    )


class ScaledArgs(ctypes.Structure):
    """`cortiq_scaled`: SCALED."""

    _fields_ = _fields(
        p="x factor index out",
        l="x_stride factor_stride out_stride",
        i="inner width how first from_width step",
        f="low high",
    )


class NormArgs(ctypes.Structure):
    """`cortiq_norm`: RMS_NORM, LAYER_NORM, L2_NORM, with a residual sum before them."""

    _fields_ = _fields(
        p="x residual weight bias after_weight sum out record",
        l="x_stride residual_stride sum_stride out_stride",
        i="inner width after",
        f="inverse_width eps after_eps",
    )


class QuantiseArgs(ctypes.Structure):
    """`cortiq_quantise`: QUANTISE."""

    _fields_ = _fields(p="x record", l="x_stride", i="inner width")


class RopeArgs(ctypes.Structure):
    """`cortiq_rope`: ROPE."""

    _fields_ = _fields(
        p="x cos sin out", l="x_stride out_stride", i="heads width pairs interleaved"
    )


class SegmentArgs(ctypes.Structure):
    """`cortiq_segment`: rows start … stop − 1 are one sequence's, from `position` on."""

    _fields_ = _fields(i="start stop position")


class KVSlotArgs(ctypes.Structure):
    """`cortiq_kv`: the rows of a slot, in pages."""

    _fields_ = _fields(p="pages segments segment_count", i="heads key_dim value_dim page_tiles")


class StoreKVArgs(ctypes.Structure):
    """`cortiq_store_kv`: STORE_KV."""

    _fields_ = (("kv", KVSlotArgs), *_fields(p="keys values"))


class HeadGroupArgs(ctypes.Structure):
    """`cortiq_heads_part`: the heads of q, k or v in HEADS."""

    _fields_ = _fields(
        p="x weight cos sin record",
        l="x_stride",
        i="heads width pairs interleaved normed target",
        f="inverse_width eps",
    )


class QKVPrologueArgs(ctypes.Structure):
    """`cortiq_heads`: HEADS, q, k and v normed, turned and quantised, and the cache written."""

    _fields_ = (("kv", KVSlotArgs), *_fields(p="parts", i="count"))


class AttendArgs(ctypes.Structure):
    """`cortiq_attend`: ATTEND."""

    _fields_ = (
        ("kv", KVSlotArgs),
        *_fields(
            p="q sinks out record workspace",
            l="out_stride workspace_bytes",
            i="heads window",
            f="factor cap inverse_cap",
        ),
        *_fields(p="chosen", i="sets chosen_count block"),
        *_fields(p="last mass steep"),
    )


class ChooseBlocksArgs(ctypes.Structure):
    """`cortiq_choose`: CHOOSE_BLOCKS."""

    _fields_ = (("kv", KVSlotArgs), *_fields(p="q out", i="heads block top local"))


class ChooseKeysArgs(ctypes.Structure):
    """`cortiq_choose_keys`: CHOOSE_KEYS."""

    _fields_ = (("kv", KVSlotArgs), *_fields(p="q weights out", i="heads top every"))


class RecallArgs(ctypes.Structure):
    """`cortiq_recall`: RECALL."""

    _fields_ = (("kv", KVSlotArgs), *_fields(p="out", l="out_stride"))


class ConvArgs(ctypes.Structure):
    """`cortiq_conv`: CAUSAL_CONV."""

    _fields_ = _fields(
        p="x weight bias out rings capacities segments segment_count",
        l="x_stride out_stride",
        i="width taps",
    )


class CompressArgs(ctypes.Structure):
    """`cortiq_compress`: COMPRESS."""

    _fields_ = _fields(
        p="x gates bias out rings capacities segments segment_count", i="width rate parts"
    )


class HashArgs(ctypes.Structure):
    """`cortiq_hash`: HASH_NGRAMS."""

    _fields_ = _fields(
        p="tokens multipliers heights out rings capacities segments segment_count",
        i="size heads end",
    )


class RecurrenceArgs(ctypes.Structure):
    """`cortiq_recurrence`: GATED_DELTA."""

    _fields_ = _fields(
        p="q k v alpha beta kappa out states segments segment_count",
        i="heads groups state_rows columns per_channel delta keep",
    )


class RouteArgs(ctypes.Structure):
    """`cortiq_route`: ROUTE."""

    _fields_ = _fields(
        p="scores bias mask index weights",
        l="scores_stride",
        i="experts top_k router renormalise groups kept_groups best_two",
        f="floor scaling tau margin",
    )


class CombineExpertsArgs(ctypes.Structure):
    """`cortiq_combine`: COMBINE_EXPERTS."""

    _fields_ = _fields(p="weights outputs out", l="outputs_stride out_stride", i="count width")


class CopyArgs(ctypes.Structure):
    """`cortiq_copy`: COPY."""

    _fields_ = _fields(p="x out from_rows", l="x_stride out_stride", i="width snapped")


class DrawArgs(ctypes.Structure):
    """`cortiq_draw`: sampling parameters of one row."""

    _fields_ = (
        *_fields(p="bias bias_ids seen_ids seen_counts mask", i="bias_count seen_count"),
        *_fields(f="inverse_temperature repetition inverse_repetition presence frequency"),
        *_fields(i="top_k", u="top_p min_p"),
        *_fields(i="top_p_on", u="seed_low seed_high choice position"),
    )


class AnswerArgs(ctypes.Structure):
    """`cortiq_tail`: ARGMAX, TOP, LOG_SUM_EXP, DIGEST, DRAW."""

    _fields_ = _fields(
        p="x from_rows draws index values words workspace", l="x_stride", i="width count"
    )


SEGMENT = np.dtype([("start", np.int32), ("stop", np.int32), ("position", np.int32)])
"""`cortiq_segment`: rows of one sequence, and the position of the first."""


def address(array: npt.NDArray | None) -> int | None:
    """Return the address of an array's first element; `None` stays `None` (a NULL pointer)."""
    return None if array is None else array.ctypes.data


def aligned_zeros(count: int, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray:
    """Allocate a zeroed array [count] that starts at a multiple of 64 bytes."""
    item = np.dtype(dtype).itemsize
    raw = np.zeros(count * item + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * item].view(dtype)
