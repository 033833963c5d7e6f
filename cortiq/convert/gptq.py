"""GPTQ as a library: second moments of the rows that a model's matrices meet, and codes by them.

`cortiq convert --calibrate` is made of the same parts: `calibration.moments_of` reads a text,
`feedback` chooses codes. Moments of large models are files without a name while they are there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cortiq.arguments import instance_of, list_of, path_of
from cortiq.convert.calibration import Moments, Progress, moments_of
from cortiq.convert.feedback import CodeGrid, best_codes, feedback_of
from cortiq.convert.scratch import ScratchArrays, panels
from cortiq.engine.request import id_list
from cortiq.errors import RequestError, shown
from cortiq.model.source import model_name, open_source
from cortiq.numerics.contract import F32, Floats
from cortiq.options import LoadOptions, resolve

MOMENTS = "give those of cortiq.convert.gptq.second_moments"


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
    given = None if matrices is None else list_of(matrices, "matrices", "give a list of names")
    source = open_source(model_name(model), resolve(LoadOptions, options))
    try:
        names = list(source.program.weights) if given is None else given
        for name in names:
            if not isinstance(name, str) or name not in source.program.weights:
                raise RequestError(f"the model has no matrix {shown(name)}", where="matrices")
        encode = source.tokenizer.encode
        ids = encode(text, add_bos=False) if isinstance(text, str) else id_list(text)
        if not ids:
            raise RequestError("the text has no tokens", where="text")
        arrays = ScratchArrays(_folder(scratch))
        yield from moments_of(source.program, source.weights, ids, set(names), arrays, progress)
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
    values, scale, low : [N, K]. moments : [K, K], symmetric: Σ x·xᵀ of some rows.

    Raises
    ------
    RequestError : an array has another shape or holds what is not finite, the moments are none of
        any rows, or `largest` is no code.
    """
    if type(largest) is not int or not 0 < largest < 1 << 16:
        raise RequestError(f"the largest code is {shown(largest)}", where="largest")
    values = _floats(values, "values", None)
    scale, low = (_floats(x, n, values.shape) for x, n in ((scale, "scale"), (low, "low")))
    width = values.shape[1]
    moments = _floats(moments, "moments", (width, width))
    steps = CodeGrid(scale, low, np.full(len(values), largest, F32))
    try:
        feedback = feedback_of(moments, ScratchArrays(_folder(scratch)))
    except np.linalg.LinAlgError:
        raise RequestError("are no second moments of rows", where="moments", hint=MOMENTS) from None
    return best_codes(values, steps, feedback)


def _folder(scratch: Path | None) -> Path | None:
    """Return the folder of large arrays; RequestError if it is none."""
    if scratch is None or (folder := path_of(scratch, "scratch")).is_dir():
        return scratch if scratch is None else folder
    raise RequestError("is no folder", where=f"scratch: {folder}")


def _floats(given: Any, name: str, shape: tuple[int, ...] | None) -> Floats:
    """Return a matrix as float32; RequestError for another shape, or what is not finite.

    Large ones are looked at a panel at a time.
    """
    instance_of(given, np.ndarray, name)
    if given.dtype.kind not in "fiu" or given.ndim != 2 or shape not in (None, given.shape):
        what = f"is {given.dtype}{list(given.shape)}"
        raise RequestError(what, where=name, hint="give floats [N, K], moments [K, K]")
    made = np.asarray(given, F32)
    if not all(np.isfinite(made[cut]).all() for cut in panels(len(made))):
        raise RequestError("holds a number that is not finite", where=name)
    return made
