"""RWKV-7: a delta rule that decays by channel in every layer, in place of attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cortiq.errors import FormatError
from cortiq.ir import Program, Value
from cortiq.ir.layers import TINY, LayerNorm, RWKV7ChannelMix, RWKV7TimeMix
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, named
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("rwkv7",)
KEYS = Keys(
    harmless=frozenset({
        "attn_mode", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp",
    }),
    only={"attn": None, "hidden_act": "sqrelu"},
    gguf={
        "attention.head_count": "", "attention.layer_norm_epsilon": "norm_eps",
        "wkv.head_size": "head_dim",
        **{f"attention.{name}_lora_rank": f"{field}_low_rank_dim" for name, field in {
            "decay": "decay", "gate": "gate", "iclr": "a", "value_residual_mix": "v",
        }.items()},
    },
    gguf_only={"attention.head_count": 0, "token_shift_count": 2},
    gguf_tensors={"norm_bias": "output_norm.bias", "norm_first": "token_embd_norm.weight"},
)  # fmt: skip
MIXTURES = tuple(f"x_{name}" for name in "rwkvag")
NAMES = Names(
    folder={"model.embed_tokens.": "model.embeddings."},
    gguf={
        "model.layers.0.pre_norm": "token_embd_norm", "ffn_norm": "attn_norm_2",
        "attn_norm": "attn_norm", "attn.x_x": "time_mix_lerp_fused.weight",
        **{f"attn.{name}_lora.lora.{n}.weight": f"time_mix_{name}{n // 2 + 1}.weight"
           for name in "wavg" for n in (0, 2)},
        **{f"attn.{name}_lora.lora.2.bias": f"time_mix_{name}0.weight" for name in "wav"},
        **{f"attn.{name}": f"time_mix_{name}.weight" for name in ("k_k", "k_a", "r_k")},
        "attn.r_proj": "time_mix_receptance", "attn.k_proj": "time_mix_key",
        "attn.v_proj": "time_mix_value", "attn.o_proj": "time_mix_output",
        "attn.g_norm": "time_mix_ln", "ffn.x_k": "channel_mix_lerp_k.weight",
        "ffn.key": "channel_mix_key", "ffn.value": "channel_mix_value",
    },
    fused=(FusedTensor("attn.x_x", tuple(f"attn.{name}" for name in MIXTURES)),),
    unread=r"model\.layers\.0\.attn\.v_lora\..*|blk\.0\.time_mix_v[012]\.weight",
)  # fmt: skip
"""Values that the first layer would mix in are of no use there; converters repeat the rate's."""
TIME: Mapping[str, str] = {
    **{name: name for name in MIXTURES},
    **{role: f"{role}_proj.weight" for role in "rkvo"},
    **{f"{name}_down": f"{name}_lora.lora.0.weight" for name in "wavg"},
    **{f"{name}_up": f"{name}_lora.lora.2.weight" for name in "wavg"},
    **{f"{name}_up_bias": f"{name}_lora.lora.2.bias" for name in "wav"},
    **{name: name for name in ("k_k", "k_a", "r_k")},
    "norm": "g_norm.weight", "norm_bias": "g_norm.bias",
}  # fmt: skip
"""Roles of `RWKV7TimeMix` to tensor names."""
CHANNEL: Mapping[str, str] = {"x_k": "x_k", "up": "key.weight", "down": "value.weight"}
"""Roles of `RWKV7ChannelMix` to tensor names."""
FUSED_KEY_EPS = 1e-6
"""Added to the squares of keys where norms are fused; nothing is added elsewhere."""
GGUF_NORM_EPS = 64e-5
"""Added to the variance of a head's output by every reader of GGUF files."""
MULTIPLE = 32
"""Channel mixing is as wide as the next multiple of this, unless the file says how wide."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `RWKV7Config` of flash-linear-attention; nothing limits its context.

    Attributes
    ----------
    value_dim : width of the values of each layer, the model's.
    """

    intermediate_size: Amount = Amount(0)
    num_attention_heads: int = 1
    num_heads: int | None = None
    head_dim: int | None = 64
    max_position_embeddings: int = 1 << 20
    hidden_ratio: float | None = 4.0
    decay_low_rank_dim: int
    gate_low_rank_dim: int
    a_low_rank_dim: int
    v_low_rank_dim: int
    norm_first: bool = True
    norm_bias: bool = True
    norm_eps: float = 1e-5
    fuse_norm: bool = True
    value_dim: tuple[int, ...] | None = None

    def heads(self) -> int:
        """Return the number of heads.

        Raises
        ------
        FormatError : heads that do not share the model's width, or values of another width.
        """
        width = self.hidden_size
        count = width // self.head_dim if self.head_dim else self.num_heads or 0
        if not count or width % (self.head_dim or count) or self.num_heads not in (None, count):
            message = f"{self.num_heads} heads of {self.head_dim} do not share {width}"
            raise FormatError(message, where="config")
        if self.value_dim and set(self.value_dim) != {width}:
            message = f"value_dim is {list(self.value_dim)}, should be {width} in every layer"
            raise FormatError(message, where="config")
        return count

    def time_mix(self, layer: int) -> RWKV7TimeMix:
        """Return a layer's time mixing."""
        heads = self.heads()
        dim = self.hidden_size // heads
        from_gguf = self.source == "gguf"
        return RWKV7TimeMix(
            width=self.hidden_size, heads=heads, head_dim=dim, decay_rank=self.decay_low_rank_dim,
            rate_rank=self.a_low_rank_dim, gate_rank=self.gate_low_rank_dim,
            value_rank=self.v_low_rank_dim if layer else 0,
            eps=GGUF_NORM_EPS if from_gguf else dim * self.norm_eps,
            key_eps=FUSED_KEY_EPS if self.fuse_norm and not from_gguf else TINY,
        )  # fmt: skip

    def channel_mix(self) -> RWKV7ChannelMix:
        """Return a layer's channel mixing."""
        inner = self.intermediate_size or int(self.hidden_size * (self.hidden_ratio or 4))
        if not self.intermediate_size:
            inner = -(-inner // MULTIPLE) * MULTIPLE
        return RWKV7ChannelMix(self.hidden_size, inner)


def build(config: Config, context: int) -> Program:
    """Build the trunk; layers after the first take the first one's values too."""
    config = replace(config, num_attention_heads=config.heads())
    norm = LayerNorm(config.hidden_size, config.norm_eps, config.norm_bias)
    decoder = Decoder(config, context, family="rwkv7", norm=norm)
    x = decoder.embed()
    values: tuple[Value, ...] = ()
    if config.norm_first:
        x = decoder.norm(x, "embed.norm", "model.layers.0.pre_norm")
    channel = config.channel_mix()
    for n in range(config.num_hidden_layers):
        here, file, time = f"layers.{n}", f"model.layers.{n}", config.time_mix(n)
        y = decoder.norm(x, f"{here}.time_norm", f"{file}.attn_norm")
        slots = {role: f"{here}.{role}" for role in time.slot_kinds()}
        y, *first = decoder.builder.add_node(
            time, y, *values, name=f"{here}.time", weights=named(time, f"{file}.attn", TIME),
            slots=slots,
        )  # fmt: skip
        values = tuple(first) or values
        x = decoder.builder.add(decoder.residual, x, y, name=f"{here}.middle")
        x = decoder.mixer(
            x, n, channel, name="channel", tensors="ffn", table=CHANNEL, before="ffn_norm",
            out="out",
        )  # fmt: skip
    return decoder.finish(x)
