"""Names that people type for models on the hub: repository, file, licence, size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

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


_LLAMA, _GEMMA = "Llama {} Community License", "Gemma Terms of Use"
_APACHE, _STUDIO = "Apache-2.0", "lmstudio-community/{}-GGUF"
_ROWS: tuple[tuple[str, str, str, float, str], ...] = (
    ("llama3.2", "unsloth/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M", 2.02, _LLAMA.format("3.2")),
    ("llama3.2:1b", "unsloth/Llama-3.2-1B-Instruct-GGUF", "Q4_K_M", 0.808, _LLAMA.format("3.2")),
    ("llama3.1", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Q4_K_M", 4.92,
     _LLAMA.format("3.1")),
    ("llama3.3", _STUDIO.format("Llama-3.3-70B-Instruct"), "Q4_K_M", 42.5, _LLAMA.format("3.3")),
    ("qwen3:1.7b", "ggml-org/Qwen3-1.7B-GGUF", "Q4_K_M", 1.28, _APACHE),
    ("qwen3:4b", "bartowski/Qwen_Qwen3-4B-GGUF", "Q4_K_M", 2.5, _APACHE),
    ("qwen3:32b", "ggml-org/Qwen3-32B-GGUF", "Q4_K_M", 19.8, _APACHE),
    ("qwen2.5", _STUDIO.format("Qwen2.5-7B-Instruct"), "Q4_K_M", 4.68, _APACHE),
    ("qwen2.5:1.5b", "bartowski/Qwen2.5-1.5B-Instruct-GGUF", "Q4_K_M", 0.986, _APACHE),
    ("qwen2.5:72b", _STUDIO.format("Qwen2.5-72B-Instruct"), "Q4_K_M", 47.4,
     "Qwen License Agreement"),
    ("qwen2.5-coder", _STUDIO.format("Qwen2.5-Coder-7B-Instruct"), "Q4_K_M", 4.68, _APACHE),
    ("qwen2.5-coder:3b", _STUDIO.format("Qwen2.5-Coder-3B-Instruct"), "Q4_K_M", 1.93,
     "Qwen Research License Agreement"),
    ("qwen2.5-coder:32b", _STUDIO.format("Qwen2.5-Coder-32B-Instruct"), "Q4_K_M", 19.9, _APACHE),
    ("gemma3:1b", "unsloth/gemma-3-1b-it-GGUF", "Q4_K_M", 0.806, _GEMMA),
    ("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M", 2.49, _GEMMA),
    ("gpt-oss:20b", "unsloth/gpt-oss-20b-GGUF", "F16", 13.8, _APACHE),
    ("deepseek-r1:7b", "unsloth/DeepSeek-R1-Distill-Qwen-7B-GGUF", "Q4_K_M", 4.68, _APACHE),
    ("deepseek-r1:32b", "unsloth/DeepSeek-R1-Distill-Qwen-32B-GGUF", "Q4_K_M", 19.9, _APACHE),
    ("mistral", _STUDIO.format("Mistral-7B-Instruct-v0.3"), "Q4_K_M", 4.37, _APACHE),
    ("phi4", _STUDIO.format("phi-4"), "Q4_K_M", 9.05, "MIT"),
)  # fmt: skip
_SIZES = {
    "llama3.2": "llama3.2:3b", "llama3.1": "llama3.1:8b", "llama3.3": "llama3.3:70b",
    "qwen2.5": "qwen2.5:7b", "qwen2.5-coder": "qwen2.5-coder:7b", "mistral": "mistral:7b",
    "phi4": "phi4:14b",
}  # fmt: skip
"""The same models with their sizes, as some people type them."""


def _models() -> Iterator[HubModel]:
    """Yield the models, each under all its names."""
    for row in _ROWS:
        model = HubModel(*row)
        yield model
        if model.name in _SIZES:
            yield replace(model, name=_SIZES[model.name])


HUB_MODELS: dict[str, HubModel] = {model.name: model for model in _models()}
"""By name, in the order in which they are shown."""
