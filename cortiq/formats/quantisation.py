"""Descriptions of quantised matrices in folders: one reading of every method's configuration.

The tensors decide how they are read; this is what they do not say themselves (MLX's bits, the
version of GPTQ's zero points), and what they are checked against. Activations and caches that a
checkpoint asks to be quantised stay as they are: weights are the file's, arithmetic is ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cortiq.errors import FormatError, UnsupportedError, shown
from cortiq.formats.strict_json import read_optional

KEYS = ("quantization_config", "compression_config", "quantization")
"""Keys of config.json that describe quantised weights; MLX writes the last one."""
OPT_FILE = "hf_quant_config.json"
"""File in which modelopt says so where config.json does not."""
METHODS: Mapping[str, frozenset[str]] = {
    "compressed-tensors": frozenset({"packed", "int8", "fp8", "nvfp4", "mxfp4"}),
    "gptq": frozenset({"gptq"}),
    "awq": frozenset({"awq"}),
    "auto-round": frozenset({"gptq", "awq", "packed", "fp8", "nvfp4", "mxfp4"}),
    "fp8": frozenset({"fp8", "mxfp4"}),
    "fbgemm_fp8": frozenset({"fp8"}),
    "modelopt": frozenset({"fp8", "nvfp4", "mxfp4"}),
    "mxfp4": frozenset({"mxfp4"}),
    "mlx": frozenset({"mlx"}),
}
"""Kinds of matrices that folders of each method may hold."""
INTEL, OPT = "auto-round", "modelopt"
SAME = {"intel/auto-round": INTEL, "autoround": INTEL, "modelopt_fp4": OPT, "gptqmodel": "gptq",
        "modelopt_mixed": OPT, "modelopt_fp8": OPT}  # fmt: skip
HINTS = {
    "bitsandbytes": "save the model dequantised, or take one in GGUF or compressed-tensors",
    "hqq": "take a checkpoint in GPTQ, AWQ, compressed-tensors or GGUF",
}
NOT_APPLIED = re.compile(
    r".+\.(input_scale|input_global_scale|output_scale|output_global_scale|[kqv]_scale|kv_scale|"
    r"input_zero_point|activation_scale|prob_output_scale|input_amax|pre_quant_scale_inv)"
)
"""Tensors for activations and caches, which are not quantised that way here."""


@dataclass(frozen=True)
class Quantisation:
    """A folder's own description of its quantised matrices.

    Attributes
    ----------
    method : a key of `METHODS`, or empty where no file says one.
    where : the file that says so. ignored : modules that are not quantised, as the file lists them.
    bits, group : of integer codes; None where not said. own : both of single modules, by name.
    symmetric : whether GPTQ's zero points are in the middle. zeros_less_one : whether they are
        stored less one (version 1).
    blocks : rows and columns under one scale of FP8.
    notes : what the file asks for and is not done.
    """

    method: str = ""
    where: str = ""
    ignored: tuple[str, ...] = ()
    bits: tuple[int, ...] = ()
    group: int | None = None
    own: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    symmetric: bool = False
    zeros_less_one: bool = True
    blocks: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()

    def fail(self, what: str) -> None:
        """Raise FormatError: the tensors are not what the configuration says."""
        raise FormatError(f"contradicts the tensors: {what}", where=self.where)

    def check_kind(self, module: str, kind: str) -> None:
        """Check that the method has such matrices, and that the module is not ignored."""
        if self.method and kind not in METHODS[self.method]:
            self.fail(f"{module} is {kind}, which {self.method} is not")
        for pattern in self.ignored:
            if matches(module, pattern):
                self.fail(f"{module} is quantised ({kind}), but ignored by {shown(pattern)}")

    def check_bits(self, module: str, bits: int, most: bool = False) -> None:
        """Check the bits of codes; with `most`, that no more than these are said."""
        if self.own or not self.bits:
            return
        if bits not in self.bits and not (most and max(self.bits) <= bits):
            self.fail(f"{module} has codes of {bits} bits, not {' or '.join(map(str, self.bits))}")

    def check_group(self, module: str, group: int, columns: int) -> None:
        """Check the columns of a group; −1 stands for all."""
        said = self.group
        if said is not None and not self.own and (said if said > 0 else columns) != group:
            self.fail(f"{module} has groups of {group} columns, not {said}")

    def check_method(self, module: str, method: str) -> None:
        """Check a method that the tensors' shapes show."""
        if self.method in ("gptq", "awq") and method != self.method:
            self.fail(f"{module} is packed as {method} does it, not as {self.method}")

    def bits_and_group(self, module: str) -> tuple[int, int]:
        """Return both for a module of MLX's, whose tensors do not say them."""
        if module in self.own:
            return self.own[module]
        if len(self.bits) != 1 or not self.group or self.group < 1:
            what = f"does not say the bits and group_size of {module}"
            raise FormatError(what, where=self.where or "config.json")
        return self.bits[0], self.group


def matches(module: str, pattern: str) -> bool:
    """Return whether a list of ignored modules means this one.

    A pattern is a name, a regular expression after `re:` that matches its beginning, or a name
    with `*`, as modelopt writes them.
    """
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], module) is not None
        except re.error:
            return False
    if "*" in pattern:
        parts = ".*".join(map(re.escape, pattern.split("*")))
        return re.fullmatch(parts, module) is not None
    return module == pattern


def read_quantisation(config: Mapping[str, Any], folder: Path) -> Quantisation:
    """Read what config.json, or modelopt's own file, says.

    Raises
    ------
    UnsupportedError : the method is not known, with what would help.
    FormatError : the description is no object, or a number in it is none.
    """
    where = str(folder / "config.json")
    key = next((key for key in KEYS if config.get(key)), None)
    if key is None:
        said = read_optional(folder / OPT_FILE).get("quantization")
        if not said:
            return Quantisation()
        where, options = str(folder / OPT_FILE), {"quant_method": OPT, **_object(said, where)}
    else:
        options = _object(config[key], where)
    method = str(options.get("quant_method") or _unnamed(options, key))
    method = SAME.get(method, method)
    if method not in METHODS:
        hint = HINTS.get(method, f"methods that are read: {', '.join(METHODS)}")
        what = f"{key} asks for {shown(method) if method else 'an unnamed method'}"
        raise UnsupportedError(what, where=where, hint=hint)
    read = {"compressed-tensors": _compressed, "mlx": _mlx}.get(method, _plain)
    return read(Quantisation(method, where, _ignored(options, where)), options)


def _unnamed(options: Mapping[str, Any], key: str | None) -> str:
    """Return the method of a description that names none: MLX's, modelopt's or none."""
    if "bits" in options and "group_size" in options:
        return "mlx"
    return OPT if "quant_algo" in options else "compressed-tensors" * ("config_groups" in options)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError(f"says of quantisation {shown(value)}, which is no object", where=where)
    return value


def _count(value: Any, name: str, where: str) -> int | None:
    """Return an integer, or None; bools and floats are neither."""
    if value is None:
        return None
    if type(value) is not int or not -1 <= value <= 1 << 20:
        raise FormatError(f"says of quantisation {name} = {shown(value)}", where=where)
    return value


def _ignored(options: Mapping[str, Any], where: str) -> tuple[str, ...]:
    names = ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers")
    found = [options[name] for name in names if options.get(name)]
    for listed in found:
        if not isinstance(listed, list) or not all(isinstance(x, str) for x in listed):
            raise FormatError(f"lists ignored modules as {shown(listed)}", where=where)
    return tuple(dict.fromkeys(x for listed in found for x in listed))


def _plain(base: Quantisation, options: Mapping[str, Any]) -> Quantisation:
    """Read GPTQ's, AWQ's, FP8's, MXFP4's and modelopt's keys."""
    where = base.where
    bits = _count(options.get("bits", options.get("w_bit")), "bits", where)
    group = _count(options.get("group_size", options.get("q_group_size")), "group_size", where)
    version = options.get("version", "gemm")
    if base.method == "awq" and str(version).lower() != "gemm":
        hint = "AWQ checkpoints in the packing gemm are read"
        raise UnsupportedError(f"packs AWQ as {shown(version)}", where=where, hint=hint)
    layout = str(options.get("checkpoint_format", options.get("packing_format", "")))
    size = options.get("weight_block_size")
    if size is not None and not _is_block(size):
        raise FormatError(f"says weight_block_size is {shown(size)}", where=where)
    dynamic = options.get("dynamic") or options.get("extra_config")
    # GPTQ's lists of what is not converted hold parts of names; tensors say it in any case.
    ignored = base.ignored if base.method == OPT else ()
    return replace(
        base,
        ignored=ignored,
        bits=() if bits is None or dynamic else (bits,),
        group=None if dynamic else group,
        symmetric=options.get("sym") is True,
        zeros_less_one="v2" not in layout and layout != "auto_round",
        blocks=() if size is None else ((size[0], size[1]),),
        notes=tuple(_activation_notes(options)),
    )


def _is_block(size: Any) -> bool:
    """Return whether a value is two counts: the rows and columns under one scale."""
    pair = isinstance(size, list) and len(size) == 2
    return pair and all(type(n) is int and 0 < n <= 1 << 20 for n in size)


def _activation_notes(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is asked of activations and caches."""
    algorithm = str(options.get("quant_algo") or "")
    activations = options.get("activation_scheme")
    if activations or algorithm.upper() in ("FP8", "NVFP4", "W4A8_AWQ"):
        yield f"activations in {algorithm or 'FP8'}"
    if options.get("kv_cache_quant_algo") or options.get("kv_cache_scheme"):
        yield "a quantised cache"


def _compressed(base: Quantisation, options: Mapping[str, Any]) -> Quantisation:
    """Read compressed-tensors' groups of schemes."""
    where, groups = base.where, options.get("config_groups") or {}
    schemes = [_object(x, where) for x in _object(groups, where).values() if not _named(x)]
    bits, blocks, notes = set(), [], dict.fromkeys(_activation_notes(options))
    for scheme in schemes:
        weights = _object(scheme.get("weights") or {}, where)
        number = _count(weights.get("num_bits"), "num_bits", where)
        if number is not None and weights.get("type", "int") == "int":
            bits.add(number)
        size = weights.get("block_structure")
        if size is not None and _is_block(size):
            blocks.append((int(size[0]), int(size[1])))
        asked = scheme.get("input_activations")
        if isinstance(asked, dict):
            kind = "FP" if asked.get("type") == "float" else "INT"
            notes[f"activations in {kind}{asked.get('num_bits', '')}"] = None
    return replace(base, bits=tuple(sorted(bits)), blocks=tuple(blocks), notes=tuple(notes))


def _named(scheme: Any) -> bool:
    """Return whether a group names a preset and its targets only."""
    return isinstance(scheme, list)


def _mlx(base: Quantisation, options: Mapping[str, Any]) -> Quantisation:
    """Read MLX's bits and group sizes, of all modules and of single ones."""
    where = base.where
    bits = _count(options.get("bits"), "bits", where)
    group = _count(options.get("group_size"), "group_size", where)
    own = {}
    for name, said in options.items():
        if isinstance(said, dict):
            pair = (said.get("bits", bits), said.get("group_size", group))
            numbers = [_count(x, f"{name} bits or group_size", where) for x in pair]
            if None not in numbers:
                own[name] = (numbers[0] or 0, numbers[1] or 0)
    return replace(base, bits=() if bits is None else (bits,), group=group, own=own)
