"""Generations: the result, and the text as an iterator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from cortiq.backend import Executable
from cortiq.engine.drafting import Speculation
from cortiq.engine.engine import Engine
from cortiq.engine.output import Output, TraceRow
from cortiq.engine.prefixes import PrefixCache
from cortiq.engine.request import Request
from cortiq.engine.scheduler import EngineOptions
from cortiq.engine.sequence import Sequence
from cortiq.engine.session import Progress
from cortiq.engine.statistics import Statistics
from cortiq.errors import shown
from cortiq.model.fingerprint import adapter_facts, drawing_facts, fingerprint
from cortiq.numerics.digest import Digest as DigestWords
from cortiq.options import GenerateOptions
from cortiq.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from cortiq.receipts.record import Receipt

SHOWN = 60
"""Characters of a text in a repr."""


class Identity(NamedTuple):
    """Hashes of a generation's model and of its options."""

    model_hash: str
    fingerprint: str


def identity_of(
    model_hash: str, model_fingerprint: str, options: GenerateOptions, request: Request
) -> Identity:
    """Return the identity of a generation: of the model, its adapter and the options."""
    facts = {"model": model_fingerprint, **drawing_facts(options), **adapter_facts(request.overlay)}
    return Identity(model_hash, fingerprint(facts))


@dataclass(frozen=True)
class Generation:
    """A generated text, and everything needed to generate it again.

    Attributes
    ----------
    text : without the stop string or end token that ended it.
    token_ids : every token drawn, the one that ended the text included.
    finish_reason : `stop` (an end token, a stop id or string), `length`, `loop` or `cancelled`.
    digest : hex of the chain (`engine.digest_chain`) over the digests of the logits that each of
        `token_ids` was drawn from.
    placement : number of nodes that each backend computes.
    seed : of the draws; None where nothing was drawn at random (temperature 0).
    note : what there is to know about the ending or the text, if anything.
    confidence : probability of each of `token_ids`, if asked for.
    trace : a row about each of them, if asked for.
    prompt_ids : the ids it went on from.
    options : everything that was asked for, the seed drawn included.
    step_digests : of the logits that each of `token_ids` was drawn from.
    record : makes the receipt of a generation.
    identity : gives model hash and fingerprint; the model's files are read when it is first called.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    backend: str
    device: str
    placement: dict[str, int]
    seed: int | None
    contract: int
    digest: str
    stats: Statistics
    note: str = ""
    confidence: tuple[float, ...] = field(default=(), repr=False)
    trace: tuple[TraceRow, ...] = field(default=(), repr=False)
    prompt_ids: tuple[int, ...] = field(repr=False, kw_only=True)
    options: GenerateOptions = field(repr=False, kw_only=True)
    step_digests: tuple[DigestWords, ...] = field(repr=False, kw_only=True)
    record: Callable[[Generation], Receipt] = field(repr=False, kw_only=True)
    identity: Callable[[], Identity] = field(repr=False, kw_only=True)

    def __str__(self) -> str:
        """Return the text: what `print` is for."""
        return self.text

    def __repr__(self) -> str:
        return (
            f"<Generation {shown(self.text, SHOWN)}: {len(self.token_ids)} tokens, "
            f"{self.finish_reason}, on {self.backend}:{self.device}>"
        )

    @property
    def model_hash(self) -> str:
        """SHA-256, in hex, of the model's files."""
        return self.identity().model_hash

    @property
    def fingerprint(self) -> str:
        """Hash of contract, model and every option that can change a bit: equal fingerprints and
        equal prompts give equal tokens and digests, on every backend.
        """
        return self.identity().fingerprint

    def receipt(self) -> Receipt:
        """Make the receipt with which anybody can check this generation: `cortiq.receipts`.

        Raises
        ------
        RequestError : nothing was generated.
        """
        return self.record(self)


def note_of(request: Request, output: Output) -> str:
    """Return notes on the ending of a stream, or on its text."""
    full = request.note if output.finish_reason == "length" else ""
    silent = "the model has no tokenizer: there are token ids, but no text"
    return "; ".join(filter(None, (full, silent if output.tokenizer.absent else "")))


def serve_one(
    executable: Executable,
    tokenizer: Tokenizer,
    prefixes: PrefixCache | None,
    request: Request,
    stats: Statistics,
    speculation: Speculation | None,
    progress: Progress | None,
    cancelled: Callable[[], bool],
) -> Generator[str, None, Output]:
    """Serve one request on an engine of its own; yields its text, returns its output."""
    rows = max(request.chunk_rows or 0, executable.batch_rows)
    bounds = EngineOptions(batch_rows=rows)
    with Engine(executable, tokenizer, options=bounds, prefixes=prefixes) as engine:
        sequence = engine.submit(
            request, stats=stats, speculation=speculation, progress=progress, cancelled=cancelled
        )
        yield from _pieces(engine, sequence)
    return sequence.output


def _pieces(engine: Engine, sequence: Sequence) -> Iterator[str]:
    """Step an engine until a sequence has ended, yielding its text; raise its error, if any."""
    while not sequence.done:
        engine.step()
        yield from sequence.take()
    yield from sequence.take()
    if sequence.error is not None:
        raise sequence.error


def serve_batch(
    executable: Executable,
    tokenizer: Tokenizer,
    prefixes: PrefixCache | None,
    requests: Iterable[Request],
    load_seconds: float,
    speculation: Speculation | None,
    cancelled: Callable[[], bool],
) -> list[Sequence]:
    """Serve requests together on an engine of their own; raises the first error one ended with."""
    with Engine(executable, tokenizer, prefixes=prefixes, speculation=speculation) as engine:
        served = [
            engine.submit(
                request, stats=Statistics(load_seconds, len(request.prompt)), cancelled=cancelled
            )
            for request in requests
        ]
        while engine.step():
            failed = next((s.error for s in served if s.error is not None), None)
            if failed is not None:
                break
    for sequence in served:
        if sequence.error is not None:
            raise sequence.error
    return served


class Stream(Iterator[str]):
    """Text as it is generated: iterate over the pieces, then read `generation`.

    Leaving the iteration early and calling `close` (or leaving a `with` block) frees the sequence.
    """

    def __init__(
        self, steps: Generator[str, None, Generation], cancel: threading.Event | None = None
    ) -> None:
        self._steps = steps
        self._cancel = cancel or threading.Event()
        self._generation: Generation | None = None

    def __next__(self) -> str:
        try:
            return next(self._steps)
        except StopIteration as end:
            if end.value is not None:
                self._generation = end.value
            raise StopIteration from None

    @property
    def generation(self) -> Generation:
        """The result, once the iteration has ended."""
        if self._generation is None:
            raise ValueError("the stream has not ended; iterate over it first")
        return self._generation

    def cancel(self) -> None:
        """End the stream before its next step, with the finish reason `cancelled`."""
        self._cancel.set()

    def close(self) -> None:
        """Free the sequence at once; there will be no `generation`."""
        self._steps.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
