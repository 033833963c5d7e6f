"""Readings of quantised matrices' configurations, in config.json or modelopt's own file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cortiq.errors import FormatError, UnsupportedError, shown
from cortiq.formats.quantisation import KEYS, METHODS, OPT, OPT_FILE, SAME, Quantisation
from cortiq.formats.strict_json import read_optional

Reader = Callable[[Quantisation, Mapping[str, Any]], Quantisation]
FORMATS: Mapping[str, frozenset[str]] = {
    "pack-quantized": frozenset({"packed"}),
    "int-quantized": frozenset({"int8"}),
    "float-quantized": frozenset({"fp8"}),
    "naive-quantized": frozenset({"fp8", "int8"}),
    "nvfp4-pack-quantized": frozenset({"nvfp4"}),
    "mxfp4-pack-quantized": frozenset({"mxfp4"}),
    "mxfp8-quantized": frozenset({"fp8"}),
}
"""Kinds of matrices by compressed-tensors' formats."""
ALGORITHMS: Mapping[str, str] = {
    **dict.fromkeys(("FP8", "FP8_PB_WO", "FP8_PC_PT", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8"), "fp8"),
    **dict.fromkeys(("W4A16", "W4A16_AWQ"), "int4"),
    "W8A8_SQ_PER_CHANNEL": "int8",
    **dict.fromkeys(("NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8"), "nvfp4"),
    **dict.fromkeys(("MXFP4", "W4A8_MXFP4_FP8", "W4A16_MXFP4"), "mxfp4"),
}
"""Kinds of matrices by modelopt's algorithms."""
WEIGHTS_ONLY = re.compile(r"_WO$|^W\d+A16")
"""Algorithms that leave activations as they are."""

MLX_USUAL: Mapping[str, tuple[int, int]] = {
    "affine": (4, 64), "mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32),
}  # fmt: skip
"""Bits and group size of MLX's modes, which a null stands for."""


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
        hint = f"methods that are read: {', '.join(METHODS)}"
        what = f"{key} asks for {shown(method) if method else 'an unnamed method'}"
        raise UnsupportedError(what, where=where, hint=hint)
    read = READERS.get(method, _plain)
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
    names = ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers", "exclude")
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
        layers=_modelopt_layers(options, where) if base.method == OPT else (),
        symmetric=options.get("sym") is True,
        zeros_less_one="v2" not in layout and layout != "auto_round",
        blocks=() if size is None else ((size[0], size[1]),),
        notes=tuple(_activation_notes(options)),
    )


def _modelopt_layers(
    options: Mapping[str, Any], where: str
) -> tuple[tuple[str, frozenset[str]], ...]:
    """Read `quantized_layers`, an algorithm for each module."""
    said = _object(options.get("quantized_layers") or {}, where)
    algorithms = {
        n: str(_object(layer, where).get("quant_algo")).upper() for n, layer in said.items()
    }
    return tuple(
        (name, frozenset({ALGORITHMS[algorithm]}))
        for name, algorithm in algorithms.items()
        if algorithm in ALGORITHMS
    )


def _is_block(size: Any) -> bool:
    """Return whether a value is two counts: the rows and columns under one scale."""
    pair = isinstance(size, list) and len(size) == 2
    return pair and all(type(n) is int and 0 < n <= 1 << 20 for n in size)


def _activation_notes(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is asked of activations and caches."""
    algorithm = str(options.get("quant_algo") or "").upper()
    activations = options.get("activation_scheme")
    if activations or (algorithm in ALGORITHMS and not WEIGHTS_ONLY.search(algorithm)):
        yield f"activations in {algorithm or 'FP8'}"
    bits = options.get("act_bits")  # AutoRound's
    if type(bits) is int and bits < 16:
        integers = str(options.get("act_data_type")).startswith("int")
        yield f"activations in {'INT' if integers else 'FP'}{bits}"
    if options.get("kv_cache_quant_algo") or options.get("kv_cache_scheme"):
        yield "a quantised cache"


def _compressed(base: Quantisation, options: Mapping[str, Any]) -> Quantisation:
    """Read compressed-tensors' groups of schemes."""
    where, groups = base.where, options.get("config_groups") or {}
    schemes = [_object(x, where) for x in _object(groups, where).values() if not _named(x)]
    bits, blocks, notes = set(), [], dict.fromkeys(_activation_notes(options))
    layers: list[tuple[str, frozenset[str]]] = []
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
        form = str(scheme.get("format") or options.get("format"))
        kinds = FORMATS.get(form, METHODS[base.method])
        layers += [(pattern, kinds) for pattern in _targets(scheme, where) if weights]
    return replace(
        base, bits=tuple(sorted(bits)), blocks=tuple(blocks), notes=tuple(notes),
        layers=() if any(_named(x) for x in groups.values()) else tuple(layers),
    )  # fmt: skip


def _targets(scheme: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield patterns of the modules that a group means; those of a class may be any."""
    targets = scheme.get("targets") or []
    if not isinstance(targets, list) or not all(isinstance(x, str) for x in targets):
        raise FormatError(f"lists targets as {shown(targets)}", where=where)
    for target in targets:
        yield target if target.startswith("re:") or "." in target else "*"


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
            usual = MLX_USUAL.get(str(said.get("mode", "affine")), (bits, group))
            pair = (said.get("bits", bits), said.get("group_size", group))
            full = [y if x is None else x for x, y in zip(pair, usual, strict=True)]
            numbers = [_count(x, f"{name} bits or group_size", where) for x in full]
            if None not in numbers:
                own[name] = (numbers[0] or 0, numbers[1] or 0)
    return replace(base, bits=() if bits is None else (bits,), group=group, own=own)


def _bitsandbytes(base: Quantisation, options: Mapping[str, Any]) -> Quantisation:
    """Read which of its ways bitsandbytes used."""
    four = options.get("load_in_4bit") is True
    table = str(options.get("bnb_4bit_quant_type") or "fp4") if four else ""
    bits = (8,) if options.get("load_in_8bit") is True else ()
    notes = ("activations in INT8",) if bits else ()
    return replace(base, ignored=(), bits=bits, codes=table, notes=notes)


def _hqq(base: Quantisation, options: Mapping[str, Any]) -> Quantisation:
    """Read nothing: HQQ's tensors say all."""
    return replace(base, ignored=())


def _quark(base: Quantisation, options: Mapping[str, Any]) -> Quantisation:
    """Read the type of Quark's integers; two types of them cannot be told apart by tensors."""
    where = base.where
    layers = _object(options.get("layer_quant_config") or {}, where)
    said = [options.get("global_quant_config"), *layers.values()]
    schemes = [_object(scheme, where) for scheme in said if scheme is not None]
    weights = [scheme.get("weight") for scheme in schemes]
    weights = [w for each in weights for w in (each if isinstance(each, list) else [each])]
    specs = [_object(weight, where) for weight in weights if weight is not None]
    odd = {str(spec["scale_format"]) for spec in specs if spec.get("scale_format")}
    algorithms = options.get("algo_config") or []
    algorithms = algorithms if isinstance(algorithms, list) else [algorithms]
    names = {str(_object(algorithm, where).get("name")) for algorithm in algorithms}
    for what in sorted((odd - {"e8m0", "float32"}) | (names & {"rotation", "quarot", "svdquant"})):
        hint = "scales in E8M0 or floats, and weights without online rotations, are read"
        raise UnsupportedError(f"asks Quark for {shown(what)}", where=where, hint=hint)
    integers = {str(spec.get("dtype")) for spec in specs} & {"int4", "uint4"}
    method = str(_object(options.get("export") or {}, where).get("pack_method") or "reorder")
    inputs = [scheme.get("input_tensors") for scheme in schemes]
    notes = ("quantised activations",) if any(inputs) else ()
    codes = f"{integers.pop()}-{method}" if len(integers) == 1 else ""
    return replace(base, codes=codes, notes=notes)


def _bitnet(base: Quantisation, options: Mapping[str, Any]) -> Quantisation:
    """Read which of BitNet's layers wrote the codes, or whether floats stand for them."""
    where = base.where
    if options.get("use_rms_norm"):
        hint = "ternary matrices without a norm of their own before each are read"
        raise UnsupportedError("asks for use_rms_norm", where=where, hint=hint)
    made = str(options.get("linear_class", "bitlinear"))
    mode = str(options.get("quantization_mode", "offline"))
    for said, known in ((made, ("bitlinear", "autobitlinear")), (mode, ("offline", "online"))):
        if said not in known:
            hint = f"{' and '.join(known)} are read"
            raise UnsupportedError(f"asks BitNet for {shown(said)}", where=where, hint=hint)
    # Of the two only autobitlinear has a way to quantise floats.
    codes = mode if made == "autobitlinear" and mode == "online" else made
    return replace(base, codes=codes, notes=("activations in INT8",))


READERS: Mapping[str, Reader] = {
    "compressed-tensors": _compressed, "mlx": _mlx, "bitsandbytes": _bitsandbytes, "hqq": _hqq,
    "quark": _quark, "bitnet": _bitnet,
}  # fmt: skip
"""Readers of configurations that are not of the usual kind."""
