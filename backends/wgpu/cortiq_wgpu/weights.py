"""A program's weights on the device: matrices packed once, vectors in one buffer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from cortiq.backend.float_weights import MATRICES
from cortiq.ir import Graph, Node, ops
from cortiq.numerics.column_order import ColumnOrder
from cortiq.numerics.layouts import Weight, floats
from cortiq.numerics.norms import offset_weight
from cortiq.numerics.scaling import gain
from cortiq_wgpu.uploads import Uploader, WgpuMatrix

Progress = Callable[[str, int, int], None]
"""Called with what is done, bytes done, and bytes in all."""


class DeviceWeights:
    """Weights uploaded before any batch, and shared between nodes.

    Parameters
    ----------
    limit : bytes of a buffer. progress : called while matrices are uploaded.
    """

    def __init__(
        self, weights: Mapping[str, Weight], gpu: Any, limit: int, progress: Progress | None = None
    ) -> None:
        self._weights, self._gpu = weights, gpu
        self._progress = progress or (lambda *_: None)
        self._done, self._total = 0, 0
        self._limit = limit
        self._matrices: dict[str, WgpuMatrix] = {}
        self._places: dict[tuple, int] = {}
        self._vectors: list[np.ndarray] = []
        self._end = 0
        self._buffer: Any = None

    def with_more(self, weights: Mapping[str, Weight]) -> DeviceWeights:
        """Return the matrices that are there, to which others of these weights may be added."""
        more = DeviceWeights(weights, self._gpu, self._limit)
        more._matrices = dict(self._matrices)
        return more

    def prepare(self, graphs: Iterable[Graph]) -> None:
        """Upload the weights of all nodes; those that multiply the same rows lie together."""
        nodes = [node for graph in graphs for node in graph.nodes]
        matrices = {
            name
            for node in nodes
            for name in node.weights.values()
            if isinstance(node.op, MATRICES)
        }
        self._total = sum(self._weights[name].nbytes for name in matrices)
        uses = Counter(name for node in nodes for name in node.weights.values())
        together: dict[tuple, list[str]] = {}
        for number, graph in enumerate(graphs):
            for node in graph.nodes:
                if isinstance(node.op, ops.MatMul) and uses[node.weights["weight"]] == 1:
                    key = number, node.inputs[0]
                    together.setdefault(key, []).append(node.weights["weight"])
        with Uploader(self._gpu, self._limit) as uploader:
            for group in together.values():
                names = [name for name in group if name not in self._matrices]
                if len(names) > 1:
                    weights = {name: self._weights[name] for name in names}
                    joined = uploader.joined(weights) or {}
                    self._matrices |= joined
                    self._tell(joined)
            for node in nodes:
                self._prepare(node, uploader)

    def _prepare(self, node: Node, uploader: Uploader) -> None:
        for role, name in node.weights.items():
            if isinstance(node.op, MATRICES):
                if name not in self._matrices:
                    self._matrices[name] = uploader.matrix(self._weights[name], name)
                    self._tell([name])
            elif self._key(node, role) not in self._places:
                self._add(self._key(node, role), self._values(node, role))
        if isinstance(node.op, ops.Permute) and (node.op.order,) not in self._places:
            self._add((node.op.order,), node.op.order.columns.view(np.float32))

    def _tell(self, names: Iterable[str]) -> None:
        self._done += sum(self._weights[name].nbytes for name in names)
        self._progress("Uploading weights", self._done, self._total)

    def _add(self, key: tuple, values: np.ndarray) -> None:
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        self._places[key] = self._end
        self._vectors.append(flat)
        self._end += flat.size

    def _key(self, node: Node, role: str) -> tuple:
        form = getattr(node.op, "form", ""), getattr(node.op, "offset", 0.0)
        return (node.weights[role], type(node.op).__name__, *form)

    def _values(self, node: Node, role: str) -> np.ndarray:
        name, op = node.weights[role], node.op
        values = floats(self._weights[name], name)
        if isinstance(op, ops.RMSNorm | ops.LayerNorm) and role == "weight":
            return offset_weight(values[0], op.offset)
        if isinstance(op, ops.Gain):
            return gain(values[0], op.form, name)
        return values

    def matrix(self, node: Node, role: str) -> WgpuMatrix:
        """Return a node's matrix."""
        return self._matrices[node.weights[role]]

    def vector(self, node: Node, role: str) -> int:
        """Return the offset of a node's vector in `buffer`."""
        return self._places[self._key(node, role)]

    def order(self, order: ColumnOrder) -> int:
        """Return the offset of an order's columns in `buffer`, as integers."""
        return self._places[(order,)]

    @property
    def buffer(self) -> Any:
        """Buffer of all vectors; whole once every node is prepared."""
        if self._buffer is None:
            self._buffer = self._gpu.uploaded(np.concatenate([*self._vectors, np.zeros(4, "<f4")]))
        return self._buffer
