"""Mamba-2 (Codestral Mamba): a state space in every layer, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import Mamba2
from cortiq.models.config import Amount, BaseConfig, Keys, convert_config
from cortiq.models.granitemoehybrid import MAMBA, MAMBA_GGUF, decay_form, step_bounds
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation

ARCHITECTURES = ("mamba2",)
KEYS = Keys(
    aliases={"num_heads": "num_attention_heads", "layer_norm_epsilon": "rms_norm_eps"},
    harmless=frozenset({
        "chunk_size", "norm_before_gate", "rescale_prenorm_residual", "residual_in_fp32",
        "time_step_floor", "time_step_max", "time_step_min", "time_step_rank",
    }),
    only={"rms_norm": True},
    gguf={
        "attention.head_count": "", "ssm.conv_kernel": "conv_kernel",
        "ssm.group_count": "n_groups", "ssm.inner_size": "inner_size",
        "ssm.state_size": "state_size", "ssm.time_step_rank": "num_attention_heads",
    },
    gguf_only={"attention.head_count": 0},
    gguf_tensors={
        "use_bias": "blk.*.ssm_in.bias", "use_conv_bias": "blk.*.ssm_conv1d.bias",
    },
)  # fmt: skip
NAMES = Names(
    folder={
        "model.embed_tokens.": "backbone.embeddings.",
        "model.layers.": "backbone.layers.",
        "model.norm.": "backbone.norm_f.",
    },
    gguf={"norm": "attn_norm", **{f"mixer.{name}": own for name, own in MAMBA_GGUF.items()}},
)


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Mamba2Config`; nothing limits its context."""

    intermediate_size: Amount = Amount(0)
    max_position_embeddings: int = 1 << 20
    num_attention_heads: int = 128
    head_dim: int | None = 64
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    expand: int = 2
    state_size: int = 128
    n_groups: int = 8
    conv_kernel: int = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    time_step_limit: tuple[object, ...] | None = None

    def mixer(self) -> Mamba2:
        """Return a layer's state space."""
        heads, width = self.num_attention_heads, self.head_width
        if heads * width != self.expand * self.hidden_size:
            message = f"{heads} heads of {width} do not share {self.expand * self.hidden_size}"
            raise FormatError(message, where="config")
        low, high = step_bounds(self.time_step_limit)
        return Mamba2(
            width=self.hidden_size, heads=heads, head_dim=width, state_dim=self.state_size,
            groups=self.n_groups, kernel=self.conv_kernel, eps=self.rms_norm_eps,
            activation=activation(self.hidden_act), norm_groups=self.n_groups,
            biased=self.use_bias,
            conv_biased=self.use_conv_bias, step_low=low, step_high=high,
            decay_form=decay_form(self),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(Config):
    """Fields of GGUF files."""

    inner_size: int

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        head = self.inner_size // self.num_attention_heads
        expand = self.inner_size // self.hidden_size
        return convert_config(Config, self, where, head_dim=head, expand=expand)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="mamba2", eps=config.rms_norm_eps)
    mixer, x = config.mixer(), decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(
            x, n, mixer, name="mamba", tensors="mixer", table=MAMBA, before="norm", out="out"
        )
    return decoder.finish(x)
