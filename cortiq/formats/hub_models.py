"""Names that people type for models on the hub: repository, file, licence, size."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.formats.hub_names import PREFIX


@dataclass(frozen=True)
class HubModel:
    """A model on the hub that has a short name.

    Attributes
    ----------
    name : the name that the user types.
    repository : organisation and name on the hub.
    file : the GGUF file, or its quantisation.
    size : gigabytes, as the hub shows them.
    licence : its licence, as an SPDX expression where there is one.
    """

    name: str
    repository: str
    file: str
    size: float
    licence: str

    @property
    def source(self) -> str:
        """The model's hf: name."""
        return f"{PREFIX}{self.repository}:{self.file}@main"


_MODELS: tuple[HubModel, ...] = ()

HUB_MODELS: dict[str, HubModel] = {model.name: model for model in _MODELS}
"""By name, in the order in which they are shown."""
