"""The tensors that a CMF model has, and those parts of it that no family reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from cortiq.errors import shown
from cortiq.formats.cmf.header import KDA, Arch
from cortiq.formats.mapped import TensorInfo

Tensors = Mapping[str, TensorInfo]

ACTIVATIONS: Mapping[str, str] = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}
"""Activations, and config.json's names of them."""
UNREAD: tuple[tuple[str, str], ...] = (
    ("kda_attn.", "Kimi Delta Attention"), ("vmf_attn.", "VMF phase attention"),
    ("self_attn.g_proj.", "gates of attention's heads"),
    ("self_attn.kv_a_proj", "latent attention"),
    (".tube", "tubes of neurons"), ("lm_head.clusters", "an output head in clusters"),
    ("layer_scalar", "factors of layers"), ("per_expert_scale", "factors of experts"),
    ("hc_", "hyper-connections"), ("altup", "alternating updates"),
    ("mlp.down_proj.t.", "a transposed matrix beside the plain one"), ("desc", "resonance routing"),
)  # fmt: skip
"""Parts of tensors' names that belong to something no family here reads from this format."""


class Presence:
    """The tensors that a model has, by the end of their names in a layer."""

    def __init__(self, arch: Arch, tensors: Tensors) -> None:
        self.arch, self.tensors = arch, tensors
        pattern = re.compile(r"model\.layers\.(\d{1,9})\.(.+)")
        self.layers: dict[str, set[int]] = {}
        for name in tensors:
            if found := pattern.fullmatch(name):
                self.layers.setdefault(found[2], set()).add(int(found[1]))

    def __call__(self, end: str) -> bool:
        """Return whether a layer has a tensor of this end."""
        return end in self.layers

    def info(self, end: str) -> TensorInfo:
        """Return the tensor of the first layer that has it."""
        return self.tensors[f"model.layers.{min(self.layers[end])}.{end}"]


def unread_parts(arch: Arch, has: Presence) -> Iterator[str]:
    """Yield what a model has that is not read."""
    for part, what in UNREAD:
        named = next((name for name in has.tensors if part in name), None)
        if named is not None and not named.startswith("model.mtp."):
            yield f"{what}: the tensor {shown(named)}"
    if arch.num_loops != 1:
        yield f"layers that are passed {arch.num_loops} times (num_loops)"
    if arch.g3n is not None:
        yield "Gemma 3n's stack (g3n)"
    if arch.mla is not None:
        yield "latent attention (mla)"
    if KDA in arch.layer_types:
        yield "Kimi Delta Attention"
    if arch.attention_heads_per_layer is not None:
        yield "another number of heads in each layer"
    if arch.global_head_dim is not None or arch.attn_v_norm:
        yield "Gemma 4's attention"
    if arch.logit_multiplier not in (None, 1.0):
        yield f"a factor of its logits, {arch.logit_multiplier:g}"
    if arch.hidden_act not in ACTIVATIONS:
        yield f"the activation {shown(arch.hidden_act)}"
    if arch.linear_core is not None and arch.linear_core.kind != "gated_delta_net":
        yield f"linear attention of the kind {shown(arch.linear_core.kind)}"
    if arch.norm_style not in ("qwen", "gemma"):
        yield f"norms of the style {shown(arch.norm_style)}"
