"""Configurations of encoders of sound: the object `audio_config`, and keys beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import FormatError
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.sense_values import TEXT, sense_values

SOUND = "audio_config"
KEYS = Keys(
    aliases={
        "activation_function": "hidden_act", "d_model": "hidden_size",
        "encoder_attention_heads": "num_attention_heads", "encoder_ffn_dim": "intermediate_size",
        "encoder_layers": "num_hidden_layers",
    },
    harmless=frozenset({
        "activation_dropout", "dropout", "encoder_layerdrop", "layerdrop",
    }),
    only={"scale_embedding": False},
)  # fmt: skip
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}": mine
    for start in ("", "model.", "thinker.")
    for theirs, mine in (("audio_tower.", "encoder."), ("multi_modal_projector.", "projector."))
}


@dataclass(frozen=True, kw_only=True)
class SoundConfig(BaseConfig):
    """Fields that every encoder has, named as Whisper's are, of the large one's size.

    Attributes
    ----------
    text_width : width of the text model's rows. audio_token : id of the rows of sounds; None where
        they have none of their own.
    """

    vocab_size: int = 1
    text_width: int
    audio_token: int | None
    hidden_size: int = 1280
    intermediate_size: int = 5120
    num_hidden_layers: int = 32
    num_attention_heads: int = 20
    hidden_act: str = "gelu"
    num_mel_bins: int = 128
    max_source_positions: int = 1500

    @property
    def encoder_layers(self) -> int:
        """Number of layers."""
        return self.num_hidden_layers

    @property
    def encoder_attention_heads(self) -> int:
        """Heads of a layer."""
        return self.num_attention_heads

    @property
    def encoder_ffn_dim(self) -> int:
        """Inner width of a layer's MLP."""
        return self.intermediate_size


def sound_values(whole: Mapping[str, Any], *kept: str, token: str) -> dict[str, Any]:
    """Return the encoder's keys of a folder's config.json, and those that it has at the top.

    Parameters
    ----------
    kept : keys of the top. token : the keys of the top for the id of the rows of sounds, with
        commas between.
    """
    if not isinstance(whole.get(TEXT), Mapping):
        raise FormatError(f"has no {SOUND}", where="config.json")
    values = {"audio_token": None, **sense_values(whole, SOUND, *kept, audio_token=token)}
    values.pop("vocab_size", None)  # of a decoder that there is none of
    return values
