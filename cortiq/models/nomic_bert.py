"""Nomic Embed: an encoder with RoPE, gated MLPs without biases, and a norm after each branch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import UnsupportedError
from cortiq.ir import Program, Value
from cortiq.ir.encoders import SEGMENT, Encoder
from cortiq.ir.layers import Attention, LayerNorm, Residual
from cortiq.models.config import Amount, Keys
from cortiq.models.encoder import EncoderConfig, EncoderTrunk
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MLP, attention, gated_mlp, named
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("nomic_bert", "nomic-bert")
GGUF = ("nomic-bert",)
KEYS = Keys(
    aliases={
        "layer_norm_epsilon": "layer_norm_eps", "n_embd": "hidden_size",
        "n_head": "num_attention_heads", "n_inner": "intermediate_size",
        "n_layer": "num_hidden_layers", "n_positions": "max_position_embeddings",
        "rotary_emb_base": "rope_theta",
    },
    harmless=frozenset({
        "attn_pdrop", "dense_seq_output", "embd_pdrop", "expert_choice_router", "ffn_div",
        "fused_bias_fc", "fused_dropout_add_ln", "last_layer_subset", "max_trained_positions",
        "pad_vocab_size_multiple", "parallel_block_tied_norm", "reorder_and_upcast_attn",
        "resid_pdrop", "scale_attn_weights", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
        "use_flash_attn", "use_xentropy",
    }),
    only={
        "activation_function": "swiglu", "causal": False, "mlp_fc1_bias": False,
        "mlp_fc2_bias": False, "moe_every_n_layers": 0, "parallel_block": False, "prenorm": False,
        "qkv_proj_bias": False, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
        "scale_attn_by_inverse_layer_idx": False, "use_rms_norm": False,
    },
    gguf={"attention.layer_norm_epsilon": "layer_norm_eps"},
    gguf_only={"attention.causal": False},
    gguf_rows={"type_vocab_size": "token_types.weight"},
)  # fmt: skip
PUBLISHED: Mapping[str, str] = {
    "embeddings.LayerNorm": "emb_ln", "layers": "encoder.layers",
    "mlp.down_proj": "mlp.fc2", "mlp.gate_proj": "mlp.fc12", "mlp.up_proj": "mlp.fc11",
    "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2",
    "self_attn.o_proj": "attn.out_proj",
}  # fmt: skip
"""Parts of names as transformers has them, and as the authors' files do."""


def bare(name: str) -> str:
    """Return a tensor's name as transformers writes it."""
    return name.removeprefix("model.")


def published(name: str) -> str:
    """Return a tensor's name in the authors' files."""
    found = bare(name)
    for part, own in PUBLISHED.items():
        found = found.replace(part, own)
    return found


NAMES = Names(
    forms=(bare, published),
    fused=(FusedTensor("attn.Wqkv", tuple(f"self_attn.{role}_proj" for role in "qkv")),),
    unread=r"(\w+\.)?(pooler|cls)\..*|.*(position|token_type)_ids",
    gguf={
        "model.embeddings.word_embeddings": "token_embd",
        "model.embeddings.LayerNorm": "token_embd_norm",
        "model.embeddings.token_type_embeddings": "token_types",
        "post_attention_layernorm": "attn_output_norm", "post_mlp_layernorm": "layer_output_norm",
    },
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(EncoderConfig):
    """Fields of `NomicBertConfig`."""

    max_position_embeddings: int = 2048
    hidden_act: str = "silu"
    layer_norm_eps: float = 1e-12
    type_vocab_size: Amount = Amount(2)
    tie_word_embeddings: bool = True
    default_theta: ClassVar[float] = 1000.0


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    if config.classifies:
        raise UnsupportedError("a classifier of Nomic BERT", where="config")
    trunk, kinds = EncoderTrunk(config, context, "nomic_bert"), config.type_vocab_size
    file, b = "model.embeddings", trunk.builder
    x = trunk.table(config.vocab_size, trunk.token, "embed", f"{file}.word_embeddings")
    if kinds:
        row = trunk.table(kinds, b.input(SEGMENT), "kind", f"{file}.token_type_embeddings")
        x = b.add(Residual(), x, row, name="kinded")
    norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
    x = trunk.apply(norm, x, "embed.norm", f"{file}.LayerNorm")
    mixer = attention(config, until=True, rope=rope_table(config, context))
    for n in range(config.num_hidden_layers):
        x = _layer(trunk, config, x, n, mixer, norm)
    return trunk.finish(Encoder(segments=kinds))


def _layer(
    trunk: EncoderTrunk, config: Config, x: Value, n: int, mixer: Attention, norm: LayerNorm
) -> Value:
    here, file, b = f"layers.{n}", f"model.layers.{n}", trunk.builder
    y = b.add(
        mixer, x, trunk.position, trunk.last, name=f"{here}.attention",
        weights=named(mixer, f"{file}.self_attn", ATTENTION), slots={"kv": f"{here}.kv"},
    )  # fmt: skip
    x = b.add(Residual(), x, y, name=f"{here}.attended")
    x = trunk.apply(norm, x, f"{here}.middle", f"{file}.post_attention_layernorm")
    mlp = gated_mlp(config, config.hidden_act)
    y = b.add(mlp, x, name=f"{here}.mlp", weights=named(mlp, f"{file}.mlp", MLP))
    x = b.add(Residual(), x, y, name=f"{here}.sum")
    out = "hidden" if n == config.num_hidden_layers - 1 else f"{here}.out"
    return trunk.apply(norm, x, out, f"{file}.post_mlp_layernorm")
