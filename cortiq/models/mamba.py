"""Mamba and Falcon Mamba: a state space of the first kind in every layer, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.layers import Mamba1
from cortiq.models.config import Amount, BaseConfig, Keys, check_derived
from cortiq.models.mamba2 import KEYS as MAMBA2
from cortiq.models.mamba2 import NAMES as MAMBA2_NAMES
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation

ARCHITECTURES = ("mamba", "falcon_mamba")
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={"layer_norm_epsilon": "rms_norm_eps"},
    harmless=MAMBA2.harmless - {"time_step_rank"} | {
        "d_inner", "d_model", "n_layer", "rms_norm", "ssm_cfg",
        "time_step_init_scheme", "time_step_scale", "use_associative_scan", "use_falcon_mambapy",
        "use_mambapy",
    },
    defaults={"falcon_mamba": {"mixer_rms_eps": 1e-6}},
)  # fmt: skip
NAMES = Names(folder=MAMBA2_NAMES.folder)
MIXER: Mapping[str, str] = {
    **{part: f"{part}_proj.weight" for part in ("in", "out", "x", "dt")},
    **{f"{part}_bias": f"{part}_proj.bias" for part in ("in", "out", "dt")},
    "conv": "conv1d.weight", "conv_bias": "conv1d.bias", "A_log": "A_log", "D": "D",
    **{f"{row}_norm": f"{row.lower()}_layernorm.weight" for row in ("dt", "B", "C")},
}  # fmt: skip
COLUMNS = 16
"""Columns of the model for each of Δ', unless the file says how wide it is."""


def rank_of(given: int | str, width: int) -> int:
    """Return the width of Δ', which may be "auto"."""
    return math.ceil(width / COLUMNS) if isinstance(given, str) else given


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MambaConfig` and `FalconMambaConfig`; nothing limits its context."""

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

    def mixer(self) -> Mamba1:
        """Return a layer's state space."""
        inner = self.expand * self.hidden_size
        check_derived("config", intermediate_size=(self.intermediate_size or None, inner))
        return Mamba1(
            width=self.hidden_size, inner=inner,
            state_dim=self.state_size, rank=rank_of(self.time_step_rank, self.hidden_size),
            kernel=self.conv_kernel, activation=activation(self.hidden_act), biased=self.use_bias,
            conv_biased=self.use_conv_bias, inner_norm=self.mixer_rms_eps, weighted=False,
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
