"""Measure a drafter: the same texts with it and without, in turn, in one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from cortiq.errors import BackendError
from cortiq.model.generation import Generation
from cortiq.model.model import Model

PASSAGE = """def load(path):
    \"\"\"Read a file and return its lines.\"\"\"
    with open(path) as stream:
        return [line.strip() for line in stream]


def count(lines):
    \"\"\"Count the words of each line.\"\"\"
    totals = {}
    for line in lines:
        for word in line.split():
            totals[word] = totals.get(word, 0) + 1
    return totals


def report(totals):
    \"\"\"Print the words, most frequent first.\"\"\"
    for word, number in sorted(totals.items(), key=lambda pair: -pair[1]):
        print(f"{number:6d} {word}")
"""
COPY = f"Repeat this code exactly, without changes:\n\n```python\n{PASSAGE}```"
PROSE = "The old lighthouse keeper had not spoken to anyone in years. One evening in November,"


@dataclass(frozen=True)
class DraftBenchTask:
    """A text to generate: its prompt, and how tokens are drawn."""

    name: str
    prompt: str
    chat: bool = False
    temperature: float = 0.0

    def ids(self, model: Model) -> list[int]:
        """Return the prompt's ids; as a chat message where the model has a template for it."""
        if self.chat and model.tokenizer.chat_templates:
            return model.chat_ids([{"role": "user", "content": self.prompt}])
        return model.ids(self.prompt)


TASKS = (DraftBenchTask("copy", COPY, chat=True), DraftBenchTask("prose", PROSE, temperature=0.9))
"""A file to be copied, which lookup is for; and a story drawn freely, where nothing repeats."""


@dataclass(frozen=True)
class DraftComparison:
    """Decoded tokens per second of one task.

    Attributes
    ----------
    plain, drafted : of each repetition, in pairs.
    rounds, accepted, steps : of the drafted ones together; steps are those without a draft.
    """

    plain: tuple[float, ...]
    drafted: tuple[float, ...]
    rounds: int
    accepted: int
    steps: int

    @property
    def ratio(self) -> float:
        """Median of drafted by plain, pair by pair."""
        return median(d / p for p, d in zip(self.plain, self.drafted, strict=True))

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "plain": round(median(self.plain), 3),
            "drafted": round(median(self.drafted), 3),
            "ratio": round(self.ratio, 3),
            "ratios": [round(d / p, 3) for p, d in zip(self.plain, self.drafted, strict=True)],
            "tokens_per_step": round(self.tokens_per_step, 3),
        }

    @property
    def tokens_per_step(self) -> float:
        """Tokens for each time the model was run."""
        steps = self.rounds + self.steps
        return (steps + self.accepted) / steps if steps else 0.0


def compare(
    model: Model,
    draft: str,
    depth: int | None,
    new_tokens: int,
    repeats: int,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> dict[str, DraftComparison]:
    """Measure each task with and without the drafter, in turn, after one warm-up of both.

    Raises
    ------
    BackendError : a text came out differently with the drafter, which it must never.
    """
    return {
        task.name: _compared(model, task, {"draft": draft, "draft_depth": depth}, new_tokens,
                             repeats, progress)
        for task in TASKS
    }  # fmt: skip


def _compared(
    model: Model,
    task: DraftBenchTask,
    drafting: dict[str, Any],
    new_tokens: int,
    repeats: int,
    progress: Callable[[str, int, int], None],
) -> DraftComparison:
    pairs: list[tuple[Generation, Generation]] = []
    ids = task.ids(model)
    for seed in range(repeats + 1):
        progress(f"Measuring {task.name}", seed, repeats + 1)
        options: dict[str, Any] = {
            "max_tokens": new_tokens, "temperature": task.temperature, "seed": seed,
            "ignore_eos": True,
        }  # fmt: skip
        plain, drafted = ({}, drafting) if seed % 2 else (drafting, {})
        one = model.generate(ids, **options, **plain)
        two = model.generate(ids, **options, **drafted)
        if one.token_ids != two.token_ids:
            raise BackendError(f"the text of {task.name} differs with the drafter")
        pairs.append((one, two) if seed % 2 else (two, one))
    return _counted(pairs[1:])


def _counted(pairs: list[tuple[Generation, Generation]]) -> DraftComparison:
    drafts = [drafted.stats.drafts for _, drafted in pairs]
    tallies = [tally for found in drafts for tally in found.drafters.values()]
    return DraftComparison(
        tuple(_rate(plain) for plain, _ in pairs),
        tuple(_rate(drafted) for _, drafted in pairs),
        sum(tally.rounds for tally in tallies),
        sum(tally.accepted for tally in tallies),
        sum(found.plain_rounds for found in drafts),
    )


def _rate(made: Generation) -> float:
    return made.stats.decoded_tokens / made.stats.decode_seconds
