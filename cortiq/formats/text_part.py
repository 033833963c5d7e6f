"""The text model of a folder that holds several models: vision, audio and text.

Its configuration is the object `text_config`; its tensors have a prefix, in one of two forms: that
of transformers since 4.52, and the one before. The other models' tensors are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.formats.mapped import MappedTensors
from cortiq.formats.mxfp4 import Joined

TEXT = "text_config"
TIED = "tie_word_embeddings"
HEAD = "lm_head."
FORMS: tuple[Mapping[str, str], ...] = (
    {"model.language_model.": "model.", HEAD: HEAD, "mtp.": "mtp."},
    {"language_model.model.": "model.", "language_model.lm_head.": HEAD},
)
"""Beginnings of names in the folder, and in a folder of the text model alone."""
SHARED = (TIED, "quantization_config", "compression_config")
"""Keys that the whole folder's object may hold for the text model, too."""


class RenamedTensors(MappedTensors):
    """Some tensors of a folder, under other names: `names` gives the folder's name of each."""

    def __init__(self, inner: MappedTensors, names: Mapping[str, str]) -> None:
        tensors = {name: inner.tensors[own] for name, own in names.items()}
        super().__init__(inner.path, inner.paths, tensors, inner._buffers)
        self._inner, self._names = inner, names

    def joined(self, name: str) -> Joined | None:
        """The tensor of a pair of codes and exponents, for folders that have such."""
        return getattr(self._inner, "joined", lambda _: None)(self._names[name])

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor."""
        return self._inner.raw(self._names.get(name, name))

    def close(self) -> None:
        """Let go of the files."""
        super().close()
        self._inner.close()


def has_text_part(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of several models, one of them for text."""
    return isinstance(config.get(TEXT), dict)


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's own object, with what the whole folder's says in its place."""
    whole = {key: config[key] for key in SHARED if config.get(key) is not None}
    return {**config[TEXT], **whole}


def text_tensors(tensors: MappedTensors) -> RenamedTensors:
    """The text model's tensors under the names they have where it is alone."""

    def names(form: Mapping[str, str]) -> dict[str, str]:
        return {
            mine + name.removeprefix(theirs): name
            for name in tensors.tensors
            for theirs, mine in form.items()
            if name.startswith(theirs)
        }

    return RenamedTensors(tensors, max(map(names, FORMS), key=len))


def with_tie(config: dict[str, Any], tensors: MappedTensors) -> dict[str, Any]:
    """The object with `tie_word_embeddings`, where it says nothing: a folder without a head ties.

    What counts when it is absent is a default of the whole folder's class, not of the text model's.
    """
    tied = not any(name.startswith(HEAD) for name in tensors.tensors)
    return {TIED: tied, **config}
