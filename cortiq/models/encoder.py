"""The trunk that encoders share: rows that see one another, and a classifier on top."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cortiq.ir import Builder, Op, Program, Value
from cortiq.ir.encoders import ENCODER, LAST, NEAR, Encoder
from cortiq.ir.layers import Attention, Embedding, Linear
from cortiq.ir.ops import Activation
from cortiq.models.config import BaseConfig
from cortiq.models.parts import Decoder

CLASSIFIES = "ForSequenceClassification"
"""End of the names of architectures with a classifier."""
BARE = "Model"
"""End of those whose files hold the trunk only."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(BaseConfig):
    """Fields of every encoder: the class that wrote the file, and the classifier's labels."""

    architectures: tuple[str, ...] | None = None
    id2label: Mapping[str, Any] = field(default_factory=dict)

    @property
    def classifies(self) -> bool:
        """Whether the file holds a classifier."""
        return any(name.endswith(CLASSIFIES) for name in self.architectures or ())

    @property
    def bare(self) -> bool:
        """Whether the tensors have no prefix: the file holds the trunk only."""
        return any(name.endswith(BARE) for name in self.architectures or ())

    @property
    def labels(self) -> int:
        """Outputs of the classifier: two unless the file says so."""
        return len(self.id2label) or 2


class EncoderTrunk:
    """An encoder under construction; values are named as a `Decoder`'s.

    Attributes
    ----------
    last : the last key of each row's text.
    """

    def __init__(self, config: BaseConfig, context: int, family: str) -> None:
        facts = {
            "family": family, "layers": config.num_hidden_layers, "width": config.hidden_size,
            "heads": config.num_attention_heads, "kv_heads": config.kv_heads,
            "vocab_size": config.vocab_size,
        }  # fmt: skip
        self.config, self.builder = config, Builder(context=context, facts=facts)
        self.token = self.builder.input("token")
        self.position = self.builder.input("position")
        self.last = self.builder.input(LAST)

    def table(self, rows: int, index: Value, name: str, tensor: str) -> Value:
        """Write a row of a table."""
        op = Embedding(rows, self.config.hidden_size)
        return self.builder.add(op, index, name=name, weights={"table": f"{tensor}.weight"})

    def apply(self, op: Op, x: Value, name: str, tensor: str, *others: Value, **more: Any) -> Value:
        """Write an operator whose tensors are `tensor`.ROLE."""
        weights = {role: f"{tensor}.{role}" for role in op.weight_shapes()}
        return self.builder.add(op, x, *others, name=name, weights=weights, **more)

    def dense(
        self, x: Value, name: str, tensor: str, outputs: int, act: str = "", biased: bool = True
    ) -> Value:
        """Write a matrix, with its bias, and an activation after it."""
        op = Linear(self.config.hidden_size, outputs, biased)
        y = self.apply(op, x, f"{name}.linear" if act else name, tensor)
        return self.builder.add(Activation(act), y, name=name) if act else y

    def finish(self, encoder: Encoder) -> Program:
        """Return the program, whose outputs are `hidden` and the classifier's."""
        outputs = ("hidden", *((encoder.scores,) if encoder.scores else ()))
        self.builder.facts[ENCODER] = encoder
        return self.builder.program(outputs=outputs)


class BothWays:
    """A decoder's trunk as an encoder: its rows see keys on both sides, and it has no head.

    Parameters
    ----------
    half : keys that a row of a layer with a window sees on each side; 0 without such layers.
    """

    def __init__(self, decoder: Decoder, half: int = 0) -> None:
        self._decoder, self._half = decoder, half
        self._last = decoder.builder.input(LAST)
        self._near = decoder.builder.input(NEAR) if half else self._last

    def attention(self, op: Attention) -> tuple[Attention, Value]:
        """Return a layer's attention, and the last key of its rows."""
        if op.window is None:
            return replace(op, until=True), self._last
        return replace(op, until=True, window=self._half + 1), self._near

    def finish(self, x: Value) -> Program:
        """Write the final norm; return the program, whose output is `hidden`."""
        self._decoder.norm(x, "hidden", "model.norm")
        reach = {LAST: 0, NEAR: self._half} if self._half else {LAST: 0}
        self._decoder.builder.facts[ENCODER] = Encoder(reach=reach)
        return self._decoder.builder.program(outputs=("hidden",))
