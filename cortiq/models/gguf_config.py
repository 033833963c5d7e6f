"""Configurations from GGUF metadata: one key table for every family."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from cortiq.errors import FormatError, UnsupportedError, shown
from cortiq.models.config import (
    Amount,
    AnyConfig,
    BaseConfig,
    Keys,
    accepts,
    construct,
    put,
    refuse_unknown,
    types_of,
)
from cortiq.models.config_limits import MAX_LAYERS
from cortiq.models.gguf_keys import (
    GGUF_KEYS,
    HARMLESS_GGUF,
    ONLY_GGUF,
    WINDOW_PATTERN,
    WINDOWS_BASE,
)
from cortiq.models.gguf_rope import ROPE_GGUF_KEYS, gguf_rope, shortest_decimals
from cortiq.models.layer_kinds import GLOBAL, LOCAL, by_layer
from cortiq.models.open_checkpoint import OpenCheckpoint

EMBEDDING, HEAD = "token_embd.weight", "output.weight"


def config_from_gguf(
    config_type: type[AnyConfig],
    keys: Keys,
    source: OpenCheckpoint,
    *,
    where: str,
    ignored: Sequence[str] = (),
) -> AnyConfig:
    """Read the metadata of a GGUF file.

    The vocabulary's size, whether the head is tied, and biases come from the tensors.

    Parameters
    ----------
    ignored : unknown keys, without the architecture's prefix, that are left out all the same.

    Raises
    ------
    UnsupportedError : keys under the architecture's prefix that are unknown, by name.
    FormatError : a value is missing, of the wrong type, or contradicts another.
    """
    given = _given(source, keys)
    table = {**GGUF_KEYS, **keys.gguf}
    known = {f.name for f in fields(config_type)}
    absent = {key for key in keys.gguf_absent if table.get(key) in known and not given.get(key)}
    given |= {key: keys.gguf_absent[key] for key in absent}
    unknown = _unknown(given, table, known, keys, config_type.windows_turn)
    refuse_unknown(unknown, "metadata", where, ignored)
    values: dict[str, Any] = {}
    for key in (key for key in table if key in given):
        put(values, table[key], given[key], where)
    values = {**keys.defaults.get(source.architecture, {}), **values}
    values = {name: value for name, value in values.items() if name in known}
    if EMBEDDING not in source and "vocab_size" not in values:  # draft heads share tables
        raise FormatError(f"has no tensor {EMBEDDING!r}", where=where)
    rows = source.tensor(EMBEDDING).shape[0] if EMBEDDING in source else values["vocab_size"]
    if values.setdefault("vocab_size", rows) != rows:
        message = f"says vocab_size is {values['vocab_size']}, but {EMBEDDING} has {rows} rows"
        raise FormatError(message, where=where)
    pattern = given[WINDOW_PATTERN] if values.pop("layer_types", None) is not None else None
    values = _uniform(config_type, values)
    values = {n: v for n, v in _head_sizes(values, table).items() if n in known} | values
    values["tie_word_embeddings"] = HEAD not in source
    tensors = tuple(source.tensor_names)
    values["source"] = "gguf"
    layers, drafts = given.get("block_count"), given.get("nextn_predict_layers", 0)
    if type(layers) is int and type(drafts) is int:  # blocks count the layers that draft
        values["num_hidden_layers"] = layers - drafts
        if drafts and layers <= drafts:
            raise FormatError(f"has {layers} layers, of which {drafts} draft", where=where)
    rows_of = {name: tensor for name, tensor in keys.gguf_rows.items() if tensor in source}
    values |= {name: source.tensor(tensor).shape[0] for name, tensor in rows_of.items()}
    values |= _held(config_type, keys.gguf_tensors, tensors, values.get("num_hidden_layers"))
    config = construct(config_type, values, where=where)
    if pattern is not None:
        values["layer_types"] = _kinds(pattern, config.num_hidden_layers, where)
    if "attention.value_length" not in keys.gguf:
        _check_value_length(given, config.head_width, where)
    values["rope_parameters"] = gguf_rope(given, source, config, where)
    return construct(config_type, values, where=where)


def _head_sizes(values: Mapping[str, Any], table: Mapping[str, str]) -> dict[str, Any]:
    """Return what llama.cpp takes for heads of keys and a head's width where a file has none."""
    heads, width = values.get("num_attention_heads"), values.get("hidden_size")
    found = {"attention.head_count_kv": heads}
    if isinstance(heads, int) and isinstance(width, int) and heads > 0:
        found["attention.key_length"] = width // heads
    return {table[key]: size for key, size in found.items() if size is not None}


def _given(source: OpenCheckpoint, keys: Keys) -> dict[str, Any]:
    """Return the metadata by keys without the architecture's prefix, which a few never have."""
    prefix = f"{source.architecture}."
    return {
        key.removeprefix(prefix): shortest_decimals(value)
        for key, value in source.config.items()
        if key.startswith(prefix) or key in keys.gguf
    }


def _held(
    config_type: type[BaseConfig], wanted: Mapping[str, str], tensors: Sequence[str], layers: Any
) -> dict[str, bool | list[bool]]:
    """Return whether the file has tensors; for a field with an entry a layer, whether each has."""
    hints, found = types_of(config_type), {
        name: fnmatch.filter(tensors, t)
        or fnmatch.filter(tensors, t.replace("attn_q.", "attn_qkv."))
        for name, t in wanted.items()
    }  # fmt: skip
    listed = [name for name in found if accepts(hints[name], (True,)) and accepts(int, layers)]
    each = {name: {t.split(".")[1] for t in found[name]} for name in listed}
    lists = {
        name: [str(n) in each[name] for n in range(min(layers, MAX_LAYERS))] for name in listed
    }
    return {name: bool(held) for name, held in found.items()} | lists


def _kinds(pattern: Any, layers: int, where: str) -> tuple[str, ...]:
    """Return the kind of every layer: a list says which have windows, a number n that each nth
    has none (0 that all have one).
    """
    if accepts(tuple[bool, ...] | tuple[int, ...], pattern):
        local = by_layer(tuple(pattern), layers, WINDOW_PATTERN)
    elif accepts(Amount, pattern):
        local = tuple(not pattern or (n + 1) % pattern for n in range(layers))
    else:
        raise FormatError(f"{WINDOW_PATTERN} is {shown(pattern)}", where=where)
    return tuple(LOCAL if windowed else GLOBAL for windowed in local)


def _uniform(config_type: type[AnyConfig], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with arrays of one number a layer, all equal, as that number where a field
    takes no list: some writers repeat a number for every layer.
    """
    layers, hints = values.get("num_hidden_layers"), types_of(config_type)

    def single(name: str, value: Any) -> Any:
        listed = list(value) if isinstance(value, list | tuple) else []
        if not listed or len(listed) != layers or accepts(hints[name], tuple(listed)):
            return value
        return listed[0] if all(one == listed[0] for one in listed) else value

    return {name: single(name, value) for name, value in values.items()}


def _unknown(
    given: Mapping[str, Any], table: Mapping[str, str], known: set[str], keys: Keys, turn: bool
) -> list[str]:
    """Return the keys that are not known, with their values."""
    unknown, only = [], {**ONLY_GGUF, **keys.gguf_only}
    for key, value in given.items():
        if key in ROPE_GGUF_KEYS | HARMLESS_GGUF or key == "attention.value_length":
            continue
        if (key in only and value == only[key]) or (turn and key == WINDOWS_BASE):
            continue
        if table.get(key) not in known:
            unknown.append(f"{key} = {value!r}")
    return unknown


def _check_value_length(given: Mapping[str, Any], width: int, where: str) -> None:
    value = given.get("attention.value_length", width)
    if value != width:
        message = f"has value heads of {value} and key heads of {width}"
        raise UnsupportedError(message, where=where)
