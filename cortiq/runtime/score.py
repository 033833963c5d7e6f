"""Scoring: how well a model predicts a text, in windows that know nothing of each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cortiq.backend import Argmax, Executable, Named
from cortiq.errors import RequestError
from cortiq.options import ScoreOptions
from cortiq.runtime.request import check_prompt
from cortiq.runtime.sequence import Progress, Session
from cortiq.tokenizer.tokenizer import Tokenizer

ROWS = 64
"""Rows whose logits are on the host at once: memory stays bounded, and no bit depends on it."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """How a text was predicted.

    Attributes
    ----------
    tokens : number of tokens scored.
    nll : mean of −ln p(token), in nats, float64.
    perplexity : e^nll.
    standard_error : of the perplexity: perplexity · s / √tokens, s the sample standard deviation
        of the tokens' −ln p (they are taken as independent, which makes it a lower estimate).
    token_nll : −ln p of every token scored, in order.
    argmax : the most likely token at every one of these places.
    window, windows : input tokens of a window, and how many there were.
    bos : whether the start token was put before each window.
    """

    tokens: int
    nll: float
    perplexity: float
    standard_error: float
    token_nll: tuple[float, ...]
    argmax: tuple[int, ...]
    window: int
    windows: int
    bos: bool


def score_ids(
    executable: Executable,
    tokenizer: Tokenizer,
    ids: Sequence[int],
    options: ScoreOptions,
    progress: Progress | None = None,
) -> Score:
    """Score a text given as token ids without BOS.

    Window w takes the ids from w·window on as inputs and the ids one later as targets: every one is
    scored, in a sequence of its own. With BOS each window begins with that token as one more input,
    whose own prediction is not scored: windows and targets are the same with and without.

    Raises
    ------
    RequestError : the text is shorter than a window and one token, or a window than the context.
    """
    bos = _bos_of(tokenizer, options.bos)
    check_prompt(ids[: options.window], executable.program)
    count = (len(ids) - 1) // options.window
    count = min(count, options.windows or count)
    if count < 1:
        message = f"the text has {len(ids)} tokens, one window of {options.window} takes one more"
        raise RequestError(message, hint="choose a shorter window or a longer text")
    nll: list[Doubles] = []
    best: list[int] = []
    for window in range(count):
        start = window * options.window
        inputs, targets = ids[start : start + options.window], ids[start + 1 :][: options.window]
        for chunk_nll, chunk_best in _score_window(executable, [*bos, *inputs], targets, len(bos)):
            nll.append(chunk_nll)
            best += chunk_best
            if progress:
                progress(len(best), count * options.window)
    return _summary(np.concatenate(nll), best, options.window, count, bool(bos))


def _bos_of(tokenizer: Tokenizer, choice: str) -> list[int]:
    wanted = tokenizer.add_bos_default if choice == "auto" else choice == "yes"
    if not wanted:
        return []
    if tokenizer.bos_id is None:
        raise RequestError("the tokenizer has no start token", where="--bos", hint="--bos no")
    return [tokenizer.bos_id]


def _score_window(
    executable: Executable, inputs: Sequence[int], targets: Sequence[int], skipped: int
) -> Iterator[tuple[Doubles, list[int]]]:
    """−ln p of each target and the argmax beside it, some rows at a time; the first `skipped`
    inputs have no target.
    """
    wants = (Named("logits"), Argmax())
    inputs = check_prompt(inputs, executable.program)
    with Session(executable, len(inputs)) as session:
        if skipped:
            session.read(session.feed(inputs[:skipped], ()))
        for start in range(0, len(targets), ROWS):
            chunk = inputs[skipped + start : skipped + start + ROWS]
            rows = session.read_rows(session.feed(chunk, wants, every=True))
            logits = np.stack([row[Named("logits")] for row in rows])
            nll = negative_log_likelihood(logits, targets[start : start + ROWS])
            yield nll, [int(row[Argmax()]) for row in rows]


def negative_log_likelihood(logits: npt.NDArray, targets: Sequence[int]) -> Doubles:
    """−ln softmax(logits)[target] of each row: (m − x[target]) + ln Σ exp(x − m), in float64.

    Statistics for people: unlike the logits, the last bits are not part of the contract.

    Parameters
    ----------
    logits : float32 [rows, vocabulary].
    targets : token ids [rows].
    """
    x = np.asarray(logits, np.float64)
    highest = x.max(axis=1)
    chosen = x[np.arange(len(x)), np.asarray(targets)]
    return (highest - chosen) + np.log(np.exp(x - highest[:, None]).sum(axis=1))


def _summary(nll: Doubles, best: list[int], window: int, windows: int, bos: bool) -> Score:
    mean = float(nll.mean())
    perplexity = math.exp(min(mean, 700.0))
    error = perplexity * float(nll.std(ddof=1)) / math.sqrt(nll.size)
    return Score(
        tokens=nll.size,
        nll=mean,
        perplexity=perplexity,
        standard_error=error,
        token_nll=tuple(float(value) for value in nll),
        argmax=tuple(best),
        window=window,
        windows=windows,
        bos=bos,
    )
