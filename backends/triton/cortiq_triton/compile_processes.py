"""Compilations in processes: Triton's compiler is Python for a good part, which threads share.

Processes are forked, so that they know every kernel, and compile for the cache on the disk. They
never call the device's driver, which does not survive a fork. Whatever does not succeed there is
compiled, and said, where its result is asked for.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

LOG = logging.getLogger("cortiq.triton")
STALLED = 120.0
"""Seconds without a kernel after which processes are given up."""
NUMBER = 4
"""Bytes of a task's number in a pipe."""


class Deferred(Executor):
    """Takes tasks, and does none before it is told to.

    Attributes
    ----------
    tasks : what was submitted, each with its future.
    """

    def __init__(self) -> None:
        self.tasks: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Take a task."""
        future: Future[Any] = Future()
        self.tasks.append((future, partial(fn, *args, **kwargs)))
        return future

    def run(self, pool: Executor, workers: int, done: Callable[[int], None]) -> None:
        """Do all tasks: first in processes, for what they leave on the disk, then for their results
        in a pool of threads.
        """
        if hasattr(os, "fork") and len(self.tasks) > 1:
            in_processes([task for _, task in self.tasks], workers, done)
        for future, task in self.tasks:
            pool.submit(_complete, future, task)


def _complete(future: Future[Any], task: Callable[[], Any]) -> None:
    try:
        future.set_result(task())
    except BaseException as error:
        future.set_exception(error)


def in_processes(
    tasks: Sequence[Callable[[], Any]], workers: int, done: Callable[[int], None]
) -> None:
    """Do tasks in forked processes; an error of one is nobody's.

    Parameters
    ----------
    done : called with how many are done.
    """
    numbers = b"".join(at.to_bytes(NUMBER, "little") for at in range(len(tasks)))
    waiting, giving = os.pipe()
    told, telling = os.pipe()
    count = min(workers, len(tasks), select.PIPE_BUF // NUMBER)
    with warnings.catch_warnings():  # threads of this process are not at work in the others
        warnings.simplefilter("ignore", DeprecationWarning)
        children = [_forked(tasks, waiting, giving, telling) for _ in range(count)]
    os.close(waiting)
    os.close(telling)
    try:
        for start in range(0, len(numbers), select.PIPE_BUF):
            os.write(giving, numbers[start : start + select.PIPE_BUF])
        os.close(giving)
        finished = 0
        while select.select([told], [], [], STALLED)[0]:
            news = os.read(told, select.PIPE_BUF)
            if not news:
                break
            finished += len(news)
            done(finished)
        else:
            LOG.warning("processes that compile kernels made none in %g s: stopped", STALLED)
    finally:
        os.close(told)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _forked(tasks: Sequence[Callable[[], Any]], waiting: int, giving: int, telling: int) -> int:
    """Fork a process that takes tasks by their numbers until there are no more; return its id."""
    child = os.fork()
    if child:
        return child
    try:
        os.close(giving)
        while number := os.read(waiting, NUMBER):
            try:
                tasks[int.from_bytes(number, "little")]()
            except BaseException as error:
                LOG.debug("a kernel was not compiled ahead: %s", error)
            os.write(telling, b".")
    finally:
        os._exit(0)
