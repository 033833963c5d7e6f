"""Adapters of a model's own, by what its prompts have beside text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from cortiq.formats.adapter import Adapter
from cortiq.formats.own_adapter import own_adapter
from cortiq.vision.load import VisionFamily


class OwnAdapter(NamedTuple):
    """An adapter of a model's own, and its name."""

    name: str
    adapter: Adapter


class MediaAdapters(NamedTuple):
    """A model's own adapters by medium, and a line for each that its files lack."""

    adapters: Mapping[str, OwnAdapter]
    notes: tuple[str, ...]


def open_media_adapters(
    checkpoint: Any, senses: Sequence[VisionFamily], opened: ExitStack
) -> MediaAdapters:
    """Open the adapters that the families of a model's senses name, to be closed with `opened`."""
    found: dict[str, OwnAdapter] = {}
    notes: list[str] = []
    for sense in senses:
        name, medium = getattr(sense.module, "OWN_ADAPTER", ""), sense.processor.medium
        adapter = own_adapter(checkpoint, name) if name else None
        if adapter is not None:
            opened.callback(adapter.close)
            found[medium] = OwnAdapter(name, adapter)
        elif name:
            notes.append(f"has no adapter {name!r}: prompts with {medium} are computed without one")
    return MediaAdapters(found, tuple(notes))
