"""Loading what a model hears with: the encoder's program, its weights, rules of its features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import FormatError
from cortiq.hearing import whisper
from cortiq.hearing.features import WHERE, FeatureRules
from cortiq.ir import Program
from cortiq.models.bind import read_weights, with_layouts
from cortiq.models.config import BaseConfig
from cortiq.models.registry import location_of, said_of
from cortiq.models.tensors import find_tensors
from cortiq.models.weight_rules import with_rule
from cortiq.models.whisper import Config
from cortiq.numerics.layouts import Weight


@dataclass(frozen=True)
class LoadedHearing:
    """An encoder bound to a checkpoint, and rules of what it is given.

    Attributes
    ----------
    settings : what the folder says of generating.
    """

    program: Program
    weights: Mapping[str, Weight]
    rules: FeatureRules
    settings: Mapping[str, Any]


def load_hearing(
    checkpoint: Any, config: BaseConfig | None, weight_format: str | None = None
) -> LoadedHearing | None:
    """Build the encoder's program and bind its weights; None for a model that hears nothing.

    See `cortiq.models.load_program`.

    Raises
    ------
    FormatError : the rules of features do not fit the encoder, or tensors are missing.
    """
    if not isinstance(config, Config) or checkpoint.kind != "huggingface":
        return None
    part = checkpoint.part(whisper.PREFIXES)
    with said_of(checkpoint):
        rules = FeatureRules.of(checkpoint.sound_processor(), config.num_mel_bins)
        if rules.frames != whisper.STRIDE * config.max_source_positions:
            what = f"windows of {rules.frames} frames: the encoder has"
            what += f" {config.max_source_positions} rows of {whisper.STRIDE}"
            raise FormatError(what, where=f"{location_of(checkpoint)}: {WHERE}")
        program = whisper.build(config)
    tensors = find_tensors(program, part, whisper, config)
    weights = read_weights(program, part, tensors, weight_format)
    program = with_rule(program, weight_format, part, tensors)
    bound, settings = with_layouts(program, weights), checkpoint.generation_settings()
    return LoadedHearing(bound, weights, rules, settings)
