"""Mistral Large 4: GLM 5's attention without compressed queries, which grow with their position.

Some layers rotate nothing, some read the latent rows of an earlier layer, and some share a choice
of keys. Every frequency of RoPE has a learned factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program, Value
from cortiq.ir.layers import GatedMLP, KeyIndexer, LatentAttention, MoE
from cortiq.models import deepseek_v32, glm_moe_dsa, mistral4
from cortiq.models.config import Amount, Keys
from cortiq.models.layer_kinds import each_layer, layer_list
from cortiq.models.mla import EPS, JOINT, latent_attention, names_of
from cortiq.models.names import Names, in_form
from cortiq.models.parts import MLP, MOE, Decoder, activation, named
from cortiq.models.rope import rope_table
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.rope_scaling import Learned
from cortiq.numerics.route import Router

ARCHITECTURES = ("mistral_large4_text",)
GGUF: tuple[str, ...] = ()
ALPHA = "model.rotary_emb.alpha"
KEYS = Keys(
    aliases={"num_local_experts": "n_routed_experts"},
    same_as={"head_dim": "qk_rope_head_dim"},
    only={"mlp_bias": False, "norm_topk_prob": True},
    vectors={"alpha": ALPHA},
)
PUBLISHED = (
    (r"\.self_attn\.(softmax_scaling|indexer\.softmax_scaling)\.scale", r".self_attn.\1.s"),
    (r"\.self_attn\.(softmax_scaling|indexer\.softmax_scaling)\.bias", r".self_attn.\1.b"),
    (r"\.softmax_scaling\.", ".ssmax_scaling."),
    (r"\.q_proj\.", ".wq."), (r"\.o_proj\.", ".wo."), (r"\.kv_b_proj\.", ".wkv_b."),
    (r"\.kv_a_proj_with_mqa\.", ".wkv_a_with_mqa."), (r"\.kv_a_layernorm\.", ".kv_a_norm."),
    (r"\.self_attn\.", ".attention."), (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"\.gate_proj\.", ".w1."), (r"\.down_proj\.", ".w2."), (r"\.up_proj\.", ".w3."),
    (r"\.mlp\.(gate|experts|shared_experts)\.", r".\1."), (r"\.mlp\.", ".feed_forward."),
)  # fmt: skip
"""Patterns of transformers' names, and what they are in published files."""
NAMES = Names(
    fused=(JOINT, *mistral4.STACKS),
    forms=(partial(in_form, PUBLISHED),),
    unread=r"model\.rotary_emb\.alpha|mtp_dspark\..*"
    r"|model\.layers\.\d+\.(self_attn|attention)\.indexer\..*",
)
ATTENTION: Mapping[str, str] = {
    **deepseek_v32.INDEXER,
    "q_growth": "softmax_scaling.scale", "q_start": "softmax_scaling.bias",
    "index_q_growth": "indexer.softmax_scaling.scale",
    "index_q_start": "indexer.softmax_scaling.bias",
    "index_q_norm": "indexer.q_input_norm.weight",
    "index_q_norm_bias": "indexer.q_input_norm.bias",
}  # fmt: skip
YARN: Mapping[str, Any] = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2048.0, "attention_factor": 1.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip
"""RoPE of a configuration that says nothing of it."""


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object of config.json with the usual RoPE where it has none."""
    return {**whole, "rope_parameters": whole.get("rope_parameters") or YARN}


@dataclass(frozen=True, kw_only=True)
class Config(glm_moe_dsa.Config):
    """Fields of `MistralLarge4TextConfig`.

    Attributes
    ----------
    no_rope_layers : 1 for every layer that rotates, 0 for the others; by default each
        `no_rope_layer_interval`th is one of those.
    kv_source_layers : the layer whose latent rows each one reads: itself, or an earlier one.
    alpha : logarithms of the factors of RoPE's frequencies.
    """

    max_position_embeddings: int = 1048576
    q_lora_rank: int | None = None
    qk_nope_head_dim: int = 64
    v_head_dim: int = 128
    n_routed_experts: int = 128
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 6144
    routed_scaling_factor: float = 1.0
    first_k_dense_replace: Amount = Amount(1)
    final_logit_softcapping: float = 30.0
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: int = 4
    kv_source_layers: tuple[int, ...] | None = None
    alpha: tuple[float, ...] = ()
    family: ClassVar[str] = "mistral_large4"
    not_in_json: ClassVar[frozenset[str]] = frozenset({
        "alpha", "norm_topk_prob", "q_lora_rank", "rope_interleave", "source",
    })  # fmt: skip

    def rotates(self) -> tuple[bool, ...]:
        """Return whether each layer rotates queries and keys."""
        count, every = self.num_hidden_layers, self.no_rope_layer_interval
        usual = tuple(int((n + 1) % every != 0) for n in range(count))
        flags = each_layer(self.no_rope_layers or usual, count, "no_rope_layers")
        if set(flags) - {0, 1}:
            raise FormatError(f"no_rope_layers has {max(flags)}", where="config")
        return tuple(bool(flag) for flag in flags)

    def sources(self) -> tuple[int, ...]:
        """Return the layer whose latent rows each layer reads.

        Raises
        ------
        FormatError : one that is later, that reads another's itself, or whose rows hold a rotated
            key where the layer has none, or the other way round.
        """
        count, rotates = self.num_hidden_layers, self.rotates()
        listed = self.kv_source_layers or tuple(range(count))
        found: tuple[int, ...] = each_layer(listed, count, "kv_source_layers")
        for n, source in enumerate(found):
            if source > n or found[source] != source or rotates[source] != rotates[n]:
                message = f"layer {n} reads the rows of layer {source}, which has none like it"
                raise FormatError(message, where="config", hint="see kv_source_layers")
        return found

    def table(self, context: int) -> RopeTable:
        """Return the rotary table."""
        table = rope_table(self, context)
        if not self.alpha:
            return table
        table = replace(table, scaling=Learned(table.scaling, self.alpha))  # type: ignore[arg-type]
        table.check()
        return table

    def attention(self, context: int, rotates: bool, shares: bool) -> LatentAttention:
        """Return a layer's attention; one that does not rotate has keys of the latent alone."""
        if self.layer_types is not None:
            layer_list(self.layer_types, self.num_hidden_layers, ("indexed_attention",))
        mixer = replace(
            latent_attention(self, rope_table(self, context)), rope=self.table(context),
            eps=self.rms_norm_eps, scalable=True, shares_kv=shares,
            chosen=context > self.index_topk,
        )  # fmt: skip
        if rotates:
            return mixer
        return replace(mixer, nope_dim=mixer.nope_dim + mixer.rope_dim, rope_dim=0, rope=None)

    def choice(self, context: int, rotates: bool) -> KeyIndexer:
        """Return a layer's choice of keys.

        Raises
        ------
        UnsupportedError : an indexer whose heads are narrower than what is turned.
        """
        if self.index_head_dim < self.qk_rope_head_dim:
            message = f"index_head_dim = {self.index_head_dim}, less than is turned"
            raise UnsupportedError(message, where="config")
        return KeyIndexer(
            self.hidden_size, 0, self.index_n_heads, self.index_head_dim, self.index_topk, EPS,
            EPS, self.table(context) if rotates else None, "interleaved", scalable=True,
        )  # fmt: skip

    def router(self) -> Router:
        """Return the choice of experts."""
        return replace(super().router(), kind="softmax")


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family=config.family, eps=config.rms_norm_eps)
    width, act, inner = config.hidden_size, activation(config.hidden_act), config.intermediate_size
    mlp = GatedMLP(width, inner, act)
    experts = MoE(
        width=width, inner=config.moe_intermediate_size, experts=config.n_routed_experts,
        router=config.router(), activation=act,
        shared_inner=config.moe_intermediate_size * config.n_shared_experts,
    )  # fmt: skip
    table, keys, x = {**names_of(config), **ATTENTION}, list[Value](), decoder.embed()
    layers = zip(config.rotates(), config.sources(), config.indexed(), config.sparse(), strict=True)
    for n, (rotates, source, indexed, sparse) in enumerate(layers):
        file, here = f"model.layers.{n}", f"layers.{n}"
        mixer = config.attention(context, rotates, source != n)
        row = decoder.norm(x, f"{here}.attention_norm", f"{file}.input_layernorm")
        if mixer.chosen and indexed:
            indexer = config.choice(context, rotates)
            keys[:] = decoder.builder.add_node(
                indexer, row, decoder.position, name=f"{here}.indexer",
                weights=named(indexer, f"{file}.self_attn", table),
                slots={"index": f"{here}.index"},
            )  # fmt: skip
        x = decoder.branch(
            x, mixer, f"{here}.attention", before=None, read=row, others=keys,
            weights=named(mixer, f"{file}.self_attn", table),
            slots={"kv": f"layers.{source}.kv"}, out=f"{here}.middle",
        )  # fmt: skip
        op, tensors = (experts, MOE) if sparse else (mlp, MLP)
        x = decoder.feed_forward(x, n, op, table=tensors)
    return decoder.finish(x, soft_cap=config.final_logit_softcapping)
