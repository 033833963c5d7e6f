"""Ask transformers for an image's pixels, rows and logits of each family, in double."""

from __future__ import annotations

import json
from importlib import import_module

import numpy as np
import torch
from PIL import Image

GLM = ("glm4v", "glm4v_moe")
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", *GLM)
"""Families whose patches are in squares, with positions on three axes."""
SHUFFLED = ("idefics3", "smolvlm")
PADDED = (*SHUFFLED, "llava_next", "internvl")
"""Families whose processor pads several images to one number of tiles."""
PROCESSORS = {
    "gemma3": ("gemma3", "Gemma3"), **dict.fromkeys(SHUFFLED, ("idefics3", "Idefics3")),
    **dict.fromkeys(QWEN, ("qwen2_vl", "Qwen2VL")), "llava": ("llava", "Llava"),
    "llava_next": ("llava_next", "LlavaNext"), "pixtral": ("pixtral", "Pixtral"),
    **dict.fromkeys(GLM, ("glm4v", "Glm4v")), "mistral3": ("pixtral", "Pixtral"),
    "internvl": ("got_ocr2", "GotOcr2"),
}  # fmt: skip
MORE = ("image_grid_thw", "pixel_attention_mask", "image_sizes")
"""Outputs of a processor beside the pixels."""


def processed(name, folder, images):
    """Run the processor of transformers on images."""
    rules = json.loads((folder / "preprocessor_config.json").read_text())
    rules = {key: value for key, value in rules.items() if key != "image_processor_type"}
    module, kind = PROCESSORS[name]
    place = f"transformers.models.{module}.image_processing_pil_{module}"
    processor = getattr(import_module(place), f"{kind}ImageProcessorPil")(**rules)
    more = {"return_row_col_info": True} if name in SHUFFLED else {}
    return processor([Image.fromarray(one) for one in images], return_tensors="pt", **more)


def patches_of(name, made):
    """Our patches of an image in the order and form of transformers' pixel values."""
    if name in QWEN:
        (tile,) = made.tiles
        return tile.patches[tile.squares.reshape(-1)]
    if name in ("pixtral", "mistral3"):
        (tile,) = made.tiles
        down, across = tile.inputs["axes"][-1] + 1
        parts = tile.patches.reshape(down, across, 3, 14, 14).transpose(2, 0, 3, 1, 4)
        return parts.reshape(1, 3, 14 * down, 14 * across)
    whole = len(made.tiles[0].patches) - 16  # the class row has no pixels
    tiles = np.stack([tile.patches[whole:] for tile in made.tiles]).reshape(-1, 4, 4, 3, 14, 14)
    return tiles.transpose(0, 3, 1, 4, 2, 5).reshape(-1, 3, 56, 56)


def rows_of(name, model, given):
    """transformers' rows of images, in double; rows of layers beside them."""
    more = {key: given[key] for key in MORE if key in given}
    with torch.no_grad():
        found = model.model.get_image_features(pixel_values=given["pixel_values"].double(), **more)
    rows = [torch.as_tensor(one) for one in found.pooler_output]
    if name in SHUFFLED or name == "internvl":  # a tile each
        return [torch.cat(rows).numpy()]
    deep = [torch.cat(list(one)) for one in getattr(found, "deepstack_features", ())]
    whole = torch.cat([torch.cat(rows), *deep], dim=1).numpy()
    return np.split(whole, np.cumsum([len(one) for one in rows])[:-1])


def logits_of(name, model, given, ids, token):
    """transformers' logits of a prompt with images, in double."""
    seen = torch.tensor([[int(one == token) for one in ids]])
    more = {key: given[key] for key in MORE if key in given}
    types = {"gemma3": "token_type_ids", **dict.fromkeys(QWEN, "mm_token_type_ids")}
    more |= {types[name]: seen} if name in types else {}
    pixels = given["pixel_values"].double()
    with torch.no_grad():
        made = model(input_ids=torch.tensor([ids]), pixel_values=pixels, **more)
    return made.logits[0].numpy()
