"""Layers that the packages of skills and of masks take for attention."""

from __future__ import annotations

import pytest

from cortiq.ir.layers import LAYERS
from cortiq.ir.layers.basic import Layer
from cortiq.model.source import open_source
from cortiq.options import LoadOptions
from cortiq_masks.sites import layer_places
from cortiq_skills.donors import weights_of

ATTENTION = {"Attention", "LatentAttention", "CompressedAttention", "DifferentialAttention"}


@pytest.mark.parametrize(
    ("name", "rows"),
    [("tiny-llama", 1), ("mini-deepseek2", 1), ("mini-diffllama", 2), ("mini-deepseek_v4", 0)],
)
def test_every_attention_has_parts(name, rows):
    """`rows` heads make one row of those that `o` multiplies; grouped outputs have none."""
    program = open_source(f"synthetic:{name}?seed=1&format=f32", LoadOptions(context=32)).program
    held = [n for n in program.trunk.nodes if type(n.op).__name__ in ATTENTION]
    assert held
    grafted, places = weights_of(program, "attn", "all"), layer_places(program)
    assert {n.weights["o"] for n in held} <= set(grafted)
    assert set(grafted) <= {w for n in held for w in n.weights.values()}
    for number, node in enumerate(held):
        heads = node.op.heads // rows if rows else 0
        assert places[number].heads == heads
        assert places[number].o == (node.weights["o"] if rows else "")


def test_layers_with_rows_of_heads_attend():
    own = {c.__name__ for c in LAYERS if issubclass(c, Layer) and "head_rows" in vars(c)}
    assert own == ATTENTION - {"CompressedAttention"}
