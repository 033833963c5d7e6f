"""Measure the cost of drafting beside the model: `python benchmarks/drafting.py [MODEL]`.

A planted drafter is right by a known pattern, so accepted counts must be the pattern's exactly; the
time of every step outside `forward` is bookkeeping (draft, accept, commit, text, policy).
"""

from __future__ import annotations

import sys
import time
from itertools import cycle
from typing import Any

import cortiq
from cortiq.backend import Batch, Executable, Finished
from cortiq.engine.drafters.scripted import ScriptedDrafter, planted
from cortiq.engine.drafting import FixedDepth, Speculation
from cortiq.engine.engine import Engine
from cortiq.engine.request import Request, make_request
from cortiq.model.model import Model
from cortiq.options import GenerateOptions

PROMPT, TOKENS, DEPTH = "The causes of the French Revolution were", 240, 4
PATTERN = (4, 0, 2, 3, 1, 4, 4, 0)


class TimedExecutable:
    """An executable whose `forward` is timed; everything else is the other's."""

    def __init__(self, executable: Executable) -> None:
        self._executable, self.seconds = executable, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)

    def forward(self, batch: Batch) -> Finished:
        """Compute a batch and count the time."""
        started = time.perf_counter()
        result = self._executable.forward(batch).result()
        self.seconds += time.perf_counter() - started
        return Finished(result)


def request_of(model: Model, tokens: int) -> Request:
    """Return a greedy request for so many tokens."""
    options = GenerateOptions(max_tokens=tokens, ignore_eos=True, seed=0)
    return make_request(model.ids(PROMPT), options, model.program, ())


def main() -> int:
    """Print the counts and the share of bookkeeping; 1 if either is not as it must be."""
    model = cortiq.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
    made = model.generate(PROMPT, max_tokens=TOKENS + DEPTH + 1, temperature=0, ignore_eos=True)
    truth = [*model.ids(PROMPT), *made.token_ids]
    script = planted(truth, lambda i: PATTERN[i % len(PATTERN)], 1 << 30)
    speculation = Speculation(ScriptedDrafter(script), lambda tokens: FixedDepth(DEPTH))
    timed = TimedExecutable(model.executable)
    with Engine(timed, model.tokenizer) as engine:
        sequence = engine.submit(request_of(model, TOKENS), speculation=speculation, record=True)
        engine.step()
        timed.seconds, started = 0.0, time.perf_counter()
        engine.run()
        wall = time.perf_counter() - started
    rounds = [r for r in sequence.rounds or () if r.proposed == DEPTH and not r.shortened]
    exact = all(r.accepted == held for r, held in zip(rounds, cycle(PATTERN), strict=False))
    share = 1 - timed.seconds / wall
    print(f"{len(rounds)} rounds of {DEPTH}, {sum(r.accepted for r in rounds)} held:"
          f" {'as' if exact else 'NOT as'} the pattern has it")  # fmt: skip
    print(f"{wall * 1e3 / len(rounds):.2f} ms a round, {share:.2%} of it bookkeeping")
    return 0 if exact and share < 0.05 and sequence.ids == truth[: len(sequence.ids)] else 1


if __name__ == "__main__":
    sys.exit(main())
