"""Embeddings that a prompt is fed as, in place of those of the model's own table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.errors import RequestError, shown
from cortiq.ir import Program
from cortiq.ir.images import EMBED


def copied_embeddings(
    rows: object, tokens: int, program: Program
) -> npt.NDArray[np.float32] | None:
    """Return a checked copy of the embeddings of a prompt, None for None.

    Raises
    ------
    RequestError : they are no array of floats, or not one finite row for each id of the prompt.
    """
    if rows is None:
        return None
    if not isinstance(rows, np.ndarray) or rows.dtype.kind != "f":
        what = f"an array of floats is wanted, not {shown(rows)}"
        raise RequestError(what, where="embeddings", hint="token_embeddings makes one of ids")
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused as such
        copied = np.array(rows, np.float32, order="C")
    check_embeddings(copied, tokens, program)
    return copied


def check_embeddings(rows: npt.NDArray[np.float32] | None, tokens: int, program: Program) -> None:
    """Check that embeddings are one finite row for each token of a prompt."""
    if rows is not None:
        check_row(rows, tokens, program)


def check_row(rows: npt.NDArray[np.float32], tokens: int, program: Program, deep: int = 0) -> None:
    """Check that there are so many finite rows of the model's own width.

    Parameters
    ----------
    deep : layers that each row may have a row for, too, for all of them or none.
    """
    embed = program.trunk.values.get(EMBED)
    widths = [] if embed is None else [embed.shape[0], (1 + deep) * embed.shape[0]]
    if rows.shape not in [(tokens, width) for width in widths]:
        wanted = [tokens, widths[-1]] if widths else "none"
        message = f"the embeddings are {list(rows.shape)}, the model takes {wanted}"
        raise RequestError(message, where="prompt")
    if not np.isfinite(rows).all():
        raise RequestError("an embedding is not finite", where="prompt")
