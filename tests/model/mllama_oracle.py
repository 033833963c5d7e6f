"""transformers' Llama 3.2 Vision in double: rows of images, and logits by the authors' rule."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import torch
from transformers.models.mllama.modeling_mllama import MllamaTextCrossAttention
from transformers.models.mllama.processing_mllama import (
    convert_sparse_cross_attention_mask_to_dense,
    get_cross_attention_token_mask,
)

SIGHT = ("aspect_ratio_ids", "aspect_ratio_mask")


def patches_of(made):
    """Our patches in the form of transformers' pixel values: the tiles' own, then zeros."""
    (tile,) = made.tiles
    own = tile.patches[: len(tile.squares)].reshape(-1, 17, 588)[:, 1:]
    own = own.reshape(-1, 4, 4, 3, 14, 14).transpose(0, 3, 1, 4, 2, 5).reshape(-1, 3, 56, 56)
    return np.concatenate([own, np.zeros((4 - len(own), 3, 56, 56))])[None, None]


def rows_of(model, given):
    """transformers' rows of the tiles that each image has."""
    with torch.no_grad():
        seen = {key: given[key] for key in SIGHT}
        rows = model.model.vision_model(given["pixel_values"].double(), **seen).last_hidden_state
        made = model.model.multi_modal_projector(rows)[0].numpy()
    width = made.shape[-1]
    return [
        one[:count].reshape(-1, width)
        for one, count in zip(made, given["num_tiles"][0], strict=True)
    ]


def mask_of(given, ids, token):
    """The tiles that each id sees, as transformers' processor says."""
    spans = [get_cross_attention_token_mask(list(ids), token)]
    most = given["pixel_values"].shape[2]
    dense = convert_sparse_cross_attention_mask_to_dense(spans, given["num_tiles"], most, len(ids))
    return torch.from_numpy(dense)


@contextmanager
def _zeroed(unseen):
    """Attention to images adds nothing to rows that see none, as in the authors' code.

    transformers 5.24 lets such a row see all tiles, those of later images too; only the MLP is
    zeroed there.
    """
    own = MllamaTextCrossAttention.forward

    def forward(self, *args, **kwargs):
        found, weights = own(self, *args, **kwargs)
        return found * ~unseen[:, :, None], weights

    MllamaTextCrossAttention.forward = forward
    try:
        yield
    finally:
        MllamaTextCrossAttention.forward = own


def logits_of(model, given, ids, token, zeroed=True):
    """transformers' logits of a prompt with images, or with none (`given` None)."""
    args = {"input_ids": torch.tensor([list(ids)])}
    with torch.no_grad():
        if given is None:
            return model(**args).logits[0].numpy()
        mask = mask_of(given, ids, token)
        args |= {key: given[key] for key in SIGHT} | {"cross_attention_mask": mask}
        args["pixel_values"] = given["pixel_values"].double()
        with _zeroed((mask.sum((2, 3)) == 0) & zeroed):
            return model(**args).logits[0].numpy()
