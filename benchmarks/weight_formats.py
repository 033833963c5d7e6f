"""Perplexity of weights in the formats that `cortiq` converts them to.

    python benchmarks/weight_formats.py [--models smollm2 ...] [--formats w8 ...] [--threads N]

Every matrix of a GGUF file is converted from the values of its codes, as if they came from a float
checkpoint: to the format everywhere (w8, w8b256, w16, w4-all), or as the recipe says (w4: tables
and heads in w8; w4-5 likewise). `-feedback` feeds errors back on a text of its own; `q4_k` and
`q4_k-5` have the layouts of w4 and w4-5, and codes that llama.cpp's search finds. The default
format is the fastest one that changes the perplexity of both models by at most 0.1% of that of
float32 weights and activations.
"""

from __future__ import annotations

import argparse
import math
import os
import pydoc_data.topics
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import q4_k_search

from cortiq.backend import CompileOptions
from cortiq.convert.calibration import calibration_ids, moments_of
from cortiq.convert.feedback import best_rows, feedback_of
from cortiq.convert.scratch import ScratchArrays
from cortiq.formats import fetch
from cortiq.model.score import score_ids
from cortiq.model.source import ModelSource, open_source
from cortiq.models.bind import layout_name
from cortiq.models.weight_rules import format_of_each
from cortiq.numerics.four_bits import BLOCKS
from cortiq.numerics.layouts import LAYOUTS, Weight
from cortiq.numerics.weights import SEARCHED, convert, target_layout, weight_values
from cortiq.options import LoadOptions, ScoreOptions
from cortiq_cpu.backend import CpuBackend

FLOAT32 = {"smollm2": 24.0829, "gemma3-270m": 18.5526}
"""Perplexity with float32 activations on the dequantised weights, by an independent program."""
FORMATS = (
    "w4", "w4-all", "w4-feedback", "q4_k", "w4-5", "w4-5-feedback", "q4_k-5", "w8", "w8b256", "w16",
)  # fmt: skip
RULES = {
    "w4-all": "w4", "w4-feedback": "w4", "q4_k": "w4", "w4-5-feedback": "w4-5", "q4_k-5": "w4-5",
}  # fmt: skip
"""Rules of the formats that are no rules themselves."""
LARGEST_CHANGE = 0.001
TEXT = Path("/usr/share/common-licenses/GPL-3")
SEARCHES = {"Q4_K": q4_k_search.q4_k, "Q4_1": q4_k_search.q4_1, "Q5_0": q4_k_search.q5_0}
SLICE = 1 << 20


def searched(weight: Weight, target: str, name: str) -> Weight:
    """Return a matrix in the layout of a format, with codes by llama.cpp's search."""
    layout, (rows, columns) = target_layout(target, weight.shape[1], name), weight.shape
    if layout.name not in SEARCHES:
        return convert(weight, target, name)
    step = max(1, SLICE // columns)
    raw = [
        SEARCHES[layout.name](weight_values(weight.rows(a, min(a + step, rows)), name))
        for a in range(0, rows, step)
    ]
    return Weight.from_bytes(layout, np.concatenate(raw), weight.shape)


def fed_back(source: ModelSource, formats: Mapping[str, str], tokens: int) -> dict[str, Weight]:
    """Return the searched matrices with errors fed back on the topics of Python's documentation."""
    text = "\n".join(pydoc_data.topics.topics.values())
    ids = calibration_ids(source.tokenizer.encode(text, add_bos=False), tokens, "topics")
    found = {}
    wanted = {name for name, target in formats.items() if target in SEARCHED}
    scratch = ScratchArrays()
    for held, moments in moments_of(source.program, source.weights, ids, wanted, scratch):
        feedback = feedback_of(moments, scratch)
        for name in held:
            weight = source.weights[name]
            layout = target_layout(formats[name], weight.shape[1]).name
            assert layout in BLOCKS
            raw = best_rows(layout, weight_values(weight, name), feedback)
            found[name] = Weight.from_bytes(LAYOUTS[layout], raw, weight.shape)
    return found


def converted(source: ModelSource, target: str, tokens: int) -> dict[str, Weight]:
    """Return all matrices in a format; "file": as they are."""
    if target == "file":
        return {}
    rule = RULES.get(target, target)
    formats = format_of_each(source.program, rule)
    if target == "w4-all":
        formats = dict.fromkeys(formats, "w4")
    found = fed_back(source, formats, tokens) if target.endswith("feedback") else {}
    for name in formats.keys() - found.keys():
        by_search = target.startswith("q4_k") and formats[name] in SEARCHED
        make = searched if by_search else convert
        found[name] = make(source.weights[name], formats[name], name)
    return found


def perplexity(
    source: ModelSource, made: Mapping[str, Weight], windows: int, threads: int
) -> tuple[float, float]:
    """Return (perplexity, processor seconds) with these matrices in place of the file's."""
    weights = {**source.weights, **made}
    program = source.program.with_layouts({n: layout_name(w) for n, w in weights.items()})
    executable = CpuBackend().compile(program, weights, CompileOptions(threads=threads))
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
    parser.add_argument("--tokens", type=int, default=4096, help="of the text for w4-feedback")
    chosen = parser.parse_args()
    for model in chosen.models:
        source = open_source(str(fetch.pull(model)), LoadOptions())
        for target in chosen.formats:
            made = converted(source, target, chosen.tokens)
            found, seconds = perplexity(source, made, chosen.windows, chosen.threads)
            size = sum({**source.weights, **made}[name].nbytes for name in source.weights)
            change = found / FLOAT32[model] - 1
            verdict = "within" if math.fabs(change) <= LARGEST_CHANGE else "beyond"
            print(
                f"{model:12} {target:11} perplexity {found:.4f} ({change:+.3%}, {verdict} 0.1%),"
                f" {size / 1e6:.2f} MB, {seconds:.0f} s of processor time",
                flush=True,
            )
        source.close()


if __name__ == "__main__":
    main()
