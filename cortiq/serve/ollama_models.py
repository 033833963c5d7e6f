"""Ollama's API: its objects about models."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from cortiq.ir.graph import WeightSpec
from cortiq.numerics.layouts import LAYOUTS
from cortiq.serve.offered_model import OfferedModel, file_bytes
from cortiq.serve.served_model import ServedModel

ALWAYS = "9999-12-31T23:59:59Z"
"""The time when a model is unloaded that stays as long as the server runs."""


def tag_object(served: ServedModel) -> dict[str, Any]:
    """Return a model's entry in `/api/tags`."""
    return {
        "name": served.name, "model": served.name, "modified_at": timestamp(served.created),
        "size": _bytes(served), "digest": served.model.model_hash, "details": _details(served),
    }  # fmt: skip


def unloaded_tag(model: OfferedModel) -> dict[str, Any]:
    """Return the entry in `/api/tags` of a model that was never loaded: little is known of it."""
    unknown = {"parent_model": "", "format": "cortiq", "family": "", "families": [],
               "parameter_size": "", "quantization_level": ""}  # fmt: skip
    return {
        "name": model.name, "model": model.name, "modified_at": timestamp(0),
        "size": model.size or file_bytes(model.source), "digest": "", "details": unknown,
    }  # fmt: skip


def running_object(model: OfferedModel) -> dict[str, Any]:
    """Return a loaded model's entry in `/api/ps`."""
    kept, ends = model.keep_seconds, ALWAYS
    if kept is not None:
        ends = timestamp(time.time() + kept - (time.monotonic() - model.used_at))
    context = model.entry["context_length"]
    tag = {name: value for name, value in model.tag.items() if name != "modified_at"}
    return {**tag, "expires_at": ends, "size_vram": 0, "context_length": context}


def show_object(served: ServedModel) -> dict[str, Any]:
    """Return the answer of `/api/show`."""
    model, family = served.model, _family(served)
    parameters = "\n".join(f"{name} {value:g}" for name, value in served.usual.values.items())
    info = {
        "general.architecture": family, "general.parameter_count": _parameters(served),
        f"{family}.context_length": model.context, "cortiq.fingerprint": served.fingerprint,
    }  # fmt: skip
    able = {
        "completion": True, "embedding": True, "tools": served.dialect is not None,
        "thinking": served.thinking is not None, "vision": model.has_medium("image"),
    }  # fmt: skip
    return {
        "modelfile": f"FROM {served.name}", "parameters": parameters, "license": "",
        "template": model.tokenizer.chat_template() or "", "details": _details(served),
        "model_info": info, "capabilities": [name for name, has in able.items() if has],
        "modified_at": timestamp(served.created),
    }  # fmt: skip


def timestamp(seconds: float) -> str:
    """Return a time in seconds since 1970 as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _details(served: ServedModel) -> dict[str, Any]:
    family = _family(served)
    return {
        "parent_model": "", "format": "cortiq", "family": family, "families": [family],
        "parameter_size": f"{_parameters(served) / 1e6:.2f}M",
        "quantization_level": served.model.file_type or _commonest_layout(served),
    }  # fmt: skip


def _commonest_layout(served: ServedModel) -> str:
    layouts = Counter[str]()
    for spec in _weights(served):
        layouts[spec.layout or "f32"] += math.prod(spec.shape)
    return "".join(name for name, _ in layouts.most_common(1))


def _family(served: ServedModel) -> str:
    return str(served.model.program.facts.get("family", "model"))


def _parameters(served: ServedModel) -> int:
    return sum(math.prod(spec.shape) for spec in _weights(served))


def _weights(served: ServedModel) -> Collection[WeightSpec]:
    return served.model.program.weights.values()


def _bytes(served: ServedModel) -> int:
    """Return the size of the weights in bytes, scales that lie beside codes left out."""
    return sum(_weight_bytes(spec.shape, spec.layout) for spec in _weights(served))


def _weight_bytes(shape: tuple[int, ...], layout: str | None) -> int:
    known = LAYOUTS.get(layout or "")
    if known is None or not known.block_bytes:
        return math.prod(shape) * (2 if layout == "w16" else 1)
    return math.prod(shape[:-1]) * known.row_bytes(shape[-1])
