"""GGUF types that are read in a layout of ours: NVFP4, and Q1_0's signs.

NVFP4: 64 elements in 36 bytes, four scales in E4M3 (without sign) and 4·8 bytes of E2M1, whose
product is halved; `NAME.scale`, float32, multiplies a matrix, or one of a stack. Q1_0: 128 elements
in 18 bytes (of a fork, 32 in 6), d in f16 and a bit each, d or −d. Source: ggml's `ggml-common.h`
and `ggml-quants.c`.
"""

from __future__ import annotations

from math import prod

import numpy as np

from cortiq.formats.gguf import GGUFFile
from cortiq.formats.mapped import MappedTensors
from cortiq.formats.packed_codes import BLOCK, Bytes, StoredNumbers, assemble, nibble_bytes
from cortiq.formats.packed_floats import E2M1_UNIT
from cortiq.formats.packed_tensors import PackedFolder, PackedModule, PackedTensor

SUFFIX = ".weight"
NVFP4_SCALES, NVFP4_BYTES = 4, 36
SIGNS = {"Q1_0": 128, "Q1_0_32": 32}
"""Elements under one scale, by type."""
NAN = 0x7F
"""The E4M3 byte that ggml reads as 0."""


def read_packed_gguf(file: GGUFFile) -> MappedTensors:
    """Return a file's tensors, those of these types made of their parts."""
    packed = {}
    for name, info in file.tensors.items():
        if info.type in ("NVFP4", *SIGNS) and name.endswith(SUFFIX):
            module = PackedModule(file, name.removesuffix(SUFFIX))
            packed[name] = _nvfp4(module) if info.type == "NVFP4" else _signs(module)
    unread = {f"{name.removesuffix(SUFFIX)}.input_scale" for name in packed}
    return PackedFolder(file, packed, unread) if packed else file


def _nvfp4(module: PackedModule) -> PackedTensor:
    shape = module.info("weight").shape
    height, raw = prod(shape[:-1]), module.raw("weight")
    factors = np.ones(1)
    if module.has("scale"):
        factors = module.scales("scale", "F32").reshape(-1)[:]
    matrices = shape[0] if len(shape) > 2 else 1
    if factors.size not in (1, matrices) or not np.isfinite(factors).all():
        module.fail(f"has {factors.size} scales for {matrices} matrices")
    each = np.repeat(np.broadcast_to(factors, matrices), height // matrices)
    flat = raw.reshape(height, -1, NVFP4_BYTES)

    def make(start: int, stop: int) -> Bytes:
        blocks = flat[start:stop]
        bits = blocks[..., :NVFP4_SCALES].reshape(stop - start, -1) & np.uint8(NAN)
        scale = StoredNumbers(np.where(bits == NAN, np.uint8(0), bits), "F8_E4M3")[:]
        codes = blocks[..., NVFP4_SCALES:].reshape(stop - start, -1, 8)
        return assemble(codes, scale * each[start:stop, None] * E2M1_UNIT)

    return module.made(shape, "e2m1b16", make)


def _signs(module: PackedModule) -> PackedTensor:
    info = module.info("weight")
    shape, each = info.shape, SIGNS[info.type]
    flat = module.raw("weight").reshape(prod(shape[:-1]), -1, 2 + each // 8)

    def make(start: int, stop: int) -> Bytes:
        blocks = flat[start:stop]
        bits = np.unpackbits(blocks[..., 2:], axis=2, bitorder="little")
        codes = (bits * np.uint8(2) + np.uint8(7)).reshape(stop - start, -1)  # ±1, less 8
        half = np.ascontiguousarray(blocks[..., :2]).view("<u2")[..., 0]
        scale = StoredNumbers(half, "F16")[:]
        return assemble(nibble_bytes(codes, BLOCK), np.repeat(scale, each // BLOCK, axis=1))

    return module.made(shape, "i4b32", make)
