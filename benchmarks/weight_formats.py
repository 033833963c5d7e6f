"""Perplexity of float weights in the formats that `cortiq` converts them to.

    python benchmarks/weight_formats.py [--models smollm2 ...] [--formats w8 ...] [--threads N]

Every matrix of a GGUF file is dequantised to float32, as if it came from a float checkpoint, and
converted. The default format is the fastest one that changes the perplexity of both models by at
most 0.1% of that of float32 weights and activations.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from cortiq.backend import CompileOptions
from cortiq.formats import fetch
from cortiq.model.score import score_ids
from cortiq.model.source import ModelSource, open_source
from cortiq.models.bind import layout_name, matrix_names
from cortiq.numerics.dequantise import dequantise_codes
from cortiq.numerics.layouts import Weight, decode
from cortiq.numerics.weights import convert
from cortiq.options import LoadOptions, ScoreOptions
from cortiq_reference.backend import ReferenceBackend

FLOAT32 = {"smollm2": 24.0829, "gemma3-270m": 18.5526}
"""Perplexity with float32 activations on the dequantised weights, by an independent program."""
FORMATS = ("w8", "w8b256", "w16")
LARGEST_CHANGE = 0.001
TEXT = Path("/usr/share/common-licenses/GPL-3")


def converted(weight: Weight, name: str, target: str) -> Weight:
    """Return a quantised matrix as the conversion of its values."""
    return convert(Weight.from_floats(dequantise_codes(decode(weight, name))), target, name)


def perplexity(source: ModelSource, target: str, windows: int, threads: int) -> tuple[float, float]:
    """Return (perplexity, processor seconds) with all matrices in a format; "file": as they are."""
    weights = dict(source.weights)
    if target != "file":
        for name in matrix_names(source.program):
            weights[name] = converted(weights[name], name, target)
    program = source.program.with_layouts({n: layout_name(w) for n, w in weights.items()})
    executable = ReferenceBackend().compile(program, weights, CompileOptions(threads=threads))
    ids = source.tokenizer.encode(TEXT.read_text(), add_bos=False)
    before = os.times()
    score = score_ids(executable, source.tokenizer, ids, ScoreOptions(window=512, windows=windows))
    after = os.times()
    executable.close()
    return score.perplexity, after.user + after.system - before.user - before.system


def main() -> None:
    """Print one line a model and format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(FLOAT32))
    parser.add_argument("--formats", nargs="+", default=list(FORMATS))
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--threads", type=int, default=0)
    chosen = parser.parse_args()
    for model in chosen.models:
        source = open_source(str(fetch.pull(model)), LoadOptions())
        for target in chosen.formats:
            found, seconds = perplexity(source, target, chosen.windows, chosen.threads)
            change = found / FLOAT32[model] - 1
            verdict = "within" if math.fabs(change) <= LARGEST_CHANGE else "beyond"
            print(
                f"{model:12} {target:7} perplexity {found:.4f} ({change:+.3%}, {verdict} 0.1%),"
                f" {seconds:.0f} s of processor time",
                flush=True,
            )
        source.close()


if __name__ == "__main__":
    main()
