"""GPTQ as a library: second moments of the rows that a model's matrices meet, and codes by them.

`cortiq convert --calibrate` is made of the same parts: `calibration.moments_of` reads a text,
`feedback` chooses codes. Moments of large models are files without a name while they are there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cortiq.convert.calibration import Moments, Progress, moments_of
from cortiq.convert.feedback import CodeGrid, best_codes, feedback_of
from cortiq.convert.scratch import ScratchArrays
from cortiq.errors import RequestError
from cortiq.model.source import model_name, open_source
from cortiq.numerics.contract import F32, Floats
from cortiq.options import LoadOptions, resolve


def second_moments(
    model: str | Path,
    text: str | Sequence[int],
    matrices: Collection[str] | None = None,
    *,
    scratch: Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Iterator[tuple[list[str], Moments]]:
    """Yield matrices that multiply the same rows, and Σ x·xᵀ of those over a text: float32 [K, K].

    The text passes a few layers at a time: moments are there until the next are asked for.

    Parameters
    ----------
    text : or token ids. matrices : names of the wanted ones; all that rows are quantised for, if
        None. Those of experts and of heads, and the output head, have none.
    scratch : folder of what memory has no room for.
    options : as for `cortiq.load`: how the model is read.

    Raises
    ------
    RequestError : the text is empty, or there is no matrix of a name.
    """
    source = open_source(model_name(model), resolve(LoadOptions, options))
    try:
        names = set(source.program.weights if matrices is None else matrices)
        if strange := sorted(names - source.program.weights.keys()):
            raise RequestError(f"the model has no matrix {strange[0]!r}", where="matrices")
        ids = source.tokenizer.encode(text, add_bos=False) if isinstance(text, str) else list(text)
        if not ids:
            raise RequestError("the text has no tokens", where="text")
        arrays = ScratchArrays(scratch)
        yield from moments_of(source.program, source.weights, ids, names, arrays, progress)
    finally:
        source.close()


def codes_of(
    values: Floats,
    scale: Floats,
    low: Floats,
    largest: int,
    moments: Moments,
    scratch: Path | None = None,
) -> Floats:
    """Return the codes of a matrix's rows, 0 to `largest`: float32 [N, K].

    A code stands for code·scale + low. In each row the nearest codes are kept, or those with the
    errors of earlier columns fed back, whichever loses less on rows with these second moments.

    Parameters
    ----------
    values, scale, low : [N, K]. moments : [K, K].
    """
    steps = CodeGrid(scale, low, np.full(len(values), largest, F32))
    return best_codes(values, steps, feedback_of(moments, ScratchArrays(scratch)))
