"""Calibration of confidence: the temperature at which a model is as often right as it says.

A text's own next tokens are the truth. The temperature is the one that loses the least −ln p.
Source of the method: Guo and others, On Calibration of Modern Neural Networks (2017). All are tried
in one pass: exp(x/T) at T = STEPS/k is the k-th power of one exponential.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.arguments import path_of
from cortiq.atomic import write_atomically
from cortiq.engine.request import id_list
from cortiq.engine.session import Progress
from cortiq.errors import FormatError, RequestError, shown
from cortiq.explain.facts import LOGITS
from cortiq.explain.observed import ObservedModel, check_window
from cortiq.formats.given_files import read_given

STEPS = 32
POWERS = range(STEPS // 2, 2 * STEPS + 1)
"""Temperatures from 0.5 to 2, of which each inverse is 1/32 from the next."""
BINS = 15
"""Bins of the expected calibration error, of equal width."""
LEAST_TOKENS = 256
FORMAT = "cortiq-calibration-1"
MOST_BYTES, LARGEST = 1 << 16, 1e30
"""Most bytes of a file, and the magnitude that its numbers stay below."""
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibrated:
    """A calibration of a model on a text.

    Attributes
    ----------
    temperature : what logits are divided by: `--calibration` of `cortiq generate`.
    tokens : predictions that were looked at. accuracy : share of them that were right.
    nll, nll_before : mean −ln p of the text's tokens, at the temperature and at 1.
    error, error_before : expected calibration error of the most likely token's probability.
    confidence, confidence_before : mean of that probability.
    model_hash : of the model. text_sha256 : of the token ids.
    """

    temperature: float
    tokens: int
    accuracy: float
    nll: float
    nll_before: float
    error: float
    error_before: float
    confidence: float
    confidence_before: float
    model_hash: str
    text_sha256: str

    @property
    def is_bound(self) -> bool:
        """Whether the temperature is the lowest or the highest that is tried."""
        return self.temperature in (STEPS / POWERS[0], STEPS / POWERS[-1])

    def write(self, path: str | Path) -> None:
        """Write it as a JSON file, which `read_calibration` reads; RequestError if it cannot be."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=2)
        try:
            write_atomically(path_of(path, "write"), [f"{text}\n".encode()])
        except OSError as error:
            raise RequestError(f"cannot be written: {error.strerror}", where=str(path)) from None


def read_calibration(path: str | Path) -> Calibrated:
    """Read a calibration that `Calibrated.write` wrote.

    Raises
    ------
    RequestError : there is no such file. FormatError : it is no calibration.
    """
    where = str(path)
    data = read_given(path_of(path, "calibration"), MOST_BYTES)
    try:
        held = json.loads(data[:MOST_BYTES])
    except (ValueError, RecursionError) as error:
        raise FormatError(f"cannot be read as a calibration: {error}", where=where) from error
    if not isinstance(held, dict) or held.pop("format", None) != FORMAT:
        hint = "cortiq calibrate MODEL TEXT --out FILE writes one"
        raise FormatError("is no calibration", where=where, hint=hint)
    fields = Calibrated.__dataclass_fields__
    if held.keys() != fields.keys():
        raise FormatError(f"has the fields {shown(sorted(held))}", where=where)
    for name, field in fields.items():
        kinds: Any = {"float": (int, float), "int": int, "str": str}[str(field.type)]
        value = held[name]
        sound = isinstance(value, kinds) and not isinstance(value, bool)
        if not sound or (kinds is not str and not abs(value) < LARGEST):  # nor NaN
            raise FormatError(f"{name} is {shown(value)}", where=where)
    if not 0.001 <= held["temperature"] <= 1000:
        raise FormatError(f"the temperature is {held['temperature']}", where=where)
    return Calibrated(**held)


@dataclass(frozen=True)
class Predictions:
    """Predictions of a text's next tokens.

    Attributes
    ----------
    right : whether the most likely token came, bool [n].
    confidence : its probability at each temperature, float64 [n, temperatures].
    nll : −ln p of the token that came, float64 [n, temperatures].
    """

    right: npt.NDArray[np.bool_]
    confidence: Doubles
    nll: Doubles


def predictions(
    run: ObservedModel, ids: Sequence[int], window: int, progress: Progress | None = None
) -> Predictions:
    """Compute a text in windows, each a sequence of its own, and look at every next token."""
    right, confidence, nll = [], [], []
    position = 0
    for values in run.rows(ids, [LOGITS], window):
        for logits in values[LOGITS]:
            position += 1
            if position % window == 0 or position == len(ids):
                continue  # the token that follows is in another window
            target = ids[position]
            sums, own = _powers(logits, target)
            right.append(int(logits.argmax()) == target)
            confidence.append(1 / sums)
            nll.append(np.log(sums) + own)
        if progress is not None:
            progress(position, len(ids))
    return Predictions(np.array(right), np.array(confidence), np.array(nll))


def _powers(logits: np.ndarray, target: int) -> tuple[Doubles, Doubles]:
    """Return Σ exp((x − m)/T) and (m − x[target])/T at every temperature."""
    x = logits.astype(np.float64)
    gap = x.max() - x
    step = np.exp(-gap / STEPS)
    power = step ** (POWERS.start - 1)
    sums = np.empty(len(POWERS))
    for i in range(len(POWERS)):
        power *= step
        sums[i] = power.sum()
    return sums, gap[target] * np.array(POWERS) / STEPS


def calibration_error(confidence: Doubles, right: npt.NDArray[np.bool_]) -> float:
    """Return Σ of each bin's share times |accuracy − mean confidence| in it."""
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, right - confidence, BINS)
    return float(np.abs(gaps).sum() / len(right))


def calibrate(
    run: ObservedModel, ids: Sequence[int], *, window: int = 512, progress: Progress | None = None
) -> Calibrated:
    """Find the temperature of a model's probabilities on a text.

    Parameters
    ----------
    ids : of a text that the model was not trained on, without a start token.
    window : tokens of a sequence.

    Raises
    ------
    RequestError : the text has fewer than 256 tokens, or a window fewer than two.
    """
    ids = id_list(ids)
    if len(ids) < LEAST_TOKENS:
        hint = f"give a text of at least {LEAST_TOKENS} tokens"
        raise RequestError(f"the text has {len(ids)} tokens", where="calibrate", hint=hint)
    window = min(check_window(window), run.executable.program.context)
    if window < 2:
        raise RequestError(f"a window of {window} tokens predicts none", where="window")
    found = predictions(run, ids, window, progress)
    mean = found.nll.mean(axis=0)
    best, plain = int(mean.argmin()), STEPS - POWERS.start
    error, error_before = (
        calibration_error(found.confidence[:, i], found.right) for i in (best, plain)
    )
    sure = found.confidence.mean(axis=0)
    return Calibrated(
        STEPS / POWERS[best], len(found.right), float(found.right.mean()),
        float(mean[best]), float(mean[plain]), error, error_before,
        float(sure[best]), float(sure[plain]),
        run.source.model_hash(), hashlib.sha256(np.array(ids, "<i8").tobytes()).hexdigest(),
    )  # fmt: skip
