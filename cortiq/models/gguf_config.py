"""Configurations from GGUF metadata: one key table for every family."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from cortiq.errors import FormatError, UnsupportedError
from cortiq.models.config import AnyConfig, Keys, accepts, construct, refuse_unknown
from cortiq.models.gguf_rope import ROPE_GGUF_KEYS, gguf_rope, shortest_decimals
from cortiq.models.open_checkpoint import OpenCheckpoint

GGUF_KEYS: Mapping[str, str] = {
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
}
"""GGUF keys, without the architecture's prefix, and the field of a config that each fills."""

HARMLESS_GGUF = frozenset({
    "n_deepstack_layers", "rope.dimension_sections", "rope.scaling.finetuned",
})  # fmt: skip
"""Keys that never change the graph. In a text all axes of a position are one, so that it does not
matter which of them turns which pair.
"""

ONLY_GGUF: Mapping[str, Any] = {"attention.causal": True}
"""Keys that would change the graph, accepted with the one value that does not."""

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

    The vocabulary size and whether the head is tied come from the tensors; so do biases, by
    `keys.gguf_tensors`.

    Parameters
    ----------
    ignored : unknown keys, without the architecture's prefix, that are left out all the same.

    Raises
    ------
    UnsupportedError : keys under the architecture's prefix that are unknown, by name.
    FormatError : a value is missing, of the wrong type, or contradicts another.
    """
    prefix = f"{source.architecture}."
    given = {
        key.removeprefix(prefix): shortest_decimals(source.config[key])
        for key in source.config
        if key.startswith(prefix)
    }
    table = {**GGUF_KEYS, **keys.gguf}
    known = {f.name for f in fields(config_type)}
    unknown = _unknown(given, table, known, keys)
    refuse_unknown(unknown, "metadata", where, ignored)
    values = {name: given[key] for key, name in table.items() if key in given and name in known}
    if EMBEDDING not in source and "vocab_size" not in values:  # draft heads share tables
        raise FormatError(f"has no tensor {EMBEDDING!r}", where=where)
    rows = source.tensor(EMBEDDING).shape[0] if EMBEDDING in source else values["vocab_size"]
    if values.setdefault("vocab_size", rows) != rows:
        message = f"says vocab_size is {values['vocab_size']}, but {EMBEDDING} has {rows} rows"
        raise FormatError(message, where=where)
    values = _uniform(config_type, values)
    values["tie_word_embeddings"] = HEAD not in source
    tensors = tuple(source.tensor_names)
    values |= {name: bool(fnmatch.filter(tensors, t)) for name, t in keys.gguf_tensors.items()}
    values["source"] = "gguf"
    layers, drafts = given.get("block_count"), given.get("nextn_predict_layers", 0)
    if type(layers) is int and type(drafts) is int:  # blocks count the layers that draft
        values["num_hidden_layers"] = layers - drafts
        if drafts and layers <= drafts:
            raise FormatError(f"has {layers} layers, of which {drafts} draft", where=where)
    config = construct(config_type, values, where=where)
    if "attention.value_length" not in keys.gguf:
        _check_value_length(given, config.head_width, where)
    values["rope_parameters"] = gguf_rope(given, source, config, where)
    return construct(config_type, values, where=where)


def _uniform(config_type: type[AnyConfig], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with arrays of one number a layer, all equal, as that number where a field
    takes no list: some writers repeat a number for every layer.
    """
    layers, hints = values.get("num_hidden_layers"), get_type_hints(config_type)

    def single(name: str, value: Any) -> Any:
        listed = list(value) if isinstance(value, list | tuple) else []
        if not listed or len(listed) != layers or accepts(hints[name], tuple(listed)):
            return value
        return listed[0] if all(one == listed[0] for one in listed) else value

    return {name: single(name, value) for name, value in values.items()}


def _unknown(
    given: Mapping[str, Any], table: Mapping[str, str], known: set[str], keys: Keys
) -> list[str]:
    """Return the keys that are not known, with their values."""
    unknown, only = [], {**ONLY_GGUF, **keys.gguf_only}
    for key, value in given.items():
        if key in ROPE_GGUF_KEYS | HARMLESS_GGUF or key == "attention.value_length":
            continue
        if key in only and value == only[key]:
            continue
        if table.get(key) not in known:
            unknown.append(f"{key} = {value!r}")
    return unknown


def _check_value_length(given: Mapping[str, Any], width: int, where: str) -> None:
    value = given.get("attention.value_length", width)
    if value != width:
        message = f"has value heads of {value} and key heads of {width}"
        raise UnsupportedError(message, where=where)
