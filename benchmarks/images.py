"""Rate of a tower of Qwen3-VL-8B's geometry: images a second, beside transformers in bfloat16.

    python benchmarks/images.py [--backend triton] [--images 32] [--side 512] [--layers 27]

Weights are random; an image's rows are those of the text model. Both have the patches given, so
that decoding and resizing are not counted. Without CUDA only cortiq's rate is measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import torch

from cortiq.backend import CompileOptions
from cortiq.models.synthetic import SyntheticCheckpoint, synthetic_weights
from cortiq.plugins import default_plugins
from cortiq.vision import qwen3_vl
from cortiq.vision.encode import images_rows
from cortiq.vision.image import PreparedImage

TEXT_WIDTH, DEEP, ROUNDS = 4096, (8, 16, 24), 3


def prepared(config: qwen3_vl.Config, count: int, side: int) -> tuple[list[PreparedImage], int]:
    """Return images of noise as the tower sees them, and its patches at most."""
    processor = qwen3_vl.Processor(config, {"min_pixels": 1024, "max_pixels": side * side})
    random = np.random.default_rng(1)
    images = [random.integers(0, 256, (side, side, 3), np.uint8) for _ in range(count)]
    return [processor.prepare(image) for image in images], processor.most


def seconds(run: Callable[[], object]) -> float:
    """Return the least time of some rounds, after one that compiles."""
    found = []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found[1:])


def ours(backend: str, layers: int, layout: str, count: int, side: int) -> float:
    """Return the time of all images."""
    deep = tuple(n for n in DEEP if n < layers)
    config = qwen3_vl.Config(
        text_width=TEXT_WIDTH, image_token=0, num_hidden_layers=layers,
        deepstack_visual_indexes=deep, sections=(24, 20, 20),
    )  # fmt: skip
    images, most = prepared(config, count, side)
    program = qwen3_vl.build(config, most)
    weights = synthetic_weights(SyntheticCheckpoint("qwen3_vl", 0, layout, {}), program, layout)
    made = default_plugins().backends[backend]
    with closing(made.compile(program, weights, CompileOptions())) as executable:
        return seconds(lambda: images_rows(executable, images))


def theirs(layers: int, count: int, side: int) -> float:
    """Return the time of all images in one batch of transformers' tower, in bfloat16 on CUDA."""
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    deep = [n for n in DEEP if n < layers]
    config = Qwen3VLVisionConfig(
        depth=layers, out_hidden_size=TEXT_WIDTH, deepstack_visual_indexes=deep
    )
    config._attn_implementation = "sdpa"
    model: Any = Qwen3VLVisionModel(config).to("cuda", torch.bfloat16).eval()
    grid = side // config.patch_size
    shape = count * grid * grid, 3 * config.temporal_patch_size * config.patch_size**2
    patches = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    sizes = torch.tensor([[1, grid, grid]] * count, device="cuda")

    def run() -> None:
        with torch.no_grad():
            model(patches, grid_thw=sizes)
        torch.cuda.synchronize()

    return seconds(run)


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--layers", type=int, default=27)
    parser.add_argument("--format", default="w8")
    options = parser.parse_args()
    count, side = options.images, options.side
    own = ours(options.backend, options.layers, options.format, count, side)
    print(
        f"{options.backend}: {count} images of {side}² in {own:.3f} s, {count / own:.1f} a second"
    )
    if torch.cuda.is_available():
        other = theirs(options.layers, count, side)
        print(
            f"transformers: {other:.3f} s, {count / other:.1f} a second; cortiq {other / own:.2f}"
        )


if __name__ == "__main__":
    main()
