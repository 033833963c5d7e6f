"""Sizes that no model has: a corrupt file must not make us build graphs and tables for minutes."""

from __future__ import annotations

MAX_LAYERS, MAX_HEAD, MAX_WIDTH = 4096, 1 << 16, 1 << 18
"""Layers, elements of a head, and of a row or all heads, far above any model's: tables grow so."""
LARGEST = {
    "num_hidden_layers": MAX_LAYERS,
    "altup_num_inputs": 64,
    "spatial_merge_size": 8,
    "attention_context_left": 1 << 10,
}
"""Fields by which graphs and their tables grow, and the largest value of each."""
