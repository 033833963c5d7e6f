"""The parts that towers share: patches that see one another, and a projector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.ir import Builder, Op, Program, Value
from cortiq.ir.encoders import ENCODER, LAST, Encoder
from cortiq.ir.layers import Linear, Residual
from cortiq.vision.config import VisionConfig

PATCH, SQUARE, SHARES = "patch", "square", "shares"
"""Inputs: the pixels of a patch; of the projector, the rows of a square and what each weighs."""
PROJECTOR = "projector"
"""Entry that makes a row of the text model of the tower's rows of one square."""
ROWS = "rows"
"""Output of the projector."""
HIDDEN = "hidden"
"""Output of the tower."""


class Tower:
    """A tower under construction: the trunk of a program of its own, whose rows are patches.

    The sequences of this program are images. They are no part of a text's sequence: their keys and
    values are given back once the projector has made the rows that stand in the text.

    Attributes
    ----------
    last : the last patch of the image that each row sees.
    """

    def __init__(self, config: VisionConfig, patches: int, family: str) -> None:
        facts = {
            "family": family, "layers": config.num_hidden_layers, "width": config.hidden_size,
            "heads": config.num_attention_heads, "kv_heads": config.kv_heads,
        }  # fmt: skip
        self.config, self.builder = config, Builder(context=patches, facts=facts)
        self.position = self.builder.input("position")
        self.last = self.builder.input(LAST)

    def apply(self, op: Op, x: Value, name: str, tensor: str, *others: Value, **more: Any) -> Value:
        """Write an operator whose tensors are `tensor`.ROLE."""
        weights = {role: f"{tensor}.{role}" for role in op.weight_shapes()}
        return self.builder.add(op, x, *others, name=name, weights=weights, **more)

    def linear(
        self, x: Value, name: str, tensor: str, sizes: tuple[int, int], biased: bool
    ) -> Value:
        """Write a matrix (inputs, outputs), and its bias."""
        return self.apply(Linear(*sizes, biased), x, name, tensor)

    def patches(self, tensor: str, biased: bool) -> Value:
        """Write the product of a patch's pixels and the kernel of the convolution that has them."""
        width = self.config.patch_width
        patch = self.builder.input(PATCH, (width,), "f32")
        return self.linear(patch, "patches", tensor, (width, self.config.hidden_size), biased)

    def branch(
        self,
        x: Value,
        op: Op,
        name: str,
        norm: tuple[Op, str],
        weights: Mapping[str, str],
        out: str,
        others: tuple[Value, ...] = (),
    ) -> Value:
        """Write x + op(norm(x)); `norm` is an operator and its tensors' prefix."""
        y = self.apply(norm[0], x, f"{name}_norm", norm[1])
        slots = {role: f"{name}.{role}" for role in op.slot_kinds()}
        y = self.builder.add(op, y, *others, name=name, weights=weights, slots=slots)
        return self.builder.add(Residual(), x, y, name=out)

    def finish(self) -> None:
        """Finish the tower, whose output is `hidden`; what is written after it is the projector."""
        self.builder.facts[ENCODER] = Encoder()
        self.builder.graph("trunk", (HIDDEN,))
        self.builder.input("position")

    def program(self) -> Program:
        """Return the program, after the projector's `rows`."""
        self.builder.graph(PROJECTOR, (ROWS,))
        return self.builder.program()
