"""The parts that towers share: patches that see one another, and a projector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.ir import Builder, Op, Program, Value
from cortiq.ir.encoders import ENCODER, LAST, PROJECTOR, ROWS, STAGE, Encoder
from cortiq.ir.layers import Embedding, Linear, Residual
from cortiq.ir.ops import (
    Activation,
    CombineExperts,
    Concat,
    EmbedRows,
    Gain,
    Multiply,
    Reshape,
    Scale,
)
from cortiq.models.parts import activation
from cortiq.vision.config import VisionConfig

PATCH = "patch"
"""Input: the pixels of a patch."""
PLACES, TAPS = "place.{}", "taps.weights"
"""Inputs: rows of a table of learned positions that are near a patch, and what each weighs."""
STEEPNESS = 1.702
"""Of the sigmoid that approximates GELU."""
NEWLINE = "newline"
"""Entry, and its output: the row that ends a line of an image, or rows that end parts of one, each
of which supplies its number."""
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
        gain: str = "",
    ) -> Value:
        """Write x + op(norm(x)); `norm` is an operator and its tensors' prefix, `gain` a vector
        that the branch is multiplied by.
        """
        y = self.apply(norm[0], x, f"{name}_norm", norm[1])
        slots = {role: f"{name}.{role}" for role in op.slot_kinds()}
        y = self.builder.add(op, y, *others, name=name, weights=weights, slots=slots)
        if gain:
            op = Gain(self.config.hidden_size)
            y = self.builder.add(op, y, name=f"{name}_scaled", weights={"weight": gain})
        return self.builder.add(Residual(), x, y, name=out)

    def quick_gelu_mlp(self, x: Value, here: str, tensors: tuple[str, str]) -> Value:
        """Write down(u·σ(1.702·u)) with u = up(x), biases with both."""
        b, sizes = self.builder, (self.config.hidden_size, self.config.intermediate_size)
        up = self.linear(x, f"{here}.up", tensors[0], sizes, biased=True)
        steep = b.add(Scale(STEEPNESS), up, name=f"{here}.steep")
        share = b.add(Activation("sigmoid"), steep, name=f"{here}.share")
        product = b.add(Multiply(), up, share, name=f"{here}.product")
        return self.linear(product, f"{here}.mlp", tensors[1], sizes[::-1], biased=True)

    def marked(self, x: Value, tensor: str, mark: str) -> Value:
        """Write x, and a vector added where the row supplies 0 as `mark`, not where it is 1."""
        op, given = EmbedRows(1, self.config.hidden_size, missing=True), self.builder.input(mark)
        row = self.builder.add(op, given, name=f"{mark}.row", weights={"table": tensor})
        return self.builder.add(Residual(), x, row, name=f"{mark}.added")

    def two_layers(
        self, x: Value, act: str, widths: tuple[int, ...], biased: bool, name: str = ROWS
    ) -> None:
        """Write the projector's rows: a matrix, an activation and another matrix.

        Parameters
        ----------
        widths : of `x`, of what is between the matrices, and of the rows where it is another one.
        name : of the rows.
        """
        y = self.linear(x, "up", "projector.linear_1", (widths[0], widths[1]), biased)
        y = self.builder.add(Activation(activation(act)), y, name="activation")
        self.linear(y, name, "projector.linear_2", (widths[1], widths[-1]), biased)

    def interpolated(self, x: Value, rows: int, tensor: str, taps: int) -> Value:
        """Write x and the weighted rows of a table of learned positions that its patch supplies."""
        b, width = self.builder, self.config.hidden_size
        table, weights = Embedding(rows, width), {"table": tensor}
        given = [
            b.add(table, b.input(PLACES.format(n)), name=f"place.row.{n}", weights=weights)
            for n in range(taps)
        ]
        joined = b.add(
            Reshape((taps, width)), b.add(Concat(), *given, name="near"), name="near.rows"
        )
        where = b.add(CombineExperts(), b.input(TAPS, (taps,), "f32"), joined, name="place")
        return b.add(Residual(), x, where, name="placed")

    def finish(self, *deep: str) -> None:
        """Finish the tower; what is written after it is the projector.

        Parameters
        ----------
        deep : outputs beside `hidden`, of which the projector makes rows for layers of the text.
        """
        self.builder.facts[ENCODER] = Encoder()
        self.builder.graph("trunk", (HIDDEN, *deep))
        self.position = self.builder.input("position")

    def finish_stage(self, number: int) -> None:
        """Finish the tower's rows of patches (0), or the stage before that of this number."""
        if not number:
            self.finish()
            return
        self.builder.graph(STAGE.format(number - 1), (HIDDEN,))
        self.position = self.builder.input("position")

    def program(self, *deep: str, newline: str = "") -> Program:
        """Return the program, after the projector's `rows`, and rows for layers of the text.

        Parameters
        ----------
        newline : tensor of a row that ends lines of an image.
        """
        self.builder.graph(PROJECTOR, (ROWS, *deep))
        if newline:
            table = Embedding(1, self.config.text_width)
            token, _ = self.builder.input("token"), self.builder.input("position")
            self.builder.add(table, token, name=NEWLINE, weights={"table": newline})
            self.builder.graph(NEWLINE, (NEWLINE,))
        return self.builder.program()
