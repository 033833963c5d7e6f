"""Models by formula: `synthetic:NAME?seed=N`, for tests and benchmarks; no file is needed.

Weights follow `numerics.synthetic`: the same bits on every host, whole or slice by slice, with
sizes that keep activations near 1 and attention scores at a standard deviation of about 1.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import log2, prod
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from cortiq.errors import ModelNotFoundError, RequestError, shown
from cortiq.formats.fetch import SYNTHETIC
from cortiq.ir import Node, Program, primitives_of
from cortiq.ir.ops import KeepListed
from cortiq.models import fixtures
from cortiq.models.synthetic_configs import CONFIGS
from cortiq.models.weight_rules import format_of_each
from cortiq.models.weights import LazyParts
from cortiq.numerics.layouts import LAYOUTS, Weight
from cortiq.numerics.synthetic import synthetic_vector, synthetic_weight
from cortiq.numerics.weights import SEARCHED, target_layout

PREFIX = SYNTHETIC
HEAD_GAIN = 2
"""Logits of an untied head have a standard deviation of about 2^HEAD_GAIN."""

FIXTURES: Mapping[str, Callable[[int], Program]] = {
    "tiny-mimo": fixtures.mimo,
    "tiny-mtp": fixtures.llama_with_mtp,
    "tiny-ties": fixtures.ties,
}
"""Programs that no family describes, by their builder (of the declared context)."""

FORMATS: Mapping[str, str] = dict.fromkeys(("llama3-8b", "delta-1b", "moe-1b", "conv-1b"), "w8")
"""Layout of the matrices where it is not `w16`."""


@dataclass(frozen=True)
class SyntheticCheckpoint:
    """A formula model with the interface of a checkpoint.

    Attributes
    ----------
    name : one of `CONFIGS` or `FIXTURES`.
    seed : of the weights.
    format : layout of the matrices.
    config : as config.json; empty for fixtures.
    tokenizer_source : "bytes": the tokenizer is `byte_tokenizer(vocab_size)`.
    """

    name: str
    seed: int
    format: str
    config: Mapping[str, Any]
    kind: str = "synthetic"
    eos_token_ids: tuple[int, ...] = (257,)
    tokenizer_source: str = "bytes"
    chat_template: None = None
    tensor_names: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The name that opens it again."""
        return f"{PREFIX}{self.name}?seed={self.seed}&format={self.format}"

    @property
    def architecture(self) -> str:
        """The family's `model_type`; a fixture's own name."""
        return self.config.get("model_type", self.name)

    def __contains__(self, name: object) -> bool:
        return False

    def tensor(self, name: str) -> Any:
        """Raise: there are no tensors; weights are computed by formula."""
        raise KeyError(name)

    def model_hash(self) -> str:
        """Return the SHA-256 of the definition, in hex."""
        text = json.dumps([self.path, dict(self.config)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def close(self) -> None:
        """Do nothing: no file is open."""


def open_synthetic(name: str) -> SyntheticCheckpoint:
    """Open the model `synthetic:NAME`, with `?seed=N`, `?format=LAYOUT` or both (`&`).

    Raises
    ------
    ModelNotFoundError : there is no such model.
    RequestError : an option is unknown or has no meaning.
    """
    title, _, query = name.removeprefix(PREFIX).partition("?")
    if title not in CONFIGS and title not in FIXTURES:
        near = get_close_matches(title, [*CONFIGS, *FIXTURES], 6, 0.5)
        hint = (
            f"such as {', '.join(near or [*CONFIGS][:6])}; cortiq.models.synthetic_configs has all"
        )
        raise ModelNotFoundError("there is no synthetic model of this name", where=name, hint=hint)
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    if set(options) - {"seed", "format"} or len(options) < len(pairs):
        raise RequestError("takes seed and format only, each once", where=name)
    seed, layout = options.get("seed", "0"), options.get("format", FORMATS.get(title, "w16"))
    if not re.fullmatch("[0-9]{1,20}", seed) or int(seed) >= 2**64:
        message = f"seed {shown(seed)} is not an integer from 0 to 2^64 − 1"
        raise RequestError(message, where=name)
    formats = ("w4", *(n for n in LAYOUTS if n not in ("F32", "F16", "BF16")))
    if layout not in formats:
        offered = ", ".join(formats)
        raise RequestError(f"no format is called {layout!r}", where=name, hint=f"one of {offered}")
    return SyntheticCheckpoint(title, int(seed), layout, CONFIGS.get(title, {}))


def synthetic_program(checkpoint: SyntheticCheckpoint, context: int | None) -> Program | None:
    """Return the program of a fixture, `None` for models that a family describes."""
    build = FIXTURES.get(checkpoint.name)
    return build(context or fixtures.CONTEXT) if build else None


def synthetic_weights(
    checkpoint: SyntheticCheckpoint, program: Program, layout: str | None
) -> dict[str, Weight]:
    """Return the weights of every name in the program; large ones are made on first use."""
    layout = layout or checkpoint.format
    formula = fixtures.WEIGHTS.get(checkpoint.name)
    specs, users = program.weights, _users(program)
    chosen = {
        name: _layout(rule, specs[name].shape)
        for name, rule in format_of_each(program, layout).items()
    }
    if formula is not None:
        return {n: formula(n, s.shape, chosen.get(n, "f32")) for n, s in specs.items()}
    return {
        name: _matrix(checkpoint, name, spec.shape, chosen[name], users[name])
        if name in chosen
        else _vector(checkpoint, name, spec.shape, users[name])
        for name, spec in specs.items()
    }


def _layout(name: str, shape: tuple[int, ...]) -> str:
    """Return the layout of a matrix; `w4` and `w4-5` stand for one of several."""
    return target_layout(name, shape[-1]).name if name in SEARCHED else name


def _users(program: Program) -> dict[str, list[Node]]:
    """Return the primitives that use each weight."""
    users: dict[str, list[Node]] = {}
    for graph in primitives_of(program).graphs.values():
        for node in graph.nodes:
            for weight in node.weights.values():
                users.setdefault(weight, []).append(node)
    return users


def _matrix(
    checkpoint: SyntheticCheckpoint,
    name: str,
    shape: tuple[int, ...],
    layout: str,
    users: list[Node],
) -> Weight:
    size, seed = (prod(shape[:-1]), shape[-1]), checkpoint.seed
    gain = 0
    if any(n.op.kind == "EmbedRows" for n in users):
        # Rows near 1 after the family's multiplier, which Gemma has and others have not.
        gain = 0 if checkpoint.architecture.startswith("gemma") else round(log2(size[1]) / 2)
    elif any("logits" in n.outputs for n in users):
        gain = HEAD_GAIN
    if layout == "f32":
        return synthetic_weight(layout, name, seed, size, gain=gain)

    def make() -> Mapping[str, Any]:
        return synthetic_weight(layout, name, seed, size, gain=gain).parts

    return Weight(LAYOUTS[layout], size, LazyParts(make))


def _vector(
    checkpoint: SyntheticCheckpoint, name: str, shape: tuple[int, ...], users: list[Node]
) -> Weight:
    lists = next((n.op for n in users if isinstance(n.op, KeepListed)), None)
    if lists is not None:  # neighbouring experts, other ones for every token
        first = np.arange(lists.vocab)[:, None] * lists.listed + checkpoint.seed % lists.experts
        indices = (first + np.arange(lists.listed)) % lists.experts
        return Weight.from_floats(indices.astype(np.float32))
    if len(shape) > 1:
        return synthetic_weight("f32", name, checkpoint.seed, (prod(shape[:-1]), shape[-1]))
    factors = ("RMSNorm", "LayerNorm", "Gain", "ExpertGain")
    factor = next((n.op for n in users if n.op.kind in factors), None)
    plain = getattr(factor, "form", "plain") in ("plain", "square", "magnitude")
    centre = 1.0 - getattr(factor, "offset", 0.0) if factor and plain else 0.0
    values = synthetic_vector(name, checkpoint.seed, shape[0], centre)
    return Weight.from_floats(values[None])
