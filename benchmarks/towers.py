"""Time of a tower by op beside its bound: SigLIP base at 224², or another geometry.

    python benchmarks/towers.py [--formats w16 w8] [--rounds N] [--isa NAME]

One thread; weights by formula. The bound is all products at the rate that the fastest of the
matrices reaches, attention's too, and the bytes of weights and keys at memory's rate.
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing

import numpy as np

from cortiq.backend import CompileOptions, Executable
from cortiq.ir import Program
from cortiq.ir.encoders import PLACE, ROWS, SQUARE
from cortiq.models.synthetic import SyntheticCheckpoint, synthetic_weights
from cortiq.vision.image import Tile
from cortiq.vision.passes import tiles_made
from cortiq.vision.siglip import SiglipConfig, siglip_tower
from cortiq_cpu.backend import CpuBackend
from cortiq_cpu.profile import OpTotal

TEXT_WIDTH = 768
LINES = 12


def tower(config: SiglipConfig) -> Program:
    """Return a tower and a matrix for each of its rows."""
    made = siglip_tower(config, "siglip", config.side**2)
    square = made.builder.input(SQUARE, (config.hidden_size,), "f32")
    made.linear(square, ROWS, "projector", (config.hidden_size, config.text_width), biased=False)
    return made.program()


def drawn(config: SiglipConfig) -> Tile:
    """Return an image of noise."""
    count = config.side**2
    patches = np.random.default_rng(1).standard_normal((count, config.patch_width))
    places = {PLACE: np.arange(count, dtype=np.int32)}
    return Tile(patches.astype(np.float32), places, np.arange(count)[:, None])


def measured(config: SiglipConfig, layout: str, rounds: int, isa: str | None) -> None:
    """Print the least time of an image, its ops, and the share of the bound."""
    program, tile = tower(config), drawn(config)
    weights = synthetic_weights(SyntheticCheckpoint("siglip", 0, layout, {}), program, layout)
    extra = {"profile": True} | ({"isa": isa} if isa else {})
    options = CompileOptions(threads=1, extra=extra)
    with closing(CpuBackend().compile(program, weights, options)) as made:
        whole = 1e3 * min(timed(made, tile) for _ in range(rounds))
        made.profile.start()
        for _ in range(rounds):
            tiles_made(made, [tile])
        read = made.profile.rates.nbytes / 1e3
        ops = [Spent(name, total, rounds) for name, total in made.profile.totals.items()]
    multiplies = max(op.products / op.ms for op in ops if op.name.startswith("MatMul"))
    products = sum(op.products for op in ops) / multiplies
    moved = sum(op.nbytes for op in ops if op.products) / read
    spent = sum(op.ms for op in ops)
    print(f"{layout}: {whole:.1f} ms, in ops {spent:.1f}; products at {multiplies / 1e6:.0f} G/s "
          f"{products:.1f}, weights and keys at {read / 1e6:.1f} GB/s {moved:.1f}")  # fmt: skip
    for op in sorted(ops, key=lambda op: -op.ms)[:LINES]:
        rates = f"{op.products / op.ms / 1e6:6.0f} G/s {op.nbytes / op.ms / 1e6:6.1f} GB/s"
        print(f"  {op.name:26} {op.ms:7.2f} ms {op.ms / spent:4.0%} {rates}")


class Spent:
    """Time and costs of an op in one image, by the least time of a call."""

    def __init__(self, name: str, total: OpTotal, rounds: int) -> None:
        self.name, self.ms = name, total.least * total.calls / rounds / 1e6
        self.products, self.nbytes = total.products / rounds, total.nbytes / rounds


def timed(made: Executable, tile: Tile) -> float:
    """Return the processor time of an image."""
    start = time.process_time()
    tiles_made(made, [tile])
    return time.process_time() - start


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", nargs="*", default=["w16", "w8"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--isa")
    options = parser.parse_args()
    config = SiglipConfig(text_width=TEXT_WIDTH, image_token=0)
    for layout in options.formats:
        measured(config, layout, options.rounds, options.isa)


if __name__ == "__main__":
    main()
