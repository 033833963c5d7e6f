"""Configurations: typed, every key known by name, from config.json or from GGUF metadata.

A family's `Config` extends `BaseConfig` with fields named as the keys of config.json; `Keys` lists
further keys of its files. An unknown key is refused: it might change the graph.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, NewType, TypeVar

from cortiq.arguments import is_finite
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.models.config_limits import LARGEST, MAX_HEAD, MAX_WIDTH
from cortiq.models.config_notes import ONLY, is_note

MAX_COUNT = 2**31 - 1
Amount = NewType("Amount", int)
"""A count that may be 0: fields of type `int` are at least 1."""
Extended = NewType("Extended", float)
"""A number that may be infinite: fields of type `float` are finite."""

UNIONS = (typing.Union, types.UnionType)
ORIGINAL = "original_max_position_embeddings"
ROPE_KEYS = frozenset({
    ORIGINAL, "partial_rotary_factor", "rope_parameters", "rope_scaling", "rope_theta",
})  # fmt: skip
"""Keys that `rope_parameters` brings into one form."""
AXES = frozenset({"mrope_interleaved", "mrope_section"})
"""Rope parameters of the axes of an image: in a text every axis has the same position."""


@dataclass(frozen=True)
class Keys:
    """Keys of a family's files that are not fields of its `Config`.

    Attributes
    ----------
    aliases : other names of fields in config.json.
    same_as : keys of config.json that repeat another one; a different value is refused.
    harmless : more keys that never change the graph. only : more accepted with one value.
    defaults : by `model_type` or GGUF architecture, values of absent keys (`rope_theta` too).
    vectors : fields that are the numbers of a folder's tensor of this name.
    gguf : more GGUF keys, without the architecture's prefix (a file may have none), and the field
        each fills; with "" for a field, a usual key is refused.
    gguf_absent : what llama.cpp takes for GGUF keys that are absent, or 0.
    gguf_only : GGUF keys accepted with one value. gguf_rows : fields that are a tensor's rows.
    gguf_tensors : fields that are true when the GGUF file holds a tensor of this name (`*` stands
        for anything), or lists of whether each layer does.
    """

    aliases: Mapping[str, str] = field(default_factory=dict)
    same_as: Mapping[str, str] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    only: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    vectors: Mapping[str, str] = field(default_factory=dict)
    gguf: Mapping[str, str] = field(default_factory=dict)
    gguf_absent: Mapping[str, Any] = field(default_factory=dict)
    gguf_only: Mapping[str, Any] = field(default_factory=dict)
    gguf_tensors: Mapping[str, str] = field(default_factory=dict)
    gguf_rows: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BaseConfig:
    """Fields that every family has, named as in config.json.

    Attributes
    ----------
    rope_parameters : `rope_type`, `rope_theta` and the parameters of the type, as transformers 5
        writes them; one such mapping per layer type for families whose layers differ.
    source : "huggingface" or "gguf", for conventions that differ between the two.
    default_theta, default_turned : usual rotary base, share. windows_turn : only windows rotate.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    rope_parameters: Mapping[str, Any] = field(default_factory=dict)
    source: str = "huggingface"
    default_theta: ClassVar[float] = 10000.0
    default_turned: ClassVar[float] = 1.0
    windows_turn: ClassVar[bool] = False
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source"})

    @property
    def kv_heads(self) -> int:
        """Key and value heads: as many as query heads unless the file says otherwise."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_width(self) -> int:
        """Width of a head: the hidden size divided among the heads unless the file says so."""
        return self.head_dim or self.hidden_size // self.num_attention_heads


AnyConfig = TypeVar("AnyConfig", bound=BaseConfig)


def convert_config(
    config_type: type[AnyConfig], given: BaseConfig, where: str, **values: Any
) -> AnyConfig:
    """Return a configuration of another type from the common fields and `values`."""
    names = {f.name for f in fields(config_type)}
    shared = {f.name: getattr(given, f.name) for f in fields(given) if f.name in names}
    return construct(config_type, shared | values, where=where)


def config_from_json(
    config_type: type[AnyConfig],
    keys: Keys,
    values: Mapping[str, Any],
    *,
    where: str,
    ignored: Sequence[str] = (),
) -> AnyConfig:
    """Read the object of a config.json.

    Parameters
    ----------
    ignored : unknown keys that are left out all the same.

    Raises
    ------
    UnsupportedError : keys that are unknown or have a value we do not implement, all by name.
    FormatError : a field is missing, of the wrong type, or contradicts another.
    """
    known = {f.name for f in fields(config_type)} - config_type.not_in_json
    given = dict(values)
    for alias, name in keys.aliases.items():
        put(given, name, given.pop(alias, None), where)
    for key, name in keys.same_as.items():
        put(given, name, given.pop(key, None), where)
    only = {**ONLY, **keys.only}
    unknown = [
        f"{key} = {value!r}" if key in only else key
        for key, value in given.items()
        if key not in known | keys.harmless | ROPE_KEYS
        and (value not in (only[key], None) if key in only else not is_note(key))
    ]
    refuse_unknown(unknown, "config keys", where, ignored)
    defaults = dict(keys.defaults.get(str(given.get("model_type")), {}))
    theta = defaults.pop("rope_theta", config_type.default_theta)
    given = {**defaults, **given}
    given["rope_parameters"] = rope_parameters(given, theta, where)
    return construct(config_type, {k: v for k, v in given.items() if k in known}, where=where)


def check_derived(where: str, **sizes: tuple[Any, Any]) -> None:
    """Raise FormatError where a size in a file contradicts the sizes it follows from.

    Parameters
    ----------
    sizes : by name, what the file says (None for nothing) and what follows.
    """
    for name, (said, follows) in sizes.items():
        if said not in (None, follows):
            raise FormatError(f"says {name} is {said!r}; it must be {follows!r}", where=where)


def put(values: dict[str, Any], name: str, value: Any, where: str) -> None:
    """Set a field unless it is set already; a different value is a contradiction."""
    if value is None:
        return
    if values.get(name) is not None and values[name] != value:
        raise FormatError(f"says {name} is {values[name]!r} and {value!r}", where=where)
    values[name] = value


def refuse_unknown(
    unknown: Sequence[str], what: str, where: str, ignored: Sequence[str] = ()
) -> None:
    """Raise UnsupportedError for keys, some with ` = VALUE`, but for those that are ignored.

    A key that is to be ignored and is not among the unknown ones is a RequestError.
    """
    names = {text.partition(" = ")[0]: text for text in unknown}
    if needless := sorted(set(ignored) - set(names)):
        message = f"there is no unknown key {', '.join(needless)} to ignore"
        raise RequestError(message, where=where, hint="only keys that are not known are ignored")
    left = sorted(text for name, text in names.items() if name not in ignored)
    if left:
        hint = "a key that is not known could change what the model computes; if it does not, "
        hint += f"--ignore-unknown-config {next(iter(left)).partition(' = ')[0]}"
        message = f"has {what} that cortiq does not support: {', '.join(left)}"
        raise UnsupportedError(message, where=where, hint=hint)


def rope_parameters(
    values: Mapping[str, Any], default_theta: float, where: str = "config.json"
) -> dict[str, Any]:
    """Return RoPE parameters as transformers 5 writes them, from either form.

    transformers 4 has `rope_theta` and `rope_scaling` (with `type` or `rope_type`), transformers 5
    `rope_parameters`, which may hold a mapping per layer type.
    """
    given = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise FormatError(f"rope parameters are not an object: {given!r}", where=where)
    if given and all(isinstance(v, Mapping) for v in given.values()):
        return {name: _rope_entry(v, values, default_theta, where) for name, v in given.items()}
    entry = _rope_entry(given, values, default_theta, where)
    put(entry, "rope_theta", values.get("rope_theta"), where)
    return entry


def _rope_entry(
    given: Mapping[str, Any], values: Mapping[str, Any], default_theta: float, where: str
) -> dict[str, Any]:
    entry = {k: v for k, v in given.items() if v is not None and k not in AXES}
    kind = entry.pop("type", None)
    put(entry, "rope_type", "default" if kind == "mrope" else kind, where)
    entry.setdefault("rope_type", "default")
    put(entry, ORIGINAL, values.get(ORIGINAL), where)
    for key in ("rope_theta", "partial_rotary_factor"):
        if values.get(key) is not None:
            entry.setdefault(key, values[key])
    entry.setdefault("rope_theta", default_theta)
    return entry


types_of: Callable[[type], Mapping[str, Any]] = functools.cache(typing.get_type_hints)
"""Returns the type of each field of a class of configurations."""


def construct(config_type: type[AnyConfig], values: Mapping[str, Any], *, where: str) -> AnyConfig:
    """Construct a config from these values after checking that fields are complete and typed."""
    hints = types_of(config_type)
    problems, arguments = [], {}
    for name, kind, required in _fields(config_type):
        if name not in values or (values[name] is None and not accepts(hints[name], None)):
            problems += [f"{name} is missing"] if required else []
        elif not accepts(hints[name], values[name]):
            problems.append(f"{name} is {values[name]!r}, not {kind}")
        else:
            arguments[name] = _converted(hints[name], values[name])
    over = [(name, most) for name, most in LARGEST.items() if arguments.get(name, 0) > most]
    problems += [f"{name} is more than {most}" for name, most in over]
    if problems:
        raise FormatError("; ".join(problems), where=where)
    config = config_type(**arguments)
    given: Any = config.num_attention_heads  # of each layer, in some files
    head, heads = config.head_width, max(given, default=1) if type(given) is tuple else given
    if not 0 < head <= MAX_HEAD or max(config.hidden_size, heads * head) > MAX_WIDTH:
        what = f"rows of {config.hidden_size} elements, {heads} attention heads of {head}"
        raise FormatError(what, where=where)
    return config


def _fields(config_type: type[BaseConfig]) -> Iterator[tuple[str, str, bool]]:
    for f in fields(config_type):
        yield f.name, str(f.type), f.default is f.default_factory is MISSING


def accepts(kind: Any, value: Any) -> bool:
    """Return whether a JSON value has the type of a field; numbers are finite.

    Counts are positive; in lists they may be 0, for layers that have none.
    """
    if typing.get_origin(kind) in UNIONS:
        return any(accepts(k, value) for k in kind.__args__)
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        return isinstance(value, list | tuple) and all(
            accepts(element, v) or (element is int and type(v) is int and v == 0) for v in value
        )
    if kind in (int, Amount):
        return type(value) is int and (kind is int) <= value <= MAX_COUNT
    if kind is float:
        return is_number(value)
    if kind is Extended:
        return type(value) is float and value == value
    if typing.get_origin(kind) is not None:
        return isinstance(value, Mapping)
    return isinstance(value, kind)


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a finite float64: no NaN, no integer of 400 digits."""
    return type(value) in (int, float) and is_finite(value)


def _converted(kind: Any, value: Any) -> Any:
    """Convert a value to its field's form: numbers to float, lists to tuples."""
    if typing.get_origin(kind) in UNIONS:
        kind = next(k for k in kind.__args__ if accepts(k, value))
    if kind is float:
        return float(value)
    return tuple(value) if typing.get_origin(kind) is tuple else value
