"""A sequence of a model that has replicas, and its moves between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cortiq.backend import ExportedState
from cortiq.errors import BackendError, RequestError
from cortiq.ranks.connections import RankLostError
from cortiq.ranks.stage_state import StageSnapshot, StageState


@dataclass(frozen=True)
class ReplicaSnapshot:
    """A copy of a sequence on the replica where it was then."""

    place: int
    inner: StageSnapshot


class ReplicaState:
    """One sequence, wherever it is computed now; see `cortiq.backend.State`.

    Attributes
    ----------
    owner : its executable. place : the number of its replica. inner : the sequence there.
    computed : whether it was in a batch; not yet where it was just opened or forked.
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

    def length(self, entry: str = "trunk") -> int:
        """Return the rows that an entry graph has seen."""
        return self.inner.length(entry)

    def reserve(self, rows: int) -> bool:
        """Make room for rows; an empty sequence goes where there is some."""
        if self.inner.reserve(rows):
            self._room = self.length() + rows
            return True
        if any(self.inner.lengths.values()):
            return False
        before = self._room
        self._room = rows
        others = (place for place in range(len(self.owner.replicas)) if place != self.place)
        if any(self.move(place) for place in others):
            return True
        self._room = before
        return False

    def move(self, place: int) -> bool:
        """Move to another replica, with the room that was reserved; return whether it has that.

        Without it the sequence stays where it is, and is computed there.
        """
        replica, exported = self.owner.replicas[place], None
        if any(self.inner.lengths.values()):
            exported = self.inner.export()
        try:
            made = replica.import_(exported, self.limit) if exported else replica.open(self.limit)
        except RankLostError:
            raise
        except (BackendError, RequestError):
            return False
        return self._become(place, made)

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
        return self.inner.rewind(length, entry)

    def snapshot(self) -> ReplicaSnapshot:
        """Copy what the sequence holds."""
        return ReplicaSnapshot(self.place, self.inner.snapshot())

    def restore(self, snapshot: ReplicaSnapshot) -> None:
        """Restore the sequence, on the replica where the copy was made.

        Raises
        ------
        BackendError : it has moved since, and that replica has no room for it any more.
        """
        if snapshot.place == self.place:
            self.inner.restore(snapshot.inner)
            return
        made = self.owner.replicas[snapshot.place].open(self.limit)
        made.restore(snapshot.inner)
        if not self._become(snapshot.place, made):
            what = "the replica that holds a copy of a sequence has no room to restore it"
            raise BackendError(what, hint="Compute the sequence anew.")

    def fork(self, length: int | None = None) -> ReplicaState:
        """Open a sequence that starts as this one, on the same replica until it is computed."""
        made = ReplicaState(self.owner, self.place, self.inner.fork(length))
        self.owner.noted(made)
        return made

    def export(self) -> ExportedState:
        """Return the whole sequence."""
        return self.inner.export()

    def release(self) -> None:
        """Give the memory back."""
        self.inner.release()
        self.owner.forget(self)
