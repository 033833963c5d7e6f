"""HunYuan 4: gated latent attention, sinks and chosen keys; streams that keep what they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from cortiq.errors import UnsupportedError
from cortiq.ir import Op, Program, Value
from cortiq.ir.layers import (
    GatedMLP,
    Gating,
    KeyIndexer,
    LatentAttention,
    MoE,
    StreamEntry,
    StreamRead,
    StreamWrite,
)
from cortiq.models import deepseek_v3, deepseek_v32, glm_moe_dsa
from cortiq.models.config import Amount, Keys
from cortiq.models.layer_kinds import by_layer, layer_list
from cortiq.models.mistral4 import STACKS
from cortiq.models.mla import EPS, latent_attention, names_of
from cortiq.models.names import Names, in_form
from cortiq.models.parts import MLP, MOE, Decoder, activation, named
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("hy_v4",)
INDEXED, PUBLISHED = "indexed_attention", "deepseek_sparse_attention"
"""What layers are called whose keys are chosen, by transformers and in published files."""
KEYS = Keys(
    aliases={"num_local_experts": "n_routed_experts"},
    same_as=deepseek_v3.KEYS.same_as,
    harmless=deepseek_v3.KEYS.harmless | {
        "bitwise_backward_align", "enable_lm_head_fp32", "learnable_sink_init", "mtp_loss_factor",
    },
    only={
        **deepseek_v3.KEYS.only, "enable_ihc": True, "gated_mla": True, "mlp_bias": False,
        "gating_type": "elementwise", "learnable_sink": True, "use_dsa": True, "use_mla": True,
    },
    gguf={
        **glm_moe_dsa.KEYS.gguf, "hyper_connection.count": "hc_mult",
        "hyper_connection.epsilon": "hc_eps", "hyper_connection.magnitude": "hc_magnitude",
        "swiglu_clamp_exp": "clamps",
    },
    gguf_absent=glm_moe_dsa.KEYS.gguf_absent,
)  # fmt: skip
ROLES = ("pre", "post")
"""Of the weights that streams are read and written with, in the order of the file."""
BRANCHES: Mapping[str, str] = {"attention": "hc_attn_layer.hc_pre", "mlp": "hc_mlp_layer.hc_pre"}
"""Tensors of a branch's reading and writing, by the branch."""
OTHER_FORMS: Sequence[Sequence[tuple[str, str]]] = (
    (  # transformers writes the names that it has read the other way round
        (r"\.(hc_\w+_layer)\.hc_pre\.", r".hc_pre.\1."),
        (r"model\.hc_head\.", "model.hc_pre.hc_head."),
        (r"\.mlp\.(shared_experts\.)?gate_proj\.", r".mlp.\1linear_gate."),
    ),
    (  # modules of transformers
        (r"\.hc_attn_layer\.hc_pre\.hc_", ".attn_hc."),
        (r"\.hc_mlp_layer\.hc_pre\.hc_", ".ffn_hc."),
        (r"\.hc_head\.hc_head_", ".hc_head.hc_"),
        (r"\.learnable_sink_param", ".sinks"),
        (r"\.self_attn\.linear_gate\.", ".self_attn.gate_proj."),
    ),
)
"""Patterns of published names, and what they are in folders that transformers has saved."""
PARTS = ("fn", "base", "scale")
NAMES = Names(
    gguf={
        **glm_moe_dsa.NAMES.gguf, "self_attn.linear_gate": "attn_gate",
        "self_attn.learnable_sink_param": "attn_sinks.weight",
        **{
            f"{branch}.hc_{part}": f"hc_{kind}_{part}.weight" for part in PARTS
            for kind, branch in zip(("attn", "ffn"), BRANCHES.values(), strict=True)
        },
        **{f"model.hc_head.hc_head_{part}": f"output_hc_{part}.weight" for part in PARTS},
    },
    forms=tuple(partial(in_form, rules) for rules in OTHER_FORMS),
    fused=(
        *deepseek_v3.NAMES.fused,
        *STACKS,
        *(
            FusedTensor(name, tuple(f"{name}.{role}" for role in ROLES), bare=True)
            for branch in BRANCHES.values()
            for name in (f"{branch}.hc_base", f"{branch}.hc_scale")
        ),
    ),
    unread=rf"model\.mtp_layers\..*|{glm_moe_dsa.NAMES.unread}",
)  # fmt: skip
ATTENTION: Mapping[str, str] = {
    **deepseek_v32.INDEXER, "gate": "linear_gate.weight", "sinks": "learnable_sink_param",
}  # fmt: skip
STREAMS: Mapping[str, str] = {
    "mix": "hc_fn", **{f"{role}_{what}": f"hc_{what}.{role}" for role in ROLES
                       for what in ("base", "scale")},
}  # fmt: skip
LEAST_CLAMP = 1e-6
LAST: Mapping[str, str] = {
    "mix": "hc_head_fn", "pre_base": "hc_head_base", "pre_scale": "hc_head_scale",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(glm_moe_dsa.Config):
    """Fields of `HYV4Config`.

    Attributes
    ----------
    rope_interleave : RoPE turns neighbours, not halves. Without it files whose layers are
        `PUBLISHED` do, as vLLM, SGLang and llama.cpp read them, and those of transformers do not.
    """

    max_position_embeddings: int = 262144
    rope_interleave: bool | None = None  # type: ignore[assignment]
    q_lora_rank: int | None = 1536
    moe_intermediate_size: int = 768
    routed_scaling_factor: float = 2.827
    first_k_dense_replace: Amount = Amount(1)
    index_n_heads: int = 16
    index_topk_freq: int = 4
    hc_mult: int = 4
    hc_magnitude: float = 2.0
    hc_eps: float = 1e-6
    swiglu_limit: float = 10.0
    family: ClassVar[str] = "hy_v4"
    not_in_json: ClassVar[frozenset[str]] = frozenset({
        "source", "index_skip_topk_offset", "index_topk_freq", "index_topk_pattern",
    })  # fmt: skip

    @property
    def kv_heads(self) -> int:
        """Key heads: a latent is expanded to one a head, whatever the file says."""
        return self.num_attention_heads

    @property
    def pairing(self) -> str:
        """Name of the elements that RoPE turns together."""
        neighbours = self.rope_interleave
        if neighbours is None:
            neighbours = PUBLISHED in (self.layer_types or ())
        return "interleaved" if neighbours else "half"

    def mixer(self, context: int) -> LatentAttention:
        """Return a layer's attention, all of whose keys are seen in a context that is short."""
        if self.layer_types is not None:
            layer_list(self.layer_types, self.num_hidden_layers, (INDEXED, PUBLISHED))
        mixer = latent_attention(self, rope_table(self, context), self.pairing)
        chosen = context > self.index_topk
        return replace(mixer, gated=True, gate_each=True, sinks=True, chosen=chosen)

    def indexer(self, context: int) -> KeyIndexer:
        """Return a layer's choice of keys.

        Raises
        ------
        UnsupportedError : a configuration that no published model has.
        """
        rules = {
            "sparse attention without q_lora_rank": not self.q_lora_rank,
            f"index_head_dim = {self.index_head_dim}, less than is turned":
                self.index_head_dim < self.qk_rope_head_dim,
        }  # fmt: skip
        for what, broken in rules.items():
            if broken:
                raise UnsupportedError(what, where="config")
        return KeyIndexer(
            self.hidden_size, self.q_lora_rank or 0, self.index_n_heads, self.index_head_dim,
            self.index_topk, EPS, self.rms_norm_eps, rope_table(self, context), self.pairing,
            self.attention_bias, turns_last=True,
        )  # fmt: skip

    def feed_forwards(self) -> list[tuple[Op, Mapping[str, str]]]:
        """Return every layer's MLP or experts, and their tensors by role.

        A limit of SwiGLU is of experts that are chosen alone; one that is not above 0 is none.
        """
        width, act = self.hidden_size, activation(self.hidden_act)
        inner = self.moe_intermediate_size
        limit = self.swiglu_limit if self.swiglu_limit > 0 else None
        experts = MoE(
            width=width, inner=inner, experts=self.n_routed_experts, router=self.router(),
            activation=Gating(act, limit=limit), selection_bias=True,
            shared_inner=inner * self.n_shared_experts, shared_activation=act,
        )  # fmt: skip
        mlp = GatedMLP(width, self.intermediate_size, act)
        return [(experts, MOE) if sparse else (mlp, MLP) for sparse in self.sparse()]


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(glm_moe_dsa.GGUFConfig):
    """Fields of GGUF files, whose pairs of RoPE are neighbours.

    Attributes
    ----------
    clamps : limit of SwiGLU, of all layers or of each; one of up to `LEAST_CLAMP` is none.
    """

    hc_mult: int
    hc_eps: float
    hc_magnitude: float
    clamps: float | tuple[float, ...] = 0.0
    made: ClassVar[type[deepseek_v32.Config]] = Config

    def further(self) -> dict[str, Any]:
        """Return the fields that are not those of DeepSeek V3.

        Raises
        ------
        UnsupportedError : limits that differ by layer.
        """
        clamps = set(by_layer(self.clamps, self.num_hidden_layers, "swiglu_clamp_exp"))
        if len(clamps) > 1:
            raise UnsupportedError(f"swiglu_clamp_exp of {sorted(clamps)}", where="metadata")
        limit = clamps.pop()
        return super().further() | {
            "hc_mult": self.hc_mult, "hc_eps": self.hc_eps, "hc_magnitude": self.hc_magnitude,
            "swiglu_limit": limit if limit > LEAST_CLAMP else 0.0, "rope_interleave": True,
        }  # fmt: skip


class _Streams:
    """The residual streams, and the branches that read and write them."""

    def __init__(self, decoder: Decoder, config: Config) -> None:
        self.decoder, sizes = decoder, (config.hc_mult, config.hidden_size)
        self.read = StreamRead(
            *sizes, config.rms_norm_eps, config.hc_eps, identity=True, magnitude=config.hc_magnitude
        )
        self.write = StreamWrite(*sizes, identity=True)
        self.value = decoder.builder.add(StreamEntry(*sizes), decoder.embed(), name="streams")

    def begin(self, n: int, branch: str, norm: str) -> tuple[Value, Value]:
        """Write the row that a branch reads, after its norm, and the weights of its output."""
        file, here = f"model.layers.{n}", f"layers.{n}.{branch}"
        tensors = f"{file}.{BRANCHES[branch]}"
        row, post = self.decoder.builder.add_node(
            self.read, self.value, name=f"{here}_read", weights=named(self.read, tensors, STREAMS)
        )
        return self.decoder.norm(row, f"{here}_norm", f"{file}.{norm}"), post

    def end(self, n: int, name: str, y: Value, post: Value) -> None:
        """Write a branch's output to the streams."""
        self.value = self.decoder.builder.add(
            self.write, self.value, y, post, name=f"layers.{n}.{name}"
        )

    def collapsed(self) -> Value:
        """Write the row of all streams after the last layer."""
        last = replace(self.read, last=True)
        weights = named(last, "model.hc_head", LAST)
        return self.decoder.builder.add(last, self.value, name="collapsed", weights=weights)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="hy_v4", eps=config.rms_norm_eps)
    mixer, indexer, indexed = config.mixer(context), config.indexer(context), config.indexed()
    streams, builder, keys = _Streams(decoder, config), decoder.builder, list[Value]()
    table = {**names_of(config), **ATTENTION}
    for n, (op, tensors) in enumerate(config.feed_forwards()):
        here, file = f"layers.{n}", f"model.layers.{n}"
        row, post = streams.begin(n, "attention", "input_layernorm")
        if mixer.chosen and indexed[n]:
            keys[:] = builder.add_node(
                indexer, row, decoder.position, name=f"{here}.indexer",
                weights=named(indexer, f"{file}.self_attn", table),
                slots={"index": f"{here}.index"},
            )  # fmt: skip
        y = builder.add(
            mixer, row, decoder.position, *keys, name=f"{here}.attention",
            weights=named(mixer, f"{file}.self_attn", table), slots={"kv": f"{here}.kv"},
        )  # fmt: skip
        streams.end(n, "middle", y, post)
        row, post = streams.begin(n, "mlp", "post_attention_layernorm")
        y = builder.add(op, row, name=f"{here}.mlp", weights=named(op, f"{file}.mlp", tensors))
        streams.end(n, "out", y, post)
    return decoder.finish(streams.collapsed())
