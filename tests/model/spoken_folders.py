"""Small folders of models that have sounds in their prompts, written by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
import vision_folders

SECONDS = 2
ENCODER = {"num_mel_bins": 80, "max_source_positions": 50 * SECONDS}
RULES = {
    "feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": SECONDS,
    "feature_size": 80, "hop_length": 160, "n_fft": 400, "sampling_rate": 16000,
}  # fmt: skip
TEXT = {k: v for k, v in vision_folders.TEXT.items() if k != "head_dim"}


def template_of(sound: str) -> str:
    """A chat template whose sounds are this text."""
    return vision_folders.template_of(sound).replace("'image'", "'audio'")


def qwen2_audio(folder: Path, **encoder: Any) -> Any:
    """Write a Qwen2-Audio that hears two seconds of sound."""
    control = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
    text = f"{control[1]}{control[0]}{control[2]}"
    ids = vision_folders.write_tokenizer(folder, control, template_of(text))
    given = {
        "model_type": "qwen2_audio_encoder", "d_model": 32, "encoder_layers": 2,
        "encoder_attention_heads": 4, "encoder_ffn_dim": 56, **ENCODER,
    }  # fmt: skip
    config = transformers.Qwen2AudioConfig(
        audio_config=given | encoder, audio_token_index=ids[control[0]],
        text_config=TEXT | {"model_type": "qwen2", "vocab_size": len(ids)},
    )  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(RULES))
    return vision_folders.saved(folder, config, "Qwen2AudioForConditionalGeneration")


def voxtral(folder: Path, **encoder: Any) -> Any:
    """Write a Voxtral whose windows are two seconds long."""
    control = ["[AUDIO]", "[BEGIN_AUDIO]"]
    ids = vision_folders.write_tokenizer(folder, control, template_of("[BEGIN_AUDIO][AUDIO]"))
    given = {
        "model_type": "voxtral_encoder", "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 128, **ENCODER,
    }  # fmt: skip
    config = transformers.VoxtralConfig(
        audio_config=given | encoder, audio_token_id=ids[control[0]],
        text_config=TEXT | {"model_type": "llama", "vocab_size": len(ids), "head_dim": 16},
    )  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(RULES))
    return vision_folders.saved(folder, config, "VoxtralForConditionalGeneration")
