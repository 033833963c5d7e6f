"""Voxtral's folders as Mistral publishes them, made from transformers' own."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from transformers.models.whisper.modeling_whisper import sinusoids

SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
           "[AUDIO]", "[BEGIN_AUDIO]"]  # fmt: skip
IN_TEXT = {
    "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    **{f"self_attn.{role}_proj": f"attention.w{role}" for role in "qkvo"},
}  # fmt: skip
IN_ENCODER = {
    "self_attn_layer_norm": "attention_norm", "final_layer_norm": "ffn_norm",
    "fc1": "feed_forward.w1", "fc2": "feed_forward.w2", "self_attn.out_proj": "attention.wo",
    **{f"self_attn.{role}_proj": f"attention.w{role}" for role in "qkv"},
}  # fmt: skip
OUTSIDE = {
    "language_model.lm_head.weight": "output.weight",
    "language_model.model.norm.weight": "norm.weight",
    "language_model.model.embed_tokens.weight": "mm_whisper_embeddings.tok_embeddings.weight",
    "multi_modal_projector.linear_1.weight":
        "mm_whisper_embeddings.audio_language_projection.0.weight",
    "multi_modal_projector.linear_2.weight":
        "mm_whisper_embeddings.audio_language_projection.2.weight",
}  # fmt: skip
WHISPER = "mm_whisper_embeddings.whisper_encoder."


def mistrals_name(name: str) -> str:
    """A tensor's name in consolidated.safetensors."""
    stem, _, end = name.rpartition(".")
    if name in OUTSIDE:
        return OUTSIDE[name]
    if stem.startswith("audio_tower.conv"):
        return f"{WHISPER}conv_layers.{int(stem[-1]) - 1}.{end}"
    if stem == "audio_tower.layer_norm":
        return f"{WHISPER}transformer.norm.{end}"
    number, _, rest = stem.partition("layers.")[2].partition(".")
    if stem.startswith("audio_tower"):
        return f"{WHISPER}transformer.layers.{number}.{IN_ENCODER[rest]}.{end}"
    return f"layers.{number}.{IN_TEXT[rest]}.{end}"


def published(folder: Path, source: Path) -> None:
    """Write a Voxtral of transformers as Mistral publishes one, with a tokenizer of bytes.

    The places of the source become Whisper's, which are in no file.
    """
    config = json.loads((source / "config.json").read_text())
    text, sound = config["text_config"], config["audio_config"]
    tensors = load_file(source / "model.safetensors")
    tensors = {name.removeprefix("model."): value for name, value in tensors.items()}
    places = "audio_tower.embed_positions.weight"
    tensors[places] = sinusoids(*tensors[places].shape).numpy()
    save_file(tensors, source / "model.safetensors")
    made = {}
    for name, value in tensors.items():
        if name == places:
            continue
        role = name.partition("self_attn.")[2]
        if name.startswith("language_model") and role in ("q_proj.weight", "k_proj.weight"):
            value = value.reshape(-1, 2, text["head_dim"] // 2, value.shape[1])
            value = np.ascontiguousarray(value.swapaxes(1, 2)).reshape(-1, value.shape[-1])
        made[mistrals_name(name)] = value
    save_file(made, folder / "consolidated.safetensors")
    (folder / "params.json").write_text(json.dumps(params(text, sound)))
    vocab = [
        {"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode(), "token_str": None}
        for byte in range(text["vocab_size"] - len(SPECIAL))  # no text has the last ones
    ]
    size = text["vocab_size"]
    tekken = {
        "config": {"pattern": r"\S+|\s+", "default_vocab_size": size, "version": "v7",
                   "default_num_special_tokens": len(SPECIAL)},
        "vocab": vocab, "audio": {"sampling_rate": 16000, "frame_rate": 12.5},
        "special_tokens": [
            {"rank": n, "token_str": text, "is_control": True} for n, text in enumerate(SPECIAL)
        ],
    }  # fmt: skip
    (folder / "tekken.json").write_text(json.dumps(tekken))


def params(text: dict, sound: dict) -> dict:
    """The configuration in Mistral's names."""
    rope = text.get("rope_parameters") or text
    encoder = {
        "audio_encoding_args": {
            "sampling_rate": 16000, "num_mel_bins": sound["num_mel_bins"], "hop_length": 160,
            "window_size": 400,
        },
        "dim": sound["hidden_size"], "n_layers": sound["num_hidden_layers"],
        "head_dim": sound["hidden_size"] // sound["num_attention_heads"],
        "hidden_dim": sound["intermediate_size"], "n_heads": sound["num_attention_heads"],
        "vocab_size": 51866, "max_source_positions": sound["max_source_positions"],
    }  # fmt: skip
    return {
        "dim": text["hidden_size"], "n_layers": text["num_hidden_layers"],
        "head_dim": text["head_dim"], "hidden_dim": text["intermediate_size"],
        "n_heads": text["num_attention_heads"], "n_kv_heads": text["num_key_value_heads"],
        "rope_theta": rope["rope_theta"], "norm_eps": text["rms_norm_eps"],
        "vocab_size": text["vocab_size"], "max_position_embeddings": 4096,
        "multimodal": {"whisper_model_args": {
            "encoder_args": encoder, "downsample_args": {"downsample_factor": 4},
        }},
    }  # fmt: skip
