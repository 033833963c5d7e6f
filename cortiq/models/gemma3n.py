"""Gemma 3n text models: alternating updates, low-rank residuals, per-layer embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Op, Program, Value
from cortiq.ir.images import TEXT_IDS
from cortiq.ir.layers import (
    AltUpAdd,
    AltUpCorrect,
    AltUpEntry,
    AltUpExit,
    AltUpPredict,
    Attention,
    GatedMLP,
    Linear,
    PerLayerGate,
    PerLayerInputs,
    QKNorm,
)
from cortiq.ir.ops import Add, Scale
from cortiq.models import gemma3n_gguf
from cortiq.models.config import Amount, BaseConfig, Keys, convert_config
from cortiq.models.layer_kinds import (
    GLOBAL,
    LOCAL,
    alternating_kinds,
    each_layer,
    key_sources,
    layer_ropes,
)
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MLP, Decoder, activation, named

ARCHITECTURES = ("gemma3n_text", "gemma3n")
GGUF = ("gemma3n",)
KEYS = Keys(
    harmless=frozenset({"altup_coef_clip", "query_pre_attn_scalar"}),
    only={"altup_lr_multiplier": 1.0},
    gguf=gemma3n_gguf.KEYS,
    gguf_tensors={"attention_bias": "blk.*.attn_q.bias"},
)
UNREAD = (
    r"model\.layers\.\d+\.(self_attn\.(k_proj|v_proj|k_norm)\.(weight|bias)"
    r"|altup\.correct_output_scale)|blk\.\d+\.attn_(k|v|k_norm)\.(weight|bias)"
)
PATTERN = 5
"""Every fifth layer sees everything, where no list says otherwise."""
SPARSE, SPARSITY = 10, 0.95
"""The first layers whose gates are sparse, and the part that is left out, where nothing says so."""
THETA: Mapping[str, float] = {LOCAL: 10000.0, GLOBAL: 1000000.0}
ALTUP: Mapping[str, str] = {
    "norm": "router_norm.weight", "router": "modality_router.weight",
    "scale": "correct_output_scale",
}  # fmt: skip
PER_LAYER: Mapping[str, str] = {
    "gate": "per_layer_input_gate.weight", "projection": "per_layer_projection.weight",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Gemma3nTextConfig`."""

    vocab_size: int = 262400
    intermediate_size: int | tuple[int, ...] = 16384  # type: ignore[assignment]
    num_attention_heads: int = 8
    num_key_value_heads: int | None = 2
    head_dim: int | None = 256
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-6
    hidden_activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False
    sliding_window: int = 512
    layer_types: tuple[str, ...] | None = None
    rope_local_base_freq: float | None = None
    final_logit_softcapping: float | None = 30.0
    vocab_size_per_layer_input: int = 262144
    hidden_size_per_layer_input: int = 256
    altup_active_idx: Amount = Amount(0)
    altup_correct_scale: bool = True
    altup_num_inputs: int = 4
    num_kv_shared_layers: Amount = Amount(15)
    laurel_rank: int = 64
    activation_sparsity_pattern: float | tuple[float, ...] | None = None
    default_theta: ClassVar[float] = 1000000.0

    def kinds(self) -> tuple[str, ...]:
        """Return whether each layer has a window."""
        return alternating_kinds(self.layer_types, self.num_hidden_layers, PATTERN)

    def mlps(self) -> list[GatedMLP]:
        """Return the MLP of every layer; those with sparsity keep the tail of a Gaussian.

        Raises
        ------
        FormatError : a sparsity is no part of 1, or a list is too short.
        """
        count, given = self.num_hidden_layers, self.activation_sparsity_pattern
        if given is None:
            sparse = SPARSE if count > SPARSE else 0
            given = (SPARSITY,) * sparse + (0.0,) * (count - sparse)
        parts = each_layer(given, count, "activation_sparsity_pattern")
        if not all(0 <= part < 1 for part in parts):
            raise FormatError(f"activation_sparsity_pattern is {parts}", where="config")
        widths = each_layer(self.intermediate_size, count, "intermediate_size")
        act = activation(self.hidden_activation)
        return [
            GatedMLP(self.hidden_size, width, act, above=NormalDist().inv_cdf(p) if p else None)
            for width, p in zip(widths, parts, strict=True)
        ]

    def ropes(self) -> dict[str, Any]:
        """Return what rotary tables of both kinds of layers begin with."""
        given = self.rope_parameters
        theta = dict(THETA)
        if not {LOCAL, GLOBAL} & given.keys():
            theta[LOCAL] = self.rope_local_base_freq or theta[LOCAL]
        return {kind: {"rope_type": "default", "rope_theta": base} for kind, base in theta.items()}


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(gemma3n_gguf.Gemma3nFields):
    """Fields of GGUF files."""

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        return convert_config(Config, self, where, **self.in_folders_form())


def NAMES(config: Config) -> Names:
    """Return the names of tensors, with the stacks of as many copies as there are."""
    fused = gemma3n_gguf.stacks(config.altup_num_inputs)
    return Names(gguf=gemma3n_gguf.NAMES, fused=fused, unread=UNREAD)


@dataclass
class CopiesBuilder:
    """The layers under construction."""

    config: Config
    decoder: Decoder
    per_layer: Value

    @property
    def sizes(self) -> tuple[int, int]:
        """Copies of a row, and its width."""
        return self.config.altup_num_inputs, self.config.hidden_size

    def altup(
        self, kind: type[AltUpPredict] | type[AltUpCorrect], coefs: str, n: int, *x: Value
    ) -> tuple[Value, ...]:
        """Write a prediction or a correction."""
        c = self.config
        scaled = {"scaled": c.altup_correct_scale} if kind is AltUpCorrect else {}
        op = kind(*self.sizes, c.altup_active_idx, c.rms_norm_eps, **scaled)
        weights = named(op, f"model.layers.{n}.altup", {**ALTUP, "coefs": coefs})
        name = f"layers.{n}.{coefs.partition('_')[0]}"
        return self.decoder.builder.add_node(op, *x, name=name, weights=weights)

    def add(self, op: Op, *x: Value, n: int, name: str, **weights: str) -> Value:
        """Write a node of a layer."""
        named_weights = {role: f"model.layers.{n}.{tensor}" for role, tensor in weights.items()}
        return self.decoder.builder.add(op, *x, name=f"layers.{n}.{name}", weights=named_weights)

    def norm(self, x: Value, n: int, name: str, tensor: str) -> Value:
        """Write a norm of a layer."""
        return self.decoder.norm(x, f"layers.{n}.{name}", f"model.layers.{n}.{tensor}")

    def attend(self, x: Value, n: int, mixer: Attention, source: int) -> Value:
        """Write attention and the low-rank branch beside it, over one norm."""
        width, rank = self.config.hidden_size, self.config.laurel_rank
        y = self.norm(x, n, "attention_norm", "input_layernorm")
        low = self.add(
            Linear(width, rank), y, n=n, name="laurel_left", weight="laurel.linear_left.weight"
        )
        low = self.add(
            Linear(rank, width), low, n=n, name="laurel_right", weight="laurel.linear_right.weight"
        )
        low = self.norm(low, n, "laurel_norm", "laurel.post_laurel_norm")
        low = self.add(Add(), y, low, n=n, name="laurel")
        found = self.decoder.builder.add(
            mixer, y, self.decoder.position, name=f"layers.{n}.attention",
            weights=named(mixer, f"model.layers.{n}.self_attn", ATTENTION),
            slots={"kv": f"layers.{source}.kv"},
        )  # fmt: skip
        found = self.norm(found, n, "attention_after_norm", "post_attention_layernorm")
        x = self.add(Add(), x, found, n=n, name="attended")
        x = self.add(Add(), x, low, n=n, name="attended.laurel")
        return self.add(Scale(2**-0.5), x, n=n, name="middle")

    def feed_forward(self, x: Value, n: int, mlp: GatedMLP) -> Value:
        """Write the MLP between its norms."""
        y = self.norm(x, n, "mlp_norm", "pre_feedforward_layernorm")
        weights = {role: f"mlp.{MLP[role]}" for role in mlp.weight_shapes()}
        y = self.add(mlp, y, n=n, name="mlp", **weights)
        y = self.norm(y, n, "mlp_after_norm", "post_feedforward_layernorm")
        return self.add(Add(), x, y, n=n, name="fed")

    def layer(self, x: Value, n: int, mixer: Attention, source: int, mlp: GatedMLP) -> Value:
        """Write a layer over all copies."""
        c = self.config
        predicted, row = self.altup(AltUpPredict, "prediction_coefs.weight", n, x)
        row = self.feed_forward(self.attend(row, n, mixer, source), n, mlp)
        x, row = self.altup(AltUpCorrect, "correction_coefs.weight", n, predicted, row)
        gate = PerLayerGate(
            c.hidden_size, c.num_hidden_layers, c.hidden_size_per_layer_input, n,
            activation(c.hidden_activation),
        )  # fmt: skip
        y = self.add(gate, row, self.per_layer, n=n, name="per_layer", **PER_LAYER)
        y = self.norm(y, n, "per_layer_norm", "post_per_layer_input_norm")
        return self.add(AltUpAdd(*self.sizes), x, y, n=n, name="out")


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, eps, copies = config.hidden_size, config.rms_norm_eps, config.altup_num_inputs
    decoder = Decoder(config, context, family="gemma3n", eps=eps)
    if config.vocab_size_per_layer_input < config.vocab_size:
        decoder.builder.facts[TEXT_IDS] = config.vocab_size_per_layer_input
    x = decoder.embed(math.sqrt(width))
    inputs = PerLayerInputs(
        config.vocab_size_per_layer_input, width, config.num_hidden_layers,
        config.hidden_size_per_layer_input, eps,
    )  # fmt: skip
    tensors = {
        "table": "embed_tokens_per_layer", "projection": "per_layer_model_projection",
        "norm": "per_layer_projection_norm",
    }  # fmt: skip
    weights = {role: f"model.{name}.weight" for role, name in tensors.items()}
    given = decoder.builder.add(inputs, decoder.token, x, name="per_layer", weights=weights)
    layers = CopiesBuilder(config, decoder, given)

    def around(op: AltUpEntry | AltUpExit, x: Value, tensor: str, name: str) -> Value:
        roles = enumerate(op.weight_shapes())
        weights = {role: f"model.{tensor}.{n}.weight" for n, role in roles}
        return decoder.builder.add(op, x, name=name, weights=weights)

    x = around(AltUpEntry(copies, width), x, "altup_projections", "streams")
    ropes = layer_ropes(config, context, config.ropes())
    kinds, mlps = config.kinds(), config.mlps()
    for n, source in enumerate(key_sources(kinds, config.num_kv_shared_layers)):
        mixer = Attention(
            width, config.num_attention_heads, config.kv_heads, config.head_width, scale=1.0,
            rope=ropes[kinds[n]], window=config.sliding_window if kinds[n] == LOCAL else None,
            qk_norm=QKNorm(eps), value_norm=eps, biased=config.attention_bias,
            output_biased=config.attention_bias, shares_kv=source != n,
        )  # fmt: skip
        x = layers.layer(x, n, mixer, source, mlps[n])
    x = around(AltUpExit(copies, width), x, "altup_unembed_projections", "collapsed")
    return decoder.finish(x, soft_cap=config.final_logit_softcapping)
