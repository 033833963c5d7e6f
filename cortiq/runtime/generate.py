"""The generation loop: one for every backend, greedy and sampled, streamed or not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from cortiq.backend import Digest, Executable
from cortiq.errors import BackendError, shown
from cortiq.runtime.chain import START, chain
from cortiq.runtime.request import Request, vocabulary_size
from cortiq.runtime.sequence import Progress, RowResult, Session, digest_of
from cortiq.runtime.statistics import Statistics
from cortiq.tokenizer.stream import Detokenizer, StopMatcher
from cortiq.tokenizer.tokenizer import Tokenizer

SHOWN = 60
"""Characters of a text in a repr."""


class Identity(NamedTuple):
    """What a generation was made with, in two hashes."""

    model_hash: str
    fingerprint: str


@dataclass(frozen=True)
class Generation:
    """What was generated, and everything needed to generate it again.

    Attributes
    ----------
    text : without the stop string or end token that ended it.
    token_ids : every token drawn, the one that ended the text included.
    finish_reason : `stop` (an end token, a stop id or string), `length`, or `cancelled`.
    digest : hex of the chain (`runtime.chain`) over the digests of the logits that each of
        `token_ids` was drawn from.
    placement : number of nodes that each backend computes.
    seed : of the draws; None where nothing was drawn at random (temperature 0).
    note : what there is to know about the ending or the text, if anything.
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
    identity: Callable[[], Identity] = field(repr=False, kw_only=True)

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


@dataclass
class Output:
    """The text of a stream so far: every token goes through `commit`, once.

    Attributes
    ----------
    finish_reason : empty while the stream goes on.
    digest : the chain over the committed steps.
    """

    request: Request
    tokenizer: Tokenizer
    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    finish_reason: str = ""
    digest: bytes = START

    def __post_init__(self) -> None:
        absent = self.tokenizer.absent
        self._decoder = None if absent else Detokenizer(self.tokenizer, continuation=True)
        self._matcher = StopMatcher(self.request.stop)

    def commit(self, token: int, row: RowResult) -> str:
        """Take the next token; return the text that is now certain."""
        self.token_ids.append(token)
        self.digest = chain(self.digest, digest_of(row))
        if token in self.request.end_ids:
            return self.finish("stop")
        piece, stopped = self._matcher.add(self._decoder.add(token) if self._decoder else "")
        if stopped:
            self.finish_reason = "stop"
        elif len(self.token_ids) == self.request.max_tokens:
            return self._emit(piece) + self.finish("length")
        return self._emit(piece)

    def finish(self, reason: str) -> str:
        """End the stream; return what was held back of characters and of stop strings."""
        piece, stopped = self._matcher.add(self._decoder.finish() if self._decoder else "")
        self.finish_reason = "stop" if stopped else reason
        return self._emit(piece + self._matcher.finish())

    def _emit(self, piece: str) -> str:
        if piece:
            self.pieces.append(piece)
        return piece

    @property
    def complete(self) -> bool:
        """Whether the token under way will certainly be the last one."""
        return len(self.token_ids) + 1 >= self.request.max_tokens


def run(
    executable: Executable,
    request: Request,
    output: Output,
    stats: Statistics,
    cancelled: Callable[[], bool],
    progress: Progress | None = None,
) -> Iterator[str]:
    """Generate into `output` and `stats`, yielding pieces of text as they become certain.

    On an asynchronous executable the step after the one whose token is awaited is submitted first,
    with that token as its input (`Drawn`), so that a device never waits for the host. When the
    token ends the stream, the step that ran ahead is forgotten; it was never committed, nor does
    it matter if it failed. On any other one the next step begins when its token was delivered.
    """
    runs_ahead = getattr(executable, "asynchronous", False)
    wants = (request.want, Digest("logits"))
    vocabulary = vocabulary_size(executable.program)
    with Session(executable, request.limit) as session:
        pending = session.prefill(
            request.prompt, wants, request.chunk_rows, cancelled=cancelled, progress=progress
        )
        while pending is not None and not cancelled():
            ahead = None
            if runs_ahead and not output.complete:
                ahead = session.follow(pending, wants)
            row = session.read(pending)
            stats.token_arrived()
            piece = output.commit(drawn_token(row, request, vocabulary), row)
            if piece:
                yield piece
            if output.finish_reason:
                if ahead is not None:
                    session.discard(ahead)
                return
            if ahead is None and not cancelled():
                ahead = session.follow(pending, wants)
            pending = ahead
        piece = output.finish("cancelled")
        if piece:
            yield piece


def drawn_token(row: RowResult, request: Request, vocabulary: int) -> int:
    """The token a row drew; a backend that draws none, or no id at all, breaks its contract."""
    token = int(row[request.want])
    if not 0 <= token < vocabulary:
        raise BackendError(f"the backend drew token {token} of a vocabulary of {vocabulary}")
    return token


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
