"""Rate of a tower of Qwen3-VL-8B's geometry: images a second, beside transformers in bfloat16.

    python benchmarks/images.py [--backend triton] [--images 32] [--side 512] [--layers 27]

Weights are random; an image's rows are those of the text model. Both have the patches given, so
that decoding and resizing are not counted. Both run in turns, and their median times are compared.
Without CUDA only cortiq's rate is measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from statistics import median
from typing import Any

import numpy as np
import torch

from cortiq.backend import CompileOptions
from cortiq.models.synthetic import SyntheticCheckpoint, synthetic_weights
from cortiq.plugins import default_plugins
from cortiq.vision import qwen3_vl
from cortiq.vision.encode import images_rows
from cortiq.vision.image import PreparedImage

TEXT_WIDTH, DEEP = 4096, (8, 16, 24)


def prepared(config: qwen3_vl.Config, count: int, side: int) -> tuple[list[PreparedImage], int]:
    """Return images of noise as the tower sees them, and its patches at most."""
    processor = qwen3_vl.Processor(config, {"min_pixels": 1024, "max_pixels": side * side})
    random = np.random.default_rng(1)
    images = [random.integers(0, 256, (side, side, 3), np.uint8) for _ in range(count)]
    return [processor.prepare(image) for image in images], processor.most


Run = Callable[[], object]


def measured(runs: list[Run], rounds: int) -> list[list[float]]:
    """Return the times of runs in rounds, in turns, after one that compiles."""
    found: list[list[float]] = [[] for _ in runs]
    for number in range(1 + rounds):
        for times, run in zip(found, runs, strict=True):
            start = time.perf_counter()
            run()
            if number:
                times.append(time.perf_counter() - start)
    return found


def ours(stack: ExitStack, options: argparse.Namespace) -> Run:
    """Return what computes all images."""
    deep = tuple(n for n in DEEP if n < options.layers)
    config = qwen3_vl.Config(
        text_width=TEXT_WIDTH, image_token=0, num_hidden_layers=options.layers,
        deepstack_visual_indexes=deep, sections=(24, 20, 20),
    )  # fmt: skip
    images, most = prepared(config, options.images, options.side)
    program, layout = qwen3_vl.build(config, most), options.format
    weights = synthetic_weights(SyntheticCheckpoint("qwen3_vl", 0, layout, {}), program, layout)
    made = default_plugins().backends[options.backend]
    executable = stack.enter_context(closing(made.compile(program, weights, CompileOptions())))
    return lambda: images_rows(executable, images)


def theirs(options: argparse.Namespace) -> Run:
    """Return what computes all images in one batch of transformers' tower, in bfloat16 on CUDA."""
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    count, deep = options.images, [n for n in DEEP if n < options.layers]
    config = Qwen3VLVisionConfig(
        depth=options.layers, out_hidden_size=TEXT_WIDTH, deepstack_visual_indexes=deep
    )
    config._attn_implementation = "sdpa"
    model: Any = Qwen3VLVisionModel(config).to("cuda", torch.bfloat16).eval()
    grid = options.side // config.patch_size
    shape = count * grid * grid, 3 * config.temporal_patch_size * config.patch_size**2
    patches = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    sizes = torch.tensor([[1, grid, grid]] * count, device="cuda")

    def run() -> None:
        with torch.no_grad():
            model(patches, grid_thw=sizes)
        torch.cuda.synchronize()

    return run


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--layers", type=int, default=27)
    parser.add_argument("--format", default="w8")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    with ExitStack() as stack:
        runs = {options.backend: ours(stack, options)}
        if torch.cuda.is_available():
            runs["transformers"] = theirs(options)
        found = measured([*runs.values()], options.rounds)
    middle = [median(times) for times in found]
    for name, times, half in zip(runs, found, middle, strict=True):
        print(
            f"{name}: {options.images} images of {options.side}² in {half:.3f} s "
            f"({min(times):.3f} to {max(times):.3f}), {options.images / half:.1f} a second"
        )
    if len(middle) == 2:
        print(f"cortiq {middle[1] / middle[0]:.2f}")


if __name__ == "__main__":
    main()
