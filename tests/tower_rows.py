"""A small tower of Qwen3-VL's kind, and its rows as batches have them."""

from __future__ import annotations

import numpy as np

from cortiq.backend import CompileOptions, Named
from cortiq.backend.row_runs import RowRun
from cortiq.backend.seam import compiled_on
from cortiq.ir.encoders import LAST
from cortiq.models.synthetic import SyntheticCheckpoint, synthetic_weights
from cortiq.plugins import default_plugins
from cortiq.vision import qwen3_vl
from cortiq.vision.tower import PATCH


def small_tower():
    config = qwen3_vl.Config(
        text_width=32, image_token=0, num_hidden_layers=2, hidden_size=48, intermediate_size=64,
        num_attention_heads=2, num_position_embeddings=64, deepstack_visual_indexes=(0,),
        sections=(24, 20, 20),
    )  # fmt: skip
    processor = qwen3_vl.Processor(config, {"min_pixels": 1024, "max_pixels": 1 << 16})
    program = qwen3_vl.build(config, processor.most)
    weights = synthetic_weights(SyntheticCheckpoint("qwen3_vl", 0, "w8", {}), program, "w8")
    return processor, program, weights


def compiled(tower, backend="reference", **options):
    _, program, weights = tower
    made = CompileOptions(**options)
    return compiled_on(default_plugins().backends[backend], program, weights, made)


def image(tower, side, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    return tower[0].prepare(pixels)


def patches(tower, state, size=64, seed=0):
    """A run of all patches of an image, which names all outputs."""
    (tile,) = image(tower, size, seed).tiles
    count = len(tile.patches)
    last = np.full(count, count - 1, np.int32)
    wants = tuple(Named(name) for name in tower[1].trunk.outputs)
    inputs = {PATCH: tile.patches, LAST: last, **tile.inputs}
    return RowRun(state, 0, [0] * count, [wants] * count, inputs)
