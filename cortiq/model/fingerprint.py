"""The fingerprint: a hash over everything that decides the bits, the prompt aside."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from cortiq.engine.overlay import ChosenOverlay
from cortiq.ir import Node, Op, Program
from cortiq.ir.heads import HEAD_FACTS, KEPT_ROWS, RECALLED
from cortiq.ir.images import CROSS, image_rows
from cortiq.models.adapters import FACT as ADAPTERS
from cortiq.models.build import IGNORED_KEYS
from cortiq.models.rewriting import REWRITES
from cortiq.models.weight_rules import WEIGHT_RULE
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq.numerics.rope import RopeTable
from cortiq.options import GenerateOptions, specs

DRAWING_ONLY = frozenset({"top_k", "top_p", "min_p", "seed", "choice"})
"""Options that decide nothing at temperature 0."""


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hex, of the facts as JSON with sorted keys and no spaces."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def model_facts(program: Program, model_hash: str) -> dict[str, Any]:
    """Return the facts that decide the logits of given token ids.

    The contract's version, the hash of the model's files, every weight's layout (a `weight_format`
    shows there) and the rule that converted them from codes, the declared context and the rotary
    tables fixed with it, keys of the configuration that were ignored by request, hashes and scales
    of merged adapters, and what packages rewrote. All of it is the trunk's: what drafts decides
    nothing.
    """
    names = (IGNORED_KEYS, WEIGHT_RULE, ADAPTERS, REWRITES)
    asked = {fact: program.facts.get(fact) for fact in names}
    own = {name for node in _own_nodes(program) for name in node.weights.values()}
    return {
        "contract": CONTRACT_VERSION,
        "model": model_hash,
        "layouts": {n: weight.layout for n, weight in program.weights.items() if n in own},
        "context": program.context,
        "rope": sorted({repr(table) for table in _rope_tables(program)}),
        **{fact: value for fact, value in asked.items() if value},
    }


def node_counts(program: Program, placement: Mapping[str, str]) -> dict[str, int]:
    """Count the nodes that each backend computes, but for those that draft."""
    drafts = _drafting(program)
    return dict(Counter(home for node, home in placement.items() if not node.startswith(drafts)))


def _drafting(program: Program) -> tuple[str, ...]:
    """Return the beginnings of the names of nodes that draft, those in the trunk included."""
    heads = [program.facts[fact] for fact in HEAD_FACTS if fact in program.facts]
    entries = [f"{entry}." for head in heads for entry in head.entries]
    return (*entries, KEPT_ROWS, RECALLED) if heads else ()


def _own_nodes(program: Program) -> list[Node]:
    """Return the nodes of the trunk that its tokens follow from, those of a text."""
    drafts = _drafting(program)
    own = [node for node in program.trunk.nodes if not node.name.startswith(drafts)]
    if not image_rows(program).tile:
        return own
    return [node for node in own if CROSS not in node.name.split(".")]


def _rope_tables(program: Program) -> list[RopeTable]:
    """Return the tables of the trunk's operators, and of those that they are made from."""
    ops, tables = [node.op for node in _own_nodes(program)], []
    while ops:
        op = ops.pop()
        values = [getattr(op, f.name) for f in dataclasses.fields(op)]  # type: ignore[arg-type]
        ops += [value for value in values if isinstance(value, Op)]
        tables += [value for value in values if isinstance(value, RopeTable)]
    return tables


def drawing_facts(options: GenerateOptions) -> dict[str, Any]:
    """Return the options that decide a token, given its logits; the options have a seed."""
    names = {name for name, spec in specs(GenerateOptions).items() if spec.bits}
    if options.temperature == 0.0:
        names -= DRAWING_ONLY
    facts = {name: getattr(options, name) for name in names}
    bias = sorted((options.logit_bias or {}).items())
    return facts | {"logit_bias": bias}


def adapter_facts(overlay: ChosenOverlay | None) -> dict[str, Any]:
    """Return what decides the bits of a request's adapter; nothing without one."""
    return {} if overlay is None else {"adapter": [overlay.sha256, overlay.scale]}
