"""Mistral Large 4: Mistral 3's tower, in published files under names and in pairs of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cortiq.models.names import Names, other_form
from cortiq.vision import pixtral
from cortiq.vision.pixtral import Config, Processor

ARCHITECTURES = ("mistral_large4",)
KEYS, build, values = pixtral.KEYS, pixtral.build, pixtral.values
__all__ = ["Config", "Processor"]
PREFIXES: Mapping[str, str] = {
    **pixtral.PREFIXES,
    "vision_encoder.transformer.layers.": "model.layers.", "vision_encoder.": "vision.",
    "pre_mm_projector_norm.": "projector.norm.", "patch_merger.": "projector.patch_merger.",
    "vision_language_adapter.w_in.": "projector.linear_1.",
    "vision_language_adapter.w_out.": "projector.linear_2.",
}  # fmt: skip
PUBLISHED = other_form(
    (r"\.attention\.([qkvo])_proj\.", r".attention.w\1."), (r"\.gate_proj\.", ".w1."),
    (r"\.down_proj\.", ".w2."), (r"\.up_proj\.", ".w3."),
)  # fmt: skip
"""Names of a layer as published files have them."""


def NAMES(config: Config) -> Names:
    """Return the names, in either form."""
    return replace(pixtral.NAMES(config), forms=(PUBLISHED,))


def ORDERS(config: Config) -> Mapping[str, np.ndarray]:
    """Return the order of rows of tensors, by a regular expression of their names.

    Published files turn neighbouring values of a head, transformers' those half a head apart.
    """
    halves = np.arange(config.head_width).reshape(-1, 2).T.reshape(-1)
    return {r"model\.layers\.\d+\.attention\.w[qk]\.weight": halves}
