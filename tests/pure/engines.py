"""Engines on tiny models, requests for them, and drafters of every honesty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from cortiq.backend import Batch, CompileOptions, Executable, OptionalCapabilities
from cortiq.engine.drafting import Draft, FixedDepth, Speculation, Task
from cortiq.engine.engine import Engine
from cortiq.engine.request import Request, make_request
from cortiq.engine.scheduler import EngineOptions
from cortiq.engine.sequence import Sequence as Running
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.options import GenerateOptions
from cortiq.tokenizer.tokenizer import byte_tokenizer
from cortiq_reference.backend import ReferenceBackend

TOKENIZER = byte_tokenizer(320)
GREEDY: dict[str, Any] = {"seed": 0}
SEEDED = {"temperature": 1.2, "seed": 11}
PENALISED = {"temperature": 0.7, "seed": 5, "repetition_penalty": 1.4, "frequency_penalty": 0.2}
WAYS = {"greedy": GREEDY, "seeded": SEEDED, "penalised": PENALISED}


@cache
def loaded(name: str):
    return load_program(open_synthetic(f"synthetic:{name}?seed=1&format=w8"), context=512)


def backends() -> dict[str, Callable[[], Any]]:
    """Backends here, by name."""
    found: dict[str, Callable[[], Any]] = {"reference": ReferenceBackend}
    try:
        from cortiq_cpu.backend import CpuBackend

        CpuBackend().devices()
        found["cpu"] = CpuBackend
    except Exception:
        pass
    return found


@cache
def executable(backend: str = "cpu", name: str = "tiny-llama", **options: Any) -> Executable:
    """Compiled once; every sequence opened on it is released by whoever opened it."""
    known = backends()
    model = loaded(name)
    chosen = CompileOptions(threads=1, **options)
    return known[backend if backend in known else "reference"]().compile(
        model.program, model.weights, chosen
    )


class Deferred(OptionalCapabilities):
    """An executable that computes a batch when somebody waits for it: as a device that is slow."""

    asynchronous = True

    def __init__(self, inner: Executable) -> None:
        self.inner, self.program, self.placement = inner, inner.program, inner.placement
        self.open, self.import_ = inner.open, inner.import_
        self.state_bytes, self.free_bytes = inner.state_bytes, inner.free_bytes
        self.pending: list[DeferredTicket] = []
        self.most = 0

    def forward(self, batch: Batch) -> DeferredTicket:
        self.pending.append(DeferredTicket(self, batch))
        self.most = max(self.most, len(self.pending))
        return self.pending[-1]


class DeferredTicket:
    def __init__(self, owner: Deferred, batch: Batch) -> None:
        self.owner, self.batch, self.done = owner, batch, None

    def result(self) -> Any:
        while self.done is None:
            first = self.owner.pending.pop(0)
            first.done = self.owner.inner.forward(first.batch).result()
        return self.done


def request(ids: Sequence[int], max_tokens: int = 12, **options: Any) -> Request:
    extra = {k: options.pop(k) for k in ("cache_points", "embeddings", "choice") if k in options}
    chosen = GenerateOptions(max_tokens=max_tokens, **GREEDY | options)
    made = make_request(list(ids), chosen, loaded("tiny-llama").program, ())
    return Request(**{**vars(made), **extra}) if extra else made


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 320, length).tolist()


def engine(on: Executable, **options: Any) -> Engine:
    bounds = {k: options.pop(k) for k in ("batch_rows", "sequences", "waiting") if k in options}
    return Engine(on, TOKENIZER, options=EngineOptions(**bounds), **options)


def facts(sequence: Running) -> tuple[tuple[int, ...], str, str]:
    """Return the parts of a result that must not depend on scheduling."""
    if sequence.error is not None:
        raise sequence.error
    out = sequence.output
    return tuple(out.token_ids), out.digest.hex(), out.finish_reason


def alone(on: Executable, wanted: Request) -> tuple[tuple[int, ...], str, str]:
    """Run the same request alone, without a prefix cache and without drafting."""
    with engine(on) as mine:
        sequence = mine.submit(wanted)
        mine.run()
    return facts(sequence)


class Scripted:
    """Drafts what `answer(ids)` says: a drafter of any honesty."""

    def __init__(self, answer: Callable[[Sequence[int], int], Sequence[int]], name: str = "script"):
        self.answer, self.name = answer, name
        self.opened: list[ScriptedDrafting] = []

    def open(self, task: Task) -> ScriptedDrafting:
        self.opened.append(ScriptedDrafting(self, task))
        return self.opened[-1]


class ScriptedDrafting:
    wants = ()

    def __init__(self, owner: Scripted, task: Task) -> None:
        self.owner, self.task, self.closed = owner, task, 0
        self.fed: list[tuple[int, int]] = []

    def propose(self, ids: Sequence[int], count: int) -> Draft:
        return Draft(tuple(self.owner.answer(ids, count)))

    def observe(self, position: int, rows: Sequence[Any], ids: Sequence[int]) -> None:
        self.fed.append((position, len(rows)))

    def close(self) -> None:
        self.closed += 1


def oracle(truth: Sequence[int], wrong: Callable[[int, int], bool]) -> Scripted:
    """Knows prompt and answer; its draft for place `p`, the i-th of a round, is wrong where
    `wrong(p, i)`.
    """

    def answer(ids: Sequence[int], count: int) -> list[int]:
        start = len(ids)
        true = [*truth[start : start + count]]
        return [(t + 1) % 320 if wrong(start + i, i) else t for i, t in enumerate(true)]

    return Scripted(answer)


def speculation(drafter: Any, depth: int) -> Speculation:
    return Speculation(drafter, lambda prompt_tokens: FixedDepth(depth))
