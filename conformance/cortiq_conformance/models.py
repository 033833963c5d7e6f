"""Models of levels 2 to 4: tiny ones by formula, and real ones from the cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cortiq.ir import Program
from cortiq.models import synthetic_configs as families
from cortiq.numerics.layouts import Weight
from cortiq.plugins import default_plugins
from cortiq_conformance.case import NotRunError
from cortiq_conformance.case_data import CaseData

TINY: Mapping[str, str] = {
    "tiny-llama": "w16",
    "tiny-gemma3": "Q8_0",
    "tiny-mixtral": "w8",
    "tiny-lfm2": "Q4_1",
    "tiny-mimo": "f32",
    "tiny-mtp": "w8b256",
}
"""Synthetic models, each in another layout."""
MINI: Mapping[str, str] = {
    f"mini-{name}": ("w16", "w8", "f32")[number % 3] for number, name in enumerate(families.MINI)
}
"""Smaller ones, a model of every other family: whole graphs only."""
HEADED: Mapping[str, str] = {
    "tiny-llama+mtp": "w8",
    "tiny-lfm2+mtp": "w16",
    "tiny-mimo+mimo": "f32",
    "mini-qwen3_5_text+mtp": "w16",
    "mini-granitemoehybrid+mtp": "w8",
    "tiny-llama+dflash": "w16",
    "tiny-llama+mtp,dflash": "w8",
    "tiny-llama+eagle3": "w8",
    "tiny-llama+dspark": "w8",
    "tiny-deepseek_v4+dspark": "w16",
}
"""Tiny models with a draft head, a block drafter or both, which stand behind the plus.

Two have recurrent states in their trunks (a delta rule, a state space), which hold no rows that
could be dropped where drafts do not hold.
"""
FORMULA: Mapping[str, str] = {**TINY, **MINI, **HEADED}
REAL = ("smollm2", "gemma3-270m")
TINY_PROMPTS = {"5 tokens": 5, "70 tokens": 70, "33 tokens": 33}
"""Lengths of the tiny models' prompts, whose ids are random."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be compiled, with what its golden entries carry."""

    program: Program
    weights: Mapping[str, Weight]
    facts: Mapping[str, str]


def chosen(models: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return tiny and other models among those asked for; all of both by default."""
    if models is None:
        return list(TINY), list(REAL)
    others = [m for m in models if m not in FORMULA]
    return [m for m in models if m in TINY], others


def chosen_headed(models: Sequence[str] | None) -> list[str]:
    """Return the requested models with a draft head."""
    return [name for name in HEADED if models is None or name in models]


def chosen_mini(models: Sequence[str] | None) -> list[str]:
    """Return the requested small models."""
    return [name for name in MINI if models is None or name in models]


@cache
def load(name: str) -> LoadedModel:
    """Open a model; raise `NotRunError` if it is not here."""
    from cortiq.formats.checkpoint import open_checkpoint
    from cortiq.models import load_program
    from cortiq.models.synthetic import PREFIX, open_synthetic

    checkpoint: Any
    title, _, heads = name.partition("+") if name in HEADED else (name, "", "")
    if name in FORMULA or name.startswith(PREFIX):
        formula = f"{PREFIX}{title}?seed=1&format={FORMULA[name]}" if name in FORMULA else name
        checkpoint = open_synthetic(formula)
    else:
        checkpoint = open_checkpoint(_path(name))
    known = default_plugins().families
    loaded = load_program(checkpoint, families=known, heads=heads or "off")
    layouts = sorted({spec.layout or "" for spec in loaded.program.weights.values()})
    facts = {"model": checkpoint.model_hash(), "format": ",".join(layouts)}
    return LoadedModel(loaded.program, loaded.weights, facts)


def _path(name: str) -> Path:
    from cortiq.formats import fetch

    if name not in fetch.KNOWN_MODELS:
        return fetch.resolve(name)
    path = fetch.cached(name)
    if path is None:
        raise NotRunError(f"{name} is not in the cache: cortiq pull {name}")
    return path


@cache
def _real_prompts() -> Mapping[str, Mapping[str, list[int]]]:
    return json.loads(Path(__file__).with_name("prompts.json").read_text())


def prompts(name: str) -> list[str]:
    """Return the names of a model's prompts."""
    return list(_real_prompts().get(name, TINY_PROMPTS))


def prompt(name: str, title: str) -> np.ndarray:
    """Return the ids of a prompt, int32."""
    if name in _real_prompts():
        return np.array(_real_prompts()[name][title], np.int32)
    vocabulary = load(name).program.facts["vocab_size"]
    ids = CaseData(f"prompt {title} of {name}").integers(0, vocabulary, TINY_PROMPTS[title])
    return ids.astype(np.int32)
