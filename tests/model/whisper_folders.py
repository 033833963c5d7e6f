"""Small folders of Whisper models, written by transformers, with tokenizers of bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
import vision_folders

LANGUAGES = ("en", "de", "fr")
TASKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>")
SECONDS = 2
TIMES = [f"<|{n * 0.02:.2f}|>" for n in range(50 * SECONDS + 1)]
CONTROL = [
    "<|endoftext|>", "<|startoftranscript|>", *(f"<|{name}|>" for name in LANGUAGES), *TASKS,
    "<|notimestamps|>", *TIMES,
]  # fmt: skip


def whisper(folder: Path, seed: int = 1, **fields: Any) -> Any:
    """Write a Whisper model that hears a second of sound."""
    ids = vision_folders.write_tokenizer(folder, [], "", CONTROL)
    end = ids["<|endoftext|>"]
    settings = {
        "vocab_size": len(ids), "num_mel_bins": 80, "d_model": 32, "encoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_layers": 3, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 56, "decoder_ffn_dim": 72, "max_source_positions": 50 * SECONDS,
        "max_target_positions": 40, "decoder_start_token_id": ids["<|startoftranscript|>"],
        "bos_token_id": end, "eos_token_id": end, "pad_token_id": end,
    }  # fmt: skip
    config = transformers.WhisperConfig(**settings | fields)
    model = vision_folders.saved(folder, config, "WhisperForConditionalGeneration", seed)
    rules = {
        "feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": SECONDS,
        "feature_size": config.num_mel_bins, "hop_length": 160, "n_fft": 400,
        "sampling_rate": 16000,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    generation = {
        "eos_token_id": end, "decoder_start_token_id": ids["<|startoftranscript|>"],
        "bos_token_id": end, "pad_token_id": end,
        "begin_suppress_tokens": [end], "suppress_tokens": [],
        "no_timestamps_token_id": ids["<|notimestamps|>"], "is_multilingual": True,
        "lang_to_id": {f"<|{name}|>": ids[f"<|{name}|>"] for name in LANGUAGES},
        "task_to_id": {name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")},
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return model
