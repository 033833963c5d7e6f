"""Rank 0: it sends every command to the ranks concerned, does it too, and collects the answers."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cortiq import errors
from cortiq.errors import BackendError, CortiqError
from cortiq.ranks.connections import COMPILE_SECONDS, RankLostError, first_sentence
from cortiq.ranks.member import Member
from cortiq.ranks.wire import receive, send

Command = tuple[Any, ...]
STOP: Command = ("stop",)
"""The command that ends a rank."""
SLOW = ("compile", "weight", "group")
"""Commands that may take longer than a rank may hang: weights are read and prepared."""
ANSWERED, REFUSED = "answered", "refused"


class Driver:
    """The ranks, as rank 0 drives them.

    Attributes
    ----------
    member : rank 0's own share of the work. numbers : for executables, sequences, copies, groups.
    seats : the rank in each place that a split names; another one once it was lost.
    """

    def __init__(self, member: Member) -> None:
        self.member, self.world = member, member.world
        self.numbers = itertools.count()
        self.seats = list(range(self.world.size))
        self._later = itertools.count(self.world.size)
        self._lock = threading.RLock()
        self._dropped: list[int] = []
        self._ended = threading.Event()
        if self.world.size > 1:
            threading.Thread(target=self._keep_awake, daemon=True).start()

    def ask(self, ranks: Sequence[int], command: Callable[[int], Command] | Command) -> list[Any]:
        """Have ranks execute a command at once; return the answer of each, in their order.

        Parameters
        ----------
        command : the same for all, or by the rank's place among `ranks`.

        Raises
        ------
        RankLostError : a rank is gone; nothing can be computed any more.
        CortiqError : what the first rank that refused said.
        """
        answers, refusal = self.answers(ranks, command)
        if refusal is not None:
            raise refusal
        return [answers[rank] for rank in ranks]

    def answers(
        self, ranks: Sequence[int], command: Callable[[int], Command] | Command
    ) -> tuple[dict[int, Any], BaseException | None]:
        """Do as `ask`; return the answers by rank, and what the first rank that refused said, or
        that one was lost.
        """
        with self._lock, uninterrupted():
            self.world.check(ranks)
            commands = [command(i) if callable(command) else command for i in range(len(ranks))]
            answers: dict[int, Any] = {}
            refusal: BaseException | None = None
            others = []
            for rank, own in zip(ranks, commands, strict=True):
                if rank:
                    try:
                        send(self.world, rank, own)
                        others.append(rank)
                    except RankLostError as lost:
                        refusal = lost
            if 0 in ranks:
                try:
                    answers[0] = self.member.execute(commands[list(ranks).index(0)])
                except BaseException as error:
                    own_failure = self._own_failure(error)
                    refusal = refusal or own_failure
            slow = any(command[0] in SLOW for command in commands)
            seconds = COMPILE_SECONDS if slow else self.world.timeout
            return answers, self._collect(others, answers, refusal, seconds)

    def _own_failure(self, error: BaseException) -> BaseException:
        """Let the others go if they may wait for this rank in an exchange that never comes.

        Those that share an exchange with a lost rank find that out themselves.
        """
        if isinstance(error, RankLostError):
            return error
        if self.member.out_of_step(error) and not self.world.lost:
            self.world.lose(f"rank 0 failed: {type(error).__name__}: {error}")
            self.world.leave()
        return error

    def _collect(
        self,
        others: Sequence[int],
        answers: dict[int, Any],
        refusal: BaseException | None,
        seconds: float,
    ) -> BaseException | None:
        """Take the answers of other ranks; return the first refusal, if none is lost."""
        for rank in others:
            try:
                kind, answer = receive(self.world, rank, seconds)
            except RankLostError as lost:
                refusal = refusal if isinstance(refusal, RankLostError) else lost
                continue
            if kind == ANSWERED:
                answers[rank] = answer
            else:
                refusal = refusal or refusal_of(rank, *answer)
        return refusal

    def drop_later(self, snapshot: int) -> None:
        """Have ranks forget a copy with their next command; it may be called by the collector."""
        self._dropped.append(snapshot)

    def drop(self) -> None:
        """Have ranks forget copies that nobody holds any more."""
        dropped, self._dropped = self._dropped, []
        if dropped:
            with contextlib.suppress(RankLostError):  # what concerns a lost rank says so itself
                self.ask(self.world.living, ("drop", dropped))

    def _keep_awake(self) -> None:
        """Show waiting ranks from time to time that rank 0 is there."""
        while not self._ended.wait(self.world.timeout / 3):
            if self._lock.acquire(blocking=False):
                try:
                    for rank in self.world.living[1:]:
                        self._show_life(rank)
                finally:
                    self._lock.release()

    def _show_life(self, rank: int) -> None:
        """Show a rank that rank 0 is there; one that does not answer is lost, which the next
        request says.
        """
        with contextlib.suppress(RankLostError):
            send(self.world, rank, ("nothing",))
            receive(self.world, rank, self.world.timeout)

    def look(self) -> list[int]:
        """Ask every rank whether it is there; return the seats whose rank is gone."""
        with self._lock:
            for rank in self.world.living[1:]:
                self._show_life(rank)
        return [seat for seat, rank in enumerate(self.seats) if rank in self.world.gone]

    def forget(self) -> None:
        """Have ranks release what they had together with those that are gone."""
        with contextlib.suppress(RankLostError):
            self.ask(self.world.living, ("forget", sorted(self.world.gone)))

    def replace(self, seat: int, start: Callable[[int], None]) -> None:
        """Put a new rank in a seat whose rank is gone; others may be at work meanwhile.

        Parameters
        ----------
        start : starts the rank with the number that it is given.

        Raises
        ------
        BackendError : it did not come.
        """
        rank = next(self._later)
        start(rank)
        try:
            self.world.meet(rank)
        except RuntimeError as error:
            what = f"no rank came in place of the lost one in seat {seat}: {first_sentence(error)}"
            raise BackendError(what, hint="Load the model again, or start all anew.") from None
        self.seats[seat] = rank

    def close(self) -> None:
        """End all ranks."""
        self._ended.set()
        with self._lock:
            for rank in self.world.living[1:]:
                with contextlib.suppress(RankLostError):
                    send(self.world, rank, STOP)
            self.world.leave()


def follow(member: Member) -> None:
    """Execute rank 0's commands until it ends this rank.

    Raises
    ------
    RankLostError : rank 0, or another rank, is gone.
    Exception : this rank failed amid a batch; the others see at once that it is gone.
    """
    while True:
        command = receive(member.world, 0)
        if command == STOP:
            member.world.leave()
            return
        try:
            answer = ANSWERED, member.execute(command)
        except Exception as error:
            kind = type(error).__name__ if isinstance(error, CortiqError) else ""
            sentence = str(error) if kind else f"{type(error).__name__}: {error}"
            if member.out_of_step(error):
                _leave_with(member, kind, sentence)
                raise
            answer = REFUSED, (kind, sentence)
        send(member.world, 0, answer)


def _leave_with(member: Member, kind: str, sentence: str) -> None:
    """Say why, and close all connections, so that nobody waits for this rank."""
    with contextlib.suppress(CortiqError):
        send(member.world, 0, (REFUSED, (kind, sentence)))
    member.world.leave()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold an interrupt back until ranks are in step again; a second one is not held back."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[Any] = []

    def hold(number: int, frame: Any) -> None:
        if held:
            raise KeyboardInterrupt
        held.append((number, frame))

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held[0])


def refusal_of(rank: int, kind: str, sentence: str) -> BaseException:
    """Return an error of another rank as one of this."""
    known = getattr(errors, kind, None) if kind else None
    what, _, hint = sentence.partition("\n  ")
    taken = isinstance(known, type) and issubclass(known, CortiqError)
    if not taken or kind in ("OptionError", "SeveralModelsError"):
        return BackendError(f"rank {rank}: {what}", hint=hint or None)
    assert isinstance(known, type)
    return known(what, hint=hint or None)
