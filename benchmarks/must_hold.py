"""Lines that several devices must hold, measured in one run: digests, speeds, a large model.

`ranks.py --must-hold` starts the ranks and prints the lines. What fails is a line, too, and the
others are measured nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cortiq.backend import Backend

ASKED = {"prompt": 1.7, "decoding, batch 1,": 1.5, "decoding, batch 32,": 1.6}
"""By how the name of a measure begins: how many times as fast two devices are to be as one."""
Measured = dict[str, tuple[float, str, str]]


@dataclass(frozen=True)
class Line:
    """Something that must hold.

    Attributes
    ----------
    one, several : what was measured on one device and on several. asked : the least ratio of them.
    fails : why it does not hold; empty if it does.
    """

    what: str
    one: float | None = None
    several: float | None = None
    asked: float | None = None
    fails: str = ""

    def __str__(self) -> str:
        """Return the line of the table."""
        ratio = self.several / self.one if self.one and self.several else None
        numbers = (self.one, 1), (self.several, 1), (ratio, 2), (self.asked, 2)
        cells = "".join(f"{'-' if n is None else f'{n:.{p}f}':>10}" for n, p in numbers)
        return f"{self.what:46}{cells}  {f'FAIL: {self.fails}' if self.fails else 'pass'}"


@dataclass(frozen=True)
class Bench:
    """Compiles models and measures them; see `ranks.py`."""

    compiled: Callable[[Backend, str], Any]
    checked: Callable[[Any], str]
    measured: Callable[[Any], Measured]

    def on(self, backend: Backend, model: str) -> tuple[str, Measured]:
        """Return a model's digest, and what was measured of it."""
        executable = self.compiled(backend, model)
        try:
            return self.checked(executable), self.measured(executable)
        finally:
            executable.close()


def compared(bench: Bench, model: str, one: Backend, several: Backend) -> Iterator[Line]:
    """Yield the lines of a model that one device computes, and several."""
    digest, alone = bench.on(one, model)
    other, together = bench.on(several, model)
    said = "" if digest == other else f"other bits: {digest} {other}"
    yield Line(f"{model}: digest {digest[:12]}", fails=said)
    for name, (speed, _, digest) in alone.items():
        faster, _, other = together[name]
        asked = next((least for start, least in ASKED.items() if name.startswith(start)), None)
        said = f"below {asked} times" if asked and faster < asked * speed else ""
        said = said if digest == other else f"other bits: {digest} {other}"
        yield Line(f"{model}: {name}", speed, faster, asked, said)


def large(bench: Bench, model: str, several: Backend) -> Iterator[Line]:
    """Yield the lines of a model that several devices only have to compute."""
    digest, together = bench.on(several, model)
    yield Line(f"{model}: digest {digest[:12]}")
    for name, (speed, _, _) in together.items():
        yield Line(f"{model}: {name}", several=speed)


def held(parts: Sequence[tuple[str, Callable[[], Iterator[Line]]]]) -> int:
    """Print the lines of all parts; return 0 if every one holds, else 1."""
    print(f"{'tokens/s':46}{'one':>10}{'several':>10}{'ratio':>10}{'asked':>10}", flush=True)
    failed = False
    for name, lines in parts:
        try:
            for line in lines():
                failed |= bool(line.fails)
                print(line, flush=True)
        except Exception as error:  # the next part is measured nevertheless
            failed = True
            what = str(error).partition("\n")[0]
            print(Line(name, fails=f"{type(error).__name__}: {what}"), flush=True)
    return int(failed)
