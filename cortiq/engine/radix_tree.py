"""A radix tree over token ids: a node is a prefix, known by its parent and its own ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Value = TypeVar("Value")
BLOCK = 512
"""Ids compared at a time."""


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common prefix of ids, in whatever kinds of sequence."""
    most = min(len(a), len(b))
    for start in range(0, most, BLOCK):
        stop = min(start + BLOCK, most)
        mine, other = list(a[start:stop]), list(b[start:stop])
        if mine != other:
            differs = (x != y for x, y in zip(mine, other, strict=True))
            return start + next(i for i, found in enumerate(differs) if found)
    return most


@dataclass(eq=False)
class RadixNode(Generic[Value]):
    """A prefix: its parent's ids and then its own.

    Attributes
    ----------
    depth : ids in all. value : what is kept for exactly this prefix.
    """

    ids: list[int]
    depth: int
    parent: RadixNode[Value] | None = None
    children: dict[int, RadixNode[Value]] = field(default_factory=dict)
    value: Value | None = None

    def below(self) -> Iterator[RadixNode[Value]]:
        """Yield this node and all under it that have a value."""
        stack = [self]
        while stack:
            node = stack.pop()
            stack += node.children.values()
            if node.value is not None:
                yield node


class RadixTree(Generic[Value]):
    """Values by the ids they were made of; ids are compared, nothing is hashed away."""

    def __init__(self) -> None:
        self.root: RadixNode[Value] = RadixNode([], 0)

    def insert(self, ids: Sequence[int], value: Value) -> RadixNode[Value]:
        """Insert a value at a prefix, replacing one that is there; return its node."""
        node, at = self.root, 0
        while at < len(ids):
            child = node.children.get(ids[at])
            if child is None:
                child = RadixNode(list(ids[at:]), len(ids), node)
                node.children[ids[at]] = child
            else:
                shared = common_prefix_length(child.ids, ids[at : at + len(child.ids)])
                if shared < len(child.ids):
                    child = self._split(child, shared)
            node, at = child, child.depth
        node.value = value
        return node

    def _split(self, node: RadixNode[Value], at: int) -> RadixNode[Value]:
        """Insert a node between a node and its parent, after `at` of the node's ids."""
        assert node.parent is not None
        upper = RadixNode(node.ids[:at], node.depth - len(node.ids) + at, node.parent)
        node.parent.children[node.ids[0]] = upper
        node.ids, node.parent = node.ids[at:], upper
        upper.children[node.ids[0]] = node
        return upper

    def match(self, ids: Sequence[int]) -> tuple[list[RadixNode[Value]], RadixNode[Value], int]:
        """Return the nodes with a value that are prefixes of `ids`, the longest last; the node
        under which everything has the longest common prefix with `ids`; and that prefix's length.
        """
        node = self.root
        whole: list[RadixNode[Value]] = []
        while True:
            child = node.children.get(ids[node.depth]) if node.depth < len(ids) else None
            if child is None:
                return whole, node, node.depth
            shared = common_prefix_length(child.ids, ids[node.depth : node.depth + len(child.ids)])
            if shared < len(child.ids):
                return whole, child, node.depth + shared
            node = child
            if node.value is not None:
                whole.append(node)

    def remove(self, node: RadixNode[Value]) -> None:
        """Remove a value, and every node that is then useless."""
        node.value = None
        while node.parent is not None and node.value is None and not node.children:
            del node.parent.children[node.ids[0]]
            node = node.parent
        self._join(node)

    @staticmethod
    def _join(node: RadixNode[Value]) -> None:
        """Merge a node without a value with its only child."""
        if node.parent is None or node.value is not None or len(node.children) != 1:
            return
        (child,) = node.children.values()
        child.ids, child.parent = node.ids + child.ids, node.parent
        node.parent.children[child.ids[0]] = child
