"""Run the cases in this process, or in several that take them from one list."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from cortiq.errors import BackendError, CortiqError
from cortiq_conformance.case import Case
from cortiq_conformance.report import CaseOutcome, CaseResult
from cortiq_conformance.subject import CompileCounts, Subject

PATIENCE = 10.0
"""Seconds in which a process that is told to end must have ended."""
Ran = tuple[int, CaseResult, CompileCounts]
"""Place of a case in the list, its result, and what its programs counted."""


@dataclass(frozen=True)
class RunSpec:
    """Everything a process needs to run cases of a list; it can be pickled.

    Attributes
    ----------
    backend : its name, and that of a device after a colon.
    files : files that are plugins.
    levels, profile, models, only : select the cases.
    use_golden, out : options of a run.
    """

    backend: str
    files: tuple[str | Path, ...]
    levels: tuple[int, ...]
    profile: str
    models: tuple[str, ...] | None
    only: str | Sequence[str] | None
    use_golden: bool
    out: str | Path | None


class InProcessRunner:
    """Runs cases in this process, one after the other."""

    def __init__(
        self, subject: Subject, listed: Sequence[Case], *, use_golden: bool, out: str | Path | None
    ) -> None:
        self.subject, self.listed = subject, listed
        self.use_golden, self.out = use_golden, out

    def __enter__(self) -> InProcessRunner:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def ran(self, places: Sequence[int], begun: Callable[[int], None]) -> Iterator[Ran]:
        """Run the cases at these places of the list; `begun` is called before each."""
        from cortiq_conformance.runner import run_case

        for at in places:
            begun(at)
            case = self.listed[at]
            result = run_case(case, self.subject, use_golden=self.use_golden, out=self.out)
            yield at, result, self.subject.account()


@dataclass(eq=False)
class _Worker:
    """A process that runs cases, and the place of its current one."""

    process: SpawnProcess
    connection: Connection
    ready: bool = False
    at: int | None = None


class WorkerPool:
    """Runs cases in several processes; an idle one takes the next of the list.

    A process that dies makes its case an error, and another one takes its place.
    """

    def __init__(self, work: RunSpec, listed: Sequence[Case], count: int) -> None:
        self.work, self.listed, self.count = work, listed, count
        self._context = multiprocessing.get_context("spawn")  # devices survive no fork
        self._workers: list[_Worker] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for worker in self._workers:
            worker.connection.close()  # a process that waits for a case ends now
            if kind is not None:
                worker.process.terminate()
        for worker in self._workers:
            worker.process.join(PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []

    def ran(self, places: Sequence[int], begun: Callable[[int], None]) -> Iterator[Ran]:
        """Run the cases at these places of the list; yield results as they end."""
        waiting, under_way = deque(places), 0
        while waiting or under_way:
            while len(self._workers) < min(self.count, under_way + len(waiting)):
                self._workers.append(self._started())
            for worker in self._workers:
                if worker.ready and worker.at is None and waiting:
                    worker.at, under_way = waiting.popleft(), under_way + 1
                    begun(worker.at)
                    self._give(worker, worker.at)
            for worker in self._heard(under_way):
                done = self._read(worker)
                if done is not None:
                    under_way -= 1
                    yield done

    def _started(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(theirs, self.work), name="conform")
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _give(self, worker: _Worker, at: int) -> None:
        with contextlib.suppress(OSError):  # it is gone: reading says so next
            worker.connection.send(at)

    def _heard(self, under_way: int) -> list[_Worker]:
        """Wait until a process has sent something, or has died."""
        by_connection = {w.connection: w for w in self._workers if w.at is not None or not w.ready}
        return [by_connection[c] for c in wait(list(by_connection))]  # type: ignore[index]

    def _read(self, worker: _Worker) -> Ran | None:
        """Return a process's result, if any; its death is an error of its case."""
        try:
            message: Any = worker.connection.recv()
        except (EOFError, OSError):
            return self._buried(worker)
        if not worker.ready:
            if message is not None:
                raise BackendError(message, where="a process of --jobs")
            worker.ready = True
            return None
        (result, account), at = message, worker.at
        assert at is not None
        worker.at = None
        return at, replace(result, case=self.listed[at]), account

    def _buried(self, worker: _Worker) -> Ran | None:
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.join()
        how = describe_exit(worker.process.exitcode)
        if worker.at is None:
            raise BackendError(f"ended before its first case: {how}", where="a process of --jobs")
        reason = f"the process that ran it died: {how}"
        return (
            worker.at,
            CaseResult(self.listed[worker.at], CaseOutcome.ERROR, reason),
            CompileCounts(),
        )


def describe_exit(code: int | None) -> str:
    """Describe how a process ended, by its exit code."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return f"{signal.Signals(-code).name}, signal {-code}"
    except ValueError:
        return f"signal {-code}"


def serve(connection: Connection, work: RunSpec) -> None:
    """Run cases as their places arrive, until the pool closes the connection.

    An interrupt is for the process that has the list; it ends this one.
    """
    from cortiq.plugins import use_files
    from cortiq_conformance.catalogue import cases
    from cortiq_conformance.runner import make_subject, run_case, select

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, EOFError):  # the pool has closed the connection
        try:
            use_files(work.files)
            subject = make_subject(work.backend)
            listed = select(cases(work.levels, work.profile, work.models), work.only)
        except CortiqError as error:
            connection.send(str(error))
            return
        connection.send(None)
        while True:
            at = connection.recv()
            result = run_case(listed[at], subject, use_golden=work.use_golden, out=work.out)
            # A case's functions cannot be pickled; the parent has the case in its own list.
            connection.send((replace(result, case=None), subject.account()))  # type: ignore[arg-type]
