"""Small folders of Phi-4 multimodal, in transformers' form and as published, and its oracles."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.image_utils import SizeDict
from vision_folders import SIGLIP, TEXT, saved, template_of, write_tokenizer

EDGE, PATCH, HIDDEN = 56, 14, 24
CONTROL = ["<|endoftext10|>", "<|endoftext11|>"]
SOUNDS = {
    "hidden_size": 32, "intermediate_size": 24, "num_blocks": 3, "num_attention_heads": 2,
    "ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "nemo_conv_channels": 8,
    "input_size": 80, "bias_max_distance": 6, "left_chunk": 18,
}  # fmt: skip
"""Keys of a small encoder of sound."""


def phi4_multimodal(folder: Path, **sight: Any) -> Any:
    """Write a Phi-4 multimodal whose crops are 4 rows; return transformers' model."""
    spoken = "{% elif p.type == 'audio' %}" + CONTROL[1] + "{% elif p.type == 'text"
    template = template_of(CONTROL[0]).replace("{% elif p.type == 'text", spoken)
    ids = write_tokenizer(folder, CONTROL, template)
    text = TEXT | {"vocab_size": len(ids), "hidden_size": 64}
    text.pop("head_dim")
    tower = SIGLIP | {
        "num_hidden_layers": 3, "crop_size": EDGE, "image_token_id": ids[CONTROL[0]]
    } | sight  # fmt: skip
    config = transformers.Phi4MultimodalConfig(
        **text, vision_config=tower, audio_config=SOUNDS | {"audio_token_id": ids[CONTROL[1]]},
    )  # fmt: skip
    rules = {
        "size": {"height": EDGE, "width": EDGE}, "patch_size": PATCH, "dynamic_hd": 6,
        "image_processor_type": "Phi4MultimodalImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    model = saved(folder, config, "Phi4MultimodalForCausalLM")
    with torch.no_grad():  # matrices of deviation 1 make much of the last bit of a pixel
        for name, parameter in model.model.embed_tokens_extend.image_embed.named_parameters():
            parameter.mul_(0.3 if "encoder.layers" in name and parameter.ndim > 1 else 1.0)
        bands = model.model.embed_tokens_extend.audio_embed.encoder.encoder_embedding
        bands.global_mean += torch.randn(80) + 8
        bands.global_invstd *= 0.2 + 0.1 * torch.rand(80)
    model.save_pretrained(folder)
    return uncausal(model)


def uncausal(model: Any) -> Any:
    """Have patches of a tower see all others, as SigLIP's do.

    Without a mask, where no patch of a batch is hidden, transformers 5.24 takes the tower's
    attention for a text's, whose rows see only those before.
    """
    for module in model.model.embed_tokens_extend.image_embed.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    return model


def processed(rules: dict[str, Any], images: list[np.ndarray]) -> Any:
    """Run transformers' processor, with Pillow's and PyTorch's resizing for torchvision's."""
    from vision_oracles import processor_without_torchvision

    def resized(image, size):
        array = image.numpy().transpose(1, 2, 0)
        made = Image.fromarray(array).resize(size[::-1], Image.Resampling.BILINEAR)
        return torch.from_numpy(np.asarray(made).transpose(2, 0, 1).copy())

    def padded(image, padding, fill):
        assert set(fill) == {255}
        edges = (padding[0], padding[2], padding[1], padding[3])
        return torch.nn.functional.pad(image, edges, value=255)

    functional = SimpleNamespace(resize=resized, pad=padded)

    def whole(values, size, resample, antialias):
        assert int(resample) == 3 and not antialias
        edges = (size.height, size.width)
        return torch.nn.functional.interpolate(values[None], edges, mode="bicubic")[0]

    with processor_without_torchvision("phi4_multimodal", rules) as (made, given):
        made.resize = whole
        place = "transformers.models.phi4_multimodal.image_processing_phi4_multimodal"
        tensors = [torch.from_numpy(one.transpose(2, 0, 1).copy()) for one in images]
        given |= {"size": SizeDict(**rules["size"]), "do_resize": True}
        with patch(f"{place}.tvF", functional):
            return made._preprocess(tensors, **given)


def patches_in_order(made: Any) -> np.ndarray:
    """Our patches of an image as transformers' pixel values; those it sees nothing of are NaN."""
    side, tiles = EDGE // PATCH, []
    for tile in (made.tiles[-1], *made.tiles[:-1]):
        first = tile.inputs["listed"][0, 0, 0] * 2 * side
        grid = np.full((side, side, 3, PATCH, PATCH), np.nan)
        squares = tile.squares.reshape(len(tile.squares), 2, 2)
        wide = next(w for w in (1, 2) if len(squares) % w == 0 and _fits(squares, w, first))
        lines = squares.reshape(-1, wide, 2, 2).transpose(0, 2, 1, 3)
        numbers = lines.reshape(lines.shape[0] * 2, -1)
        down, across = numbers.shape
        grid[:down, :across] = tile.patches[numbers].reshape(down, across, 3, PATCH, PATCH)
        tiles.append(grid.transpose(2, 0, 3, 1, 4).reshape(3, EDGE, EDGE))
    return np.stack(tiles)


def _fits(squares: np.ndarray, wide: int, first: int) -> bool:
    """Return whether patches that are seen are numbered line by line in so many squares a line."""
    lines = squares.reshape(-1, wide, 2, 2).transpose(0, 2, 1, 3).reshape(-1, wide * 2)
    shown = lines >= first
    return bool(shown[:, 0].any() and (np.diff(lines[shown]) == 1).all())


def rows_of(model: Any, given: Any) -> list[np.ndarray]:
    """transformers' rows of each image, in double."""
    embed, rows = model.model.embed_tokens_extend.image_embed, []
    for n in range(len(given["image_sizes"])):
        count = counts_of(given)[n]
        ids = torch.full((1, count), model.config.vision_config.image_token_id)
        zeros = torch.zeros(1, count, model.config.hidden_size, dtype=torch.float64)
        with torch.no_grad():
            rows.append(embed(ids, zeros, **_of(given, slice(n, n + 1)))[0].numpy())
    return rows


def counts_of(given: Any) -> list[int]:
    """The rows of each image by its processor, whose whole has 16² rows whatever its size."""
    side = EDGE // PATCH // 2
    return [n - 256 - 16 + side * side + side for n in given["num_img_tokens"]]


def logits_of(model: Any, given: Any, ids: list[int]) -> np.ndarray:
    """transformers' logits of a prompt with images, in double."""
    with torch.no_grad():
        made = model(input_ids=torch.tensor([ids]), **_of(given, slice(None)))
    return made.logits[0].numpy()


def _of(given: Any, chosen: slice) -> dict[str, Any]:
    return {
        "image_pixel_values": given["image_pixel_values"][chosen].double(),
        "image_sizes": given["image_sizes"][chosen],
        "image_attention_mask": given["image_attention_mask"][chosen],
    }


MATRICES = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")


def with_adapter(folder: Path, model: Any, name: str, seed: int, rank: int = 3) -> Any:
    """Write a PEFT folder `NAME-lora` of random numbers; return transformers' model with it."""
    import peft

    torch.manual_seed(seed)
    targets = rf"model\.layers\.\d+\.({'|'.join(MATRICES)})".replace("_proj", r"_proj")
    chosen = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    adapted = peft.get_peft_model(model, chosen, adapter_name=name)
    with torch.no_grad():
        for tensor, parameter in adapted.named_parameters():
            if f".lora_B.{name}" in tensor or f".lora_A.{name}" in tensor:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    adapted.float().save_pretrained(folder, selected_adapters=[name])
    (folder / name).rename(folder / f"{name}-lora")
    return adapted


PUBLISHED = {
    "img_projection_up.": "img_projection.0.", "img_projection_down.": "img_projection.2.",
    "sub_img_feature_extensor": "sub_GN", "global_img_feature_extensor": "glb_GN",
    "up_proj_for_speech.": "audio_projection.speech.0.",
    "down_proj_for_speech.": "audio_projection.speech.2.",
    "up_proj_for_vision_speech.": "audio_projection.vision.0.",
    "down_proj_for_vision_speech.": "audio_projection.vision.2.",
    "feed_forward_in.gate_up_proj": "feed_forward_in.net.0.linear",
    "feed_forward_out.gate_up_proj": "feed_forward_out.net.0.linear",
    "feed_forward_in.down_proj": "feed_forward_in.net.2",
    "feed_forward_out.down_proj": "feed_forward_out.net.2",
}  # fmt: skip
OF_SOUNDS = {
    "hidden_size": "attention_dim", "intermediate_size": "linear_units", "num_blocks": "num_blocks",
    "num_attention_heads": "attention_heads", "ext_pw_out_channel": "ext_pw_out_channel",
    "depthwise_separable_out_channel": "depthwise_seperable_out_channel",
    "kernel_size": "kernel_size", "input_size": "input_size", "time_reduction": "time_reduction",
    "chunk_size": "chunk_size", "left_chunk": "left_chunk", "audio_token_id": "audio_token_id",
}  # fmt: skip
"""Keys of an encoder of sound, and what they are called as published."""
SPOKEN = {
    "compression_rate": 8, "downsample_rate": 1, "embedding_cls": "audio",
    "enable_gradient_checkpointing": True, "projection_cls": "mlp", "use_conv_downsample": False,
    "use_qformer": False,
}  # fmt: skip


def encoder_as_published(own: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of an encoder of sound as its authors write it."""
    return {theirs: own[name] for name, theirs in OF_SOUNDS.items()} | {
        "activation": "swish", "batch_norm": False, "bias_in_glu": True, "causal": True,
        "activation_checkpointing": {"interval": 1}, "cnn_layer_norm": True,
        "conv_activation": "swish", "conv_glu_type": "swish", "depthwise_multiplier": 1,
        "dropout_rate": 0.0, "encoder_embedding_config": {"input_size": own["input_size"]},
        "ext_pw_kernel_size": 1, "input_layer": "nemo_conv",
        "nemo_conv_settings": {"conv_channels": own["nemo_conv_channels"]},
        "relative_attention_bias_args": {
            "t5_bias_max_distance": own["bias_max_distance"], "type": "t5",
        },
    }  # fmt: skip


def as_published(folder: Path, source: Path, names: tuple[str, ...] = ("vision",)) -> Path:
    """Write a folder of transformers' form as its authors have it, adapters among the tensors.

    The sizes of the tower, which the published code knows, stand in config.json here.
    """
    folder.mkdir()
    config, given = json.loads((source / "config.json").read_text()), {}
    for name, tensor in load_file(source / "model.safetensors").items():
        for theirs, own in PUBLISHED.items():
            name = name.replace(theirs, own)
        if ".audio_embed.encoder." in name:
            name = re.sub(r"self_attn\.([qkv])_proj", r"self_attn.linear_\1", name)
            name = name.replace("self_attn.o_proj", "self_attn.linear_out")
        stem = name.removesuffix(".weight")
        adapted = name.startswith("model.layers.") and stem.endswith(MATRICES)
        given[f"{stem}.base_layer.weight" if adapted else name] = tensor
    for adapter in names:
        rules = json.loads((source / f"{adapter}-lora/adapter_config.json").read_text())
        config[f"{adapter}_lora"] = {"r": rules["r"], "lora_alpha": rules["lora_alpha"]}
        path = source / f"{adapter}-lora/adapter_model.safetensors"
        for name, tensor in load_file(path).items():
            plain = name.removeprefix("base_model.model.")
            given[plain.replace(".weight", f".{adapter}.weight")] = tensor
    sight = config.pop("vision_config")
    image = {
        "embedding_cls": "tune_image", "hd_transform_order": "sub_glb", "projection_cls": "mlp",
        "image_token_compression_cls": "avg_pool_2d", "use_hd_transform": True,
        "with_learnable_separator": True, "enable_gradient_checkpointing": True,
    }  # fmt: skip
    layers = {"embedding_cls": "image_audio", "image_embd_layer": image | sight}
    layers["audio_embd_layer"] = SPOKEN
    config |= {"model_type": "phi4mm", "embd_layer": layers, "img_processor": None}
    config["audio_processor"] = {"name": "cascades", "config": encoder_as_published(
        config.pop("audio_config")
    )}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file(given, folder / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        shutil.copy(source / name, folder / name)
    return folder
