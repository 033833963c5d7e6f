"""Keep in a new folder what the model of a folder sees or hears with, beside the text model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cortiq.convert.plan import PlannedTensor
from cortiq.convert.recipes import KEEP
from cortiq.formats.checkpoint import Checkpoint
from cortiq.formats.own_adapter import own_tensors
from cortiq.formats.text_model import renamed
from cortiq.hearing import whisper
from cortiq.ir import Program
from cortiq.ir.purpose import Purpose, purpose_of
from cortiq.numerics.layouts import LAYOUTS
from cortiq.vision.load import sense_modules
from cortiq.vision.mmproj import towers_beside

SENSES = {"vision_config": "reads no images", "audio_config": "takes no audio"}
"""Sections of config.json, and what a model without their tensors does not do."""


def sense_prefixes(checkpoint: Checkpoint, program: Program) -> list[Mapping[str, str]]:
    """Return what the names of tensors of each encoder and tower begin with."""
    if purpose_of(program) is Purpose.SPEECH:
        return [whisper.PREFIXES]
    return [module.PREFIXES for module in sense_modules(checkpoint)]


def with_senses(
    planned: Sequence[PlannedTensor], checkpoint: Checkpoint, program: Program
) -> list[PlannedTensor]:
    """Return the text model's tensors under the folder's names, and those of what sees or hears."""
    senses = sense_prefixes(checkpoint, program)
    if not senses:
        return list(planned)
    texts = [replace(t, name=checkpoint.name_in_folder(t.name)) for t in planned]
    whole, taken = checkpoint.part({"": ""}), {tensor.name for tensor in texts}
    names = [n for one in senses for n in renamed(whole.tensor_names, one).values()]
    if any(getattr(module, "IN_TEXT", False) for module in sense_modules(checkpoint)):
        names += [checkpoint.name_in_folder(name) for name in checkpoint.tensor_names]
    for adapter in own_adapters(checkpoint):
        own = own_tensors(checkpoint, adapter).values()
        names += [checkpoint.name_in_folder(tensor) for sides in own for tensor in sides.values()]
    names = [n for n in dict.fromkeys(names) if n not in taken]
    return [*texts, *(_kept(name, whole.tensor(name)) for name in names)]


def own_adapters(checkpoint: Checkpoint) -> list[str]:
    """Return the names of adapters that prompts with images, or with sounds, take."""
    modules = sense_modules(checkpoint)
    return [name for m in modules if (name := getattr(m, "OWN_ADAPTER", ""))]


def _kept(name: str, source: Any) -> PlannedTensor:
    return PlannedTensor(name, tuple(source.shape), LAYOUTS[source.type], KEEP, (), source)


def left_out(checkpoint: Checkpoint, program: Program, is_folder: bool = True) -> tuple[str, ...]:
    """Say what of the source a new model lacks, a line each.

    Parameters
    ----------
    is_folder : whether the new model is a folder of our own, which keeps what is known.
    """
    if is_folder and sense_prefixes(checkpoint, program):
        folders = [checkpoint.path / f"{name}-lora" for name in own_adapters(checkpoint)]
        why = "which its prompts with images or sounds take: copy it into the new folder"
        return tuple(f"the new model lacks the folder {f}, {why}" for f in folders if f.is_dir())
    if checkpoint.kind == "gguf" and checkpoint.path.is_file():
        why = "which stays beside the old model: copy it beside a new GGUF file"
        found = towers_beside(checkpoint.path)
        return tuple(f"images and sounds need {file.name}, {why}" for file in found)
    lacks = [what for key, what in SENSES.items() if checkpoint.whole.get(key) is not None]
    why = f"its encoder is in {checkpoint.path} alone"
    return tuple(f"the new model {what}: {why}" for what in lacks)
