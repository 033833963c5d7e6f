"""SigLIP's tower: learned positions, a norm before each branch, one after the last layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.ir import Value
from cortiq.ir.encoders import PLACE
from cortiq.ir.layers import MLP, Attention, Embedding, LayerNorm, ListedBlocks, Residual
from cortiq.models.parts import activation, named
from cortiq.vision.config import VisionConfig
from cortiq.vision.tower import HIDDEN, Tower

QKV: Mapping[str, str] = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
ATTENTION: Mapping[str, str] = {
    **{role: f"{tensor}.weight" for role, tensor in QKV.items()},
    **{f"{role}_bias": f"{tensor}.bias" for role, tensor in QKV.items()},
}  # fmt: skip
FEED_FORWARD: Mapping[str, str] = {
    "up": "fc1.weight", "up_bias": "fc1.bias", "down": "fc2.weight", "down_bias": "fc2.bias",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SiglipConfig(VisionConfig):
    """Fields of `SiglipVisionConfig`."""

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    image_size: int = 224
    patch_size: int = 16
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6


def siglip_tower(config: SiglipConfig, family: str, patches: int) -> Tower:
    """Write a SigLIP tower of images of at most so many patches."""
    tower, width = Tower(config, patches, family), config.hidden_size
    x = placed(tower, config)
    for n in range(config.num_hidden_layers):
        x = layer(tower, config, x, n)
    tower.apply(LayerNorm(width, config.layer_norm_eps), x, HIDDEN, "vision.post_layernorm")
    tower.finish()
    return tower


def placed(tower: Tower, config: SiglipConfig) -> Value:
    """Write patches, and the rows of the table of learned positions that they supply."""
    x = tower.patches("vision.embeddings.patch_embedding", biased=True)
    table = Embedding(config.side**2, config.hidden_size)
    weights = {"table": "vision.embeddings.position_embedding.weight"}
    place = tower.builder.input(PLACE)
    where = tower.builder.add(table, place, name="place.row", weights=weights)
    return tower.builder.add(Residual(), x, where, name="placed")


def layer(
    tower: Tower,
    config: SiglipConfig,
    x: Value,
    n: int,
    blocks: ListedBlocks | None = None,
    *listed: Value,
) -> Value:
    """Write a layer of SigLIP, or of CLIP, whose activation approximates GELU by a sigmoid.

    Parameters
    ----------
    blocks, listed : patches that each row sees, and what it supplies; None for all of the tile.
    """
    width, here, file = config.hidden_size, f"layers.{n}", f"vision.encoder.layers.{n}"
    norm = LayerNorm(width, config.layer_norm_eps)
    op = Attention(
        width, config.num_attention_heads, config.kv_heads, config.head_width,
        biased=True, output_biased=True, until=True, listed=blocks,
    )  # fmt: skip
    x = tower.branch(
        x, op, f"{here}.attention", (norm, f"{file}.layer_norm1"),
        named(op, f"{file}.self_attn", ATTENTION), f"{here}.middle",
        (tower.position, tower.last, *listed),
    )  # fmt: skip
    if config.hidden_act == "quick_gelu":
        y = tower.apply(norm, x, f"{here}.mlp_norm", f"{file}.layer_norm2")
        y = tower.quick_gelu_mlp(y, here, (f"{file}.mlp.fc1", f"{file}.mlp.fc2"))
        return tower.builder.add(Residual(), x, y, name=f"{here}.out")
    mlp = MLP(width, config.intermediate_size, activation(config.hidden_act), biased=True)
    return tower.branch(
        x, mlp, f"{here}.mlp", (norm, f"{file}.layer_norm2"),
        named(mlp, f"{file}.mlp", FEED_FORWARD), f"{here}.out",
    )  # fmt: skip
