"""Names of adapters in requests: in `model`, as `base:adapter` or alone, or in `lora`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.engine.overlay import ChosenOverlay
from cortiq.errors import RequestError, shown
from cortiq.serve.api_keys import ApiKey
from cortiq.serve.errors import ApiError, invalid
from cortiq.serve.fields import Fields
from cortiq.serve.offered_model import OfferedModel
from cortiq.serve.served_model import ServedModel

SEPARATOR = ":"


def base_of(models: Mapping[str, OfferedModel], name: str) -> str | None:
    """Return the offered model that a name with an adapter stands for; None where it names none."""
    base, separator, adapter = name.rpartition(SEPARATOR)
    if name in models:
        return None
    if separator and adapter and base in models:
        return base
    having = (
        one.name
        for one in models.values()
        if one.served is not None and name in one.served.model.adapters
    )
    return next(having, None)


def checked_base(
    models: Mapping[str, OfferedModel], name: str, key: ApiKey | None, adapters: bool
) -> str:
    """Return the model's own name of one that may have an adapter.

    Parameters
    ----------
    adapters : whether it may have one.

    Raises
    ------
    ApiError : it may not (400), or the key may not use it (403).
    """
    base = base_of(models, name)
    if base is not None and not adapters:
        raise invalid("Adapters are for generating: name the model alone.", "model")
    if key is not None:
        alone = base is not None and SEPARATOR not in name
        key.check_model(name, base, *([f"{base}{SEPARATOR}{name}"] if alone else []))
    return name if base is None else base


def adapter_of(served: ServedModel, fields: Fields) -> ChosenOverlay | None:
    """Return the adapter that a request chooses; None for none. It stays the request's own,
    whoever unloads it meanwhile.

    Raises
    ------
    ApiError : it names two (400), or one that is not loaded (404).
    """
    asked, lora = fields.text("model") or "", fields.text("lora")
    base, _, end = asked.rpartition(SEPARATOR)
    named = None if asked in ("", served.name) else end if base == served.name else asked
    if named is not None and lora not in (None, named):
        raise invalid("'lora' and 'model' name two adapters.", "lora")
    chosen = lora or named
    if chosen is None:
        return None
    try:
        return served.model.adapters.named(chosen)
    except RequestError:
        there = ", ".join(one.name for one in served.model.adapters.listed) or "none"
        message = f"{served.name} has no adapter {shown(chosen)}; there are: {there}."
        param = "model" if lora is None else "lora"
        raise ApiError(404, message, "model_not_found", param) from None


def full_name(served: ServedModel, adapter: str | None) -> str:
    """Return the name of a model with an adapter, as answers have it."""
    return served.name if adapter is None else f"{served.name}{SEPARATOR}{adapter}"


def adapter_entries(model: OfferedModel) -> list[dict[str, Any]]:
    """Return the entries of a model's adapters in `/v1/models`."""
    if model.served is None:
        return []
    entry = model.served.as_dict()
    return [
        {
            **entry, "id": full_name(model.served, one.name), "display_name": one.name,
            "parent": model.name, "root": one.path, "sha256": one.sha256, "rank": one.rank,
            "scale": one.scale, "bytes": one.nbytes,
        }
        for one in model.served.model.adapters.listed
    ]  # fmt: skip
