"""Command A+: Command A with experts beside shared ones, after leading layers with plain MLPs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import UnsupportedError
from cortiq.ir import Op, Program, Value
from cortiq.ir.layers import GatedMLP, LayerNorm, MoE, RMSNorm
from cortiq.ir.ops import Scale
from cortiq.models import cohere2
from cortiq.models.config import Amount, Keys, check_derived, convert_config
from cortiq.models.gguf_keys import BY_SIGMOID
from cortiq.models.layer_kinds import sparse_layers, windows
from cortiq.models.names import Names
from cortiq.models.parts import MLP, MOE, Decoder, activation, attention, named
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("cohere2_moe", "cohere2moe")
GGUF = ("cohere2moe",)
KEYS = Keys(
    aliases=cohere2.KEYS.aliases,
    harmless=cohere2.KEYS.harmless,
    only={**cohere2.KEYS.only, "use_qk_norm": False},
    gguf={
        **cohere2.KEYS.gguf, "expert_count": "num_experts",
        "expert_feed_forward_length": "expert_inner", "expert_shared_count": "num_shared_experts",
        "expert_shared_feed_forward_length": "shared_inner",
        "expert_weights_norm": "norm_topk_prob",
        "leading_dense_block_count": "first_k_dense_replace",
        "nextn_predict_layers": "num_nextn_predict_layers",
    },
    gguf_absent={"expert_weights_norm": False, "logit_scale": 1.0},
    gguf_only=BY_SIGMOID,
    gguf_tensors=cohere2.KEYS.gguf_tensors,
)  # fmt: skip
NAMES = Names()
CHOICES = {"softmax": "softmax_topk", "sigmoid": "sigmoid"}
"""Kinds of `Router` by `expert_selection_fn`: a softmax is over the chosen experts."""
SUM, AVERAGE = "sum", "average"


@dataclass(frozen=True, kw_only=True)
class Config(cohere2.Config):
    """Fields of `Cohere2MoeConfig`.

    Attributes
    ----------
    prefix_dense_intermediate_size : of MLPs in layers without experts, where it is another.
    prefix_dense_sliding_window_pattern : of those layers, each so manieth has no window; with 1
        none has, and they rotate all the same.
    shared_expert_combination_strategy : whether shared experts are added to the others, or both
        are halved.
    """

    head_dim: int | None = 128
    rms_norm_eps: float | None = None
    num_experts: int = 8
    num_experts_per_tok: int = 2
    num_shared_experts: Amount = Amount(0)
    shared_expert_combination_strategy: str = AVERAGE
    expert_selection_fn: str = "softmax"
    norm_topk_prob: bool = True
    mlp_layer_types: tuple[str, ...] | None = None
    first_k_dense_replace: Amount = Amount(0)
    prefix_dense_intermediate_size: int | None = None
    prefix_dense_sliding_window_pattern: int = 1
    num_nextn_predict_layers: Amount = Amount(0)
    family: ClassVar[str] = "cohere2_moe"

    def sparse(self) -> tuple[bool, ...]:
        """Return whether each layer has experts."""
        count, dense = self.num_hidden_layers, self.first_k_dense_replace
        usual = ("dense",) * min(dense, count) + ("sparse",) * max(count - dense, 0)
        return sparse_layers(self.mlp_layer_types or usual, count)

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer; those after the leading ones count anew."""
        count, dense = self.num_hidden_layers, self.first_k_dense_replace
        if self.layer_types is not None:
            return windows(self.layer_types, count, self.sliding_window)
        first, rest = self.prefix_dense_sliding_window_pattern, self.sliding_window_pattern
        places = [(n + 1) % first for n in range(dense)] + [(n + 1) % rest for n in range(count)]
        return tuple(self.sliding_window if place else None for place in places[:count])

    def norm(self) -> Op:
        """Return the norm of a row."""
        if self.rms_norm_eps is not None:
            return RMSNorm(self.hidden_size, self.rms_norm_eps)
        return LayerNorm(self.hidden_size, self.layer_norm_eps, biased=False)

    def experts(self) -> MoE:
        """Return the experts of a layer.

        Raises
        ------
        UnsupportedError : a choice, or a way to add shared experts, that is not known.
        """
        rules = {
            f"expert_selection_fn = {self.expert_selection_fn!r}":
                self.expert_selection_fn in CHOICES,
            f"shared_expert_combination_strategy = {self.shared_expert_combination_strategy!r}":
                self.shared_expert_combination_strategy in (SUM, AVERAGE),
        }  # fmt: skip
        for what, known in rules.items():
            if not known:
                raise UnsupportedError(what, where="config")
        kind = CHOICES[self.expert_selection_fn]
        renormalise = kind == "sigmoid" and self.norm_topk_prob
        return MoE(
            width=self.hidden_size, inner=self.intermediate_size, experts=self.num_experts,
            router=Router(self.num_experts_per_tok, kind, renormalise=renormalise),
            activation=activation(self.hidden_act),
            shared_inner=self.intermediate_size * self.num_shared_experts,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(Config):
    """Fields of GGUF files, whose `feed_forward_length` is of layers without experts.

    Attributes
    ----------
    expert_inner, shared_inner : widths of an expert, and of all shared ones.
    """

    expert_inner: int
    shared_inner: int | None = None
    windows_turn: ClassVar[bool] = False

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        wide = self.expert_inner * self.num_shared_experts
        check_derived(where, expert_shared_feed_forward_length=(self.shared_inner, wide))
        return convert_config(
            Config, self, where, intermediate_size=self.expert_inner,
            prefix_dense_intermediate_size=self.intermediate_size, expert_selection_fn="sigmoid",
        )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk; attention and MLP read one norm's row."""
    decoder = Decoder(config, context, family=config.family, norm=config.norm())
    inner = config.prefix_dense_intermediate_size or config.intermediate_size
    mlp = GatedMLP(config.hidden_size, inner, activation(config.hidden_act))
    rope, experts, x = rope_table(config, context), config.experts(), decoder.embed()
    halved = config.num_shared_experts and config.shared_expert_combination_strategy == AVERAGE
    turned = config.prefix_dense_sliding_window_pattern == 1
    for n, (window, sparse) in enumerate(zip(config.windows(), config.sparse(), strict=True)):
        row = decoder.norm(x, f"layers.{n}.norm", f"model.layers.{n}.input_layernorm")
        rotates = window is not None or (turned and not sparse)
        mixer = attention(
            config, rope=rope if rotates else None, pairing="interleaved", window=window,
            biased=config.attention_bias, output_biased=config.attention_bias,
        )  # fmt: skip
        x = decoder.mixer(x, n, mixer, before=None, read=row)
        if sparse and halved:
            x = _halved(decoder, x, row, n, experts)
        else:
            op, table = (experts, MOE) if sparse else (mlp, MLP)
            x = decoder.feed_forward(x, n, op, table=table, before=None, read=row)
    return decoder.finish(x, multiplier=config.logit_scale)


def _halved(decoder: Decoder, x: Value, row: Value, layer: int, experts: MoE) -> Value:
    """Write a layer's experts, whose sum with the shared ones is halved, and add it to x."""
    add, here = decoder.builder.add, f"layers.{layer}"
    weights = named(experts, f"model.{here}.mlp", MOE)
    y = add(experts, row, name=f"{here}.mlp", weights=weights)
    y = add(Scale(0.5), y, name=f"{here}.mlp_halved")
    return add(decoder.residual, x, y, name=f"{here}.out")
