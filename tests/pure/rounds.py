"""The speculative round, written plainly over an executable: what drafters are tested against."""

from __future__ import annotations

from dataclasses import dataclass, field

from cortiq.backend import Batch, Row, Status
from cortiq.engine.drafting import Task


@dataclass
class Trace:
    """Return a run's committed tokens, and (proposed, accepted) of its rounds."""

    ids: list[int] = field(default_factory=list)
    rounds: list[tuple[int, int]] = field(default_factory=list)

    @property
    def drafted(self) -> int:
        return sum(proposed for proposed, _ in self.rounds)

    @property
    def accepted(self) -> int:
        return sum(accepted for _, accepted in self.rounds)


def forward(executable, state, start, ids, wants):
    pairs = zip(ids, wants, strict=True)
    rows = [Row(state, start + i, t, (w,) if w else ()) for i, (t, w) in enumerate(pairs)]
    result = executable.forward(Batch(rows)).result()
    assert result.outcomes[state].status is Status.COMPLETED
    return [brought.get(want) for brought, want in zip(result.rows, wants, strict=True)]


def speculated(executable, prompt, want_at, drafter, depth, count, limit=512) -> Trace:
    """`count` tokens after the prompt, `depth(i)` drafts in round i, verified in one forward."""
    state, ids, trace = executable.open(limit), list(prompt), Trace()
    task = Task(tuple(prompt), limit, want_at, executable, lambda: state)
    drafting = drafter.open(task)
    try:
        forward(executable, state, 0, ids[:-1], [None] * (len(ids) - 1))
        while len(ids) < len(prompt) + count:
            room = len(prompt) + count - len(ids)
            wanted = min(depth(len(trace.rounds)), room - 1)
            draft = list(drafting.propose(ids, wanted).ids) if wanted > 0 else []
            assert len(draft) <= max(wanted, 0)
            wants = [want_at(ids + draft[:i]) for i in range(len(draft) + 1)]
            start = len(ids) - 1
            drawn = forward(executable, state, start, [ids[-1], *draft], wants)
            accepted = next((i for i, d in enumerate(draft) if d != drawn[i]), len(draft))
            ids += drawn[: accepted + 1]
            trace.rounds.append((len(draft), accepted))
            back = state.rewind(len(ids) - 1)
            if back < len(ids) - 1:
                forward(executable, state, back, ids[back:-1], [None] * (len(ids) - 1 - back))
            drafting.observe(start, [{}] * (accepted + 1), ids)
    finally:
        drafting.close()
        state.release()
    trace.ids = ids[len(prompt) :]
    return trace
