"""A sequence of a model that has replicas, and its moves between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from cortiq.backend import ExportedState
from cortiq.errors import BackendError, RequestError
from cortiq.ranks.connections import RankLostError
from cortiq.ranks.stage_state import StageSnapshot, StageState

T = TypeVar("T")


@dataclass(frozen=True)
class ReplicaSnapshot:
    """A copy of a sequence on the replica where it was then; None if that is lost."""

    place: int
    inner: StageSnapshot | None


class ReplicaState:
    """One sequence, wherever it is computed now; see `cortiq.backend.State`.

    Attributes
    ----------
    owner : its executable. place : the number of its replica. inner : the sequence there.
    computed : whether it was in a batch; not yet where it was just opened or forked.

    With its replica the rows of a sequence are lost: it is empty then.
    """

    def __init__(self, owner: Any, place: int, inner: StageState) -> None:
        self.owner, self.place, self.inner = owner, place, inner
        self._room, self.computed = 0, False

    @property
    def limit(self) -> int:
        """Positions it may ever hold."""
        return self.inner.limit

    @property
    def alive(self) -> bool:
        """Whether it can be used; not any more once it was released."""
        return self.inner.alive

    @property
    def lost(self) -> str:
        """Why its replica cannot compute any more; empty if it can."""
        return self.owner.replicas[self.place].lost

    @property
    def has_rows(self) -> bool:
        """Whether an entry graph has seen rows, which may be lost."""
        return any(self.inner.lengths.values())

    def length(self, entry: str = "trunk") -> int:
        """Return the rows that an entry graph has seen."""
        return 0 if self.lost else self.inner.length(entry)

    def _asked(self, ask: Callable[[], T], otherwise: T) -> T:
        """Return what the replica answers, or something else if it is lost.

        Raises
        ------
        RankLostError : all replicas are.
        """
        if not self.lost:
            try:
                return ask()
            except RankLostError:
                pass
        self.owner.living_of(())
        return otherwise

    def reserve(self, rows: int) -> bool:
        """Make room for rows; an empty sequence goes where there is some."""
        if self._asked(lambda: self.inner.reserve(rows), False):
            self._room = self.length() + rows
            return True
        if self.has_rows and not self.lost:
            return False
        before = self._room
        self._room = rows
        others = (place for place in self.owner.living if place != self.place)
        if any(self.move(place) for place in others):
            return True
        self._room = before
        return False

    def move(self, place: int) -> bool:
        """Move to another replica, with the room that was reserved; return whether it has that.

        Without it the sequence stays where it is, and is computed there.
        """
        replica, exported = self.owner.replicas[place], None
        if self.has_rows and not self.lost:
            exported = self._asked(self.inner.export, None)
        try:
            made = replica.import_(exported, self.limit) if exported else replica.open(self.limit)
            return self._become(place, made)
        except (BackendError, RequestError):
            self.owner.living_of(())
            return False

    def _become(self, place: int, made: StageState) -> bool:
        """Continue as a sequence of a replica, if that has the room that was reserved."""
        if not made.reserve(max(0, self._room - made.length())):
            made.release()
            return False
        self.inner.release()
        self.place, self.inner = place, made
        return True

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget rows."""
        return self._asked(lambda: self.inner.rewind(length, entry), 0)

    def snapshot(self) -> ReplicaSnapshot:
        """Copy what the sequence holds."""
        return ReplicaSnapshot(self.place, self._asked(self.inner.snapshot, None))

    def restore(self, snapshot: ReplicaSnapshot) -> None:
        """Restore the sequence, on the replica where the copy was made.

        Raises
        ------
        BackendError : it has moved since, and that replica has no room for it any more, or is lost.
        """
        replica, copied = self.owner.replicas[snapshot.place], snapshot.inner
        if replica.lost or copied is None:
            self.owner.living_of(())
            what = "the replica that holds a copy of a sequence is lost"
            raise BackendError(what, hint="Compute the sequence anew.")
        if snapshot.place == self.place:
            self._asked(lambda: self.inner.restore(copied), None)
            return
        made = replica.open(self.limit)
        made.restore(copied)
        if not self._become(snapshot.place, made):
            what = "the replica that holds a copy of a sequence has no room to restore it"
            raise BackendError(what, hint="Compute the sequence anew.")

    def fork(self, length: int | None = None) -> ReplicaState:
        """Open a sequence that starts as this one, on the same replica until it is computed.

        Raises
        ------
        RequestError : the replica is lost, and the rows with it.
        """
        inner = self._asked(lambda: self.inner.fork(length), None)
        if inner is None:
            raise RequestError("the rows of this sequence are lost", hint="Feed the ids again.")
        made = ReplicaState(self.owner, self.place, inner)
        self.owner.noted(made)
        return made

    def export(self) -> ExportedState:
        """Return the whole sequence."""
        return self.inner.export()

    def release(self) -> None:
        """Give the memory back."""
        self.inner.release()
        self.owner.forget(self)
