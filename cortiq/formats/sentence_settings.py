"""Sentence embeddings: modules of sentence-transformers beside a model, poolings of GGUF files.

`modules.json` lists what makes a vector of a text, one step after the other: the model, a pooling
of its rows, and steps on the pooled row. A module's folder has its config.json and its tensors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cortiq.errors import FormatError, UnsupportedError, shown
from cortiq.formats.strict_json import parse_object, read_bytes, read_object, read_optional

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
MODULE_CONFIG = "config.json"
MOST_LEVELS = 8
"""Levels of objects and lists in a list of modules."""
MOST_MODULES = 32
MOST_VALUES = 1 << 20
"""Elements of the widest vector that a module takes or gives."""
POOLINGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean", "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean", "pooling_mode_lasttoken": "last",
}  # fmt: skip
"""Keys of a pooling module's config.json, and what cortiq calls these poolings."""
OTHER_NAMES: Mapping[str, str] = {"lasttoken": "last", "mean_sqrt_len_tokens": "mean_sqrt_len"}
"""Names of poolings in the newer key `pooling_mode` that differ from ours."""
GGUF_POOLING = "pooling_type"
"""Key of GGUF files, without the architecture's prefix."""
GGUF_POOLINGS: Mapping[int, str] = {0: "", 1: "mean", 2: "cls", 3: "last", 4: ""}
"""Poolings by their number there: 0 keeps all rows, 4 is a classifier, which pool nothing."""
ACTIVATIONS: Mapping[str, str] = {
    "Identity": "", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu",
    "Sigmoid": "sigmoid",
}  # fmt: skip
"""Classes of torch that a dense module names, and the activations of the catalogue."""
DENSE_KEYS = frozenset({
    "activation_function", "bias", "in_features", "module_input_name", "module_output_name",
    "out_features", "use_residual",
})  # fmt: skip
DENSE, NORM, UNIT = "dense", "norm", "unit"
"""Steps on a pooled row: a matrix, a LayerNorm, a scaling to length 1."""
VECTOR = "sentence_embedding"
NO_STEP = frozenset({"Dropout", "LogitScore", "Transformer"})
"""Modules that change no vector: Dropout is for training, LogitScore reads a reranker's logits."""
_FOLDER = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


@dataclass(frozen=True)
class SentenceStep:
    """A module's work on the pooled row.

    Attributes
    ----------
    kind : `DENSE`, `NORM` or `UNIT`.
    tensors : beginning of its tensors' names, which is its folder's name; empty without tensors.
    inputs, outputs : widths of a dense module; `inputs` is a norm's width.
    biased : whether a dense module has a bias. act : its activation, empty for none.
    """

    kind: str
    tensors: str = ""
    inputs: int = 0
    outputs: int = 0
    biased: bool = False
    act: str = ""


@dataclass(frozen=True)
class SentenceSettings:
    """A folder's rules of how a text becomes a vector.

    Attributes
    ----------
    pooling : how hidden rows become one; empty where nothing is said.
    steps : what is done to that row.
    prompts : what is put before texts, by name. usual : the name that counts where none is given.
    prompts_pooled : whether the rows of a prompt take part in the pooling.
    folders : those of the modules that have one.
    """

    pooling: str = ""
    steps: Sequence[SentenceStep] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    usual: str = ""
    prompts_pooled: bool = True
    folders: Sequence[str] = ()

    @property
    def files(self) -> list[str]:
        """Files that the steps were read from, of a folder that has some with tensors."""
        folders = dict.fromkeys(step.tensors.rpartition(".")[0] for step in self.steps)
        found = [f"{name}/{MODULE_CONFIG}" for name in folders if name]
        return [MODULES, *found] if found else []


def pooling_in_gguf(metadata: Mapping[str, Any], architecture: str, where: str) -> str:
    """Return the pooling that a GGUF file asks for; empty where it asks for none.

    Raises
    ------
    FormatError : its number stands for none.
    """
    key = f"{architecture}.{GGUF_POOLING}"
    number = metadata.get(key, 0)
    if type(number) is not int or number not in GGUF_POOLINGS:
        raise FormatError(f"{key} is {shown(number)}, not {sorted(GGUF_POOLINGS)}", where=where)
    return GGUF_POOLINGS[number]


def sentence_settings(folder: Path) -> SentenceSettings:
    """Return what a model's folder says of embeddings.

    Raises
    ------
    FormatError : a file is damaged, or asks for a pooling that cortiq does not compute.
    UnsupportedError : there is a module that cortiq does not know, by name.
    """
    found = SentenceSettings()
    if os.path.lexists(folder / MODULES):
        found = _of_modules(folder)
    prompts, usual = _prompts(folder / PROMPTS)
    return replace(found, prompts=prompts, usual=usual)


def _of_modules(folder: Path) -> SentenceSettings:
    pooling, pooled, modules = "", True, _listed(folder / MODULES)
    steps: list[SentenceStep] = []
    for kind, path in modules:
        where = folder / path / MODULE_CONFIG
        if kind == "Pooling":
            if pooling or steps:
                raise FormatError("has a Pooling after other steps", where=str(folder / MODULES))
            config = read_object(where)
            pooling = _pooling(config, str(where))
            pooled = config.get("include_prompt") is not False
        elif kind not in NO_STEP:
            if not pooling:
                what = f"has {kind} on the rows of tokens, before any Pooling"
                raise UnsupportedError(what, where=str(folder / MODULES))
            steps.append(_step(kind, path, where))
    folders = tuple(path for _, path in modules if path)
    return SentenceSettings(pooling, tuple(steps), prompts_pooled=pooled, folders=folders)


def _listed(file: Path) -> list[tuple[str, str]]:
    """Return the kind and the folder of every module; only a plain name of a folder is taken."""
    data, where = b'{"modules": ' + read_bytes(file) + b"}", str(file)
    modules = parse_object(data, where, MOST_LEVELS)["modules"]
    if not isinstance(modules, list) or not 0 < len(modules) <= MOST_MODULES:
        raise FormatError(f"is no list of 1 to {MOST_MODULES} modules", where=where)
    found = []
    for module in modules:
        kind, path = (
            module.get(key) if isinstance(module, dict) else None for key in ("type", "path")
        )
        if not isinstance(kind, str) or not isinstance(path, str):
            raise FormatError("has a module without type and path", where=where)
        if path and not _FOLDER.fullmatch(path):
            what = f"has a module in {shown(path)}, which is no plain name of a folder"
            raise FormatError(what, where=where)
        kind = kind.rpartition(".")[2]
        known = kind == "Pooling" or kind in NO_STEP or kind in STEPS
        if not known:
            hint = f"cortiq has {', '.join(sorted({'Pooling', *NO_STEP, *STEPS}))}"
            raise UnsupportedError(f"has the module {shown(kind)}", where=where, hint=hint)
        if kind == "Transformer" and path:
            what = f"has its Transformer in the folder {path}, not beside {file.name}"
            raise UnsupportedError(what, where=where)
        if not path and kind not in ("Normalize", *NO_STEP):
            raise FormatError(f"has {kind} in no folder", where=where)
        found.append((kind, path))
    return found


def _pooling(config: Mapping[str, Any], where: str) -> str:
    named = config.get("pooling_mode")
    asked = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
    found = [POOLINGS.get(key, "") for key in asked]
    if named is not None:
        found = [str(name) for name in (named if isinstance(named, list) else [named])]
        found = [OTHER_NAMES.get(name, name) for name in found]
    if len(found) != 1 or found[0] not in POOLINGS.values():
        what = f"asks for the pooling {shown(named or asked)}"
        hint = f"cortiq has one of {', '.join(POOLINGS.values())}"
        raise FormatError(what, where=where, hint=hint)
    return found[0]


def _step(kind: str, path: str, where: Path) -> SentenceStep:
    config = read_optional(where) if kind == "Normalize" else read_object(where)
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, VECTOR):
            raise UnsupportedError(f"{key} is {shown(config[key])}", where=str(where))
    return STEPS[kind](config, path, str(where))


def _dense(config: Mapping[str, Any], path: str, where: str) -> SentenceStep:
    if strange := sorted(set(config) - DENSE_KEYS):
        raise UnsupportedError(f"has the keys {shown(strange)}", where=where)
    if config.get("use_residual") not in (None, False):
        raise UnsupportedError("adds its input to its output (use_residual)", where=where)
    named = config.get("activation_function", "Tanh")
    act = named.rpartition(".")[2] if isinstance(named, str) else ""
    if act not in ACTIVATIONS:
        hint = f"cortiq has {', '.join(ACTIVATIONS)}"
        what = f"activation_function is {shown(named)}"
        raise UnsupportedError(what, where=where, hint=hint)
    biased = config.get("bias", True)
    if not isinstance(biased, bool):
        raise FormatError(f"bias is {shown(biased)}", where=where)
    inputs, outputs = (_width(config, key, where) for key in ("in_features", "out_features"))
    return SentenceStep(DENSE, f"{path}.linear", inputs, outputs, biased, ACTIVATIONS[act])


def _layer_norm(config: Mapping[str, Any], path: str, where: str) -> SentenceStep:
    return SentenceStep(NORM, f"{path}.norm", _width(config, "dimension", where))


STEPS = {
    "Dense": _dense, "LayerNorm": _layer_norm,
    "Normalize": lambda config, path, where: SentenceStep(UNIT),
}  # fmt: skip
"""Modules on the pooled row."""


def _width(config: Mapping[str, Any], key: str, where: str) -> int:
    value = config.get(key)
    if type(value) is not int or not 0 < value <= MOST_VALUES:
        raise FormatError(f"{key} is {shown(value)}, not from 1 to {MOST_VALUES}", where=where)
    return value


def _prompts(file: Path) -> tuple[dict[str, str], str]:
    """Return the prompts by name, and the name of the usual one; empty without one."""
    config = read_optional(file)
    given, usual = config.get("prompts") or {}, config.get("default_prompt_name") or ""
    if not isinstance(given, dict) or not all(isinstance(v, str | None) for v in given.values()):
        raise FormatError("prompts are not texts by name", where=str(file))
    prompts = {name: text or "" for name, text in given.items()}
    if not isinstance(usual, str) or (usual and usual not in prompts):
        what = f"default_prompt_name is {shown(usual)}, which is none of its prompts"
        raise FormatError(what, where=str(file))
    return prompts, usual
