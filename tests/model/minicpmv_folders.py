"""Small folders of MiniCPM-V, made of parts that transformers has, and its pixels by Pillow."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from vision_folders import MINICPM, SIGLIP, TEXT, write_tokenizer

EDGE, MOST, SIZE = 112, 4, 14


class Resampler(torch.nn.Module):
    """MiniCPM-V's projector: learned queries attend to patches, whose keys have positions."""

    def __init__(self, rows: int, width: int, patches: int) -> None:
        super().__init__()
        self.query = torch.nn.Parameter(torch.randn(rows, width))
        self.proj = torch.nn.Parameter(torch.randn(width, width) * width**-0.5)
        self.kv_proj = torch.nn.Linear(patches, width, bias=False)
        self.attn = torch.nn.MultiheadAttention(width, width // 128)
        for name in ("ln_q", "ln_kv", "ln_post"):
            setattr(self, name, torch.nn.LayerNorm(width, eps=1e-6))

    def forward(self, patches: torch.Tensor, down: int, across: int) -> torch.Tensor:
        """Return the rows of one slice."""
        values = self.ln_kv(self.kv_proj(patches))
        quarter = values.shape[1] // 4
        turns = torch.pow(10000.0, -torch.arange(quarter, dtype=torch.float64) / quarter)
        at = torch.arange(down * across, dtype=values.dtype)
        angles = [(at % across)[:, None] * turns, (at // across)[:, None] * turns]
        places = torch.cat([one for angle in angles for one in (angle.sin(), angle.cos())], 1)
        made, _ = self.attn(self.ln_q(self.query), values + places, values)
        return self.ln_post(made) @ self.proj


class MiniCPMV(torch.nn.Module):
    """MiniCPM-V of parts that transformers has: a SigLIP, a resampler, a text model."""

    def __init__(self, text: Any, tower: Any, rows: int) -> None:
        super().__init__()
        self.vpm = transformers.SiglipVisionModel(tower)
        self.resampler = Resampler(rows, text.hidden_size, tower.hidden_size)
        self.llm = transformers.AutoModelForCausalLM.from_config(text)

    def rows(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the rows of a slice, given as its pixels [3, height, width]."""
        tower = self.vpm
        side, own = tower.config.image_size // tower.config.patch_size, tower.embeddings
        x = own.patch_embedding(pixels[None])[0]
        down, across = x.shape[1:]
        y, z = (torch.arange(n) * side // n for n in (down, across))
        x = x.flatten(1).T + own.position_embedding.weight[(y[:, None] * side + z).reshape(-1)]
        x = tower.encoder(inputs_embeds=x[None]).last_hidden_state
        return self.resampler(tower.post_layernorm(x)[0], down, across)


TEXT_TEMPLATE = (
    "{% for m in messages %}{{ '<turn>' + m.role + '\\n' + m.content + '<eos>' }}{% endfor %}"
    "<turn>assistant"
)
"""A template that takes texts alone."""
MINICPM_V = {2.6: "qwen2", 4.0: "llama", 4.5: "qwen3"}
"""Text models by version."""


def minicpmv(folder: Path, version: float = 2.6, **sight: Any) -> Any:
    """Write a MiniCPM-V of slices near 112² pixels and 5 rows a slice, as published folders are."""
    ids = write_tokenizer(folder, ["<unk>", *MINICPM[1:]], TEXT_TEMPLATE)
    text = TEXT | {"vocab_size": len(ids), "hidden_size": 256, "head_dim": 64}
    if version == 2.6:
        text.pop("head_dim")
    tower = SIGLIP | sight
    config = transformers.AutoConfig.for_model(MINICPM_V[version], **text)
    torch.manual_seed(1)
    model = MiniCPMV(config, transformers.SiglipVisionConfig(**tower, vision_use_head=False), 5)
    model = model.float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    names = {"vpm.vision_model.": "vpm."}
    tensors = {
        next(
            (n + k.removeprefix(o) for o, n in names.items() if k.startswith(o)), k
        ): v.contiguous()
        for k, v in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors")
    whole = config.to_dict() | {
        "model_type": "minicpmv", "version": version, "query_num": 5, "image_size": 448,
        "vision_config": tower | {"model_type": "siglip"}, "slice_mode": True,
        "batch_vision_input": True, "drop_vision_last_layer": False, "use_image_id": True,
        "vision_batch_size": 16, "architectures": ["MiniCPMV"],
        "slice_config": {"max_slice_nums": 9, "patch_size": 14, "model_type": "minicpmv"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(whole))
    rules = {
        "scale_resolution": EDGE, "max_slice_nums": MOST, "patch_size": SIZE,
        "image_feature_size": 5,
        "use_image_id": True, "slice_mode": True, "unk": "<unk>", "version": version,
        "norm_mean": [0.5, 0.5, 0.5], "norm_std": [0.5, 0.5, 0.5], "im_start": "<image>",
        "image_processor_type": "MiniCPMVImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return model


def fitted(width: float, height: float, grow: bool) -> tuple[int, int]:
    """Return the width and height of a slice, in whole patches."""
    if grow or width * height > EDGE**2:
        form = width / height
        height = int(EDGE / math.sqrt(form))
        width = int(height * form)
    return max(round(width / SIZE), 1) * SIZE, max(round(height / SIZE), 1) * SIZE


def grid_of(width: int, height: int) -> tuple[int, int]:
    """Return the columns and rows of slices; (0, 0) for none."""
    wanted = min(math.ceil(width * height / EDGE**2), MOST)
    if wanted < 2:
        return 0, 0
    counts = [n for n in (wanted - 1, wanted, wanted + 1) if 1 < n <= MOST]
    grids = [(m, n // m) for n in counts for m in range(1, n + 1) if n % m == 0]
    return min(grids, key=lambda grid: abs(math.log(width / height) - math.log(grid[0] / grid[1])))


def processed(images: Sequence[np.ndarray]) -> dict[str, Any]:
    """Cut images with Pillow into the whole and slices: pixels [3, height, width] and grids."""
    found: dict[str, Any] = {"pixel_values": [], "grids": []}
    for given in images:
        image, resample = Image.fromarray(given), Image.Resampling.BICUBIC
        across, down = grid_of(*image.size)
        parts = [image.resize(fitted(*image.size, grow=not across), resample)]
        if across:
            share = [
                max(round(n / of), 1) for n, of in zip(image.size, (across, down), strict=True)
            ]
            width, height = fitted(*share, grow=True)
            large = image.resize((width * across, height * down), resample)
            corners = [(x * width, y * height) for y in range(down) for x in range(across)]
            parts += [large.crop((x, y, x + width, y + height)) for x, y in corners]
        pixels = [(np.asarray(part) / 255 - 0.5) / 0.5 for part in parts]
        found["pixel_values"].append([torch.from_numpy(p.transpose(2, 0, 1)) for p in pixels])
        found["grids"].append((down, across))
    return found


def text_of(number: int, grid: tuple[int, int], rows: int = 5) -> str:
    """Return what stands for an image in a prompt."""
    own, line = "<unk>" * rows, f"<slice>{'<unk>' * rows}</slice>" * grid[1]
    slices = "\n".join([line] * grid[0])
    return f"<image_id>{number}</image_id><image>{own}</image>{slices}"


def rows_of(model: Any, given: dict[str, Any]) -> list[np.ndarray]:
    """Return the rows of images, in double."""
    with torch.no_grad():
        return [
            torch.cat([model.rows(tile) for tile in tiles]).numpy()
            for tiles in given["pixel_values"]
        ]


def logits_of(model: Any, given: dict[str, Any], ids: Sequence[int], token: int) -> np.ndarray:
    """Return the logits of a prompt with images, in double."""
    listed = torch.tensor([ids])
    with torch.no_grad():
        embed = model.llm.get_input_embeddings()(listed)
        embed[listed == token] = torch.from_numpy(np.concatenate(rows_of(model, given)))
        return model.llm(inputs_embeds=embed).logits[0].numpy()
