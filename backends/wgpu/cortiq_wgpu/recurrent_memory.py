"""Memory of recurrent slots: the state, two marks of it, and the rows fed since the earlier one.

A state is kept at lengths that `MARK` divides, m in place 1 + m // MARK % 2 behind the state; then
come `KEPT` rows, each q, k, v, α and β of position p in place p % KEPT. To go back is to take a
mark and to compute the rows behind it once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from cortiq.backend.extents import KEPT, MARK, MarkedExtent
from cortiq.backend.recurrences import Recurrence
from cortiq_wgpu.device import GpuDevice
from cortiq_wgpu.dispatch import MOST_TURNS
from cortiq_wgpu.shader_source import ShaderSource, kernel

LANES = 64
LEAVES = 256
COPIES = 3
"""The state, and two marks."""
DELTA = """for (var t = 0u; t < LEAVES; t++) {
      let base = leaf_of(t);
      var leaf = 0.0;
      for (var i = base; i < state_rows; i += 256u) {
        let alpha = from_bits({{SOURCE}}[decays + select(0u, i, $decays > 1u)]);
        let faded = from_bits(canonical(multiply(from_bits({{SOURCE}}[key + i]), alpha), row));
        leaf = add(leaf, multiply(from_bits(pool[state + i * columns]), faded));
      }
      {{PUSH}}
    }
    let gap = multiply(subtract(v, stack[LEVELS]), beta);
    let driven = from_bits(canonical(gap, row));"""
SPACE = "let driven = from_bits(canonical(multiply(beta, v), row));"
PUSH = """var level = 0u;
      var carried = leaf;
      while (((t >> level) & 1u) == 1u) { carried = add(stack[level], carried); level++; }
      stack[level] = carried;"""
FED = {
    "SEGMENT": """let segment = m[6] + group.y * 4u;
  let first = m[segment];
  let count = m[segment + 1u];
  let position = m[segment + 2u];
  let block = m[segment + 3u];""",
    "ROW": """let query = $q + (row * $key_heads + shared_head) * state_rows;
    let key = $k + (row * $key_heads + shared_head) * state_rows;
    let value = $v + (row * $heads + head) * columns + j;
    let decays = $alpha + (row * $heads + head) * $decays;
    let driver = $beta + row * $heads + head;""",
    "SOURCE": "x",
    "OUT": """x[$out + (row * $heads + head) * columns + j] = y;
    let to = kept_at((position + row - first) % KEPT, unit, size);
    pool[to + 2u * keys + head * columns + j] = x[value];
    if (group.x == 0u) {
      let step = min(64u, columns);
      if (head % ($heads / $key_heads) == 0u) {
        for (var i = local.x; i < state_rows; i += step) {
          pool[to + shared_head * state_rows + i] = x[query + i];
          pool[to + keys + shared_head * state_rows + i] = x[key + i];
        }
      }
      let behind = to + 2u * keys + $heads * columns;
      for (var i = local.x; i < $decays; i += step) {
        pool[behind + head * $decays + i] = x[decays + i];
      }
      if (local.x == 0u) { pool[behind + $heads * $decays + head] = x[driver]; }
    }
    let length = position + row - first + 1u;
    if (length % MARK == 0u) {
      let mark = state + size * (1u + length / MARK % 2u);
      for (var i = 0u; i < state_rows * columns; i += columns) { pool[mark + i] = pool[state + i]; }
    }""",
}
"""Parts of the kernel for the rows of a batch, which are kept."""
REPLAYED = {
    "SEGMENT": """let first = 0u;
  let count = $count;
  let position = $position;
  let block = $block;""",
    "ROW": """let query = kept_at((position + row) % KEPT, unit, size) + shared_head * state_rows;
    let key = query + keys;
    let behind = kept_at((position + row) % KEPT, unit, size) + 2u * keys;
    let value = behind + head * columns + j;
    let decays = behind + $heads * columns + head * $decays;
    let driver = behind + $heads * columns + $heads * $decays + head;""",
    "SOURCE": "pool",
    "OUT": "",
}
"""Parts of the kernel for rows that were kept."""


@dataclass(frozen=True)
class RecurrentRows(Recurrence):
    """A recurrence and its place in memory."""

    @property
    def width(self) -> int:
        """Count the numbers of a row that is kept."""
        heads, rows, columns = self.slot.shape
        return 2 * self.key_heads * rows + heads * (columns + self.decays + 1)

    @property
    def words(self) -> int:
        """Count the words of a block."""
        return COPIES * prod(self.slot.shape) + KEPT * self.width

    @property
    def values(self) -> dict[str, int]:
        """Return the parameters that every dispatch has."""
        heads, rows, columns = self.slot.shape
        return {
            "heads": heads, "key_heads": self.key_heads, "state_rows": rows, "columns": columns,
            "decays": self.decays, "unit": self.words, "row_width": self.width,
        }  # fmt: skip

    @property
    def each(self) -> int:
        """Return the rows of a sequence that one dispatch may take."""
        rows = self.slot.shape[1]
        return max(1, MOST_TURNS // (4 * (rows + (1 << self.levels))))

    @property
    def levels(self) -> int:
        """Return the levels of the tree in which a column is added up."""
        rows = self.slot.shape[1]
        return max(1, min(LEAVES, 1 << max(0, rows - 1).bit_length()).bit_length() - 1)

    def shader(self, dot: str, replayed: bool = False) -> ShaderSource:
        """Make the kernel, of a batch's rows or of kept ones."""
        parts = REPLAYED if replayed else FED
        driven = (DELTA if self.is_delta else SPACE).replace("{{SOURCE}}", parts["SOURCE"])
        numbers = {
            "LEVELS": self.levels, "LEAVES": 1 << self.levels, "MARK": MARK, "KEPT": KEPT,
            "COPIES": COPIES,
        }  # fmt: skip
        texts = {name: str(number) for name, number in numbers.items()}
        driven = driven.replace("{{PUSH}}", PUSH)
        return kernel("recurrence", dot, {**texts, **parts, "DRIVEN": driven, "PUSH": PUSH})


class RecurrentReplay:
    """Brings states back to where their extents are.

    Parameters
    ----------
    buffers : memory of the slots, by name.
    """

    def __init__(self, gpu: GpuDevice, buffers: Mapping[str, Any]) -> None:
        self.gpu, self.buffers = gpu, buffers
        nothing = {name: gpu.buffer(4 * KEPT) for name in ("m", "x", "faults")}
        self._shared = nothing

    def rewind(self, name: str, rows: RecurrentRows, block: int, extent: MarkedExtent) -> None:
        """Take the last mark of a block, and compute the rows behind it."""
        mark, buffer = extent.marks[-1], self.buffers[name]
        size, start = 4 * prod(rows.slot.shape), 4 * block * rows.words
        encoder = self.gpu.device.create_command_encoder()
        if mark == 0:
            encoder.clear_buffer(buffer, start, size)
        else:
            held = self.gpu.buffer(size)  # a buffer cannot be copied to itself
            at = start + size * (1 + mark // MARK % 2)
            encoder.copy_buffer_to_buffer(buffer, at, held, 0, size)
            encoder.copy_buffer_to_buffer(held, 0, buffer, start, size)
        if extent.length > mark:
            self._replay(encoder, name, rows, block, (mark, extent.length))
        self.gpu.device.queue.submit([encoder.finish()])

    def _replay(
        self, encoder: Any, name: str, rows: RecurrentRows, block: int, span: tuple[int, int]
    ) -> None:
        shader = rows.shader(self.gpu.dot, replayed=True)
        heads, _, columns = rows.slot.shape
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(self.gpu.pipeline(shader)[0])
        for values in _spans(rows, block, span):
            words = np.array(shader.words((0, 0, 0), [values]), np.uint32)
            buffers = {**self._shared, "p": self.gpu.uploaded(words), "pool": self.buffers[name]}
            compute.set_bind_group(0, self.gpu.bound(shader, buffers))
            compute.dispatch_workgroups(-(-columns // LANES), 1, heads)
        compute.end()


def _spans(rows: RecurrentRows, block: int, span: tuple[int, int]) -> Iterator[dict[str, int]]:
    """Yield the parameters of each dispatch of a replay."""
    position, count = span[0], span[1] - span[0]
    for begin in range(0, count, rows.each):
        where = {"position": position, "count": count, "block": block}
        yield {**rows.values, **where, "begin": begin, "step": rows.each}
