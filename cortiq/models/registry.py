"""Find the family that reads an architecture: built-in families, and those of plugins."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType

from cortiq.errors import FormatError, GraphError, UnsupportedError
from cortiq.models.config import BaseConfig, config_from_json, is_number
from cortiq.models.folder_vectors import folder_vector
from cortiq.models.gguf_config import config_from_gguf
from cortiq.models.names import Names
from cortiq.models.open_checkpoint import OpenCheckpoint

OWN = (
    "llama",
    "gemma3",
    "mixtral",
    "lfm2",
    "qwen2",
    "qwen3",
    "phi3",
    "smollm3",
    "olmo2",
    "granite",
    "gemma2",
    "hunyuan_v1_dense",
    "starcoder2",
    "minicpm3",
    "qwen2_moe",
    "qwen3_moe",
    "glm4_moe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek2",
    "deepseek_v32",
    "glm_moe_dsa",
    "lfm2_moe",
    "gpt_oss",
    "mimo_v2_flash",
    "laguna",
    "minimax_m3_vl",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "granitemoehybrid",
    "nemotron_h",
    "kimi_linear",
    "gemma4",
    "gemma",
    "olmo3",
    "seed_oss",
    "arcee",
    "ernie4_5",
    "exaone4",
    "cohere",
    "cohere2",
    "glm4",
    "helium",
    "stablelm",
    "olmoe",
    "flex_olmo",
    "granitemoe",
    "minimax_m2",
    "dots1",
    "ernie4_5_moe",
    "hunyuan_v1_moe",
    "glm4_moe_lite",
    "exaone_moe",
    "ministral3",
    "mistral4",
    "bamba",
    "mamba2",
    "apertus",
    "gpt2",
    "deepseek_v4",
    "bert",
    "modernbert",
    "llama4",
    "phi",
    "gpt_neox",
    "nemotron",
    "falcon_h1",
    "qwen3_vl_moe",
    "mamba",
    "jamba",
    "jais2",
    "gptj",
    "opt",
    "falcon",
    "internlm2",
    "minicpm",
    "bailing_moe_v2",
    "gemma3n",
    "lfm3",
    "afmoe",
    "whisper",
    "bloom",
    "mpt",
    "minimax",
    "zamba2",
    "nanbeige",
    "bailing_hybrid",
    "olmo",
    "hy_v3",
    "step3p7",
    "rwkv7",
    "cwm",
    "vaultgemma",
    "solar_open",
    "diffllama",
    "phi4flash",
    "olmo_hybrid",
    "hyperclovax",
    "granite_swa",
    "youtu",
    "ministral",
    "nanochat",
    "exaone",
    "gpt_bigcode",
    "gpt_neo",
    "dory",
    "qwen4_exp",
    "kimi_k3",
    "bitnet",
    "mllama",
    "granitemoe_swa",
    "flint",
    "sarvam_mla",
    "openai_gpt",
    "codegen",
    "biogpt",
    "xglm",
    "recurrent_gemma",
    "hy_v4",
    "mistral_large4",
    "glm5_next",
    "nomic_bert",
    "modernbert_decoder",
    "aria",
    "lara_mini",
    "persimmon",
    "mellum",
    "sarvam_moe",
    "cohere2_moe",
    "phimoe",
    "llama_bidirec",
)
"""Modules of this package, in the order they are listed."""

MARKS = {"+experts": "expert_count", "+windows": "attention.sliding_window"}
"""Ends of GGUF architectures that two families share, and the key, not 0, that one of them has."""
MARKED = frozenset({"llama+experts", "olmo2+windows"})
"""Such architectures of ours: Mixtral's files are `llama`, OLMo 3's `olmo2`."""


def families(extra: Sequence[ModuleType] = ()) -> dict[str, ModuleType]:
    """Return families by architecture (`model_type`, or GGUF's); `extra` are plugins' families.

    A plugin may add architectures; one that names ours again replaces it.
    """
    modules = [import_module(f"cortiq.models.{name}") for name in OWN]
    return {name: module for module in [*modules, *extra] for name in module.ARCHITECTURES}


def gguf_architectures(family: ModuleType) -> tuple[str, ...]:
    """Return a family's architectures in GGUF files: all, or the module's `GGUF`."""
    return getattr(family, "GGUF", family.ARCHITECTURES)


@dataclass(frozen=True)
class FamilyInfo:
    """A family for a list: its name, the architectures it reads, and a line about it.

    Attributes
    ----------
    gguf : those of the architectures that are read from GGUF files.
    """

    name: str
    architectures: tuple[str, ...]
    summary: str
    gguf: tuple[str, ...]


def describe_families(extra: Sequence[ModuleType] = ()) -> list[FamilyInfo]:
    """Return every family, in the order of `families`."""
    listed: dict[ModuleType, list[str]] = {}
    for architecture, module in families(extra).items():
        listed.setdefault(module, []).append(architecture)
    return [
        FamilyInfo(
            family_name(module),
            tuple(names),
            (module.__doc__ or "").partition("\n")[0],
            tuple(name for name in gguf_architectures(module) if name in names),
        )
        for module, names in listed.items()
    ]


def family_name(family: ModuleType) -> str:
    """Return a family's name: that of its module."""
    return family.__name__.rpartition(".")[2]


def architecture_of(checkpoint: OpenCheckpoint, extra: Sequence[ModuleType] = ()) -> str:
    """Return the registry's key: the file's name, with a mark where a family has both."""
    name = checkpoint.architecture
    if checkpoint.kind != "gguf":
        return name
    known = MARKED.union(*(family.ARCHITECTURES for family in extra))
    for mark, key in MARKS.items():
        value = checkpoint.config.get(f"{name}.{key}")
        if f"{name}{mark}" in known and is_number(value) and value:
            return f"{name}{mark}"
    return name


def family_for(checkpoint: OpenCheckpoint, extra: Sequence[ModuleType] = ()) -> ModuleType:
    """Return the family that reads a checkpoint; `UnsupportedError` names similar ones."""
    name = architecture_of(checkpoint, extra)
    known = _named_alike(name, extra) or families(extra)
    if name not in known:
        message = f"architecture {name!r} is not supported"
        near = difflib.get_close_matches(name, known, n=3)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        hint = f"{meant}`cortiq inspect --families` lists the {len(known)} there are"
        if (elsewhere := checkpoint.config.get("text_model_id")) is not None:
            message = f"holds no text model: it is that of {elsewhere!r}"
            hint = "take GGUF files of it, a text model and mmproj, or a folder saved with both"
        raise UnsupportedError(message, where=location_of(checkpoint), hint=hint)
    if checkpoint.kind == "gguf" and name not in gguf_architectures(known[name]):
        message = f"GGUF files of the architecture {name!r} are not supported"
        raise UnsupportedError(
            message, where=location_of(checkpoint), hint="take the Hugging Face folder"
        )
    return known[name]


def _named_alike(architecture: str, extra: Sequence[ModuleType]) -> dict[str, ModuleType]:
    """Return our module that has an architecture's name, if it reads it and no plugin does.

    It saves the import of every other family.
    """
    if architecture not in OWN or any(architecture in family.ARCHITECTURES for family in extra):
        return {}
    module = import_module(f"cortiq.models.{architecture}")
    return {architecture: module} if architecture in module.ARCHITECTURES else {}


def names_of(family: ModuleType, config: BaseConfig) -> Names:
    """Return a family's tensor names, which may depend on the configuration."""
    names: Names | Callable[[BaseConfig], Names] = family.NAMES
    return names if isinstance(names, Names) else names(config)


def location_of(checkpoint: OpenCheckpoint) -> str:
    """Return the file or name of a checkpoint, for messages."""
    return str(getattr(checkpoint, "path", None) or checkpoint.architecture)


@contextmanager
def said_of(checkpoint: OpenCheckpoint) -> Iterator[None]:
    """Attribute errors about a configuration to its file."""
    try:
        yield
    except (FormatError, GraphError, UnsupportedError) as error:
        inside = "" if error.where is None else f": {error.where}"
        where = f"{location_of(checkpoint)}{inside}"
        raise type(error)(error.what, where=where, hint=error.hint) from error


def read_config(
    family: ModuleType, checkpoint: OpenCheckpoint, ignored: Sequence[str] = ()
) -> BaseConfig:
    """Read the checkpoint's configuration; every key of it is known by name.

    A family whose GGUF files say things otherwise than its folders has a `GGUFConfig` of what they
    say, with a method `config` that makes a `Config` of it. One whose folders name things otherwise
    has a function `values` of the object in config.json; `Keys.vectors` are read of its tensors.
    `ignored` are unknown keys that are left
    out all the same.
    """
    where = location_of(checkpoint)
    if checkpoint.kind == "gguf":
        stored = getattr(family, "GGUFConfig", family.Config)
        config = config_from_gguf(stored, family.KEYS, checkpoint, where=where, ignored=ignored)
        return config if stored is family.Config else config.config(where)
    given = getattr(family, "values", dict)(checkpoint.config)
    config = config_from_json(family.Config, family.KEYS, given, where=where, ignored=ignored)
    if checkpoint.kind != "huggingface" or not family.KEYS.vectors:
        return config
    with said_of(checkpoint):
        vectors = {f: folder_vector(checkpoint, name) for f, name in family.KEYS.vectors.items()}
    return replace(config, **vectors)
