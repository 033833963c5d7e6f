"""The protocol of drafters and depth policies: the engine's side of speculation.

One round of one sequence: `depth = depths.choose(generated, room)`, `draft = drafting.propose(ids,
depth)`, one forward of the rows [last token, *draft.ids], commit of the longest prefix of the draft
that is what the target itself drew and of one token more, `drafting.observe(...)`,
`depths.record(round)`. Drafts never decide what is generated; they decide which rows are computed
together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from cortiq.backend import Executable, State, Want
from cortiq.engine.session import RowResult


@dataclass(frozen=True)
class Draft:
    """Ids that might come next.

    Attributes
    ----------
    ids : in order; may be fewer than asked for, or none.
    extended : how many of the last ids another drafter added (a lookup behind the end of a chain);
        their acceptance says nothing about the chain.
    drafter : name of its drafter, where several take turns.
    """

    ids: tuple[int, ...] = ()
    extended: int = 0
    drafter: str = ""

    def cut(self, count: int) -> Draft:
        """Return the first `count` ids."""
        lost = len(self.ids) - count
        return replace(self, ids=self.ids[:count], extended=max(0, self.extended - lost))


NOTHING = Draft()
"""No draft: the round is a plain token."""


@dataclass(frozen=True)
class Task:
    """Facts about a sequence for the drafter that is opened on it.

    Attributes
    ----------
    prompt : its ids.
    limit : positions it may ever hold.
    want_at : what brings the token after these ids, exactly as the target is asked for it. A draft
        model that asks for the same (same seed, same position: the same random numbers) draws what
        the target would draw wherever the two agree, sampled as well as greedy.
    executable : the target; a draft head is another entry graph of its program.
    policy : what decides how deep it is drafted for; may be None outside an engine.
    state : the target's sequence now; the engine may move to another one (`fork`, a slot restored),
        so it is asked for every time. Rows of it past `len(ids) - 1` never exist in `propose`.
    """

    prompt: tuple[int, ...]
    limit: int
    want_at: Callable[[Sequence[int]], Want]
    executable: Executable
    state: Callable[[], State]
    policy: DepthPolicy | None = None


@dataclass(frozen=True)
class Round:
    """One step of one sequence, as recorded: all that policies know. Clocks are numbers here.

    Attributes
    ----------
    generated : tokens the sequence had generated before it.
    position : ids the sequence had in all, prompt included, before it.
    room : tokens it could still generate, the round's own last one included.
    asked : depth that the policy chose; 0 for a plain token.
    proposed : ids that were verified, at most `asked` and `room - 1`.
    extended : how many of the last of them a second drafter added.
    accepted : how many of them were accepted.
    emitted : tokens committed: accepted + 1, fewer where the text ended inside the round.
    draft_seconds : spent proposing.
    wall_seconds : from before proposing, or from the commit before where this step ran ahead, to
        after the commit; the whole batch's.
    rows, sequences : of the batch that the round rode in.
    drafter : name of the drafter; empty for a plain token without one.
    """

    generated: int
    position: int
    room: int
    asked: int = 0
    proposed: int = 0
    extended: int = 0
    accepted: int = 0
    emitted: int = 1
    draft_seconds: float = 0.0
    wall_seconds: float = 0.0
    rows: int = 1
    sequences: int = 1
    drafter: str = ""

    @property
    def shortened(self) -> bool:
        """Whether the room left, not the drafter, kept it from `asked` ids: no account may learn
        from it.
        """
        return self.room <= self.asked


class Drafting(Protocol):
    """A drafter at work on one sequence.

    Attributes
    ----------
    wants : more that is to be brought back for each row the target is fed from now on (hidden
        states for a draft head); `observe` gets it. Empty for most.
    """

    wants: tuple[Want, ...]

    def propose(self, ids: Sequence[int], count: int) -> Draft:
        """Propose at most `count` ids that may follow `ids`, count ≥ 1.

        Parameters
        ----------
        ids : prompt and everything committed, the last token drawn included. A drafter with a state
            of its own goes back to the longest prefix that it shares with what it was fed; there
            is no other call for it. The list is the engine's: read it, keep no reference.

        Raises
        ------
        CortiqError : drafting then ends for this sequence, which continues without; the error is
            in its statistics.
        """
        ...

    def observe(self, position: int, rows: Sequence[RowResult], ids: Sequence[int]) -> None:
        """Take the rows that the target computed and kept, from `position` on, and the ids so far.

        Called after every step that fed the sequence, prompt chunks included. What was drafted and
        not accepted is not among `rows`. Where `wants` is empty, neither may be worth a look.
        """
        ...

    def close(self) -> None:
        """Free what it holds; called once."""
        ...


class Drafter(Protocol):
    """A way to draft; what the hook `cortiq_drafters` brings makes these."""

    @property
    def name(self) -> str:
        """Name in statistics and traces."""
        ...

    def open(self, task: Task) -> Drafting:
        """Begin on a sequence, before its prompt is fed."""
        ...


class DepthPolicy(Protocol):
    """Chooses, for one sequence, how many ids to draft next.

    A pure function of its constructor's arguments and of the rounds recorded, in order: a record
    replayed to a new policy gives the same decisions. It looks at no clock. `wakes` and `timing`
    have defaults, which a subclass inherits.
    """

    @property
    def wakes(self) -> int:
        """Tokens generated before which it drafts nothing: steps run ahead until then.

        It may miss the first ones after.
        """
        return 0

    @property
    def timing(self) -> bool:
        """Whether it times plain tokens now: others that draft in turns with it draft nothing."""
        return False

    def choose(self, generated: int, room: int) -> int:
        """Return the depth of the next round: 0 for a plain token, else at most `room - 1`.

        Parameters
        ----------
        generated : tokens generated so far.
        room : tokens it may still generate.
        """
        ...

    def record(self, round_: Round) -> None:
        """Learn from a round, plain tokens (asked = 0) included."""
        ...


@dataclass(frozen=True)
class FixedDepth(DepthPolicy):
    """A constant depth, cut to the room."""

    depth: int

    def choose(self, generated: int, room: int) -> int:
        """Return the depth, cut to the room."""
        return max(0, min(self.depth, room - 1))

    def record(self, round_: Round) -> None:
        """Do nothing: the depth is fixed."""


@dataclass(frozen=True)
class Speculation:
    """Drafter and policy of a sequence.

    Attributes
    ----------
    drafter : proposes.
    policy : makes the policy of a sequence, given its number of prompt tokens; may carry what
        earlier sequences measured.
    """

    drafter: Drafter
    policy: Callable[[int], DepthPolicy] = field(default=lambda prompt_tokens: FixedDepth(4))
