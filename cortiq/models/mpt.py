"""MPT: ALiBi in place of positions, LayerNorms without biases, a plain MLP, nothing biased."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import MLP, LayerNorm
from cortiq.models.alibi import alibi_slopes
from cortiq.models.config import Amount, BaseConfig, Keys, is_number, refuse_unknown
from cortiq.models.config_notes import ONLY, is_note
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("mpt",)
KEYS = Keys(
    aliases={
        "d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers":
        "num_hidden_layers", "max_seq_len": "max_position_embeddings",
    },
    harmless=frozenset({
        "attention_dropout", "emb_pdrop", "embedding_fraction", "init_config", "init_device",
        "learned_pos_emb", "norm_type", "resid_pdrop", "tokenizer_name", "verbose",
    }),
    only={"no_bias": True, "logit_scale": None},
    gguf={
        "attention.layer_norm_epsilon": "layer_norm_epsilon", "attention.clamp_kqv": "clip",
        "attention.max_alibi_bias": "alibi_bias_max",
    },
)  # fmt: skip
OF_ATTENTION: Mapping[str, Any] = {
    "attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False, "alibi": True,
    "attn_uses_sequence_id": False,
}  # fmt: skip
"""Keys of `attn_config` that are accepted with one value."""
QKV = ("attn.q", "attn.k", "attn.v")
NAMES = Names(
    folder={
        "model.embed_tokens.": "wte.", "model.layers.": "blocks.", "model.norm.": "norm_f.",
    },
    gguf={
        "norm_1": "attn_norm", "norm_2": "ffn_norm", "attn.Wqkv": "attn_qkv",
        "attn.out_proj": "attn_output", "ffn.up_proj": "ffn_up", "ffn.down_proj": "ffn_down",
    },
    fused=(FusedTensor("attn.Wqkv", QKV),),
)  # fmt: skip
ATTENTION: Mapping[str, str] = {
    **{role: f"{role}.weight" for role in "qkv"}, "o": "out_proj.weight",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MptConfig`; an MLP is so many times as wide as the model.

    Attributes
    ----------
    attn_config : further options of attention: bound of q, k and v, scale, steepest slope.
    clip, alibi_bias_max : the same in GGUF files.
    """

    intermediate_size: Amount = Amount(0)
    expansion_ratio: int = 4
    tie_word_embeddings: bool = True
    layer_norm_epsilon: float = 1e-5
    attn_config: Mapping[str, Any] = field(default_factory=dict)
    clip: float | None = None
    alibi_bias_max: float = 8.0

    def of_attention(self) -> dict[str, Any]:
        """Return options of attention: those of the file's own object."""
        given = dict(self.attn_config)
        numbers = {"clip_qkv": self.clip, "softmax_scale": None, "alibi_bias_max": None}
        found = {name: given.pop(name, None) or other for name, other in numbers.items()}
        unknown = [f"attn_config.{k} = {v!r}" for k, v in given.items() if not _is_known(k, v)]
        refuse_unknown(unknown, "config keys", "config.json")
        for name, value in found.items():
            if value is not None and not is_number(value):
                raise FormatError(f"attn_config.{name} is {value!r}", where="config.json")
        most = found["alibi_bias_max"] or self.alibi_bias_max
        slopes = alibi_slopes(self.num_attention_heads, most)
        return {"clip": found["clip_qkv"], "scale": found["softmax_scale"], "slopes": slopes}


def _is_known(key: str, value: Any) -> bool:
    only = {**ONLY, **OF_ATTENTION}
    return value == only[key] if key in only else key == "attn_impl" or is_note(key)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, heads = config.hidden_size, config.num_attention_heads
    if width % heads:
        raise FormatError(f"{heads} heads share {width}", where="config")
    norm = LayerNorm(width, config.layer_norm_epsilon, biased=False)
    decoder = Decoder(config, context, family="mpt", norm=norm)
    mixer = attention(config, **config.of_attention())
    inner = config.intermediate_size or config.expansion_ratio * width
    mlp = MLP(width, inner, "gelu")
    feed_forward = {"up": "up_proj.weight", "down": "down_proj.weight"}
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, tensors="attn", table=ATTENTION, before="norm_1")
        x = decoder.feed_forward(x, n, mlp, tensors="ffn", table=feed_forward, before="norm_2")
    return decoder.finish(x)
