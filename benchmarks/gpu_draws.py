"""Draws on a GPU: what each option costs by itself, and through the engine beside greedy text.

    python benchmarks/gpu_draws.py [--only kernels,engine] [--rows 1,16,128] [--model NAME]

`kernels` times captured answers over random logits, and compares what was drawn with
`cortiq.numerics.sampling.draw`. `engine` serves so many requests of `--tokens` tokens each, every
option after greedy ones in the same run, and prints tokens a second and the ratio.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "backends/triton"))
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from gpu_models import ours, seconds_of

from cortiq.backend import Argmax, Digest, Draw, DrawnLogit, Row, Top
from cortiq.backend.walk import Group
from cortiq.engine.engine import Engine
from cortiq.engine.request import make_request
from cortiq.engine.scheduler import EngineOptions
from cortiq.numerics import sampling
from cortiq.numerics.masks import mask_of
from cortiq.numerics.sampling import Sampling
from cortiq.options import GenerateOptions
from cortiq.tokenizer.tokenizer import byte_tokenizer
from cortiq_triton.asking import ask
from cortiq_triton.call import Counters
from cortiq_triton.decode import Captured
from cortiq_triton.draw_numbers import Stored
from cortiq_triton.step_answers import StepAnswers

DEVICE = "cuda:0"
VOCABULARY = 128256
HISTORY = 1000
BIAS = {100 * i: 0.5 for i in range(300)}
OPTIONS: dict[str, dict[str, Any]] = {
    "temperature 0.8": {"temperature": 0.8},
    "top-k 40": {"temperature": 0.8, "top_k": 40},
    "top-p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "min-p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "top-k 40, top-p 0.9": {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    "penalties, greedy": {"temperature": 0.0, "repetition_penalty": 1.3},
    "300 biases": {"temperature": 0.8, "logit_bias": BIAS},
    "everything": {
        "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3,
        "logit_bias": BIAS,
    },
}  # fmt: skip


def answers_of(rows: int, spread: float, wants: Callable[[int], tuple[Any, ...]]) -> Any:
    """Return answers over random logits, their run, and the histories."""
    run = SimpleNamespace(shared=SimpleNamespace(device=DEVICE, counters=Counters(DEVICE)))
    torch.manual_seed(rows)
    x = torch.randn(rows, VOCABULARY, device=DEVICE) * spread
    faults = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
    run.all = run.tail = Group(range(rows), None, (), faults, {"logits": x})
    run.drawn = torch.zeros(256, dtype=torch.int32, device=DEVICE)
    run.ids = torch.full((rows,), 5, dtype=torch.int32, device=DEVICE)
    log = torch.randint(0, 3000, (rows, HISTORY + 1), dtype=torch.int32, device=DEVICE)
    log[:, HISTORY] = 5
    held = {r: Stored(log[r].data_ptr(), HISTORY + 1) for r in range(rows)}
    batch = [Row(None, HISTORY, 5, wants(r)) for r in range(rows)]
    asked, arrays = ask(batch, held, VOCABULARY)
    made = StepAnswers(run, asked, arrays, 1 + HISTORY // 64)
    return made, batch, x, log


def compare(made: Any, batch: Any, x: Any, log: Any, rows: list[int]) -> str:
    """Compare what rows brought with the contract's functions."""
    words = made.packed.cpu().numpy()
    for r in rows:
        logits, seen = x[r].cpu().numpy(), log[r].tolist()
        found = made.read(words[r : r + 1], [batch[r].wants])[0]
        for want, value in found.items():
            if isinstance(want, Draw):
                right = sampling.draw(
                    logits, want.sampling, seen, HISTORY + 1, want.choice, mask=want.mask
                )
                if value != right:
                    return f"WRONG TOKEN {value}, not {right}, row {r}"
            if isinstance(want, Top):
                ids, values = sampling.top(logits, want.count)
                if not (np.array_equal(ids, value[0]) and np.array_equal(values, value[1])):
                    return f"WRONG TOP, row {r}"
                if value[2] != sampling.log_sum_exp(logits):
                    return f"WRONG LOGSUMEXP, row {r}"
            if isinstance(want, DrawnLogit):
                right = sampling.drawn_logit(logits, found[batch[r].wants[0]], want.scale)
                if tuple(value) != tuple(right):
                    return f"WRONG LOGIT {value}, not {right}, row {r}"
    return "right" if not words[:, 0].any() else "FAULTS"


def kinds() -> dict[str, Callable[[int], tuple[Any, ...]]]:
    """Return what rows want, by name."""
    mask = mask_of(range(0, VOCABULARY, 2), VOCABULARY)

    def drawing(options: dict[str, Any], **more: Any) -> Callable[[int], tuple[Any, ...]]:
        return lambda r: (Draw(Sampling(**options, seed=r), **more), Digest("logits"))

    found: dict[str, Callable[[int], tuple[Any, ...]]] = {
        "greedy": lambda r: (Argmax(), Digest("logits"))
    }
    found |= {name: drawing(options) for name, options in OPTIONS.items()}
    found["masked"] = drawing({"temperature": 0.8}, mask=mask)
    found["confidence"] = lambda r: (Argmax(), Digest("logits"), DrawnLogit())
    found["top 20"] = lambda r: (Argmax(), Digest("logits"), DrawnLogit(), Top(20))
    every = list(found.values())
    found["all of these"] = lambda r: every[r % len(every)](r)
    return found


def kernels(rows: list[int]) -> None:
    """Print microseconds of captured answers, and whether they are right."""
    for count in rows:
        for spread in (1.0, 3.0):
            print(f"{count} rows, logits of deviation {spread:g}", flush=True)
            for name, wants in kinds().items():
                made, batch, x, log = answers_of(count, spread, wants)
                made.launch()
                graph = Captured(made.launch, DEVICE)
                graph.replay()
                verdict = compare(made, batch, x, log, [*range(min(count, 2))])
                seconds = seconds_of(graph.replay, 30)
                print(f"  {name:22} {seconds * 1e6:8.1f} us  {verdict}", flush=True)
                del made, graph


def engine(rows: list[int], name: str, tokens: int) -> None:
    """Print tokens a second of each option through the engine, beside greedy text."""
    executable = ours(name, DEVICE)
    tokenizer = byte_tokenizer(VOCABULARY)
    ways: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, **OPTIONS}
    ways |= {"confidence": {"confidence": True}, "logprobs of 20": {"top": 20}}
    for count in rows:
        base = 0.0
        for way, options in ways.items():
            rates = [serve(executable, tokenizer, count, tokens, options) for _ in range(2)]
            base = base or rates[-1][0]
            rate, waited = rates[-1]
            print(f"{count:4} requests {way:22} {rate:8.1f} tokens/s {rate / base:6.3f}"
                  f"  waited {waited}", flush=True)  # fmt: skip
    executable.close()


def serve(
    executable: Any, tokenizer: Any, count: int, tokens: int, options: dict[str, Any]
) -> tuple[float, Any]:
    """Serve requests; return tokens a second from when all are decoding, and steps that waited."""
    from dataclasses import replace

    options = {"temperature": 0.0, **options}
    top = options.pop("top", None)
    bounds = EngineOptions(sequences=256)
    with Engine(executable, tokenizer, options=bounds) as on:
        running = []
        for number in range(count):
            ids = np.random.default_rng(number).integers(0, 32000, 16).tolist()
            chosen = GenerateOptions(max_tokens=tokens, seed=number, ignore_eos=True, **options)
            request = make_request(ids, chosen, executable.program, ())
            running.append(on.submit(replace(request, top_logprobs=top)))
        while any(s.generated < 4 for s in running):
            on.step()
        began, before = time.perf_counter(), sum(s.generated for s in running)
        while all(not s.done for s in running) and on.step():
            pass
        spent = time.perf_counter() - began
        made = sum(s.generated for s in running) - before
        on.run()
        for s in running:
            if s.error:
                raise s.error
        return made / spent, dict(running[0].stats.waited)


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="kernels,engine")
    parser.add_argument("--rows", default="1,16,128")
    parser.add_argument("--model", default="synthetic:llama3-8b?format=w8")
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    rows, only = [*map(int, given.rows.split(","))], given.only.split(",")
    if "kernels" in only:
        kernels(rows)
    if "engine" in only:
        engine(rows, given.model, given.tokens)


if __name__ == "__main__":
    main()
