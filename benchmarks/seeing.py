"""Steps and prompts of a text model that is loaded to see, beside the same model of texts only.

    python benchmarks/seeing.py [--backend triton] [--layers 36] [--rounds 3]

The text model is Qwen3-VL-8B's in w8, its weights by formula; an image's rows are random, so that
no tower is counted. Requests go through the engine; digests of texts must be those without images.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from cortiq.backend import CompileOptions, Executable
from cortiq.engine.engine import Engine
from cortiq.engine.prompt_images import ImageSpan, PromptImages
from cortiq.engine.request import Request, make_request
from cortiq.ir.images import ImageRows, image_rows
from cortiq.models.bind import load_program
from cortiq.models.synthetic import SyntheticCheckpoint
from cortiq.numerics.rope import Sections
from cortiq.options import GenerateOptions
from cortiq.plugins import default_plugins
from cortiq.tokenizer import byte_tokenizer

WIDTH, CONTEXT, VOCABULARY, GRID = 4096, 2048, 151936, (16, 16)
CONFIG = {
    "model_type": "qwen3_vl_text", "vocab_size": VOCABULARY, "hidden_size": WIDTH,
    "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "rope_theta": 5e6, "tie_word_embeddings": False,
    "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6,
}  # fmt: skip
SEES = ImageRows(sections=Sections((24, 20, 20), interleaved=True), deep=3, width=WIDTH)


def loaded(backend: str, layers: int, sees: bool) -> Executable:
    """Compile the text model."""
    config = {**CONFIG, "num_hidden_layers": layers}
    checkpoint = SyntheticCheckpoint("qwen3-vl-8b", 0, "w8", config)
    made = load_program(checkpoint, images=SEES if sees else None)
    chosen = default_plugins().backends[backend]
    return chosen.compile(made.program, made.weights, CompileOptions())


def request(on: Executable, number: int, length: int, tokens: int, image: bool = False) -> Request:
    """Return a request of so many ids, an image's rows among them."""
    random = np.random.default_rng(number)
    ids = random.integers(0, 32000, length).tolist()
    options = GenerateOptions(max_tokens=tokens, ignore_eos=True, temperature=0)
    made = make_request(ids, options, on.program, ())
    given, count = image_rows(on.program), GRID[0] * GRID[1]
    if not given.supplies:
        return made
    rows = random.standard_normal((count, WIDTH * 4)).astype(np.float32)
    span = ImageSpan(tuple(range(8, 8 + count)), lambda: rows, f"{number:064x}", GRID)
    return replace(made, images=PromptImages(given, length, (span,) if image else ()))


def served(on: Executable, requests: Sequence[Request]) -> tuple[float, float, tuple[bytes, ...]]:
    """Return seconds until all have a token, seconds from then on, and the digests."""
    with Engine(on, byte_tokenizer(VOCABULARY)) as engine:
        start = time.perf_counter()
        made = [engine.submit(one) for one in requests]
        first = 0.0
        while engine.step():
            if not first and all(one.output.token_ids for one in made):
                first = time.perf_counter()
        end = time.perf_counter()
    for one in made:
        if one.error is not None:
            raise one.error
    return first - start, end - first, tuple(one.output.digest for one in made)


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    texts: dict[int, tuple[bytes, ...]] = {}
    for sees in (False, True):
        with closing(loaded(options.backend, options.layers, sees)) as on:
            for count, length, image in ((1, 128, 0), (32, 128, 0), (1, 300, 1), (4, 300, 1)):
                if image and not sees:
                    continue
                asked = [request(on, n, length, options.tokens, bool(image)) for n in range(count)]
                runs = [served(on, asked) for _ in range(2 + options.rounds)][2:]
                first, rest = min(run[0] for run in runs), min(run[1] for run in runs)
                (digests,) = {run[2] for run in runs}
                same = image or texts.setdefault(count, digests) == digests
                print(
                    f"{'sees' if sees else 'texts only'}: {count} of {length} ids"
                    f"{', an image each' if image else ''}: first token {first * 1e3:.1f} ms, then "
                    f"{count * (options.tokens - 1) / rest:.0f} tokens/s"
                    f"{'' if same else ', OTHER BITS'}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
