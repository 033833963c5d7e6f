"""Cost of sparse attention beside attention to every key, after a long prompt.

    python benchmarks/sparse_attention.py [--backend triton] [--heads 64] [--positions 32768]

One layer of the geometry of GLM 5's attention (or of the heads given), with an indexer and without,
on the same program, weights by formula: processor time of the attention's primitives (the latent
attention over its cache, and the scores and the choice of keys), in turn, the least of some rounds.
On CUDA it is the time of the device's kernels.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from cortiq.backend import Batch, CompileOptions, Executable, Named, Row
from cortiq.ir import Builder, ops
from cortiq.ir.graph import Program
from cortiq.plugins import default_plugins

LATENT, ROTARY, NEAR = 512, 64, 128


def attention_over(
    heads: int, index_heads: int, dim: int, top: int, context: int, every: int = 1
) -> Program:
    """Return latent attention to chosen keys, or with a top of 0 to all, of rows that are given.

    Parameters
    ----------
    every : of how many keys one can be chosen; then the last `NEAR` keys are seen, too.
    """
    b = Builder(context=context)
    b.input("token")
    position = b.input("position")
    width = LATENT + ROTARY

    def coded(name: str, rows: int, columns: int) -> str:
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
        op = ops.ChooseKeys(index_heads, dim, top, every)
        chosen = [b.add(op, query, position, weights, name="keys", slots=slots)]
    attend = ops.Attend(heads, 1, width, LATENT, width**-0.5, block=1 if top else 0)
    query, slots = coded("q", heads, width), {"kv": "kv"}
    if not top or every == 1:
        b.add(attend, query, position, *chosen, name="y", slots=slots)
        return b.program(("y",))
    far = b.add(attend, query, position, *chosen, name="far", slots=slots)
    op = ops.Attend(heads, 1, width, LATENT, width**-0.5, window=NEAR)
    b.add(ops.Add(), far, b.add(op, query, position, name="near", slots=slots), name="y")
    return b.program(("y",))


class Steps:
    """One sequence of a program whose inputs are drawn; only the last row's output is asked for."""

    def __init__(self, executable: Executable, capacity: int) -> None:
        self.executable, self.state = executable, executable.open(capacity)
        inputs = executable.program.trunk.inputs
        values = executable.program.trunk.values
        self.shapes = {n: values[n].shape for n in inputs if n not in ("token", "position")}
        self.queries = {n: np.zeros(s, np.float32) for n, s in self.shapes.items() if n[-1] in "qw"}
        self.rng = np.random.default_rng(0)

    def fill(self, positions: int) -> None:
        """Feed rows until there are so many positions."""
        while self.state.length() < positions:
            self.fed(min(512, positions - self.state.length()))

    def fed(self, count: int) -> float:
        """Feed rows, a single one with an answer; return seconds of the processor."""
        start, last = self.state.length(), count == 1
        rows = []
        for i in range(count):
            given = {
                n: self.rng.standard_normal(s, np.float32)
                if last or n not in self.queries
                else self.queries[n]
                for n, s in self.shapes.items()
            }
            rows.append(Row(self.state, start + i, 0, (Named("y"),) if last else (), given))
        begun = time.process_time()
        self.executable.forward(Batch(rows)).result()
        return time.process_time() - begun


def kernel_seconds(steps: Steps) -> float:
    """Return the seconds that the device's kernels take for a step, and print each."""
    from gpu_models import kernel_times

    found = [each for each in kernel_times(lambda: steps.fed(1)) if not each[0].startswith("Mem")]
    for name, microseconds, count in found[:8]:
        print(f"  {microseconds:8.1f} us, {count} x {name[:60]}")
    return 1e-6 * sum(microseconds for _, microseconds, _ in found)


def main() -> None:
    """Print seconds of a step at the end of the prompt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--index-heads", type=int, default=32)
    parser.add_argument("--index-dim", type=int, default=128)
    parser.add_argument("--top", type=int, default=2048)
    parser.add_argument("--positions", type=int, default=32768)
    parser.add_argument("--every", type=int, default=1, help="4: as DeepSeek V4's entries")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backend", default="cpu", help="cpu or triton")
    options = parser.parse_args()
    least: dict[str, float] = {}
    steps: dict[str, Steps] = {}
    for name, top in (("every key", 0), ("chosen keys", options.top)):
        program = attention_over(
            options.heads, options.index_heads, options.index_dim, top, options.positions + 64,
            options.every,
        )  # fmt: skip
        backend = default_plugins().backends[options.backend]
        executable = backend.compile(program, {}, CompileOptions(threads=1))
        steps[name] = Steps(executable, options.positions + 64)
        steps[name].fill(options.positions)
    for _ in range(options.rounds):
        for name, one in steps.items():
            spent = one.fed(1) if options.backend == "cpu" else kernel_seconds(one)
            least[name] = min(least.get(name, 9e9), spent)
    ratio = least["chosen keys"] / least["every key"]
    for name, seconds in least.items():
        print(f"{name}: {1e3 * seconds:.3f} ms")
    print(f"ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
