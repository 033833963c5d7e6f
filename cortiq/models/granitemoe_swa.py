"""Granite MoE with windows: its experts behind sinks, windows and a rotary base a layer."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.models import granite_swa, granitemoe
from cortiq.models.config import Amount, Keys
from cortiq.models.granitemoehybrid import EXPERTS as JOINT
from cortiq.models.granitemoehybrid import MIXTURE
from cortiq.models.granitemoehybrid import NAMES as HYBRID
from cortiq.models.names import Names
from cortiq.models.parts import Decoder
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("granitemoe_swa",)
GGUF: tuple[str, ...] = ()
KEYS = Keys()
STACK = f"{MIXTURE}.experts"
NAMES = Names(
    fused=(
        FusedTensor(f"{STACK}.gate_up_proj", (f"{STACK}.gate", f"{STACK}.up"), bare=True),
        FusedTensor(f"{STACK}.down_proj", (f"{STACK}.down",), bare=True),
        *HYBRID.fused,
    )
)
EXPERTS = {**JOINT, "router": "router.weight"}


@dataclass(frozen=True, kw_only=True)
class Config(granite_swa.Config):
    """Fields of `GraniteMoeSWAConfig`."""

    num_key_value_heads: int | None = None
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    rms_norm_eps: float = 1e-6
    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    shared_intermediate_size: Amount = Amount(0)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(
        config, context, family="granitemoe_swa", eps=config.rms_norm_eps,
        residual=config.residual_multiplier,
    )  # fmt: skip
    experts = granitemoe.experts_of(config)
    x = decoder.embed(config.embedding_multiplier)
    for n, mixer in enumerate(config.mixers(context)):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, experts, tensors=MIXTURE, table=EXPERTS)
    return decoder.finish(x, multiplier=config.factor())
