"""Scoring: how well a model predicts a text, in independent windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from cortiq.backend import Argmax, Executable, Named
from cortiq.engine.request import check_prompt
from cortiq.engine.session import Progress, Session
from cortiq.errors import OptionError, RequestError
from cortiq.ir.purpose import check_continues
from cortiq.numerics.contract import Floats
from cortiq.options import ScoreOptions
from cortiq.tokenizer.tokenizer import Tokenizer

ROWS = 64
"""Rows whose logits are on the host at once: memory stays bounded, and no bit depends on it."""

LARGEST_EXPONENT = 700.0
"""A perplexity of more than e^700 is no double; it is given as that."""


@dataclass(frozen=True)
class Score:
    """Perplexity and the figures behind it.

    Attributes
    ----------
    tokens : number of tokens scored.
    nll : mean of −ln p(token), in nats, float64.
    perplexity : e^nll.
    standard_error : of the perplexity: perplexity · s / √tokens, s the sample standard deviation
        of the tokens' −ln p (they are taken as independent, which makes it a lower estimate).
    token_nll : −ln p of every token scored, in order.
    argmax : the most likely token at each of these positions.
    window, windows : input tokens of a window, and how many there were.
    bos : whether the start token was put before each window.
    unscored : tokens at the end that were left out: too few for another window, or `windows`.
    """

    tokens: int
    nll: float
    perplexity: float
    standard_error: float
    token_nll: tuple[float, ...] = field(repr=False)
    argmax: tuple[int, ...] = field(repr=False)
    window: int
    windows: int
    bos: bool
    unscored: int


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
    check_continues(executable.program)
    bos = _bos_of(tokenizer, options.bos)
    if not ids:
        raise RequestError("the text is empty", hint="nothing can be scored")
    if options.window + len(bos) > executable.program.context:
        what = f"with start token is {options.window + len(bos)} tokens" if bos else "is too long"
        what += f", the context is {executable.program.context}"
        raise OptionError("window", what, hint="choose a shorter window")
    check_prompt(ids[: options.window], executable.program)
    count = (len(ids) - 1) // options.window
    count = min(count, options.windows or count)
    if count < 1:
        message = f"the text has {len(ids)} tokens, one window of {options.window} takes one more"
        raise RequestError(message, hint="choose a shorter window or a longer text")
    scored: list[tuple[float, int]] = []
    for window in range(count):
        start = window * options.window
        inputs, targets = ids[start : start + options.window], ids[start + 1 :][: options.window]
        for chunk in _score_window(executable, [*bos, *inputs], targets, len(bos)):
            scored += chunk
            if progress:
                progress(len(scored), count * options.window)
    return _summary(scored, options.window, count, bool(bos), len(ids) - 1 - len(scored))


def _bos_of(tokenizer: Tokenizer, choice: str) -> list[int]:
    wanted = tokenizer.add_bos_default if choice == "auto" else choice == "yes"
    if not wanted:
        return []
    if tokenizer.bos_id is None:
        what = "must be auto or no: the tokenizer has no start token"
        raise OptionError("bos", what)
    return [tokenizer.bos_id]


def _score_window(
    executable: Executable, inputs: Sequence[int], targets: Sequence[int], skipped: int
) -> Iterator[list[tuple[float, int]]]:
    """Yield −ln p of each target with the argmax, `ROWS` at a time; `skipped` inputs have no
    target.
    """
    wants = (Named("logits"), Argmax())
    inputs = check_prompt(inputs, executable.program)
    with Session(executable, len(inputs)) as session:
        if skipped:
            session.read(session.feed(inputs[:skipped], ()))
        for start in range(0, len(targets), ROWS):
            chunk = inputs[skipped + start : skipped + start + ROWS]
            rows = session.read_rows(session.feed(chunk, wants, every=True))
            chunk_targets = targets[start : start + ROWS]
            yield [
                (negative_log_likelihood(row[Named("logits")], target), int(row[Argmax()]))
                for row, target in zip(rows, chunk_targets, strict=True)
            ]


def rows_of(executable: Executable, ids: Iterable[int], name: str = "logits") -> np.ndarray:
    """Return a value of the trunk for every token, `ROWS` rows at a time; see `Model.logits`.

    Raises
    ------
    RequestError : the graph has no such value, or the prompt cannot be served.
    """
    tokens, value = check_prompt(ids, executable.program), Named(name)
    if name not in executable.program.trunk.values:
        raise RequestError(f"the model has no value {name!r}", where="trunk")
    shape = executable.program.trunk.values[name].shape
    made = np.empty((len(tokens), *shape), np.float32)
    with Session(executable, len(tokens)) as session:
        for start in range(0, len(tokens), ROWS):
            chunk = tokens[start : start + ROWS]
            rows = session.read_rows(session.feed(chunk, (value,), every=True))
            for index, row in enumerate(rows, start):
                made[index] = row[value]
    return made


def negative_log_likelihood(logits: Floats, target: int) -> float:
    """Return −ln softmax(logits)[target]: (m − x[target]) + ln Σ exp(x − m), in float64.

    Statistics for people: unlike the logits, the last bits are not part of the contract.

    Parameters
    ----------
    logits : float32 [vocabulary].
    """
    x = np.asarray(logits, np.float64)
    highest = x.max()
    return float((highest - x[target]) + np.log(np.exp(x - highest).sum()))


def _summary(
    scored: list[tuple[float, int]], window: int, windows: int, bos: bool, unscored: int
) -> Score:
    nll = [value for value, _ in scored]
    mean = math.fsum(nll) / len(nll)
    variance = math.fsum((value - mean) ** 2 for value in nll) / (len(nll) - 1)
    perplexity = math.exp(min(mean, LARGEST_EXPONENT))
    return Score(
        tokens=len(nll),
        nll=mean,
        perplexity=perplexity,
        standard_error=perplexity * math.sqrt(variance / len(nll)),
        token_nll=tuple(nll),
        argmax=tuple(best for _, best in scored),
        window=window,
        windows=windows,
        bos=bos,
        unscored=unscored,
    )
