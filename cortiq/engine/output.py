"""Output of a sequence: every token, drafted or not, is committed by one function, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Any

from cortiq.backend import DrawnLogit, Top, Want
from cortiq.engine.digest_chain import START, chain
from cortiq.engine.repetition import is_looping
from cortiq.engine.request import Request
from cortiq.engine.session import digest_of
from cortiq.numerics.contract import F32
from cortiq.numerics.digest import Digest
from cortiq.tokenizer.detokenizer import Detokenizer, StopMatcher
from cortiq.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class TraceRow:
    """Record of one generated token.

    Attributes
    ----------
    index : its index among the generated tokens.
    confidence : its calibrated probability (`confidence`).
    digest : of the logits it was drawn from.
    drafter : name of the drafter that proposed it; empty for the target's own.
    """

    index: int
    token_id: int
    confidence: float
    digest: tuple[int, int, int, int]
    drafter: str = ""


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probability of a token drawn, and of the most likely ones, before bias and penalties.

    Each is RN(logit − logsumexp) of the contract's float32 numbers: the same bits on any backend.

    Attributes
    ----------
    top : (token, its log-probability), the most likely first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(row: Mapping[Want, Any], token: int, count: int) -> TokenLogprobs:
    """Return the log-probabilities of a row that brought `Top` and the drawn token's logit."""
    ids, values, _ = row[Top(max(1, count))]
    logit, total = map(F32, row[DrawnLogit()])
    top = zip(ids[:count].tolist(), (values[:count] - total).tolist(), strict=True)
    return TokenLogprobs(token, float(logit - total), tuple(top))


def confidence(logit: float, logsumexp: float) -> float:
    """Return the probability e^(logit − logsumexp) of the drawn token, in float64.

    Parameters
    ----------
    logit, logsumexp : what `DrawnLogit` brings, before bias and penalties: the contract's numbers.
    """
    return min(1.0, exp(float(logit) - float(logsumexp)))


@dataclass
class Output:
    """The text of a stream so far: every token goes through `commit`, once.

    Attributes
    ----------
    finish_reason : empty until the stream ends.
    step_digests : of the logits of each committed step.
    confidence, trace, logprobs : one entry a token where the request asks for them, else none.
    """

    request: Request
    tokenizer: Tokenizer
    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    trace: list[TraceRow] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str = ""
    step_digests: list[Digest] = field(default_factory=list)

    def __post_init__(self) -> None:
        request = self.request
        noted = request.confidence or request.trace
        self._notes = noted or request.top_logprobs is not None
        self._chain, self._chained = START, 0
        absent, shown = self.tokenizer.absent, self.request.shown_ids
        self._decoder = (
            None if absent else Detokenizer(self.tokenizer, continuation=True, shown=shown)
        )
        self._matcher = StopMatcher(self.request.stop)

    def commit(self, token: int, row: Mapping[Want, Any], drafter: str = "") -> str:
        """Take the next token, drawn in this row; return the text that is now certain."""
        self.token_ids.append(token)
        self.step_digests.append(digest_of(row))
        if self._notes:
            self._note(token, row, drafter)
        if token in self.request.end_ids:
            return self.finish("stop")
        piece, stopped = self._matcher.add(self._decoder.add(token) if self._decoder else "")
        if stopped:
            self.finish_reason = "stop"
            return self._emit(piece)
        return self._emit(piece) + self._end()

    def _note(self, token: int, row: Mapping[Want, Any], drafter: str) -> None:
        """Log-probabilities, confidence and trace of a token."""
        request = self.request
        if request.top_logprobs is not None:
            self.logprobs.append(token_logprobs(row, token, request.top_logprobs))
        if not (request.confidence or request.trace):
            return  # log-probabilities only
        probability = confidence(*row[DrawnLogit(request.calibration)])
        if request.confidence:
            self.confidence.append(probability)
        if request.trace:
            words = digest_of(row)
            self.trace.append(TraceRow(len(self.trace), token, probability, words, drafter))

    def _end(self) -> str:
        """End the stream where its length or a loop does."""
        if len(self.token_ids) == self.request.max_tokens:
            return self.finish("length")
        if self.request.loop_tokens and is_looping(self.token_ids, self.request.loop_tokens):
            return self.finish("loop")
        return ""

    def finish(self, reason: str) -> str:
        """End the stream; return the characters that were buffered for stop strings."""
        piece, stopped = self._matcher.add(self._decoder.finish() if self._decoder else "")
        self.finish_reason = "stop" if stopped else reason
        return self._emit(piece + self._matcher.finish())

    def _emit(self, piece: str) -> str:
        if piece:
            self.pieces.append(piece)
        return piece

    @property
    def digest(self) -> bytes:
        """The chain over the committed steps; hashed when it is asked for, not step by step."""
        for words in self.step_digests[self._chained :]:
            self._chain = chain(self._chain, words)
        self._chained = len(self.step_digests)
        return self._chain

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the stream; None if something else did, or nothing yet."""
        return self._matcher.matched

    @property
    def room(self) -> int:
        """Tokens that may still come."""
        return self.request.max_tokens - len(self.token_ids)
