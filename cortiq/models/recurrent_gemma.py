"""RecurrentGemma (Griffin): two gated linear recurrences for each attention with a window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import RGLRU, GatedMLP
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention, norm_offset
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("recurrent_gemma",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={"_block_types": "block_types"},
    harmless=frozenset({"final_w_init_variance_scale", "w_init_variance_scale"}),
    only={"embeddings_scale_by_sqrt_dim": True},
)  # fmt: skip
GATES = ("input_gate", "recurrent_gate")
MIXER = "temporal_block"
NAMES = Names(
    folder={"model.norm.": "model.final_norm."},
    fused=tuple(
        FusedTensor(f"{MIXER}.rg_lru.{gate}_weight", (part,), (part,), bare=True)
        for gate in GATES
        for part in [f"{MIXER}.rg_lru.{gate}"]
    ),
)
RECURRENT: Mapping[str, str] = {
    "x": "linear_x.weight", "x_bias": "linear_x.bias", "y": "linear_y.weight",
    "y_bias": "linear_y.bias", "out": "linear_out.weight", "out_bias": "linear_out.bias",
    "conv": "conv_1d.weight", "conv_bias": "conv_1d.bias",
    "input": "rg_lru.input_gate.weight", "input_bias": "rg_lru.input_gate_bias",
    "decay": "rg_lru.recurrent_gate.weight", "decay_bias": "rg_lru.recurrent_gate_bias",
    "rate": "rg_lru.recurrent_param",
}  # fmt: skip
BLOCKS = ("recurrent", "recurrent", "attention")
BEFORE = "temporal_pre_norm"


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `RecurrentGemmaConfig`; an MLP is half as wide as the file says.

    Attributes
    ----------
    block_types : kinds of the first layers, which are repeated.
    lru_width : of the recurrences; the model's unless the file says so.
    """

    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-6
    hidden_activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False
    attention_window_size: int = 2048
    conv1d_width: int = 4
    lru_width: int | None = None
    logits_soft_cap: float = 30.0
    block_types: tuple[str, ...] = BLOCKS
    default_turned: ClassVar[float] = 0.5

    def attends(self) -> list[bool]:
        """Return whether each layer has attention.

        Raises
        ------
        FormatError : kinds of blocks that there are not.
        """
        strange = sorted(set(self.block_types) - set(BLOCKS))
        if strange or not self.block_types:
            raise FormatError(f"block_types names {', '.join(strange) or 'none'}", where="config")
        count = len(self.block_types)
        return [self.block_types[n % count] == BLOCKS[-1] for n in range(self.num_hidden_layers)]


def embedding_factor(width: int) -> float:
    """Return √width as the model has it: rounded to the eight bits of a bfloat16."""
    mantissa, exponent = math.frexp(math.sqrt(width))
    return round(mantissa * 256) / 256 * 2.0**exponent


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, act = config.hidden_size, activation(config.hidden_activation)
    decoder = Decoder(
        config, context, family="recurrent_gemma", eps=config.rms_norm_eps,
        offset=norm_offset(config),
    )  # fmt: skip
    attend = attention(
        config, rope=rope_table(config, context), window=config.attention_window_size,
        biased=config.attention_bias, output_biased=True,
    )  # fmt: skip
    inner = config.lru_width or width
    recur = RGLRU(width, inner, config.num_attention_heads, config.conv1d_width, act)
    if config.intermediate_size % 2:
        what = f"intermediate_size is {config.intermediate_size}: no MLP has half of that"
        raise FormatError(what, where="config")
    mlp = GatedMLP(width, config.intermediate_size // 2, act, biased=True)
    x = decoder.embed(embedding_factor(width))
    for n, attends in enumerate(config.attends()):
        if attends:
            x = decoder.mixer(x, n, attend, tensors=MIXER, before=BEFORE)
        else:
            x = decoder.mixer(
                x, n, recur, name="recurrence", tensors=MIXER, table=RECURRENT, before=BEFORE
            )
        x = decoder.feed_forward(x, n, mlp, tensors="mlp_block", before="channel_pre_norm")
    return decoder.finish(x, soft_cap=config.logits_soft_cap)
