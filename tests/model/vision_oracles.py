"""Ask transformers for an image's pixels, rows and logits of each family, in double."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import minicpmv_folders
import mllama_oracle
import numpy as np
import phi4mm_folders
import torch
from PIL import Image
from transformers import image_processing_backends
from transformers.image_utils import PILImageResampling, SizeDict

from cortiq.numerics.pixels import grouped

GLM = ("glm4v", "glm4v_moe", "glm_ocr", "glm5_next")
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen4_exp", *GLM)
"""Families whose patches are in squares, with positions on three axes."""
SHUFFLED = ("idefics3", "smolvlm")
GEMMA4 = ("gemma4", "gemma4_small")
MINICPM = ("minicpmv4_6", "minicpmv4_7", "minicpm_ocr")
"""Families whose pixels are those of all tiles side by side."""
TILED = ("internvl", "cohere2_vision", "aya_vision")
PADDED = (*SHUFFLED, "llava_next", *TILED)
"""Families whose processor pads several images to one number of tiles."""
PROCESSORS = {
    "gemma3": ("gemma3", "Gemma3"), **dict.fromkeys(SHUFFLED, ("idefics3", "Idefics3")),
    **dict.fromkeys(QWEN, ("qwen2_vl", "Qwen2VL")), "llava": ("llava", "Llava"),
    "llava_next": ("llava_next", "LlavaNext"), "pixtral": ("pixtral", "Pixtral"),
    **dict.fromkeys(GLM, ("glm4v", "Glm4v")), "glm5_next": ("glm5_next", "Glm5Next"),
    "mistral3": ("pixtral", "Pixtral"),
    "mistral_large4": ("pixtral", "Pixtral"),
    "internvl": ("got_ocr2", "GotOcr2"), "aria": ("aria", "Aria"),
    "aya_vision": ("got_ocr2", "GotOcr2"),
    **dict.fromkeys(MINICPM, ("minicpmv4_6", "MiniCPMV4_6")),
    **dict.fromkeys(GEMMA4, ("gemma4", "Gemma4")), "mllama": ("mllama", "Mllama"),
}  # fmt: skip
UNSCALED = ("cohere2_vision", "aya_vision")
"""Families whose class of transformers leaves out the factor that their text model's class has."""
WITHOUT_PILLOW = ("lfm2_vl", "kimi_k25", "cohere2_vision")
"""Families whose processor there is with torchvision's resizing only."""
MORE = ("image_grid_thw", "pixel_mask", "pixel_attention_mask", "image_sizes", "spatial_shapes",
        "image_position_ids", "target_sizes")  # fmt: skip
"""Outputs of a processor beside the pixels."""


def processed(name, folder, images):
    """Run the processor of transformers on images; for MiniCPM-V's, Pillow."""
    if name == "minicpmv":
        return minicpmv_folders.processed(images)
    rules = json.loads((folder / "preprocessor_config.json").read_text())
    rules = {key: value for key, value in rules.items() if key != "image_processor_type"}
    if name == "phi4_multimodal":
        return phi4mm_folders.processed(rules, images)
    if name in WITHOUT_PILLOW:
        return without_torchvision(name, rules, images)
    module, kind = PROCESSORS[name]
    place = f"transformers.models.{module}.image_processing_pil_{module}"
    owner = import_module(place)
    if name in GEMMA4:  # of 70 rows at least, but for tests
        owner._SUPPORTED_SOFT_TOKENS = (6,)
    processor = getattr(owner, f"{kind}ImageProcessorPil")(**rules)
    more = {"return_row_col_info": True} if name in SHUFFLED else {}
    return processor([Image.fromarray(one) for one in images], return_tensors="pt", **more)


def without_torchvision(name, rules, images):
    """Run a processor that resizes with torchvision, with Pillow's resizing in its place."""
    with processor_without_torchvision(name, rules) as (made, given):
        given["size"] = SizeDict(**given["size"])
        vars(made).update(given)
        tensors = [torch.from_numpy(one.transpose(2, 0, 1).copy()) for one in images]
        given |= {"disable_grouping": True, "return_row_col_info": True}
        return made._preprocess(tensors, **given)


@contextmanager
def processor_without_torchvision(name, rules):
    """A processor that resizes with torchvision, Pillow's resizing in its place, and its settings.

    PyTorch's own is within one grey level of that (`test_pixels.py`).
    """
    functional = ModuleType("torchvision.transforms.v2.functional")
    functional.InterpolationMode = SimpleNamespace(
        BILINEAR="bilinear", BICUBIC="bicubic", LANCZOS="lanczos"
    )
    functional.resize = _by_pillow
    functional.pad = lambda image, padding, fill, padding_mode: torch.nn.functional.pad(
        image, (padding[0], padding[2], padding[1], padding[3]), value=fill
    )
    parts = ["torchvision", "torchvision.transforms", "torchvision.transforms.v2"]
    stubs = {part: ModuleType(part) for part in parts} | {functional.__name__: functional}
    stubs[parts[-1]].functional = functional
    modes = {2: "bilinear", 3: "bicubic"}
    with (
        patch.dict(sys.modules, stubs),
        patch.object(image_processing_backends, "tvF", functional, create=True),
        patch.object(
            image_processing_backends, "pil_torch_interpolation_mapping", modes, create=True
        ),
    ):
        place = f"transformers.models.{name}.image_processing_{name}"
        kind = next(k for k in vars(import_module(place)).values() if _is_processor(k, place))
        made = kind.__new__(kind)
        given = {k: getattr(kind, k) for k in dir(kind) if type(getattr(kind, k)) in PLAIN} | rules
        made.rescale_and_normalize = _normalised
        yield made, given | {"return_tensors": "pt"}


def _by_pillow(images, size, interpolation, antialias):
    down, across = size
    made = [
        np.asarray(Image.fromarray(one.numpy().transpose(1, 2, 0)).resize((across, down), filter))
        for one in images for filter in [MODES[interpolation]]
    ]  # fmt: skip
    return torch.from_numpy(np.stack(made).transpose(0, 3, 1, 2).copy())


MODES = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
PLAIN = (int, float, bool, list, tuple, dict, PILImageResampling)


def _is_processor(kind, place):
    return isinstance(kind, type) and kind.__module__ == place and hasattr(kind, "_preprocess")


def _normalised(images, do_rescale, factor, do_normalize, mean, deviation):
    mean, deviation = (torch.tensor(one)[:, None, None].double() for one in (mean, deviation))
    return (images * factor - mean) / deviation


def pixels_of(name, given):
    """transformers' pixel values of one image, in the order of our patches where tiles differ."""
    if name == "phi4_multimodal":
        return given["image_pixel_values"][0].numpy()
    if name != "minicpmv":
        return given["pixel_values"].numpy()
    (tiles,) = given["pixel_values"]
    cut = [tile.unfold(1, 14, 14).unfold(2, 14, 14).permute(1, 2, 0, 3, 4) for tile in tiles]
    return np.concatenate([one.reshape(-1, 3 * 14 * 14).numpy() for one in cut])


def patches_of(name, made, given):
    """Our patches of an image in the order and form of transformers' pixel values."""
    if name == "phi4_multimodal":
        return phi4mm_folders.patches_in_order(made)
    if name in QWEN:
        (tile,) = made.tiles
        return tile.patches[tile.squares.reshape(-1)]
    if name == "minicpmv":
        return np.concatenate([tile.patches for tile in made.tiles])
    if name in MINICPM:
        tiles = []
        for tile, (down, across) in zip(made.tiles, given["target_sizes"].tolist(), strict=True):
            order = grouped(down, across, 2).reshape(-1) if len(tile.stages) else slice(None)
            rows = np.empty_like(tile.patches)
            rows[order] = tile.patches
            tiles.append(rows.reshape(-1, 3, 14, 14))
        return np.concatenate(tiles).transpose(1, 2, 0, 3).reshape(1, 3, 14, -1)
    if name == "lfm2_vl":
        return np.stack([np.pad(t.patches, ((0, 24 - len(t.patches)), (0, 0))) for t in made.tiles])
    if name == "kimi_k25":
        (tile,) = made.tiles
        return tile.patches.reshape(-1, 3, 6, 6)
    if name in GEMMA4:  # which takes values from 0 to 1
        (tile,) = made.tiles
        return np.pad(tile.patches / 2 + 0.5, ((0, 24 - len(tile.patches)), (0, 0)))[None]
    if name == "mllama":
        return mllama_oracle.patches_of(made)
    if name in ("pixtral", "mistral3", "mistral_large4"):
        (tile,) = made.tiles
        down, across = tile.inputs["axes"][-1] + 1
        parts = tile.patches.reshape(down, across, 3, 14, 14).transpose(2, 0, 3, 1, 4)
        return parts.reshape(1, 3, 14 * down, 14 * across)
    if name == "aria":  # a square, with black where ours has no patches
        (tile,) = made.tiles
        down, across = aria_grid(given)
        square = np.full((7, 7, 3, 70, 70), -1.0, np.float32)
        square[:down, :across] = tile.patches.reshape(down, across, 3, 70, 70)
        return square.transpose(2, 0, 3, 1, 4).reshape(1, 3, 490, 490)
    whole = len(made.tiles[0].patches) - 16  # the class row has no pixels
    tiles = np.stack([tile.patches[whole:] for tile in made.tiles]).reshape(-1, 4, 4, 3, 14, 14)
    return tiles.transpose(0, 3, 1, 4, 2, 5).reshape(-1, 3, 56, 56)


def aria_grid(given):
    """Patches along both edges that have a part of the image."""
    (mask,) = given["pixel_mask"].numpy()
    return [-(-int(mask.any(axis=axis).sum()) // 70) for axis in (1, 0)]


def rows_of(name, model, given):
    """transformers' rows of images, in double; rows of layers beside them."""
    if name == "minicpmv":
        return minicpmv_folders.rows_of(model, given)
    if name == "phi4_multimodal":
        return phi4mm_folders.rows_of(model, given)
    if name == "mllama":
        return mllama_oracle.rows_of(model, given)
    more = {key: given[key] for key in MORE if key in given}
    with torch.no_grad():
        found = model.model.get_image_features(pixel_values=given["pixel_values"].double(), **more)
    rows = [torch.as_tensor(one) for one in found.pooler_output]
    if name in (*SHUFFLED, *MINICPM, *TILED, "lfm2_vl"):  # a tile each
        return [torch.cat(rows).numpy()]
    deep = [torch.cat(list(one)) for one in getattr(found, "deepstack_features", ())]
    whole = torch.cat([torch.cat(rows), *deep], dim=1).numpy()
    return np.split(whole, np.cumsum([len(one) for one in rows])[:-1])


def logits_of(name, model, given, ids, token):
    """transformers' logits of a prompt with images, in double."""
    if name == "minicpmv":
        return minicpmv_folders.logits_of(model, given, ids, token)
    if name == "phi4_multimodal":
        return phi4mm_folders.logits_of(model, given, ids)
    if name == "mllama":
        return mllama_oracle.logits_of(model, given, ids, token)
    seen = torch.tensor([[int(one == token) for one in ids]])
    more = {key: given[key] for key in MORE if key in given}
    types = {
        "gemma3": "token_type_ids",
        **dict.fromkeys((*GEMMA4, *QWEN, "minicpmv4_7"), "mm_token_type_ids"),
    }
    more |= {types[name]: seen} if name in types else {}
    pixels = given["pixel_values"].double()
    with torch.no_grad():
        made = model(input_ids=torch.tensor([ids]), pixel_values=pixels, **more)
    scale = model.config.text_config.logit_scale if name in UNSCALED else 1.0
    return scale * made.logits[0].numpy()
