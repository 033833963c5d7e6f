"""Adapters that are part of a model: those that prompts with images, or with sounds, take.

Phi-4 multimodal as published holds their matrices beside its own, `MODULE.lora_A.NAME.weight`, and
their scales in config.json; folders of transformers' form hold each as a PEFT folder `NAME-lora`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from cortiq.arguments import is_finite
from cortiq.errors import FormatError, shown
from cortiq.formats.adapter import Adapter, LowRank, open_adapter
from cortiq.formats.adapter_files import CONFIG
from cortiq.formats.open_model import Checkpoint

_PART = r"(?P<module>.+)\.lora_(?P<side>[AB])\.{name}\.weight"


@dataclass
class BuiltInAdapter(Adapter):
    """An adapter whose tensors lie among a model's; it is closed with that one."""

    def sha256(self) -> str:
        """Return the hash of the names, types, shapes and bytes of its tensors, and its scales."""
        digest = sha256()
        for name, change in sorted(self.changes.items()):
            digest.update(f"{name} {change.scale!r}".encode())
            for tensor in (change.a, change.b):
                kind, raw = self.stored(tensor)
                digest.update(f"{kind} {self.shape(tensor)}".encode())
                digest.update(raw.data)
        return digest.hexdigest()

    def close(self) -> None:
        """Leave the files open: they are the model's."""


def own_adapter(checkpoint: Any, name: str) -> Adapter | None:
    """Open a model's own adapter; None where it has none of this name.

    Raises
    ------
    FormatError, UnsupportedError : it has one that is damaged, or that cannot be used.
    """
    if not isinstance(checkpoint, Checkpoint):
        return None
    found = own_tensors(checkpoint, name)
    if found:
        return _built_in(checkpoint, name, found)
    folder = checkpoint.path / f"{name}-lora"
    return open_adapter(folder) if (folder / CONFIG).is_file() else None


def own_tensors(checkpoint: Checkpoint, name: str) -> dict[str, dict[str, str]]:
    """Return the tensors of a model's own adapter that lie among its own: by module, then side."""
    pattern = re.compile(_PART.format(name=re.escape(name)))
    found: dict[str, dict[str, str]] = {}
    for tensor in checkpoint.tensor_names:
        if part := pattern.fullmatch(tensor):
            found.setdefault(part["module"], {})[part["side"]] = tensor
    return found


def _built_in(
    checkpoint: Checkpoint, name: str, found: Mapping[str, Mapping[str, str]]
) -> BuiltInAdapter:
    said, where = checkpoint.whole.get(f"{name}_lora"), str(checkpoint.path)
    alpha = said.get("lora_alpha") if isinstance(said, Mapping) else None
    if alpha is None or not is_finite(alpha):
        raise FormatError(f"{name}_lora has lora_alpha {shown(alpha)}", where="config.json")
    changes: dict[str, LowRank] = {}
    for module, sides in found.items():
        if len(sides) < 2:
            raise FormatError(f"{module} has one matrix of two for {name}", where=where)
        (rank, *_), outer = (checkpoint.info(sides[side]).shape for side in "AB")
        if len(outer) != 2 or rank != outer[1] or not rank:
            raise FormatError(f"{sides['A']} and {sides['B']} have no common rank", where=where)
        changes[f"{module}.base_layer.weight"] = LowRank(sides["A"], sides["B"], alpha / rank)
    path, mapped = checkpoint.path, checkpoint.mapped
    return BuiltInAdapter(path, "huggingface", 1.0, changes, {}, mapped, ())
