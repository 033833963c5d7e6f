"""The generation engine as a runner: all it does for a token, text and digest included.

What `cortiq bench --against engine` measures beside the bare executable.
"""

from __future__ import annotations

from collections.abc import Sequence

from cortiq.backend import Executable
from cortiq.bench.measure import CHUNK_ROWS, Workload
from cortiq.engine.engine import Engine
from cortiq.engine.request import Request
from cortiq.engine.sequence import Sequence as Running
from cortiq.numerics.sampling import Sampling
from cortiq.tokenizer.tokenizer import Tokenizer


class EngineRunner:
    """Serves `Workload.batch` requests at once; see `bench.Runner`."""

    def __init__(self, executable: Executable, tokenizer: Tokenizer, work: Workload) -> None:
        self._executable, self._tokenizer, self._work = executable, tokenizer, work
        self._engine: Engine | None = None
        self._served: list[Running] = []

    def prefill(self, prompt: Sequence[int]) -> None:
        """Submit every request and draw a first token of each; early ones draw more meanwhile."""
        self.close()
        request = Request(
            prompt=tuple(prompt), sampling=Sampling(temperature=0.0), greedy=True,
            max_tokens=self._work.new_tokens * (self._work.batch + 1), end_ids=frozenset(),
            stop=(), chunk_rows=CHUNK_ROWS,
        )  # fmt: skip
        self._engine = Engine(self._executable, self._tokenizer)
        self._served = [self._engine.submit(request) for _ in range(self._work.batch)]
        while not all(one.generated for one in self._served):
            self._step()

    def _step(self) -> None:
        assert self._engine is not None
        self._engine.step()
        error = next((one.error for one in self._served if one.error), None)
        if error is not None:
            raise error

    def decode(self, steps: int) -> None:
        """Draw a token of each sequence at every step."""
        for _ in range(steps):
            self._step()

    def close(self) -> None:
        """End the requests."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None
