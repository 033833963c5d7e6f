"""`ClusterLogProbs`: log-probabilities of ids, of their clusters and within these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.backend import Kernel, OperatorExample
from cortiq.domains import Count, Relation
from cortiq.ir import Type
from cortiq.ir.layers.basic import Linear
from cortiq.ir.op import Op, expect
from cortiq.numerics.contract import F32, Floats, snap
from cortiq.numerics.scalar import exp, log
from cortiq.numerics.sums import canonical_sum

NAME = "clusters"
LOWEST = F32(-(2.0**40))
"""The smallest log-probability."""


@dataclass(frozen=True)
class ClusterLogProbs(Op):
    """Log-probabilities of two levels: f32[clusters], f32[vocab] → f32[vocab].

    Ids are in clusters of equally many neighbours. The first input scores the clusters, the second
    the ids: an id's log-probability is that of its cluster and its own within it
    (`log_probabilities`).
    """

    clusters: Count
    vocab: Count
    relations = (
        Relation(
            ("clusters", "vocab"), "clusters are equally large",
            lambda op: op.vocab % op.clusters == 0,
        ),
    )  # fmt: skip

    def product(self, width: int) -> Linear:
        """Return the layer that scores the clusters from hidden rows of a width."""
        return Linear(width, self.clusters)

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Require the scores of clusters and of ids."""
        wanted = (Type((self.clusters,)), Type((self.vocab,)))
        expect(inputs == wanted, f"{self.kind} takes {wanted}, got {inputs}")
        return inputs[1:]


def log_probabilities(op: ClusterLogProbs, clusters: Floats, ids: Floats) -> Floats:
    """Compute rows of both scores by the definition, float32 [rows, vocab].

    lse(x) = RN(m + log(canonical_sum(exp(RN(x − m))))), m = max x. Of cluster c: shift =
    RN(RN(s[c] − lse(s)) − lse(ids of c)). out[v] = max(RN(ids[v] + shift), −2⁴⁰); snap.
    """
    parts = ids.reshape(len(ids), op.clusters, -1)
    shift = (clusters - _log_sum(clusters)) - _log_sum(parts)[..., 0]
    found = np.maximum(parts + shift[..., None], LOWEST)
    return snap(found).reshape(ids.shape)


def _log_sum(x: Floats) -> Floats:
    """Return the logarithm of the sum of powers over the last axis, which stays with size 1."""
    highest = x.max(axis=-1, keepdims=True)
    return highest + log(canonical_sum(exp(x - highest)))[..., None]


EXAMPLES = tuple(
    OperatorExample(op, (Type((op.clusters,)), Type((op.vocab,))))
    for op in (ClusterLogProbs(1, 5), ClusterLogProbs(3, 21), ClusterLogProbs(2, 1200))
)


def kernels() -> Iterator[Kernel]:
    """Yield the definition, and a kernel for cpu where that is installed."""
    yield Kernel("reference", ClusterLogProbs, _computed, NAME, EXAMPLES)
    try:
        from cortiq_cpu.host_kernel import HostKernel
    except ImportError:
        return
    yield Kernel("cpu", ClusterLogProbs, HostKernel(log_probabilities).native, NAME)


def _computed(call: Any, clusters: Floats, ids: Floats) -> Floats:
    return log_probabilities(call.op, clusters, ids)
