"""Cost of sparse attention on the CPU beside attention to every key, after a long prompt.

One layer of the geometry of GLM 5's attention (or of the heads given), with an indexer and without,
on the same program, weights by formula: processor time of the attention's primitives (the latent
attention over its cache, and the scores and the choice of keys), in turn, the least of some rounds.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from cortiq.backend import Batch, CompileOptions, Named, Row
from cortiq.ir import Builder, ops
from cortiq.ir.graph import Program
from cortiq_cpu.backend import CpuBackend

LATENT, ROTARY = 512, 64


def attention_over(heads: int, index_heads: int, dim: int, top: int, context: int) -> Program:
    """Return latent attention to chosen keys, or with a top of 0 to all, of rows that are given."""
    b = Builder(context=context)
    b.input("token")
    position = b.input("position")
    width = LATENT + ROTARY

    def coded(name: str, rows: int, columns: int):
        value = b.input(name, (rows, columns), "f32")
        return b.add(ops.Quantise(), value, name=f"{name}.quantised")

    stored = coded("k", 1, width), coded("v", 1, LATENT)
    b.add_node(ops.StoreKV(1, width, LATENT), *stored, name="store", slots={"kv": "kv"})
    chosen = []
    if top:
        slots = {"kv": "index"}
        key = coded("index_k", 1, dim)
        b.add_node(ops.StoreKV(1, dim, 0), key, name="index_store", slots=slots)
        weights = b.input("index_w", (index_heads,), "f32")
        query = coded("index_q", index_heads, dim)
        op = ops.ChooseKeys(index_heads, dim, top)
        chosen = [b.add(op, query, position, weights, name="keys", slots=slots)]
    attend = ops.Attend(heads, 1, width, LATENT, width**-0.5, block=1 if top else 0)
    b.add(attend, coded("q", heads, width), position, *chosen, name="y", slots={"kv": "kv"})
    return b.program(("y",))


def main() -> None:
    """Print processor seconds of a step at the end of the prompt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--index-heads", type=int, default=32)
    parser.add_argument("--index-dim", type=int, default=128)
    parser.add_argument("--top", type=int, default=2048)
    parser.add_argument("--positions", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rng, least = np.random.default_rng(0), {}
    steps = {}
    for name, top in (("every key", 0), ("chosen keys", options.top)):
        program = attention_over(
            options.heads, options.index_heads, options.index_dim, top, options.positions + 64
        )
        executable = CpuBackend().compile(program, {}, CompileOptions(threads=1))
        state = executable.open(options.positions + 64)
        shapes = {n: program.trunk.values[n].shape for n in program.trunk.inputs}
        shapes = {n: shape for n, shape in shapes.items() if n not in ("token", "position")}

        queries = {n: np.zeros(s, np.float32) for n, s in shapes.items() if n[-1] in "qw"}

        def fed(count: int, executable=executable, state=state, shapes=shapes, queries=queries):
            start, rows = state.length(), []
            for i in range(count):
                last = count == 1
                given = {
                    n: rng.standard_normal(s, np.float32) if last or n not in queries
                    else queries[n] for n, s in shapes.items()
                }  # fmt: skip
                rows.append(Row(state, start + i, 0, (Named("y"),) if last else (), given))
            begun = time.process_time()
            executable.forward(Batch(rows)).result()
            return time.process_time() - begun

        while state.length() < options.positions:
            fed(min(512, options.positions - state.length()))
        steps[name] = fed
    for _ in range(options.rounds):
        for name, fed in steps.items():
            least[name] = min(least.get(name, 9e9), fed(1))
    ratio = least["chosen keys"] / least["every key"]
    for name, seconds in least.items():
        print(f"{name}: {1e3 * seconds:.1f} ms")
    print(f"ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
