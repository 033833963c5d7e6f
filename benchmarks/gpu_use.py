"""A model as people use it, for `benchmarks/gpu.py`: requests through the engine, beside the rows
of the same work handed to the executable alone.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import median
from typing import Any

import torch
from gpu_golden import MODEL, WANTS, completed, ids_of
from gpu_models import ours

from cortiq.backend import Batch, Drawn, Row
from cortiq.backend.row_runs import RowRun, RowRuns
from cortiq.engine.drafting import Draft, FixedDepth, Speculation, Task
from cortiq.engine.engine import Engine
from cortiq.engine.request import Request, make_request
from cortiq.engine.scheduler import EngineOptions
from cortiq.engine.sequence import Sequence as Running
from cortiq.options import GenerateOptions
from cortiq.serve.answer_grammar import json_grammar
from cortiq.serve.grammar import GrammarMasks, Grammars
from cortiq.tokenizer.tokenizer import byte_tokenizer
from cortiq_triton import compiled

DEVICE = "cuda:0"
BIAS = {100 * i: 0.5 for i in range(300)}
DRAWS: dict[str, tuple[float, dict[str, Any]]] = {
    "greedy": (1.0, {"temperature": 0.0}),
    "temperature 0.8": (0.95, {"temperature": 0.8}),
    "top-p 0.9, top-k 50": (0.95, {"temperature": 0.8, "top_p": 0.9, "top_k": 50}),
    "min-p 0.05": (0.95, {"temperature": 0.8, "min_p": 0.05}),
    "repetition penalty 1.1": (0.95, {"temperature": 0.0, "repetition_penalty": 1.1}),
    "300 biases": (0.95, {"temperature": 0.8, "logit_bias": BIAS}),
    "confidence": (0.95, {"temperature": 0.0, "confidence": True}),
    "log-probabilities of 20": (0.9, {"temperature": 0.0, "top_logprobs": 20}),
    "JSON schema": (0.85, {"temperature": 0.8, "schema": True}),
}
"""Ways to draw: what each has to reach of greedy text in the same run, and its options."""
SCHEMA = {
    "type": "array", "minItems": 400, "items": {
        "type": "object", "additionalProperties": False, "required": ["name", "size", "kind"],
        "properties": {
            "name": {"type": "string"}, "size": {"type": "integer"},
            "kind": {"enum": ["a", "b", "c"]},
        },
    },
}  # fmt: skip
"""A schema that no answer measured here comes to the end of."""
LOADS = ((128, 512, 128), (256, 512, 128), (256, 128, 512))
"""Requests, tokens of each prompt, tokens drawn for each."""
ALONE = 3
"""Requests of a load that are computed alone too, for their digests."""


class Use:
    """Requests on one executable.

    Attributes
    ----------
    executable, tokenizer : of the model.
    """

    def __init__(self, executable: Any) -> None:
        self.executable = executable
        self.tokenizer = byte_tokenizer(executable.vocabulary)

    def request(self, number: int, length: int, tokens: int, **options: Any) -> Request:
        """Return a request whose prompt depends on its number."""
        chance = random.Random(number)
        known = min(32000, self.executable.vocabulary)
        ids = [chance.randrange(known) for _ in range(length)]
        return self.of(ids, tokens, **options)

    def of(self, ids: Sequence[int], tokens: int, **options: Any) -> Request:
        """Return a request for exactly so many tokens."""
        top, masks = options.pop("top_logprobs", None), None
        if options.pop("schema", False):
            masks = GrammarMasks(self.grammars, self._matcher.deep_copy(), len(ids))
        chosen = GenerateOptions(max_tokens=tokens, ignore_eos=True, seed=1, **options)
        made = make_request(list(ids), chosen, self.executable.program, (), masks=masks)
        return replace(made, top_logprobs=top)

    @cached_property
    def grammars(self) -> Grammars:
        """Grammars over the model's ids."""
        return Grammars(self.tokenizer, self.executable.vocabulary, self.tokenizer.eos_ids)

    @cached_property
    def _matcher(self) -> Any:
        return self.grammars.compiled(json_grammar(SCHEMA, "schema").text, "schema")

    def serve(
        self, requests: Sequence[Request], speculation: Speculation | None = None
    ) -> tuple[float, list[Running], list[float]]:
        """Return seconds until all have ended, the sequences, and the seconds of each step."""
        steps = []
        with Engine(self.executable, self.tokenizer, options=EngineOptions()) as engine:
            start = before = time.perf_counter()
            made = [engine.submit(request, speculation=speculation) for request in requests]
            while engine.step():
                now = time.perf_counter()
                steps.append(now - before)
                before = now
            torch.cuda.synchronize()
            wall = time.perf_counter() - start
        for one in made:
            if one.error is not None:
                raise one.error
        return wall, made, steps

    def alone(self, count: int, length: int, tokens: int) -> tuple[float, float]:
        """Return seconds of the prompts of so many requests and of their steps, with nothing but
        the executable: prompts in its own `batch_rows`, steps one ahead.
        """
        states = [self.executable.open(length + tokens + 1) for _ in range(count)]
        torch.cuda.synchronize()
        start = time.perf_counter()
        tickets = [self.executable.forward(Batch(rows)) for rows in self._pieces(states, length)]
        for ticket in tickets:
            completed(ticket.result())
        middle = time.perf_counter()
        ticket = self.executable.forward(Batch([Row(s, length, 5, WANTS) for s in states]))
        for position in range(length + 1, length + tokens):
            rows = [Row(s, position, Drawn(i), WANTS) for i, s in enumerate(states)]
            after = self.executable.forward(Batch(rows))
            completed(ticket.result())
            ticket = after
        completed(ticket.result())
        end = time.perf_counter()
        for state in states:
            state.release()
        return middle - start, end - middle

    def _pieces(self, states: Sequence[Any], length: int) -> Iterator[Sequence[Row]]:
        """Yield the rows of all prompts, `batch_rows` of them at a time."""
        ids = ids_of(length, self.executable.vocabulary)
        rows = RowRuns([RowRun(state, 0, ids, [WANTS]) for state in states])
        most = self.executable.batch_rows
        yield from (rows[at : at + most] for at in range(0, len(rows), most))


def check(use: Use, requests: Sequence[Request], made: Sequence[Running]) -> str:
    """Compare a few of the sequences with the same requests alone."""
    for at in random.Random(7).sample(range(len(made)), min(ALONE, len(made))):
        (one,) = use.serve([requests[at]])[1]
        same = one.output.token_ids == made[at].output.token_ids
        if not same or one.output.digest != made[at].output.digest:
            return f"OTHER BITS in request {at}"
    return "digests as alone"


def prompts(use: Use) -> Iterator[tuple[str, str]]:
    """Measure prompts of one request."""
    for length in (2048, 8000):
        best = min(use.alone(1, length, 1)[0] for _ in range(3))
        wanted = use.of(ids_of(length, use.executable.vocabulary), 1)
        wall = min(use.serve([wanted])[0] for _ in range(3))
        yield (
            f"prompt of {length}",
            f"{length / wall:.0f} tokens/s, {best / wall:.0%} of the executable's "
            f"{length / best:.0f}",
        )


def decoding(use: Use, counts: Sequence[int] = (1, 16, 32, 128)) -> Iterator[tuple[str, str]]:
    """Measure short prompts and long answers, with every way to draw, beside greedy text."""
    for count in counts:
        tokens = 128 if count > 1 else 256
        prompt_seconds, seconds = use.alone(count, 16, tokens)
        best = count * tokens / (prompt_seconds + seconds)
        greedy = 0.0
        for name, (bar, options) in DRAWS.items():
            use.serve([use.request(0, 16, 8, **options)])
            requests = [use.request(i, 16, tokens, **options) for i in range(count)]
            before = compiled.COMPILATIONS.late
            wall, made, steps = use.serve(requests)
            rate = count * tokens / wall
            greedy = greedy or rate
            said = check(use, requests, made) if count > 1 and not options.get("schema") else ""
            waited = dict(made[0].stats.waited)
            late = compiled.COMPILATIONS.late - before
            yield (
                f"{count} requests, {name}",
                f"{rate:.0f} tokens/s, {rate / greedy:.3f} of greedy ({bar:g} asked"
                f"{'' if rate >= bar * greedy else ', SHORT'}), {rate / best:.0%} of the "
                f"executable alone; step {median(steps) * 1e3:.2f} ms; {said}"
                f"{f' waited {waited}' if waited else ''}{f' {late} compiled' if late else ''}",
            )


def loads(use: Use) -> Iterator[tuple[str, str]]:
    """Measure many requests at once, twice: shapes are captured in the first run."""
    for count, length, tokens in LOADS:
        prompt_seconds, seconds = use.alone(count, length, tokens)
        best = prompt_seconds + seconds
        for turn in ("first", "again"):
            requests = [use.request(i, length, tokens, temperature=0.0) for i in range(count)]
            wall, made, steps = use.serve(requests)
            said = check(use, requests, made) if turn == "again" else ""
            yield (
                f"{count} requests of {length} + {tokens}, {turn}",
                f"{wall:.2f} s, {count * tokens / wall:.0f} tokens/s out; the executable alone "
                f"{best:.2f} s (prompts {prompt_seconds:.2f}): {best / wall:.0%}; longest step "
                f"{max(steps) * 1e3:.0f} ms; {said}",
            )


def drafts(use: Use) -> Iterator[tuple[str, str]]:
    """Measure rounds that verify drafts: one that is always right, and one that never is."""
    for count in (1, 16):
        requests = [use.request(i, 16, 128, temperature=0.0) for i in range(count)]
        plain, made, _ = use.serve(requests)
        truth = {one.request.prompt: one.ids for one in made}
        for name, wrong in (("right", 0), ("wrong", 1)):
            speculation = Speculation(Planted(truth, wrong), lambda prompt: FixedDepth(4))
            use.serve(requests, speculation)
            wall, made, _ = use.serve(requests, speculation)
            rounds = sum(one.stats.drafts.as_dict()["drafters"]["planted"]["rounds"]
                         for one in made) / count  # fmt: skip
            same = all(one.ids == truth[one.request.prompt] for one in made)
            yield (
                f"{count} requests, four drafted ids, {name}",
                f"{plain / wall:.2f} × plain, {wall / rounds * 1e3:.2f} ms a round; "
                f"{'same ids' if same else 'OTHER IDS'}",
            )


class Planted:
    """Drafts the ids that a sequence will have, or others."""

    name = "planted"
    wants = ()

    def __init__(self, truth: dict[tuple[int, ...], list[int]], wrong: int) -> None:
        self.truth, self.wrong = truth, wrong
        self._ids: list[int] = []

    def open(self, task: Task) -> Planted:
        """Return a drafter for one sequence."""
        made = Planted(self.truth, self.wrong)
        made._ids = self.truth[task.prompt]
        return made

    def propose(self, ids: Sequence[int], count: int) -> Draft:
        """Propose the next ids."""
        return Draft(tuple(i ^ self.wrong for i in self._ids[len(ids) : len(ids) + count]))

    def observe(self, *given: Any) -> None:
        """Learn nothing."""

    def close(self) -> None:
        """Give up nothing."""


PARTS: dict[str, Callable[[Use], Iterator[tuple[str, str]]]] = {
    "prompts": prompts, "decoding": decoding, "drafts": drafts, "loads": loads,
}  # fmt: skip


def use(
    known: dict[str, float], only: str = "prompts,decoding,drafts,loads"
) -> Iterator[tuple[str, str]]:
    """Measure what a user gets, beside the executable alone."""
    start = time.perf_counter()
    executable = ours(MODEL, DEVICE)
    yield "8B in w8: weights made on the device", f"{time.perf_counter() - start:.1f} s"
    start = time.perf_counter()
    executable.warm()
    yield "kernels compiled, or read from the disk", f"{time.perf_counter() - start:.1f} s"
    made = Use(executable)
    gc.collect()
    gc.freeze()  # as `cortiq serve` does
    start = time.perf_counter()
    made.serve([made.request(0, 100, 4, temperature=0.0)])
    yield "first request", f"{time.perf_counter() - start:.2f} s"
    for part in only.split(","):
        yield from PARTS[part](made)
    shapes = len(executable.decoder.shapes), len(executable.decoder.mixed.shapes)
    yield (
        "kernels compiled while requests waited",
        f"{compiled.COMPILATIONS.late}; shapes of steps and of mixed batches {shapes}; "
        f"{torch.cuda.memory_reserved() / 2**30:.1f} GiB reserved",
    )
    executable.close()
