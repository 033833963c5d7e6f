"""A head of two levels: the function behind `--rewrite cluster_head`."""

from __future__ import annotations

from dataclasses import replace

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.safetensors import read_header
from cortiq.ir import Node, Program, WeightSpec
from cortiq.models.added_tensors import read_tensors
from cortiq.models.rewrite_arguments import as_facts, file_path, read_arguments
from cortiq.models.rewriting import Rewritten
from cortiq_skills.clusters import ClusterLogProbs
from cortiq_skills.notice import NOTICE
from cortiq_skills.rewriting import Weights

CLUSTERS = "lm_head.clusters.weight"


def cluster_head(program: Program, weights: Weights, argument: str) -> Rewritten:
    """Give log-probabilities of two levels in place of logits: of clusters, and within each."""
    values = read_arguments(argument, {"file": file_path}, {}, "cluster_head")
    trunk, there = program.trunk, read_header(values["file"]).tensors
    if not {"hidden", "logits"} <= set(trunk.outputs):
        raise UnsupportedError("has no head over its hidden rows", where="rewrite")
    if CLUSTERS in program.weights:
        raise UnsupportedError("has a head of two levels already", where="rewrite")
    (vocab,), (width,) = trunk.values["logits"].shape, trunk.values["hidden"].shape
    clusters = there[CLUSTERS].shape[0] if CLUSTERS in there and there[CLUSTERS].shape else 1
    given = read_tensors(values["file"], {CLUSTERS: (clusters, width)}, [CLUSTERS])
    if not clusters or vocab % clusters:
        what = f"has {clusters} clusters, which do not divide {vocab} ids"
        raise FormatError(what, where=str(values["file"]))
    op = ClusterLogProbs(clusters, vocab)
    head = next(node for node in trunk.nodes if "logits" in node.outputs)
    flat = tuple("logits.flat" if name == "logits" else name for name in head.outputs)
    nodes = [
        replace(head, name=f"{head.name}.flat", outputs=flat),
        Node("logits.clusters", op.product(width), ("hidden",), ("logits.clusters",),
             {"weight": CLUSTERS}),
        Node("logits", op, ("logits.clusters", "logits.flat"), ("logits",)),
    ]  # fmt: skip
    at = trunk.nodes.index(head)
    kinds = dict(zip(("logits.clusters",), op.product(width).infer(trunk.values["hidden"]),
                     strict=True))  # fmt: skip
    types = {**trunk.values, "logits.flat": trunk.values["logits"], **kinds}
    graph = replace(trunk, nodes=(*trunk.nodes[:at], *nodes, *trunk.nodes[at + 1 :]), values=types)
    specs = {**program.weights, CLUSTERS: WeightSpec((clusters, width))}
    made = replace(program, graphs={**program.graphs, "trunk": graph}, weights=specs)
    return Rewritten(made, {**weights, **given}, as_facts(values, ["file"]), (NOTICE,))
