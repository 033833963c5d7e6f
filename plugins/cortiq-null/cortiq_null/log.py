"""Calls as lines of JSON, in a file or on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cortiq.errors import BackendError

VARIABLE = "CORTIQ_NULL_LOG"


class Log:
    """A log of calls; its file is opened for appending with the first line."""

    def __init__(self, place: str | None = None) -> None:
        self.place = place

    @contextmanager
    def call(self, name: str, **given: Any) -> Iterator[dict[str, Any]]:
        """Log a call: the mapping given takes its outcome; an error is logged too."""
        outcome: dict[str, Any] = {}
        started = time.perf_counter()
        try:
            yield outcome
        except BaseException as error:
            outcome["error"] = f"{type(error).__name__}: {error}"
            raise
        finally:
            seconds = round(time.perf_counter() - started, 6)
            self._write({"call": name, **given, "seconds": seconds, **outcome})

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, ensure_ascii=False) + "\n"
        place = self.place or os.environ.get(VARIABLE)
        if not place or place == "-":
            sys.stderr.write(text)
            return
        try:
            with open(place, "a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise BackendError(f"cannot write its log: {error}", where=VARIABLE) from None
