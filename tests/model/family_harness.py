"""Test declarations of families, and the tiny checkpoints that follow from them.

`test_every_family.py` says how to declare one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import transformers
from checkpoints import Case
from gguf_files import GGUF, LAYERS

from cortiq.models import load_program
from cortiq_reference.ideal import evaluate

POSITIONS = 24
"""Rows of a test's sequence: more than the windows of the declarations."""
COMMON: Mapping[str, Any] = {
    "vocab_size": 96, "num_hidden_layers": 2, "rms_norm_eps": 0.02, "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}  # fmt: skip
GEOMETRIES: Mapping[str, Mapping[str, Any]] = {
    "wide": {  # heads times head width is not the hidden size
        "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 20,
    },
    "odd": {  # widths that are no multiples of 32, more layers
        "hidden_size": 40, "intermediate_size": 72, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 10, "num_hidden_layers": 3,
    },
    "switched": {  # with every switch of the family
        "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6,
        "num_key_value_heads": 3, "head_dim": 8, "num_hidden_layers": 3,
    },
}  # fmt: skip
FORMATS: Mapping[str, str] = {"wide": "w16", "odd": "f32", "switched": "w8"}
"""Layout of the matrices in which a geometry meets the contract."""
SHARED = frozenset({"source", "rope_parameters", *COMMON, *GEOMETRIES["wide"]})
"""Fields of a config that every family has: the harness changes them itself."""


@dataclass(frozen=True)
class Family:
    """A family to be tested: one declaration gives all its tests.

    Attributes
    ----------
    name : the module of `cortiq.models`.
    config : the configuration class of transformers.
    switches : options of the third geometry, every one away from its default. Each, set back to
        what the first geometry has, must move the logits or contradict the tensors.
    moves : options changed by a little, each of which must move the logits: of the geometry
        `switched` if the first key is a switch, else of `wide`. `...` deletes a key; dots reach
        inside.
    sizes : more options whose values the tensors' shapes give: any other contradicts them.
    unread : usual sizes that nothing in a file depends on.
    base : options of all geometries, over the common ones; `...` leaves one out.
    shapes : options by geometry, over everything else.
    refused : configurations that are refused, with the words of the error.
    elsewhere : fields of the config that other tests cover.
    required : lists of a config that transformers derives from nothing else.
    context : the declared context, where it decides a rope table.
    call : passed to the forward function of transformers, see `checkpoints.Case`.
    gguf : how GGUF files of the family are written, if llama.cpp reads it: one way an architecture.
    title : in the tests' names, where a module has several declarations.
    """

    name: str
    config: str
    switches: Mapping[str, Any]
    moves: Sequence[Mapping[str, Any]]
    sizes: Sequence[str] = ()
    unread: Sequence[str] = ()
    base: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    refused: Sequence[tuple[Mapping[str, Any], str]] = ()
    elsewhere: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    context: int | None = None
    call: Mapping[str, Any] = field(default_factory=dict)
    gguf: Sequence[GGUF] = ()
    title: str = ""

    def __str__(self) -> str:
        return self.title or self.name

    @cached_property
    def module(self) -> ModuleType:
        """The family."""
        return import_module(f"cortiq.models.{self.name}")

    def case(self, geometry: str) -> Case:
        """The checkpoint of a geometry."""
        options = {**COMMON, **GEOMETRIES[geometry], **self.base}
        options |= self.switches if geometry == "switched" else {}
        options |= self.shapes.get(geometry, {})
        fields = {f.name for f in dataclasses.fields(getattr(transformers, self.config))}
        absent = set(COMMON) - fields - set(self.base)
        kept = {k: v for k, v in options.items() if v is not ... and k not in absent}
        return Case(
            f"{self}-{geometry}", self.config, kept, self.context, dict(self.call), POSITIONS
        )

    def geometry_of(self, changes: Mapping[str, Any]) -> str:
        """The geometry in which an option can be seen."""
        first = next(iter(changes)).partition(".")[0]
        return "switched" if first in self.switches else "wide"


def declared() -> list[Family]:
    """Every family that a module `families_*.py` of this folder declares."""
    modules = sorted(path.stem for path in Path(__file__).parent.glob("families_*.py"))
    return [family for name in modules for family in import_module(name).FAMILIES]


def logits_of(checkpoint: Any, tokens: Sequence[int], context: int | None = None) -> np.ndarray:
    """Logits of every position in float64."""
    loaded = load_program(checkpoint, context=context, weight_format="f32")
    return evaluate(loaded.program, loaded.weights, tokens, ["logits"])["logits"]


def changed(checkpoint: Any, changes: Mapping[str, Any]) -> Any:
    """The checkpoint with keys of its config replaced (`...` deletes one; dots reach inside)."""
    config = dict(checkpoint.config)
    for path, value in changes.items():
        *outer, key = path.split(".")
        inner = config
        for name in outer:
            inner[name] = dict(inner[name])
            inner = inner[name]
        if value is ...:
            inner.pop(key, None)
        else:
            inner[key] = value
    return dataclasses.replace(checkpoint, config=config)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference of two logits, relative to the largest logit, over all positions."""
    return float(np.abs(a - b).max() / np.abs(b).max())


def norm_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Largest ‖a − b‖/‖b‖ of a position."""
    return float((np.linalg.norm(a - b, axis=-1) / np.linalg.norm(b, axis=-1)).max())


class Edited:
    """A checkpoint without a tensor, with one that it has not, or with some grown a row."""

    def __init__(
        self, checkpoint: Any, without: str = "", extra: str = "", grown: Sequence[str] = ()
    ) -> None:
        self._inner, self._grown = checkpoint, frozenset(grown)
        self.tensor_names = [n for n in (*checkpoint.tensor_names, extra) if n not in ("", without)]
        self._held = frozenset(self.tensor_names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def tensor(self, name: str) -> Any:
        """A tensor."""
        found = self._inner.tensor(name)
        if name not in self._grown:
            return found
        first, *rest = found.shape or (1,)
        return dataclasses.replace(found, shape=(first + 1, *rest))


def depth(checkpoint: Any) -> int:
    """Layers of a checkpoint: some configurations have only a list of them."""
    config = checkpoint.config
    named = next((config[key] for key in LAYERS if config.get(key)), 0)
    return named or len(config["layers_block_type"])
