"""Gemma 4 text models: heads by kind of layer, shared keys and values, per-layer embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cortiq.errors import FormatError, UnsupportedError, shown
from cortiq.ir import Program, Value
from cortiq.ir.images import TEXT_ONLY, ImageRows
from cortiq.ir.layers import (
    Attention,
    GatedMLP,
    MoE,
    PerLayerGate,
    PerLayerInputs,
    QKNorm,
    RouterNorm,
)
from cortiq.ir.ops import Add, Gain
from cortiq.models import gemma4_gguf
from cortiq.models.config import Amount, BaseConfig, Keys, accepts, convert_config
from cortiq.models.layer_kinds import GLOBAL, LOCAL, alternating_kinds, key_sources
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MLP, Decoder, activation, named
from cortiq.models.rope import of_layer_type, rope_table
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.route import Router

ARCHITECTURES = ("gemma4_text", "gemma4_unified_text", "gemma4")
GGUF = ("gemma4",)
KEYS = Keys(
    defaults={
        "gemma4_unified_text": {
            "hidden_size_per_layer_input": 0, "max_position_embeddings": 262144,
            "sliding_window": 1024,
        },
    },
    gguf=gemma4_gguf.KEYS,
    gguf_tensors=gemma4_gguf.TENSORS,
)  # fmt: skip
JOINT = FusedTensor("experts.gate_up_proj", ("experts.gate_proj", "experts.up_proj"), bare=True)
DOWN = FusedTensor("experts.down_proj", ("experts.down_proj",), bare=True)
NAMES = Names(
    gguf=gemma4_gguf.NAMES,
    fused=(JOINT, DOWN),
    unread=r"(model\.layers\.\d+\.self_attn\.(k|v)_(proj|norm)|blk\.\d+\.attn_(k|v|k_norm)|rope_freqs)"
    r"\.(weight|bias)",
)
PATTERN = 6
"""Every sixth layer sees everything, where no list says otherwise."""
ROPE: Mapping[str, Mapping[str, Any]] = {
    LOCAL: {"rope_type": "default", "rope_theta": 10000.0},
    GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}
EXPERTS: Mapping[str, str] = {
    "router": "router.proj.weight", "router_norm": "router.scale",
    "expert_scale": "router.per_expert_scale",
    **{role: f"experts.{tensor}" for role, tensor in MLP.items()},
}  # fmt: skip
LAYER_KEYS = frozenset({"head_dim", "num_key_value_heads"})


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Gemma4TextConfig`; `per_layer_config` overrides heads by the layer's number."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    max_position_embeddings: int = 131072
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-6
    hidden_activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False
    sliding_window: int = 512
    layer_types: tuple[str, ...] | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: str | None = None
    global_head_dim: int = 512
    num_global_key_value_heads: int | None = None
    per_layer_config: Mapping[str, Any] | None = None
    vocab_size_per_layer_input: int = 262144
    hidden_size_per_layer_input: Amount = Amount(256)
    attention_k_eq_v: bool = False
    num_kv_shared_layers: Amount = Amount(0)
    enable_moe_block: bool = False
    use_double_wide_mlp: bool = False
    num_experts: int | None = None
    top_k_experts: int | None = None
    moe_intermediate_size: int | None = None

    def kinds(self) -> tuple[str, ...]:
        """Return whether each layer has a window; the last one never has."""
        return (*alternating_kinds(self.layer_types, self.num_hidden_layers, PATTERN)[:-1], GLOBAL)

    def of_layer(self, layer: int, kind: str) -> Config:
        """Return the configuration with the heads of a layer.

        Raises
        ------
        UnsupportedError : `per_layer_config` changes something else.
        """
        given, own = self.per_layer_config, dict[str, Any]()
        if given is None:
            own = {"head_dim": self.global_head_dim} if kind == GLOBAL else {}
            if kind == GLOBAL and self.attention_k_eq_v and self.num_global_key_value_heads:
                own["num_key_value_heads"] = self.num_global_key_value_heads
        else:
            own = given.get(str(layer), {})
            if not isinstance(own, Mapping) or not all(accepts(int, n) for n in own.values()):
                raise FormatError(f"per_layer_config.{layer} is {shown(own)}", where="config")
        if strange := sorted(set(own) - LAYER_KEYS):
            what = f"per_layer_config.{layer} changes {', '.join(strange)}"
            raise UnsupportedError(what, where="config", hint=f"known: {sorted(LAYER_KEYS)}")
        return replace(self, **own)

    def check(self) -> None:
        """Raise for features that are not implemented, and for experts that are not described."""
        if self.use_bidirectional_attention not in (None, "vision"):
            what = f"use_bidirectional_attention = {self.use_bidirectional_attention!r}"
            raise UnsupportedError(what, where="config", hint="rows may not depend on later ones")
        sizes = (self.num_experts, self.top_k_experts, self.moe_intermediate_size)
        if self.enable_moe_block and not all(sizes):
            names = "num_experts, top_k_experts and moe_intermediate_size"
            raise FormatError(f"enable_moe_block needs {names}", where="config")


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(gemma4_gguf.GGUFFields):
    """Fields of GGUF files."""

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        return convert_config(Config, self, where, **self.in_folders_form())


@dataclass
class LayerBuilder:
    """The layers under construction."""

    config: Config
    decoder: Decoder
    per_layer: Value | None = None
    last: Value | None = None

    def attend(self, x: Value, n: int, mixer: Attention, source: int) -> Value:
        """Write the attention branch, with the slot of the layer whose keys it reads."""
        file, here = f"model.layers.{n}", f"layers.{n}"
        table = {**ATTENTION}
        if self.config.attention_k_eq_v and mixer.window is None:
            table |= {"v": ATTENTION["k"], "v_bias": ATTENTION["k_bias"]}
        seen = () if self.last is None or mixer.window is None else (self.last,)
        mixer = replace(mixer, until=bool(seen))
        return self.decoder.branch(
            x, mixer, f"{here}.attention", others=seen, before=f"{file}.input_layernorm",
            after=f"{file}.post_attention_layernorm",
            weights=named(mixer, f"{file}.self_attn", table),
            slots={"kv": f"layers.{source}.kv"}, out=f"{here}.middle",
        )  # fmt: skip

    def feed_forward(self, x: Value, n: int, mlp: GatedMLP) -> Value:
        """Write the MLP, the experts beside it, and one norm over their sum."""
        file, here, add = f"model.layers.{n}", f"layers.{n}", self.decoder.builder.add
        norm = self.decoder.norm
        y = norm(x, f"{here}.mlp_norm", f"{file}.pre_feedforward_layernorm")
        y = add(mlp, y, name=f"{here}.mlp", weights=named(mlp, f"{file}.mlp", MLP))
        if self.config.enable_moe_block:
            y = norm(y, f"{here}.mlp_own_norm", f"{file}.post_feedforward_layernorm_1")
            experts = experts_of(self.config)
            rows = norm(x, f"{here}.experts_norm", f"{file}.pre_feedforward_layernorm_2")
            weights = named(experts, file, EXPERTS)
            z = add(experts, rows, x, name=f"{here}.experts", weights=weights)
            z = norm(z, f"{here}.experts_own_norm", f"{file}.post_feedforward_layernorm_2")
            y = add(Add(), y, z, name=f"{here}.both")
        y = norm(y, f"{here}.mlp_after_norm", f"{file}.post_feedforward_layernorm")
        return add(self.decoder.residual, x, y, name=f"{here}.fed")

    def finish(self, x: Value, n: int) -> Value:
        """Write the branch of the per-layer embedding, and the layer's scale."""
        file, here, add = f"model.layers.{n}", f"layers.{n}", self.decoder.builder.add
        config = self.config
        if self.per_layer is not None:
            gate = PerLayerGate(
                config.hidden_size, config.num_hidden_layers, config.hidden_size_per_layer_input,
                n, activation(config.hidden_activation),
            )  # fmt: skip
            names = {"gate": "per_layer_input_gate", "projection": "per_layer_projection"}
            weights = {role: f"{file}.{name}.weight" for role, name in names.items()}
            y = add(gate, x, self.per_layer, name=f"{here}.per_layer", weights=weights)
            y = self.decoder.norm(y, f"{here}.per_layer_norm", f"{file}.post_per_layer_input_norm")
            x = add(self.decoder.residual, x, y, name=f"{here}.placed")
        scale = {"weight": f"{file}.layer_scalar"}
        return add(Gain(1, per="all"), x, name=f"{here}.out", weights=scale)


def experts_of(config: Config) -> MoE:
    """Return the experts beside a layer's MLP, routed by the row before its norm."""
    width = config.hidden_size
    return MoE(
        width=width,
        inner=config.moe_intermediate_size or 0,
        experts=config.num_experts or 0,
        router=Router(config.top_k_experts or 0, renormalise=True),
        activation=activation(config.hidden_activation),
        expert_scale=True,
        router_norm=RouterNorm(config.rms_norm_eps, factor=width**-0.5),
        router_input=True,
    )


def attention(config: Config, context: int, kind: str, shares: bool) -> Attention:
    """Return a layer's attention, from that layer's config."""
    rope = rope_table(config, context, kind)
    return Attention(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_width,
        scale=1.0,
        rope=rope,
        window=config.sliding_window if kind == LOCAL else None,
        qk_norm=QKNorm(config.rms_norm_eps),
        value_norm=config.rms_norm_eps,
        biased=config.attention_bias,
        output_biased=config.attention_bias,
        shares_kv=shares,
    )


def build(config: Config, context: int, rows: ImageRows = TEXT_ONLY) -> Program:
    """Build the trunk; in layers with windows the rows of an image may see all of it."""
    config.check()
    width, dim = config.hidden_size, config.hidden_size_per_layer_input
    decoder = Decoder(config, context, family="gemma4", eps=config.rms_norm_eps)
    last = decoder.builder.input(rows.last) if rows.last else None
    layers = LayerBuilder(config, decoder, last=last)
    x = decoder.embed(math.sqrt(width))
    if dim:
        inputs = PerLayerInputs(
            config.vocab_size_per_layer_input, width, config.num_hidden_layers, dim,
            config.rms_norm_eps,
        )  # fmt: skip
        tensors = {
            "table": "embed_tokens_per_layer", "projection": "per_layer_model_projection",
            "norm": "per_layer_projection_norm",
        }  # fmt: skip
        weights = {role: f"model.{name}.weight" for role, name in tensors.items()}
        layers.per_layer = decoder.builder.add(
            inputs, decoder.token, x, name="per_layer", weights=weights
        )
    given = {kind: {**ROPE[kind], **of_layer_type(config, kind)} for kind in ROPE}
    roped = replace(config, rope_parameters=given)
    act, kinds = activation(config.hidden_activation), config.kinds()
    for n, (kind, source) in enumerate(
        zip(kinds, key_sources(kinds, config.num_kv_shared_layers), strict=True)
    ):
        own, shares = roped.of_layer(n, kind), source != n
        wide = 2 if shares and config.use_double_wide_mlp else 1
        mlp = GatedMLP(width, wide * config.intermediate_size, act)
        x = layers.attend(x, n, attention(own, context, kind, shares), source)
        x = layers.finish(layers.feed_forward(x, n, mlp), n)
    return decoder.finish(x, soft_cap=config.final_logit_softcapping)
