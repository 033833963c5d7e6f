"""Small folders of models that have sounds in their prompts, written by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
import vision_folders
from safetensors.torch import load_file, save_file
from transformers.models.gemma3n import modeling_gemma3n as gemma3n_model
from transformers.models.whisper.modeling_whisper import WhisperEncoder

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


class Ultravox(torch.nn.Module):
    """Ultravox as its authors have it: transformers' encoder and text model, and a projector."""

    def __init__(self, config: dict[str, Any], text: Any, audio: Any) -> None:
        super().__init__()
        self.config, mid = config, config["projector_ln_mid"]
        self.audio_tower = WhisperEncoder(audio)
        self.language_model = transformers.LlamaForCausalLM(text)
        self.stack, width = config["stack_factor"], config["hidden_size"]
        norm, inner = torch.nn.RMSNorm, audio.d_model * self.stack
        self.multi_modal_projector = torch.nn.ModuleDict({
            "ln_pre": norm(inner, eps=1e-6),
            "linear_1": torch.nn.Linear(inner, width, bias=False),
            "linear_2": torch.nn.Linear(width // 2, text.hidden_size, bias=False),
            "ln_mid" if mid else "ln_post": norm(width // 2 if mid else text.hidden_size, eps=1e-6),
        })  # fmt: skip

    def rows(self, features: torch.Tensor) -> torch.Tensor:
        """The rows of a window's features, [1, bands, frames], no more than the encoder takes."""
        tower, parts = self.audio_tower, self.multi_modal_projector
        x = torch.nn.functional.gelu(tower.conv1(features))
        x = torch.nn.functional.gelu(tower.conv2(x)).permute(0, 2, 1)
        x = x + tower.embed_positions.weight[: x.shape[1]]
        for layer in tower.layers:
            x = layer(x, None)
            x = x[0] if isinstance(x, tuple) else x
        x = tower.layer_norm(x)
        x = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[1] % self.stack))
        x = parts["ln_pre"](x.reshape(1, -1, x.shape[2] * self.stack))
        x, gate = parts["linear_1"](x).chunk(2, dim=-1)
        x = torch.nn.functional.silu(gate) * x
        if "ln_mid" in parts:
            return parts["linear_2"](parts["ln_mid"](x))[0]
        return parts["ln_post"](parts["linear_2"](x))[0]


def ultravox(folder: Path, *, ln_mid: bool = True, **encoder: Any) -> Any:
    """Write an Ultravox whose windows are two seconds long, with a template that takes texts."""
    control = ["<|reserved_special_token_0|>", "<|reserved_special_token_1|>"]
    template = (
        "{{ bos_token }}{% for m in messages %}<turn>{{ m.role }}\n{{ m.content | trim }}"
        "<eos>{% endfor %}<turn>assistant\n"
    )
    ids = vision_folders.write_tokenizer(folder, control, template)
    given = {
        "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 56,
        **ENCODER,
    }  # fmt: skip
    audio = transformers.WhisperConfig(**given | encoder)
    text = transformers.LlamaConfig(**TEXT | {"vocab_size": len(ids), "head_dim": 16})
    whole = {
        "model_type": "ultravox", "hidden_size": 48, "stack_factor": 8, "norm_init": 0.4,
        "projector_act": "swiglu", "projector_ln_mid": ln_mid, "vocab_size": len(ids),
        "audio_model_id": None, "text_model_id": None, "audio_latency_block_size": None,
        "audio_config": audio.to_dict(), "text_config": text.to_dict(),
    }  # fmt: skip
    torch.manual_seed(3)
    audio._attn_implementation = text._attn_implementation = "eager"
    made = Ultravox(whole, text, audio).float().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    tensors = {name: value.contiguous() for name, value in made.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(whole))
    (folder / "preprocessor_config.json").write_text(json.dumps(RULES))
    return made


GEMMA_ENCODER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "subsampling_conv_channels": [16, 8], "output_proj_dims": 24, "conv_kernel_size": 3,
    "attention_chunk_size": 5, "attention_context_left": 6,
}  # fmt: skip
"""Rows of 40 ms see five."""


def gemma4(folder: Path, **encoder: Any) -> Any:
    """Write a Gemma 4 as E2B is, that sees and hears."""
    return vision_folders.gemma4_small(folder, hears=GEMMA_ENCODER | encoder)


GEMMA3N_ENCODER = {
    "hidden_size": 32, "conf_num_hidden_layers": 2, "conf_num_attention_heads": 2,
    "sscp_conv_channel_size": [8, 6], "input_feat_size": 16, "conf_conv_kernel_size": 3,
    "conf_attention_chunk_size": 5, "conf_attention_context_left": 6, "conf_reduction_factor": 16,
}  # fmt: skip
"""A row for 640 ms."""


def gemma3n_without_sight() -> Any:
    """Return what makes Gemma 3n of transformers without its tower for images, which is timm's."""
    made = transformers.AutoModel.from_config

    def without_tower(config: Any) -> Any:
        return torch.nn.Module() if "vision" in config.model_type else made(config)

    return patch.object(gemma3n_model.AutoModel, "from_config", without_tower)


def gemma3n(folder: Path, **encoder: Any) -> Any:
    """Write a Gemma 3n that hears, whose tower for images has no tensors."""
    words = ["<end_of_audio>", "<audio_soft_token>", "<unused0>", "<unused1>"]
    control, text = ["<start_of_audio>"], template_of("<audio_soft_token>")
    ids = vision_folders.write_tokenizer(folder, control, text, words)
    first = ids[words[0]]
    config = transformers.Gemma3nConfig(
        text_config={
            "vocab_size": len(ids), "hidden_size": 64, "intermediate_size": 40,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "sliding_window": 9, "num_kv_shared_layers": 0, "laurel_rank": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": first - 2,
            "activation_sparsity_pattern": [0.9, 0.0, 0.0],
        },
        audio_config=GEMMA3N_ENCODER | {"vocab_size": 4, "vocab_offset": first} | encoder,
        vision_config={"hidden_size": 8, "vocab_size": 1, "vocab_offset": first - 1},
        audio_token_id=ids[words[1]], eoa_token_id=first, boa_token_id=ids[control[0]],
        audio_soft_tokens_per_image=47, image_token_id=3,
    )  # fmt: skip
    rules = {"feature_extractor_type": "Gemma3nAudioFeatureExtractor", "feature_size": 16}
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    with gemma3n_without_sight():
        return vision_folders.saved(folder, config, "Gemma3nForConditionalGeneration")


def several_senses(folder: Path, control: list[str]) -> dict[str, int]:
    """Write the tokenizer of a model that sees and hears: of an image, its begin and end, and the
    same of a sound; return the ids.
    """
    image, start, end, *sound = control
    text = vision_folders.template_of(start + image + end)
    heard = "{% elif p.type == 'audio' %}" + sound[1] + sound[0] + sound[2]
    text = text.replace("{% elif p.type == 'text", heard + "{% elif p.type == 'text")
    return vision_folders.write_tokenizer(folder, control, text)


def as_thinker(folder: Path, kind: str) -> None:
    """Make a thinker's folder that of a whole model, as published."""
    thinker = json.loads((folder / "config.json").read_text())
    whole = {"model_type": kind, "thinker_config": thinker}
    (folder / "config.json").write_text(json.dumps(whole))
    file = folder / "model.safetensors"
    save_file({f"thinker.{name}": tensor for name, tensor in load_file(file).items()}, file)


THINKER_RULES = RULES | {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2,
    "temporal_patch_size": 2, "min_pixels": 256, "max_pixels": 2048, "chunk_length": 4,
}  # fmt: skip
"""Preprocessing of the families that see and hear."""


def qwen2_5_omni(folder: Path, **changed: Any) -> Any:
    """Write a Qwen2.5-Omni, as published, that sees and hears windows of 40 frames.

    Parameters
    ----------
    changed : keys of `audio_config` and `vision_config`, in these.
    """
    control = ["<|IMAGE|>", "<|vision_bos|>", "<|vision_eos|>", "<|AUDIO|>", "<|audio_bos|>",
               "<|audio_eos|>"]  # fmt: skip
    ids = several_senses(folder, control)
    rope = {"rope_type": "default", "rope_theta": 1e3, "mrope_section": [4, 2, 2]}
    hears = {
        "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 56,
        "num_mel_bins": 80, "n_window": 20, "output_dim": 64,
    }  # fmt: skip
    sees = {"depth": 3, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2,
            "patch_size": 4, "intermediate_size": 40, "window_size": 24,
            "fullatt_block_indexes": [1]}  # fmt: skip
    config = transformers.Qwen2_5OmniThinkerConfig(
        audio_config=hears | changed.get("audio_config", {}),
        vision_config=sees | changed.get("vision_config", {}),
        text_config=TEXT | {"vocab_size": len(ids), "hidden_size": 64, "rope_parameters": rope},
        image_token_index=ids[control[0]], audio_token_index=ids[control[3]],
        vision_start_token_id=ids[control[1]], audio_start_token_id=ids[control[4]],
        video_token_index=3,
    )  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(THINKER_RULES))
    made = vision_folders.saved(folder, config, "Qwen2_5OmniThinkerForConditionalGeneration")
    as_thinker(folder, "qwen2_5_omni")
    return made


def qwen3_omni(folder: Path, **changed: Any) -> Any:
    """Write a Qwen3-Omni, as published, that sees and hears windows of two pieces.

    Parameters
    ----------
    changed : keys of `audio_config` and `vision_config`, in these.
    """
    control = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|audio_pad|>",
               "<|audio_start|>", "<|audio_end|>"]  # fmt: skip
    ids = several_senses(folder, control)
    rope = {"rope_type": "default", "rope_theta": 1e3, "mrope_section": [4, 2, 2],
            "mrope_interleaved": True}  # fmt: skip
    hears = {
        "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 56,
        "num_mel_bins": 80, "n_window_infer": 200, "downsample_hidden_size": 6, "output_dim": 64,
    }  # fmt: skip
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    sees = vision_folders.QWEN3_TOWER | {"deepstack_visual_indexes": [0, 1]}
    config = transformers.Qwen3OmniMoeThinkerConfig(
        audio_config=hears | changed.get("audio_config", {}),
        vision_config=sees | changed.get("vision_config", {}),
        text_config=TEXT | experts | {"vocab_size": len(ids), "hidden_size": 64, "head_dim": 16,
                                      "rope_parameters": rope},
        image_token_id=ids[control[0]], audio_token_id=ids[control[3]],
        vision_start_token_id=ids[control[1]], audio_start_token_id=ids[control[4]],
        video_token_id=3,
    )  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(THINKER_RULES))
    made = vision_folders.saved(folder, config, "Qwen3OmniMoeThinkerForConditionalGeneration")
    as_thinker(folder, "qwen3_omni_moe")
    return made
