"""An executable that says what it was told to: the generation loop is tested against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cortiq.backend import (
    Argmax,
    Batch,
    BatchResult,
    Digest,
    Draw,
    Drawn,
    Named,
    OptionalCapabilities,
    Outcome,
    Row,
    Status,
)
from cortiq.ir import Builder, Program
from cortiq.ir.layers import Embedding, Linear
from cortiq.model.model import Model
from cortiq.model.source import ModelSource
from cortiq.numerics.digest import digest
from cortiq.options import LoadOptions
from cortiq.tokenizer.tokenizer import Tokenizer, byte_tokenizer

VOCABULARY = 258
END = 257


def tiny_program(context: int = 64, vocabulary: int = VOCABULARY) -> Program:
    builder = Builder(context=context)
    token = builder.input("token")
    builder.input("position")
    embed = Embedding(vocabulary, 4)
    x = builder.add(embed, token, name="embed", weights={"table": "embed"})
    builder.add(Linear(4, vocabulary), x, name="logits", weights={"weight": "head"})
    return builder.program(("logits",)).with_layouts({"embed": "f32", "head": "f32"})


class ScriptedState:
    def __init__(self, owner: ScriptedExecutable, limit: int) -> None:
        self.owner, self.limit = owner, limit
        self.tokens: list[int] = []
        self.released = False

    def length(self, entry: str = "trunk") -> int:
        return len(self.tokens)

    def reserve(self, rows: int) -> bool:
        return rows <= self.owner.memory_rows

    def rewind(self, length: int, entry: str = "trunk") -> int:
        self.owner.events.append(("rewind", length))
        del self.tokens[length:]
        return length

    def release(self) -> None:
        self.released = True


class ScriptedTicket:
    """Nothing is computed before somebody waits, as on a device that is slow."""

    def __init__(self, owner: ScriptedExecutable, batch: Batch, before: ScriptedTicket | None):
        self.owner, self.batch, self.before = owner, batch, before
        self.done: BatchResult | None = None

    def compute(self) -> None:
        if self.done is None:
            if self.before is not None:
                self.before.compute()
            self.done = self._compute()

    def result(self) -> BatchResult:
        self.compute()
        self.owner.events.append(("read", self.batch.rows[-1].position))
        return self.done

    def drawn(self, row: int) -> int:
        self.compute()
        wants = self.done.rows[row]
        return next((int(v) for w, v in wants.items() if isinstance(w, Argmax | Draw)), -1)

    def _compute(self) -> BatchResult:
        state = self.batch.rows[0].state
        outcome = self.owner.outcome(self.batch)
        if self.batch.rows[0].position != len(state.tokens):
            outcome = Outcome(Status.DECLINED, "the step before did not complete")
        if outcome.status is not Status.COMPLETED:
            state.tokens = [] if outcome.status is Status.FAILED else state.tokens
            return BatchResult({state: outcome}, [{} for _ in self.batch.rows])
        rows = [self._row(row) for row in self.batch.rows]
        return BatchResult({state: outcome}, rows)

    def _row(self, row: Row) -> dict[Any, Any]:
        token = row.token
        if isinstance(token, Drawn):
            token = self.before.drawn(token.row)
        row.state.tokens.append(token)
        self.owner.fed.append(token)
        logits = self.owner.logits(row.position)
        answers = {
            Argmax: lambda want: int(np.argmax(logits)),
            Draw: lambda want: int(np.argmax(logits)),
            Digest: lambda want: digest(logits),
            Named: lambda want: logits,
        }
        return {want: answers[type(want)](want) for want in row.wants}


class ScriptedExecutable(OptionalCapabilities):
    """Whatever it is fed, the token after position p is `answer(p + 1)`."""

    asynchronous: bool = True

    def __init__(
        self,
        answer: Callable[[int], int],
        *,
        context: int = 64,
        failing: Sequence[int] = (),
        declining: Sequence[int] = (),
        memory_rows: int = 1 << 20,
        asynchronous: bool = True,
    ) -> None:
        self.asynchronous = asynchronous
        self.program = tiny_program(context)
        self.answer, self.memory_rows = answer, memory_rows
        self.failing, self.declining = set(failing), set(declining)
        self.placement = {node.name: "scripted" for node in self.program.trunk.nodes}
        self.events: list[tuple[str, int]] = []
        self.fed: list[int] = []
        self.states: list[ScriptedState] = []
        self.batches: list[Batch] = []
        self._last: ScriptedTicket | None = None
        self.closed = False

    def open(self, limit: int) -> ScriptedState:
        self.states.append(ScriptedState(self, limit))
        return self.states[-1]

    def forward(self, batch: Batch) -> ScriptedTicket:
        self.events.append(("submit", batch.rows[-1].position))
        self.batches.append(batch)
        self._last = ScriptedTicket(self, batch, self._last)
        if not self.asynchronous:
            self._last.compute()
        return self._last

    def outcome(self, batch: Batch) -> Outcome:
        positions = {row.position for row in batch.rows}
        if positions & self.failing:
            return Outcome(Status.FAILED, "planted")
        if positions & self.declining:
            return Outcome(Status.DECLINED, "no mood")
        return Outcome(Status.COMPLETED)

    def logits(self, position: int) -> np.ndarray:
        x = np.linspace(-1, 1, VOCABULARY, dtype=np.float32) * np.float32(position + 1)
        x[self.answer(position + 1)] = np.float32(1000)
        return x

    def state_bytes(self, rows: int) -> int:
        return 10 * rows

    def free_bytes(self) -> int:
        return 10 * self.memory_rows

    def close(self) -> None:
        self.closed = True


def scripted_model(
    answer: str | bytes | Sequence[int] | Callable[[int], int],
    *,
    prompt: str = "ab",
    tokenizer: Tokenizer | None = None,
    **details: Any,
) -> Model:
    """A model that answers `prompt` (as long as its bytes) with these tokens, then with END."""
    if not callable(answer):
        ids = list(answer.encode() if isinstance(answer, str) else answer)
        start = len(prompt.encode())
        tokens = dict(enumerate(ids, start))
        executable = ScriptedExecutable(lambda p: tokens.get(p, END), **details)
    else:
        executable = ScriptedExecutable(answer, **details)
    source = ModelSource(
        executable.program,
        {},
        tokenizer or byte_tokenizer(VOCABULARY),
        (),
        lambda: "0" * 64,
    )
    return Model("scripted", source, executable, "scripted", "none", LoadOptions())
