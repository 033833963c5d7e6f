"""Mamba and Falcon Mamba: a state space of the first kind in every layer, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import Mamba1
from cortiq.models.config import Amount, BaseConfig, Keys, check_derived
from cortiq.models.granitemoehybrid import decay_form
from cortiq.models.mamba2 import KEYS as MAMBA2
from cortiq.models.mamba2 import NAMES as MAMBA2_NAMES
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation

ARCHITECTURES = ("mamba", "falcon_mamba")
GGUF = ("mamba",)
KEYS = Keys(
    aliases={"layer_norm_epsilon": "rms_norm_eps"},
    harmless=MAMBA2.harmless - {"time_step_rank"} | {
        "d_inner", "d_model", "n_layer", "rms_norm", "ssm_cfg",
        "time_step_init_scheme", "time_step_scale", "use_associative_scan", "use_falcon_mambapy",
        "use_mambapy",
    },
    defaults={"falcon_mamba": {"mixer_rms_eps": 1e-6}},
    gguf={
        "attention.head_count": "", "feed_forward_length": "", "ssm.conv_kernel": "conv_kernel",
        "ssm.dt_b_c_rms": "normed", "ssm.inner_size": "intermediate_size",
        "ssm.state_size": "state_size", "ssm.time_step_rank": "time_step_rank",
    },
    gguf_only={"attention.head_count": 0, "feed_forward_length": 0},
    gguf_tensors=MAMBA2.gguf_tensors,
)  # fmt: skip
MIXER_GGUF: Mapping[str, str] = {
    **{f"{part}_proj": f"ssm_{part}" for part in ("in", "out", "x", "dt")},
    **{f"{row}_layernorm": f"ssm_{row}_norm" for row in ("dt", "b", "c")},
    "conv1d": "ssm_conv1d", "A": "ssm_a", "D": "ssm_d",
}  # fmt: skip
"""Tensors of a mixer, as GGUF files call them."""
NAMES = Names(
    folder=MAMBA2_NAMES.folder,
    gguf={"norm": "attn_norm", **{f"mixer.{name}": own for name, own in MIXER_GGUF.items()}},
)
MIXER: Mapping[str, str] = {
    **{part: f"{part}_proj.weight" for part in ("in", "out", "x", "dt")},
    **{f"{part}_bias": f"{part}_proj.bias" for part in ("in", "out", "dt")},
    "conv": "conv1d.weight", "conv_bias": "conv1d.bias", "A_log": "A_log", "A": "A", "D": "D",
    **{f"{row}_norm": f"{row.lower()}_layernorm.weight" for row in ("dt", "B", "C")},
}  # fmt: skip
COLUMNS = 16
"""Columns of the model for each of Δ', unless the file says how wide it is."""


def rank_of(given: int | str, width: int) -> int:
    """Return the width of Δ', which may be "auto"."""
    return math.ceil(width / COLUMNS) if isinstance(given, str) else given


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MambaConfig` and `FalconMambaConfig`; nothing limits its context.

    Attributes
    ----------
    normed : in GGUF files, Δ', B and C are normed, with the eps of other norms.
    """

    intermediate_size: Amount = Amount(0)
    num_attention_heads: int = 1
    max_position_embeddings: int = 1 << 20
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    state_size: int = 16
    expand: int = 2
    conv_kernel: int = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    time_step_rank: int | str = "auto"
    mixer_rms_eps: float | None = None
    normed: bool = False
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "normed"})

    def mixer(self) -> Mamba1:
        """Return a layer's state space."""
        inner = self.expand * self.hidden_size
        check_derived("config", intermediate_size=(self.intermediate_size or None, inner))
        return Mamba1(
            width=self.hidden_size, inner=inner,
            state_dim=self.state_size, rank=rank_of(self.time_step_rank, self.hidden_size),
            kernel=self.conv_kernel, activation=activation(self.hidden_act), biased=self.use_bias,
            conv_biased=self.use_conv_bias, weighted=False,
            inner_norm=self.rms_norm_eps if self.normed else self.mixer_rms_eps,
            decay_form=decay_form(self),
        )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="mamba", eps=config.rms_norm_eps)
    mixer, x = config.mixer(), decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(
            x, n, mixer, name="mamba", tensors="mixer", table=MIXER, before="norm", out="out"
        )
    return decoder.finish(x)
