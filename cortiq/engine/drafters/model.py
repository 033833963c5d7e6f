"""A smaller model drafts: another executable with a sequence of its own.

It is asked for each draft with the target's own want for that position. The want's random numbers
belong to seed and position, so where both models' distributions are alike they draw the same token,
sampled as well as greedy.
"""

from __future__ import annotations

from collections.abc import Sequence

from cortiq.backend import Executable, Row, Want
from cortiq.backend.error_attribution import attributed_to, backend_names
from cortiq.engine.drafters.batched import DraftSteps, ForwardRequest, StepwiseDrafting
from cortiq.engine.drafting import NOTHING, Draft, Task
from cortiq.engine.radix_tree import common_prefix_length
from cortiq.engine.request import vocabulary_size
from cortiq.engine.session import RowResult
from cortiq.errors import RequestError

CHUNK_ROWS = 256
"""Rows of a prompt that the draft model is fed at a time."""


class ModelDrafting(StepwiseDrafting):
    """The draft model's sequence: it follows the target's, and goes back where that turned off.

    Attributes
    ----------
    fed : ids that the draft model has seen.
    """

    wants: tuple[Want, ...] = ()

    def __init__(self, executable: Executable, task: Task) -> None:
        self.executable, self._want_at = executable, task.want_at
        self.limit = min(task.limit, executable.program.context)
        with attributed_to(backend_names(executable)):
            self._state = executable.open(self.limit)
            enough = self._state.reserve(self.limit)
        if not enough:
            self.close()
            raise RequestError(
                f"no memory for {self.limit} positions of the draft model",
                hint="generate without it, or with a shorter context",
            )
        self.fed: list[int] = []

    def steps(self, ids: Sequence[int], count: int) -> DraftSteps[Draft]:
        """Draft a chain of the draft model's own tokens: one row each, after rows it lacks."""
        count = min(count, self.limit - len(ids) + 1)
        if count < 1:
            return NOTHING
        self._go_back(ids)
        for start in range(len(self.fed), len(ids) - 1, CHUNK_ROWS):
            yield from self._feed(ids[start : min(start + CHUNK_ROWS, len(ids) - 1)])
        text = list(ids)
        for _ in range(count):
            text.append((yield from self._drawn(text)))
        return Draft(tuple(text[len(ids) :]))

    def _go_back(self, ids: Sequence[int]) -> None:
        """Rewind to the longest prefix shared with `ids`, but its last id, which is fed again."""
        same = min(common_prefix_length(self.fed, ids), len(ids) - 1)
        if same < len(self.fed):
            with attributed_to(backend_names(self.executable)):
                same = self._state.rewind(same)
            del self.fed[same:]

    def _drawn(self, ids: Sequence[int]) -> DraftSteps[int]:
        want = self._want_at(ids)
        brought = yield from self._feed(ids[len(self.fed) :], (want,))
        return int(brought[want])

    def _feed(self, ids: Sequence[int], wants: tuple[Want, ...] = ()) -> DraftSteps[RowResult]:
        """Feed ids; return the result of the last one."""
        state, start, last = self._state, len(self.fed), len(ids) - 1
        rows = [Row(state, start + i, t, wants if i == last else ()) for i, t in enumerate(ids)]
        brought = yield ForwardRequest(self.executable, rows)
        self.fed.extend(ids)
        return brought[last]

    def observe(self, position: int, rows: Sequence[RowResult], ids: Sequence[int]) -> None:
        """Do nothing: committed ids are fed before the next draft."""

    def close(self) -> None:
        """Release the sequence."""
        self._state.release()


class ModelDrafter:
    """Drafts by another model with the same vocabulary: `--draft model:PATH`."""

    def __init__(self, executable: Executable, name: str = "model") -> None:
        self.executable, self.name = executable, name

    def open(self, task: Task) -> ModelDrafting:
        """Open a sequence of the draft model for a sequence of the target.

        Raises
        ------
        RequestError : the two have different vocabularies, or memory is short.
        """
        check_vocabularies(self.executable, task.executable)
        return ModelDrafting(self.executable, task)


def check_vocabularies(draft: Executable, target: Executable) -> None:
    """Refuse a draft model whose ids are not the target's."""
    ours, theirs = vocabulary_size(target.program), vocabulary_size(draft.program)
    if ours != theirs:
        raise RequestError(
            f"the draft model has {theirs} tokens, the model {ours}: their ids mean different text",
            where="draft",
            hint="draft with a model of the same family and tokenizer",
        )
