"""Loading what a model sees with: the tower's program, its weights, the processor of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.formats.text_model import thinking
from cortiq.hearing.config import SOUND
from cortiq.hearing.spoken import SoundProcessor
from cortiq.ir import Program
from cortiq.models.bind import read_weights, with_layouts
from cortiq.models.build import said_of
from cortiq.models.config import config_from_json
from cortiq.models.registry import location_of
from cortiq.models.tensors import find_tensors
from cortiq.models.weight_rules import with_rule
from cortiq.numerics.layouts import Weight
from cortiq.tokenizer.tokenizer import Tokenizer
from cortiq.vision.image import ImageProcessor

OWN: Sequence[str] = (
    "gemma3", "idefics3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "llava_next",
    "pixtral", "internvl", "glm4v", "lfm2_vl",
    "gemma4", "kimi_k25", "kimi_k3", "kimi_vl", "minicpmv4_6", "minicpmv", "qwen2_5_omni",
    "qwen3_omni", "gemma3n", "mistral_large4", "glm_ocr", "glm5_next", "aria", "cohere2_vision",
    "phi4mm", "mllama", "minicpmv4_7",
)  # fmt: skip
"""Modules of this package, a family each."""
HEARING: Sequence[str] = (
    "qwen2_audio", "voxtral", "ultravox", "qwen2_5_omni", "qwen3_omni", "gemma4", "gemma3n",
    "phi4mm",
)  # fmt: skip
"""Modules of `cortiq.hearing`: families whose prompts have sounds in them."""


@dataclass(frozen=True)
class VisionFamily:
    """Family of a checkpoint that sees, before anything of its tensors is looked at.

    Attributes
    ----------
    module : the family. config : its configuration. processor : of its images or sounds.
    """

    module: ModuleType
    config: Any
    processor: Any


@dataclass(frozen=True)
class LoadedVision:
    """A tower bound to a checkpoint."""

    program: Program
    weights: Mapping[str, Weight]
    processor: ImageProcessor | SoundProcessor


def sound_family(checkpoint: Any) -> VisionFamily | None:
    """Return the family that reads the sounds in a checkpoint's prompts; None where none does."""
    found = _sound_module(_whole_of(checkpoint))
    return None if found is None else _family(checkpoint, found, checkpoint.sound_processor())


def _sound_module(whole: Mapping[str, Any]) -> ModuleType | None:
    modules = (import_module(f"cortiq.hearing.{name}") for name in HEARING)
    found = next((m for m in modules if whole.get("model_type") in m.ARCHITECTURES), None)
    deaf = whole.get(SOUND) is None and getattr(found, "MAY_BE_DEAF", False)
    return None if deaf else found


def sense_modules(checkpoint: Any) -> list[ModuleType]:
    """Return the families that read images and sounds in a checkpoint's prompts."""
    whole = _whole_of(checkpoint)
    found = (_sight_modules().get(_kind_of(whole)), _sound_module(whole))
    return [module for module in found if module is not None]


def sees(checkpoint: Any) -> bool:
    """Return whether a checkpoint has a tower for images that is read."""
    whole = _whole_of(checkpoint)
    return _kind_of(whole) in _sight_modules() and whole.get("vision_config") is not None


def _whole_of(checkpoint: Any) -> Mapping[str, Any]:
    """Return the configuration that has sections of text, sight and hearing."""
    return thinking(getattr(checkpoint, "whole", {}))


def _sight_modules() -> dict[str, ModuleType]:
    modules = (import_module(f"cortiq.vision.{name}") for name in OWN)
    return {name: module for module in modules for name in module.ARCHITECTURES}


def _kind_of(whole: Mapping[str, Any]) -> str:
    """Return the name of what sees: that of the whole, with its tower's where that tells apart."""
    kind, sight = str(whole.get("model_type", "")), whole.get("vision_config")
    inner = f"{kind} {sight.get('model_type')}" if isinstance(sight, Mapping) else ""
    return inner if inner in _sight_modules() else kind


def vision_family(checkpoint: Any) -> VisionFamily:
    """Return the family that reads a checkpoint's images.

    Raises
    ------
    UnsupportedError : the checkpoint has no tower, or one of no family here.
    """
    whole, families = _whole_of(checkpoint), _sight_modules()
    kind, where = _kind_of(whole), location_of(checkpoint)
    if kind not in families or whole.get("vision_config") is None:
        named = f" of the architecture {kind!r}" if kind else ""
        hint = "docs/models.md lists those that do; GGUF models need mmproj*.gguf beside them"
        what = f"reads no images: no vision encoder{named} is known"
        raise UnsupportedError(what, where=where, hint=hint)
    return _family(checkpoint, families[kind], checkpoint.image_processor())


def _family(checkpoint: Any, module: ModuleType, rules: Mapping[str, Any]) -> VisionFamily:
    """Return a family with its configuration and processor."""
    with said_of(checkpoint):
        values, where = module.values(_whole_of(checkpoint)), location_of(checkpoint)
        if (text := getattr(module, "TOKEN", "")) and "image_token" not in values:
            values["image_token"] = _token_of(checkpoint, text)
        config = config_from_json(module.Config, module.KEYS, values, where=where)
        return VisionFamily(module, config, module.Processor(config, rules))


def _token_of(checkpoint: Any, text: str) -> int:
    """Return the id of a token of the folder's tokenizer, where no configuration has it."""
    found = Tokenizer.from_folder(checkpoint.path).token_id(text)
    if found is None:
        what = f"has no token {text!r}, of which images are made"
        raise FormatError(what, where=str(checkpoint.path))
    return found


def load_vision(
    checkpoint: Checkpoint, family: VisionFamily, weight_format: str | None = None
) -> LoadedVision:
    """Build the tower's program and bind its weights; see `cortiq.models.load_program`."""
    module, config = family.module, family.config
    part = checkpoint.part(module.PREFIXES)
    with said_of(checkpoint):
        if (measured := getattr(module, "with_tensors", None)) is not None:
            config = family.processor.config = measured(config, part)
        program = module.build(config, family.processor.most)
    if (computed := getattr(module, "computed", None)) is not None:
        part = part.with_computed(computed(config, part))
    orders = getattr(module, "ORDERS", None)
    part = part if orders is None else part.reordered(orders(config))
    tensors = find_tensors(program, part, module, config)
    weights = read_weights(program, part, tensors, weight_format)
    program = with_rule(program, weight_format, part, tensors)
    return LoadedVision(with_layouts(program, weights), weights, family.processor)
