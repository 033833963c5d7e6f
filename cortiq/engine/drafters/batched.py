"""Drafters that compute: their forwards are steps, so that those of many sequences share a batch.

A drafter writes what it does as a generator: it yields the rows that it wants computed and is sent
what they brought. Whoever runs several of them computes each round of rows together.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cortiq.backend import Batch, Executable, Row
from cortiq.backend.error_attribution import attributed_to, backend_names, failure_hint
from cortiq.engine.drafting import Draft, Drafting
from cortiq.engine.session import RowResult, check_outcome
from cortiq.errors import shown

MOST_ROWS = 256
"""Rows of a shared batch at most; one sequence's own may be more."""


@dataclass(frozen=True)
class ForwardRequest:
    """A forward pass that a drafter requests: rows of one sequence."""

    executable: Executable
    rows: Sequence[Row]
    entry: str = "trunk"


T = TypeVar("T")
DraftSteps = Generator[ForwardRequest, Sequence[RowResult], T]
"""What a drafter does on the way to a T. A feed that comes to nothing is raised where it was
yielded.
"""


class StepwiseDrafting:
    """A `Drafting` that yields its forward passes; alone it computes them one after the other."""

    def steps(self, ids: Sequence[int], count: int) -> DraftSteps[Draft]:
        """Propose a draft, yielding each forward pass."""
        raise NotImplementedError

    def propose(self, ids: Sequence[int], count: int) -> Draft:
        """See `Drafting`."""
        return run_alone(self.steps(ids, count))


def draft_steps(drafting: Drafting, ids: Sequence[int], count: int) -> DraftSteps[Draft]:
    """Yield the steps of a drafter, or one step if it is no `StepwiseDrafting`."""
    if isinstance(drafting, StepwiseDrafting):
        return (yield from drafting.steps(ids, count))
    return drafting.propose(ids, count)


def run_alone(steps: DraftSteps[T]) -> T:
    """Run one drafter's steps; return the result or raise its error."""
    (made,) = run_batched([steps])
    if isinstance(made, Exception):
        raise made
    return made


def run_batched(several: Sequence[DraftSteps[T]]) -> list[T | Exception]:
    """Run the steps of several drafters, batching their forwards; return each result or error."""
    made: dict[int, T | Exception] = {}
    answers: Mapping[int, Sequence[RowResult] | Exception | None]
    answers = dict.fromkeys(range(len(several)))
    while answers:
        feeds = {}
        for number, answer in answers.items():
            try:
                feeds[number] = _next(several[number], answer)
            except StopIteration as end:
                made[number] = end.value
            except Exception as error:
                made[number] = error
        answers = {n: answer for batch in _batches(feeds) for n, answer in _computed(batch)}
    return [made[number] for number in range(len(several))]


def _next(steps: DraftSteps[T], answer: Sequence[RowResult] | Exception | None) -> ForwardRequest:
    if isinstance(answer, Exception):
        feed = steps.throw(answer)
    else:
        feed = next(steps) if answer is None else steps.send(answer)
    if not isinstance(feed, ForwardRequest) or not feed.rows:
        steps.close()
        raise TypeError(f"a drafter wants rows computed, and yields {shown(feed)}")
    return feed


def _batches(feeds: Mapping[int, ForwardRequest]) -> Iterator[dict[int, ForwardRequest]]:
    """Group forwards by executable and entry graph, each group in batches of `MOST_ROWS`."""
    groups: dict[tuple[Executable, str], dict[int, ForwardRequest]] = {}
    for number, feed in feeds.items():
        group = groups.setdefault((feed.executable, feed.entry), {})
        if group and sum(len(f.rows) for f in group.values()) + len(feed.rows) > MOST_ROWS:
            yield dict(group)
            group.clear()
        group[number] = feed
    yield from groups.values()


def _computed(
    feeds: Mapping[int, ForwardRequest],
) -> Iterator[tuple[int, Sequence[RowResult] | Exception]]:
    """Compute a batch of forwards; yield the rows of each, or its error."""
    first = next(iter(feeds.values()))
    rows = [row for feed in feeds.values() for row in feed.rows]
    try:
        with attributed_to(backend_names(first.executable)):
            result = first.executable.forward(Batch(rows, first.entry)).result()
    except Exception as error:
        yield from ((number, error) for number in feeds)
        return
    start = 0
    for number, feed in feeds.items():
        last, hint = feed.rows[-1], failure_hint(feed.executable)
        try:
            check_outcome(result.outcomes[last.state], last.position, hint)
        except Exception as error:
            yield number, error
        else:
            yield number, result.rows[start : start + len(feed.rows)]
        start += len(feed.rows)
