"""Branches over residual streams in the folders of DeepSeek V4: trunk and drafter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cortiq.ir import Builder, Value
from cortiq.ir.layers import RMSNorm, StreamEntry, StreamRead, StreamWrite

ROLES = ("pre", "post", "comb")
"""Of the weights that streams are read and written with, in the order of the file."""
STREAMS: Mapping[str, str] = {
    "mix": "fn", **{f"{role}_{what}": f"{what}.{role}.weight" for role in ROLES
                    for what in ("base", "scale")},
}  # fmt: skip
LAST: Mapping[str, str] = {"mix": "fn", "pre_base": "base", "pre_scale": "scale"}
"""Of those of the sum that follows the last layer."""


class Streams:
    """Writes branches that read residual streams and are added to them."""

    def __init__(self, b: Builder, read: StreamRead) -> None:
        sizes = read.streams, read.width
        self.b, self.read = b, read
        self.write, self.entry = StreamWrite(*sizes), StreamEntry(*sizes)
        self.norm = RMSNorm(read.width, read.eps)

    def row(self, streams: Value, of: str, file: str, name: str) -> tuple[Value, ...]:
        """Write the row that a branch reads, after its norm, and how it is written back.

        Parameters
        ----------
        of : `attn` or `ffn`. file : of the layer's tensors. name : of the branch.
        """
        weights = {r: f"{file}.hc_{of}_{STREAMS[r]}" for r in self.read.weight_shapes()}
        row, *mix = self.b.add_node(self.read, streams, name=f"{name}_read", weights=weights)
        norm = {"weight": f"{file}.{of}_norm.weight"}
        return self.b.add(self.norm, row, name=f"{name}_norm", weights=norm), *mix

    def collapsed(self, streams: Value, tensors: str, name: str) -> Value:
        """Write the sum that follows the last layer."""
        last = replace(self.read, last=True, rounds=1)
        weights = {role: f"{tensors}{LAST[role]}" for role in last.weight_shapes()}
        return self.b.add(last, streams, name=name, weights=weights)
