"""Find the quantised matrices of a folder, and read each by the tensors it has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.mapped import MappedTensors, TensorInfo
from cortiq.formats.packed_codes import FLOAT_TYPES
from cortiq.formats.packed_floats import FP8_SCALES, FP8_TYPES, fp8, mlx_floats, mxfp4, nvfp4
from cortiq.formats.packed_gptq import gptq_or_awq
from cortiq.formats.packed_hqq import hqq
from cortiq.formats.packed_integers import (
    compressed_int8,
    compressed_pack,
    mlx_affine,
    modelopt_int4,
)
from cortiq.formats.packed_quark import quark_int4
from cortiq.formats.packed_tables import bitsandbytes_int8, bitsandbytes_table, table_of
from cortiq.formats.packed_tensors import PackedFolder, PackedModule, PackedTensor
from cortiq.formats.packed_ternary import ONLINE, is_ternary, ternary, ternary_floats
from cortiq.formats.quantisation import NOT_APPLIED, Quantisation

Reader = Callable[[PackedModule, Quantisation], PackedTensor]
BLOCKS = re.compile(r"(.+)_blocks")
BEFORE = "pre_quant_scale"
"""End of modelopt's factors of a module's input, which scale columns of weights the other way."""
MAIN = re.compile(r"(.+)\.(weight_packed|qweight|weight|W_q)")


class Kind(NamedTuple):
    """A way in which matrices are packed: its name in messages, and its reader."""

    name: str
    read: Reader


def _kind_of(module: PackedModule, end: str, info: TensorInfo) -> Kind | None:
    """Return how a module's matrix is packed, by the tensors beside it; None for plain floats."""
    pair, exponents = (end, info.type), module.type_of("weight_scale")
    if pair == ("weight_packed", "I32"):
        return Kind("packed", compressed_pack)
    if pair == ("weight_packed", "U8"):
        whole = module.has("weight_global_scale") or module.has("weight_scale_2")
        return Kind("nvfp4", nvfp4) if whole else Kind("mxfp4", mxfp4)
    if end == "qweight":
        return Kind("gptq", gptq_or_awq)
    if end == "W_q":
        return Kind("hqq", hqq)
    if table_of(module):
        return Kind(table_of(module), bitsandbytes_table)
    if pair == ("weight", "I8") and module.has("SCB"):
        return Kind("int8", bitsandbytes_int8)
    if info.type in FP8_TYPES and _has_scale(module):
        return Kind("fp8", fp8)
    if pair == ("weight", "I32") and module.has("weight_scale"):
        return Kind("quark", quark_int4)
    if pair == ("weight", "U8") and module.has("weight_scale_2"):
        return Kind("nvfp4", nvfp4)
    if info.type in ("I8", "U8") and "F8_E8M0" in (module.type_of("scale"), exponents):
        return Kind("mxfp4", mxfp4)
    if pair == ("weight", "U8") and exponents == "U8":
        return Kind("mxfp4", mxfp4)
    if pair == ("weight", "U8") and exponents in FLOAT_TYPES and is_ternary(module):
        return Kind("ternary", ternary)
    if pair == ("weight", "U8") and exponents in FLOAT_TYPES:
        return Kind("int4", modelopt_int4)
    if pair == ("weight", "I8") and module.has("weight_scale"):
        return Kind("int8", compressed_int8)
    if pair == ("weight", "U32") and module.has("scales"):
        return Kind("mlx", mlx_affine if module.has("biases") else mlx_floats)
    return None


def _modules(folder: MappedTensors) -> Iterator[tuple[PackedModule, Kind]]:
    for name, info in folder.tensors.items():
        blocks, main = BLOCKS.fullmatch(name), MAIN.fullmatch(name)
        if blocks and info.type == "U8":
            yield PackedModule(folder, blocks[1], "_"), Kind("mxfp4", mxfp4)
        elif main:
            module = PackedModule(folder, main[1], whole=_scaled_by(folder, main[1], info))
            kind = _kind_of(module, main[2], info)
            if kind is not None:
                yield module, kind
        elif info.type in FP8_TYPES:
            stack = PackedModule(folder, name, "_", bare=True)
            if _has_scale(stack):
                yield stack, Kind("fp8", fp8)


def _masters(folder: MappedTensors, how: Quantisation) -> Iterator[tuple[PackedModule, Kind]]:
    """Yield the matrices whose floats stand for ternary codes: all but tables and those listed.

    Without a list the head keeps its floats, as transformers has it.
    """
    kept = how.ignored or ("lm_head",)
    for name, info in folder.tensors.items():
        stem = name.removesuffix(".weight")
        last = stem.rpartition(".")[2]
        plain = last == "embed_tokens" or any(stem == own or last == own for own in kept)
        if stem != name and len(info.shape) == 2 and info.type in FLOAT_TYPES and not plain:
            yield PackedModule(folder, stem), Kind("ternary", ternary_floats)


def _scaled_by(folder: MappedTensors, stem: str, info: TensorInfo) -> str:
    """Return the module that an FP8 matrix is a part of, if that has its scale and it has none."""
    whole, _, own = stem.rpartition(".")
    if own.isdecimal():  # one of a list
        whole = whole.rpartition(".")[0]
    if info.type not in FP8_TYPES or _has_scale(PackedModule(folder, stem)):
        return ""
    return whole if _has_scale(PackedModule(folder, whole)) else ""


def _has_scale(module: PackedModule) -> bool:
    return any(module.has(scale) for scale in FP8_SCALES)


def read_quantised(folder: MappedTensors, how: Quantisation) -> MappedTensors:
    """Return the folder's tensors with each quantised matrix as one; the folder if it has none.

    Raises
    ------
    FormatError : parts are missing or do not fit each other, or the configuration contradicts
        them; it names the module.
    UnsupportedError : codes or groups that no layout holds, with what would help.
    """
    packed: dict[str, PackedTensor] = {}
    for module, kind in _masters(folder, how) if how.codes == ONLINE else _modules(folder):
        if module.has(BEFORE):
            hint = "take a checkpoint whose weights need no factors of their inputs"
            module.decline(f"multiplies its input by {BEFORE}", hint)
        tensor = kind.read(module, how)
        name = "awq" if kind.name == "gptq" and _is_awq(folder, module) else kind.name
        if not module.whole:  # lists of modules do not speak of a table in parts
            how.check_kind(module.stem, name)
        packed[tensor.name] = tensor
    if not packed:
        return _unquantised(folder, how)
    for name in folder.tensors:
        stem = name.removesuffix(".weight")
        if stem != name and name not in packed:
            how.check_plain(stem)
    unread = {name for name in folder.tensors if NOT_APPLIED.fullmatch(name)}
    return PackedFolder(folder, packed, unread)


def _is_awq(folder: MappedTensors, module: PackedModule) -> bool:
    words, scales = (folder.tensors[f"{module.stem}.{end}"] for end in ("qweight", "scales"))
    return words.shape[1] != scales.shape[1]


def _unquantised(folder: MappedTensors, how: Quantisation) -> MappedTensors:
    """Return a folder without quantised matrices; its configuration may not ask for any."""
    if not how.method:
        return folder
    odd = {info.type for info in folder.tensors.values()} - {"F32", "F16", "BF16"}
    if odd:
        hint = f"the tensors that {how.method} has beside its codes are missing"
        raise UnsupportedError(f"has tensors in {', '.join(sorted(odd))}", where=str(folder.path),
                               hint=hint)  # fmt: skip
    what = f"says {how.method}, but no tensor is quantised"
    raise FormatError(what, where=how.where)
