"""What several families share: the pre-norm decoder, written node by node."""

from __future__ import annotations

from collections.abc import Mapping

from cortiq.errors import UnsupportedError
from cortiq.ir import Builder, Op, Program, Value
from cortiq.ir.layers import Embedding, Linear, Residual, RMSNorm
from cortiq.ir.ops import SoftCap
from cortiq.models.config import BaseConfig

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
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

TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def activation(name: str) -> str:
    """The catalogue's name of an activation; `UnsupportedError` names an unknown one."""
    if name not in ACTIVATIONS:
        hint = f"supported: {', '.join(ACTIVATIONS)}"
        raise UnsupportedError(f"activation {name!r}", where="config", hint=hint)
    return ACTIVATIONS[name]


def named(op: Op, prefix: str, table: Mapping[str, str]) -> dict[str, str]:
    """Tensor names of an operator's weights: the prefix and the table's entry for each role."""
    return {role: f"{prefix}.{table[role]}" for role in op.weight_shapes()}


class Decoder:
    """A decoder-only trunk under construction.

    Values are named `embed`, `layers.N.attention`, `layers.N.mlp`, `layers.N.out` (and those in
    between), `hidden` after the last norm, and `logits`.
    """

    def __init__(
        self, config: BaseConfig, context: int, *, family: str, eps: float, offset: float = 0.0
    ) -> None:
        facts = {
            "family": family,
            "layers": config.num_hidden_layers,
            "width": config.hidden_size,
            "heads": config.num_attention_heads,
            "kv_heads": config.kv_heads,
            "vocab_size": config.vocab_size,
        }
        self.builder = Builder(context=context, facts=facts)
        self.config, self.eps, self.offset = config, eps, offset
        self.token = self.builder.input("token")
        self.position = self.builder.input("position")

    def embed(self, multiplier: float = 1.0) -> Value:
        """The token's row of the table."""
        op = Embedding(self.config.vocab_size, self.config.hidden_size, multiplier)
        return self.builder.add(op, self.token, name="embed", weights={"table": TABLE})

    def norm(self, x: Value, name: str, weight: str) -> Value:
        """RMSNorm with the family's eps and offset."""
        op = RMSNorm(self.config.hidden_size, self.eps, self.offset)
        return self.builder.add(op, x, name=name, weights={"weight": weight})

    def branch(
        self,
        x: Value,
        op: Op,
        name: str,
        *,
        before: str,
        weights: Mapping[str, str],
        slots: Mapping[str, str] | None = None,
        after: str | None = None,
        out: str,
    ) -> Value:
        """x + norm?(op(norm(x))): one residual branch.

        Parameters
        ----------
        op : takes the normalised row, and the position too if it keeps key and value rows.
        before, after : weights of the norms around it; `after` is for families that have one.
        out : name of the sum.
        """
        inputs = [self.norm(x, f"{name}_norm", before)]
        if slots and "kv" in slots:
            inputs.append(self.position)
        y = self.builder.add(op, *inputs, name=name, weights=weights, slots=slots)
        if after:
            y = self.norm(y, f"{name}_after_norm", after)
        return self.builder.add(Residual(), x, y, name=out)

    def finish(
        self, x: Value, *, norm: str = "model.norm.weight", soft_cap: float | None = None
    ) -> Program:
        """Final norm, head (the table again, if tied), soft cap; the program."""
        hidden = self.norm(x, "hidden", norm)
        weights = {"weight": TABLE if self.config.tie_word_embeddings else HEAD}
        head = Linear(self.config.hidden_size, self.config.vocab_size)
        name = "head" if soft_cap else "logits"
        y = self.builder.add(head, hidden, name=name, weights=weights)
        if soft_cap:
            self.builder.add(SoftCap(soft_cap), y, name="logits")
        return self.builder.program(outputs=("hidden", "logits"))
