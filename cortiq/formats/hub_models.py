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


_LLAMA = "Llama {} Community License"
_GEMMA = "Gemma Terms of Use"
_MODELS = (
    HubModel("llama3.2", "unsloth/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M", 2.02, _LLAMA.format(3.2)),
    HubModel("llama3.1", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Q4_K_M", 4.92,
             _LLAMA.format(3.1)),
    HubModel("qwen3:4b", "bartowski/Qwen_Qwen3-4B-GGUF", "Q4_K_M", 2.5, "Apache-2.0"),
    HubModel("qwen3:32b", "ggml-org/Qwen3-32B-GGUF", "Q4_K_M", 19.8, "Apache-2.0"),
    HubModel("qwen2.5:1.5b", "bartowski/Qwen2.5-1.5B-Instruct-GGUF", "Q4_K_M", 0.986, "Apache-2.0"),
    HubModel("gemma3:1b", "unsloth/gemma-3-1b-it-GGUF", "Q4_K_M", 0.806, _GEMMA),
    HubModel("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M", 2.49, _GEMMA),
    HubModel("gpt-oss:20b", "unsloth/gpt-oss-20b-GGUF", "F16", 13.8, "Apache-2.0"),
    HubModel("deepseek-r1:7b", "unsloth/DeepSeek-R1-Distill-Qwen-7B-GGUF", "Q4_K_M", 4.68,
             "Apache-2.0"),
    HubModel("deepseek-r1:32b", "unsloth/DeepSeek-R1-Distill-Qwen-32B-GGUF", "Q4_K_M", 19.9,
             "Apache-2.0"),
)  # fmt: skip

HUB_MODELS: dict[str, HubModel] = {model.name: model for model in _MODELS}
"""By name, in the order in which they are shown."""
