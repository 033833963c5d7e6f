"""Adapters on disk, LoRA and IA³: PEFT folders and GGUF files, read and checked, not yet merged.

PEFT: `adapter_config.json` beside `adapter_model.safetensors`, whose tensors are named
`base_model.model.MODULE.lora_A.weight`. GGUF: tensors `TENSOR.lora_a` and `TENSOR.lora_b`, as
llama.cpp's converter writes them. An adapter may also hold whole tensors, which replace the
model's. What is merged is B·A times α/r, or times α/√r (rank-stabilised).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from cortiq.arguments import is_finite
from cortiq.errors import FormatError, RequestError, UnsupportedError, shown
from cortiq.formats.adapter_files import CONFIG, PICKLED, WEIGHTS
from cortiq.formats.digest import file_sha256
from cortiq.formats.gguf import GGUFFile, open_gguf
from cortiq.formats.ia3 import ModuleVector, module_vectors
from cortiq.formats.mapped import MappedTensors
from cortiq.formats.safetensors import WEIGHT_TYPES, read_header, refuse_pickled
from cortiq.formats.stacked_factors import StackedLowRank, is_stabilised, take_stacks
from cortiq.formats.strict_json import read_object

_PEFT_PREFIX = "base_model.model."
_PEFT_PART = re.compile(
    r"(?P<module>.+?)\.(?:(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|"
    r"lora_magnitude_vector)(?:\.default)?(?:\.weight)?)"
)
_PEFT_WHOLE = re.compile(r"(?P<module>.+?)(?:\.base_layer|\.modules_to_save(?:\.default)?)?"
                         r"\.(?P<kind>weight|bias)")  # fmt: skip
_GGUF_PART = re.compile(r"(?P<tensor>.+)\.(?P<part>lora_a|lora_b)")
_SCALED = re.compile(r"(?P<path>.+):(?P<scale>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)")
_PATTERN = re.compile(r"\^?[\w.-]+\$?", re.ASCII)
"""Keys of `rank_pattern` and `alpha_pattern` that are names; other expressions are not run."""
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "fan_in_fan_out": (None, False), "lora_bias": (None, False), "layer_replication": (None,),
    "alora_invocation_tokens": (None,), "trainable_token_indices": (None,),
    "use_qalora": (None, False), "arrow_config": (None,),
}  # fmt: skip
"""Keys of adapter_config.json that change what is merged, and the values that do not."""
_BASE_CHANGING = ("pissa", "olora", "corda", "lora_ga", "loftq")
"""Beginnings of `init_lora_weights` that change the model's own weights, too."""


@dataclass(frozen=True)
class LowRank:
    """A change of one matrix: scale·B·A.

    Attributes
    ----------
    a, b : tensors of the adapter: [..., r, columns] and [..., rows, r].
    scale : α/r or α/√r.
    is_table : both are transposed: [r, rows] and [columns, r] (embeddings).
    magnitude : with DoRA, the tensor of the rows' new lengths, else None.
    """

    a: str
    b: str
    scale: float
    is_table: bool = False
    magnitude: str | None = None


@dataclass
class Adapter:
    """An adapter.

    Attributes
    ----------
    path : its folder or file. kind : "huggingface" or "gguf": the files that it goes with.
    scale : what the user multiplies it with.
    changes : low-rank changes by tensor of the model.
    whole : tensors of the adapter that replace the model's, by those.
    vectors : of IA³, by the matrix whose input or output they multiply.
    stacks : of stacked experts.
    """

    path: Path
    kind: str
    scale: float
    changes: Mapping[str, LowRank]
    whole: Mapping[str, str]
    _tensors: MappedTensors = field(repr=False)
    _files: tuple[Path, ...] = field(repr=False)
    vectors: Mapping[str, ModuleVector] = field(default_factory=dict)
    stacks: tuple[StackedLowRank, ...] = ()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one of its tensors."""
        return self._tensors.tensors[name].shape

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """Return a tensor's type and bytes."""
        return self._tensors.tensors[name].type, self._tensors.raw(name)

    def sha256(self) -> str:
        """Return the hash of what the adapter is made of: of a file, or of both of a folder."""
        hashes = [file_sha256(path) for path in self._files]
        return (
            hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
        )

    def close(self) -> None:
        """Release the files."""
        self._tensors.close()


def split_scale(text: str) -> tuple[str, float]:
    """Split `PATH[:SCALE]`; a path that exists with its colon is a path."""
    found = _SCALED.fullmatch(text)
    if found is None or Path(text).exists():
        return text, 1.0
    return found["path"], float(found["scale"])


def split_adapter(text: str) -> tuple[str, str]:
    """Return name and path of `NAME=PATH`.

    Raises
    ------
    RequestError : it is no such text.
    """
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        what = f"takes NAME=PATH, not {shown(text)}"
        raise RequestError(what, where="adapters", hint="--adapter sql=./sql-lora")
    return name, path


def open_adapter(path: Path, scale: float = 1.0) -> Adapter:
    """Open a PEFT folder or a GGUF adapter and check every name and shape in it.

    Raises
    ------
    FormatError : it is no adapter, or a damaged one.
    UnsupportedError : an adapter of another kind than LoRA, or one that cannot be merged.
    """
    if not math.isfinite(scale):
        raise FormatError(f"a scale of {scale}", where=str(path))
    if path.is_file() and path.suffix == ".gguf":
        return _from_gguf(open_gguf(path), scale)
    if (path / CONFIG).is_file() and (path / WEIGHTS).is_file():
        return _from_peft(path, scale)
    if (path / PICKLED).is_file():
        refuse_pickled(path / PICKLED)
    what = f"is no adapter: neither a folder with {CONFIG} and {WEIGHTS}, nor a GGUF file"
    raise FormatError(what, where=str(path))


def _from_peft(folder: Path, scale: float) -> Adapter:
    config, where = read_object(folder / CONFIG), str(folder / CONFIG)
    _check_peft(config, where)
    header = read_header(folder / WEIGHTS)
    tensors = MappedTensors(folder, [header.path], header.tensors, [header.buffer])
    _check_types(tensors)
    files = (folder / CONFIG, folder / WEIGHTS)
    if config["peft_type"] == "IA3":
        shapes = {name: info.shape for name, info in tensors.tensors.items()}
        vectors = module_vectors(shapes, _PEFT_PREFIX, str(folder))
        return Adapter(folder, "huggingface", scale, {}, {}, tensors, files, vectors)
    parts: dict[str, dict[str, str]] = {}
    whole: dict[str, str] = {}
    for name in tensors.tensors:
        plain = name.removeprefix(_PEFT_PREFIX)
        if found := _PEFT_PART.fullmatch(plain):
            held, key = parts.setdefault(found["module"], {}), found["part"]
        elif (found := _PEFT_WHOLE.fullmatch(plain)) and "lora_" not in plain:
            held, key = whole, f"{found['module']}.{found['kind']}"
        else:
            raise FormatError(f"has a tensor {name!r} that no LoRA has", where=str(folder))
        if key in held:
            raise FormatError(f"has both {held[key]} and {name}", where=str(folder))
        held[key] = name
    stacks = take_stacks(parts, config, str(folder))
    changes = {
        f"{module}.weight": _peft_change(module, found, config, tensors)
        for module, found in parts.items()
    }
    return Adapter(folder, "huggingface", scale, changes, whole, tensors, files, stacks=stacks)


def _check_peft(config: Mapping[str, Any], where: str) -> None:
    """Check that a configuration is of an adapter that can be used."""
    if config.get("peft_type") not in ("LORA", "IA3"):
        kind = shown(config.get("peft_type"))
        raise UnsupportedError(f"is a {kind} adapter; LORA and IA3 are known", where=where)
    for key, values in _REFUSED.items():
        if config.get(key) not in values:
            raise UnsupportedError(f"{key} is {shown(config[key])}: not supported", where=where)
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_BASE_CHANGING):
        hint = "save it converted to a plain LoRA: PEFT's path_initial_model_for_weight_conversion"
        what = f"was trained on weights that {start} has changed"
        raise UnsupportedError(what, where=where, hint=hint)


def _peft_change(
    module: str, parts: Mapping[str, str], config: Mapping[str, Any], tensors: MappedTensors
) -> LowRank:
    """Return the change of a module; check that both matrices are there and fit."""
    is_table = "lora_embedding_A" in parts or "lora_embedding_B" in parts
    first, second = (f"lora_embedding_{x}" if is_table else f"lora_{x}" for x in "AB")
    if first not in parts or second not in parts:
        _fail(tensors, f"{module} has no {first if first not in parts else second}")
    a, b = parts[first], parts[second]
    rank = _rank(a, b, tensors)
    patterns, usual = config.get("alpha_pattern"), config.get("lora_alpha")
    alpha = _pattern_value(patterns, module, usual, str(tensors.path))
    if not is_finite(alpha):
        _fail(tensors, f"lora_alpha of {module} is {shown(alpha)}")
    root = math.sqrt(rank) if is_stabilised(config, str(tensors.path)) else rank
    magnitude = parts.get("lora_magnitude_vector")
    if bool(config.get("use_dora")) != (magnitude is not None):
        _fail(tensors, f"use_dora does not agree with the tensors of {module}")
    return LowRank(a, b, alpha / root, is_table, magnitude)


def _pattern_value(patterns: Any, module: str, usual: Any, where: str) -> Any:
    """Return the value for a module: of the first key that its name ends with, or is."""
    if patterns is not None and not isinstance(patterns, dict):
        raise FormatError(f"alpha_pattern is {shown(patterns)}", where=where)
    for key, value in (patterns or {}).items():
        if not _PATTERN.fullmatch(key):
            what = f"alpha_pattern has {shown(key)}: only names are supported, not expressions"
            raise UnsupportedError(what, where=where)
        name = key.removeprefix("^").removesuffix("$")
        if module == name or (module.endswith(f".{name}") and not key.startswith("^")):
            return value
    return usual


def _from_gguf(file: GGUFFile, scale: float) -> Adapter:
    metadata, where = file.metadata, str(file.path)
    kinds = metadata.get("general.type"), metadata.get("adapter.type")
    if kinds != ("adapter", "lora"):
        what = f"is no LoRA: general.type is {shown(kinds[0])}, adapter.type {shown(kinds[1])}"
        raise FormatError(what, where=where)
    alpha = metadata.get("adapter.lora.alpha", 0.0)
    if not is_finite(alpha):
        raise FormatError(f"adapter.lora.alpha is {shown(alpha)}", where=where)
    _check_types(file)
    parts: dict[str, dict[str, str]] = {}
    for name in file.tensors:
        found = _GGUF_PART.fullmatch(name)
        if not found:
            raise FormatError(f"has a tensor {name!r} that no LoRA has", where=where)
        parts.setdefault(found["tensor"], {})[found["part"]] = name
    changes = dict(_gguf_changes(parts, alpha, file))
    return Adapter(file.path, "gguf", scale, changes, {}, file, tuple(file.paths))


def _gguf_changes(
    parts: Mapping[str, Mapping[str, str]], alpha: float, file: GGUFFile
) -> Iterator[tuple[str, LowRank]]:
    """Yield changes by tensor; without an alpha, llama.cpp takes the product as it is."""
    for tensor, found in parts.items():
        if found.keys() != {"lora_a", "lora_b"}:
            _fail(file, f"{tensor} has only one of lora_a and lora_b")
        a, b = found["lora_a"], found["lora_b"]
        is_table = tensor == "token_embd.weight"  # looked up by row: its A is [rows, r]
        rank = file.tensors[b].shape[-1] if is_table else _rank(a, b, file)
        if not rank:
            _fail(file, f"{b} has no rank")
        yield tensor, LowRank(a, b, alpha / rank if alpha else 1.0, is_table)


def _rank(a: str, b: str, tensors: MappedTensors) -> int:
    """Return the rank of a product; FormatError if two tensors have none."""
    first, second = tensors.tensors[a].shape, tensors.tensors[b].shape
    if len(first) < 2 or len(first) != len(second) or not 0 < first[-2] == second[-1]:
        _fail(tensors, f"{a} {list(first)} and {b} {list(second)} have no common rank")
    return first[-2]


def _check_types(tensors: MappedTensors) -> None:
    """Check that all tensors are floats."""
    for info in tensors.tensors.values():
        if info.type not in WEIGHT_TYPES:
            _fail(tensors, f"{info.name} has type {info.type}, not {' or '.join(WEIGHT_TYPES)}")


def _fail(tensors: MappedTensors, what: str) -> NoReturn:
    raise FormatError(what, where=str(tensors.path))
