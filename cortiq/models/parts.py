"""The pre-norm decoder shared by families, written node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Builder, Op, Program, Value
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import Attention, Embedding, GatedMLP, Linear, Residual, RMSNorm
from cortiq.ir.ops import Gain, Scale, SoftCap
from cortiq.models.config import BaseConfig
from cortiq.models.config_limits import MAX_LAYERS
from cortiq.numerics.route import Router

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}
"""`hidden_act` of config.json to the activation of the catalogue."""

ATTENTION: Mapping[str, str] = {
    "q": "q_proj.weight", "k": "k_proj.weight", "v": "v_proj.weight", "o": "o_proj.weight",
    "q_bias": "q_proj.bias", "k_bias": "k_proj.bias", "v_bias": "v_proj.bias",
    "o_bias": "o_proj.bias", "q_norm": "q_norm.weight", "k_norm": "k_norm.weight",
    "sinks": "sinks",
}  # fmt: skip
"""Roles of `Attention` to the usual tensor names."""

MLP: Mapping[str, str] = {
    "gate": "gate_proj.weight", "up": "up_proj.weight", "down": "down_proj.weight",
    "gate_bias": "gate_proj.bias", "up_bias": "up_proj.bias", "down_bias": "down_proj.bias",
}  # fmt: skip
"""Roles of `GatedMLP` to the usual tensor names."""

MOE: Mapping[str, str] = {
    "router": "gate.weight", "router_bias": "gate.bias", "bias": "gate.e_score_correction_bias",
    **{role: f"experts.{tensor}" for role, tensor in MLP.items()},
    **{f"shared_{role}": f"shared_experts.{tensor}" for role, tensor in MLP.items()},
    "shared_factor": "shared_expert_gate.weight",
}  # fmt: skip
"""Roles of `MoE` to the usual tensor names."""

FLOOR = 1e-20
"""Added to the sum that weights of experts are divided by."""
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"
HEAD_BIAS, HEAD_GAIN = "lm_head.bias", "lm_head.logit_scale"


def activation(name: str) -> str:
    """Return the catalogue's name of an activation; `UnsupportedError` if it is unknown."""
    if name not in ACTIVATIONS:
        hint = f"supported: {', '.join(ACTIVATIONS)}"
        raise UnsupportedError(f"activation {name!r}", where="config", hint=hint)
    return ACTIVATIONS[name]


def named(op: Op, prefix: str, table: Mapping[str, str]) -> dict[str, str]:
    """Return an operator's tensor names: the prefix and the table's entry for each role."""
    return {role: f"{prefix}.{table[role]}" for role in op.weight_shapes()}


def norm_offset(config: BaseConfig) -> float:
    """Return the offset for norms of (1 + w): folders hold w, GGUF files hold the sum."""
    return 0.0 if config.source == "gguf" else 1.0


def attention(config: BaseConfig, **options: Any) -> Attention:
    """Return attention with the config's heads and widths, and further options."""
    heads, width = config.num_attention_heads, config.hidden_size
    return Attention(width, heads, config.kv_heads, config.head_width, **options)


def gated_mlp(config: BaseConfig, act: str, biased: bool = False) -> GatedMLP:
    """Return a gated MLP of the config's widths with the activation that config.json names."""
    return GatedMLP(config.hidden_size, config.intermediate_size, activation(act), biased)


def grouped_router(
    top_k: int, renormalise: bool, scaling: float, groups: int = 1, kept: int = 1
) -> Router:
    """Return DeepSeek V3's choice of experts: by sigmoid, in groups scored by their two best."""
    return Router(
        top_k, "sigmoid", renormalise=renormalise, denominator_floor=FLOOR,
        routed_scaling=scaling, groups=groups, kept_groups=kept, group_score="top2",
    )  # fmt: skip


def passes(count: int, first: int = 0, last: int | None = None, times: int = 1) -> list[int]:
    """Return the file's layer of every layer of a graph that passes some of them several times.

    Parameters
    ----------
    count : of the file's layers. first, last : bounds of those that are passed `times` times.

    Raises
    ------
    FormatError : more layers than a graph may have.
    """
    last = count if last is None else last
    if count + (times - 1) * (last - first) > MAX_LAYERS:
        what = f"{last - first} layers, passed {times} times: at most {MAX_LAYERS}"
        raise FormatError(what, where="config")
    return [*range(first), *list(range(first, last)) * times, *range(last, count)]


class Decoder:
    """A decoder-only trunk under construction.

    Values are named `embed`, `layers.N.attention`, `layers.N.mlp`, `layers.N.out` (and those in
    between), `hidden` after the last norm, and `logits`.

    Attributes
    ----------
    norm_op : the norm of a row of the model's width, wherever the family has one.
    residual : factor of every branch before it is added.
    stored : of every layer in the graph, the layer of the file that has its tensors.
    """

    def __init__(
        self,
        config: BaseConfig,
        context: int,
        *,
        family: str,
        eps: float = 0.0,
        offset: float = 0.0,
        norm: Op | None = None,
        residual: float = 1.0,
        stored: Sequence[int] | None = None,
    ) -> None:
        self.stored = range(config.num_hidden_layers) if stored is None else stored
        facts = {
            "family": family,
            "layers": len(self.stored),
            "width": config.hidden_size,
            "heads": config.num_attention_heads,
            "kv_heads": config.kv_heads,
            "vocab_size": config.vocab_size,
        }
        self.builder = Builder(context=context, facts=facts)
        self.config, self.residual = config, Residual(residual)
        self.norm_op = norm or RMSNorm(config.hidden_size, eps, offset)
        self.token = self.builder.input("token")
        self.position = self.builder.input("position")

    def embed(self, multiplier: float = 1.0) -> Value:
        """Write the token's row of the table."""
        op = Embedding(self.config.vocab_size, self.config.hidden_size, multiplier)
        return self.builder.add(op, self.token, name="embed", weights={"table": TABLE})

    def axes(self, rows: ImageRows) -> tuple[Value, ...]:
        """Write the inputs of positions on several axes, of a trunk whose rows have them."""
        return tuple(self.builder.input(name, (rows.axes,)) for name in rows.axis_names)

    def deepened(self, x: Value, layer: int, rows: ImageRows) -> Value:
        """Write x and the row of an image that a layer's output has added, where one has."""
        if layer >= rows.deep:
            return x
        given = self.builder.input(rows.deep_names[layer], (rows.width,), "f32")
        return self.builder.add(Residual(), x, given, name=f"layers.{layer}.deep")

    def norm(self, x: Value, name: str, prefix: str) -> Value:
        """Write the family's norm, with tensors `prefix`.weight and possibly `prefix`.bias."""
        weights = {role: f"{prefix}.{role}" for role in self.norm_op.weight_shapes()}
        return self.builder.add(self.norm_op, x, name=name, weights=weights)

    def branch(
        self,
        x: Value | None,
        op: Op,
        name: str,
        *,
        before: str | None,
        weights: Mapping[str, str],
        slots: Mapping[str, str] | None = None,
        after: str | None = None,
        out: str,
        read: Value | None = None,
        others: Sequence[Value] = (),
    ) -> Value:
        """Write one residual branch: x + norm?(op(norm?(x))); without an x, the branch alone.

        Parameters
        ----------
        op : takes the normalised row, and the position too if it keeps key and value rows.
        before, after : prefixes of the norms around it, `None` where the family has none.
        out : name of the sum.
        read : row that the branch reads in place of x: of a parallel layer, whose MLP does not see
            what attention adds.
        others : what the operator takes besides.
        """
        source = x if read is None else read
        if source is None:
            raise ValueError(f"{name} reads no row")
        inputs = [self.norm(source, f"{name}_norm", before) if before else source]
        if slots and "kv" in slots:
            inputs.append(self.position)
        y = self.builder.add(op, *inputs, *others, name=name, weights=weights, slots=slots)
        if after:
            y = self.norm(y, f"{name}_after_norm", after)
        return y if x is None else self.builder.add(self.residual, x, y, name=out)

    def mixer(
        self,
        x: Value | None,
        layer: int,
        op: Op,
        *,
        name: str = "attention",
        tensors: str = "self_attn",
        table: Mapping[str, str] = ATTENTION,
        before: str | None = "input_layernorm",
        after: str | None = None,
        out: str = "middle",
        read: Value | None = None,
        others: Sequence[Value] = (),
    ) -> Value:
        """Write the branch of a layer's attention (or another mixer) under the usual names.

        Parameters
        ----------
        name : of the value, `layers.N.name`; slots are called after their roles.
        tensors, table : prefix of the operator's tensors within the layer, and the rest by role.
        before, after : norms of the layer, `None` where there is none.
        out : of the sum, `out` where the layer is this branch only.
        read, others : see `branch`.
        """
        file, here = f"model.layers.{self.stored[layer]}", f"layers.{layer}"
        return self.branch(
            x, op, f"{here}.{name}", before=_within(file, before), after=_within(file, after),
            weights=named(op, f"{file}.{tensors}", table),
            slots={role: f"{here}.{role}" for role in op.slot_kinds()}, out=f"{here}.{out}",
            read=read, others=others,
        )  # fmt: skip

    def feed_forward(
        self,
        x: Value,
        layer: int,
        op: Op,
        *,
        tensors: str = "mlp",
        table: Mapping[str, str] = MLP,
        before: str | None = "post_attention_layernorm",
        after: str | None = None,
        read: Value | None = None,
    ) -> Value:
        """Write the branch of a layer's MLP or experts under the usual names, see `mixer`."""
        file, here = f"model.layers.{self.stored[layer]}", f"layers.{layer}"
        return self.branch(
            x, op, f"{here}.mlp", before=_within(file, before), after=_within(file, after),
            weights=named(op, f"{file}.{tensors}".removesuffix("."), table), out=f"{here}.out",
            read=read,
        )  # fmt: skip

    def finish(
        self,
        x: Value,
        *,
        norm: str | None = "model.norm",
        multiplier: float = 1.0,
        soft_cap: float | None = None,
        biased: bool = False,
        gained: bool = False,
    ) -> Program:
        """Write final norm, head (the table if tied), gains, multiplier, soft cap; return the
        program.

        A `biased` head has a vector of its own even where its matrix is the table; `gained`
        logits are each times a number of the file. Without a norm x is `hidden` itself.
        """
        y = self.norm(x, "hidden", norm) if norm else x
        weights = {"weight": TABLE if self.config.tie_word_embeddings else HEAD}
        weights |= {"bias": HEAD_BIAS} if biased else {}
        steps: list[tuple[Op, Mapping[str, str]]] = [
            (Linear(self.config.hidden_size, self.config.vocab_size, biased), weights)
        ]
        if gained:
            steps.append((Gain(self.config.vocab_size), {"weight": HEAD_GAIN}))
        if multiplier != 1.0:
            steps.append((Scale(multiplier), {}))
        if soft_cap:
            steps.append((SoftCap(soft_cap), {}))
        between = ("head", *(["head.gained"] if gained else []), "head.scaled")
        names = [*between[: len(steps) - 1], "logits"]
        for name, (op, own) in zip(names, steps, strict=True):
            y = self.builder.add(op, y, name=name, weights=own)
        return self.builder.program(outputs=("hidden", "logits"))


def _within(layer: str, norm: str | None) -> str | None:
    return f"{layer}.{norm}" if norm else None
