"""Phi-4 mini flash (SambaY): Mamba-1 and differential attention; layers above share one memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.errors import FormatError
from cortiq.ir import Program, Value, ops
from cortiq.ir.layers import DifferentialAttention, LayerNorm, Linear, Mamba1
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.diffllama import LAMBDAS, SECOND, initial, subtracted
from cortiq.models.formed_vectors import FormedVector
from cortiq.models.mamba import MIXER, rank_of
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, Decoder, gated_mlp, named
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("phi4flash",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(only={"mb_per_layer": 2})
NORM_EPS = 1e-5
"""Of the norm of pairs of heads, which no configuration changes."""
TENSORS: Mapping[str, str] = {
    **ATTENTION, **SECOND, "o": "out_proj.weight", "o_bias": "out_proj.bias",
    "norm": "inner_cross_attn.subln.weight",
}  # fmt: skip
CROSS: Mapping[str, str] = {**TENSORS, "q": "Wqkv.weight", "q_bias": "Wqkv.bias"}
"""Names of layers that read the keys of another one: the joint matrix has queries only."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Phi4FlashConfig`, as the repository's code has them.

    Attributes
    ----------
    sliding_window : of the attention of the first half of the layers.
    """

    max_position_embeddings: int = 4096
    tie_word_embeddings: bool = True
    layer_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    sliding_window: int = 2047
    mamba_d_state: int = 16
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_dt_rank: int | str = "auto"
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False

    @property
    def inner(self) -> int:
        """Width of a state space."""
        return self.mamba_expand * self.hidden_size

    @property
    def middle(self) -> int:
        """Layer whose state space the layers above read; the one after it has their keys.

        Raises
        ------
        FormatError : that layer has no state space.
        """
        if self.num_hidden_layers % 4:
            what = f"{self.num_hidden_layers} layers, not a multiple of 4"
            raise FormatError(what, where="config", hint="the middle one is a state space")
        return self.num_hidden_layers // 2

    def attention(self, layer: int) -> DifferentialAttention:
        """Return a layer's attention."""
        return DifferentialAttention(
            self.hidden_size, self.num_attention_heads, self.kv_heads, self.head_width,
            eps=NORM_EPS, factor=1.0 - initial(layer), pairs="neighbours", biased=True,
            window=self.sliding_window if layer < self.middle else None, output_biased=True,
            weighted=True, shares_kv=layer > self.middle + 1,
        )  # fmt: skip

    def mamba(self, layer: int) -> Mamba1:
        """Return a layer's state space."""
        return Mamba1(
            self.hidden_size, self.inner, self.mamba_d_state,
            rank_of(self.mamba_dt_rank, self.hidden_size), self.mamba_d_conv,
            biased=self.mamba_proj_bias, conv_biased=self.mamba_conv_bias,
            ungated=layer == self.middle,
        )  # fmt: skip


def names(config: BaseConfig) -> Names:
    """Return the names of the file: joint matrices, and the vectors that make −λ of a layer."""
    tensors = tuple(f"attn.inner_cross_attn.{name}" for name in LAMBDAS)
    return Names(
        folder={"model.norm.": "model.final_layernorm."},
        fused=(
            FusedTensor("attn.Wqkv", tuple(f"attn.{role}_proj" for role in "qkv")),
            FusedTensor("mlp.fc1", ("mlp.gate_proj", "mlp.up_proj")),
            FusedTensor("mlp.fc2", ("mlp.down_proj",)),
        ),
        formed={"attn.lambda": FormedVector(tensors, config.head_width, subtracted)},
    )


NAMES = names


def gated_memory(decoder: Decoder, config: Config, x: Value, n: int, memory: Value) -> Value:
    """Write a gated memory unit: Linear(memory · silu(Linear(x))), after a norm."""
    here, file, add = f"layers.{n}.memory", f"model.layers.{n}", decoder.builder.add

    def linear(y: Value, part: str, width: int) -> Value:
        op = Linear(y.type.shape[0], width, config.mamba_proj_bias)
        weights = {role: f"{file}.attn.{part}_proj.{role}" for role in op.weight_shapes()}
        return add(op, y, name=f"{here}.{part}", weights=weights)

    y = linear(decoder.norm(x, f"{here}_norm", f"{file}.input_layernorm"), "in", config.inner)
    y = add(ops.Activation("silu"), y, name=f"{here}.activation")
    y = add(ops.Multiply(), memory, y, name=f"{here}.gated")
    y = linear(y, "out", config.hidden_size)
    return add(decoder.residual, x, y, name=f"layers.{n}.middle")


def build(config: Config, context: int) -> Program:
    """Build the trunk: a self-decoder, and a cross-decoder that stores nothing."""
    norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
    decoder = Decoder(config, context, family="phi4flash", norm=norm)
    mlp = gated_mlp(config, config.hidden_act, config.mlp_bias)
    x, memory = decoder.embed(), None
    for n in range(config.num_hidden_layers):
        here, file, crosses = f"layers.{n}", f"model.layers.{n}", n > config.middle + 1
        if n % 2:
            mixer, source = config.attention(n), config.middle + 1 if crosses else n
            x = decoder.branch(
                x, mixer, f"{here}.attention", before=f"{file}.input_layernorm",
                weights=named(mixer, f"{file}.attn", CROSS if crosses else TENSORS),
                slots={"kv": f"layers.{source}.kv"}, out=f"{here}.middle",
            )  # fmt: skip
        elif memory is not None:
            x = gated_memory(decoder, config, x, n, memory)
        else:
            mamba = config.mamba(n)
            y = decoder.norm(x, f"{here}.mamba_norm", f"{file}.input_layernorm")
            y, *rows = decoder.builder.add_node(
                mamba, y, name=f"{here}.mamba", weights=named(mamba, f"{file}.attn", MIXER),
                slots={role: f"{here}.{role}" for role in mamba.slot_kinds()},
            )  # fmt: skip
            x = decoder.builder.add(decoder.residual, x, y, name=f"{here}.middle")
            memory = rows[0] if rows else None
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x, biased=config.lm_head_bias)
