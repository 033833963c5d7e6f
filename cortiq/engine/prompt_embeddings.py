"""Rows that a prompt is fed as, in place of those of the model's own table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cortiq.errors import RequestError, shown
from cortiq.ir import Program

if TYPE_CHECKING:
    from cortiq.engine.request import Request


def with_embeddings(request: Request, rows: object, program: Program) -> Request:
    """Return the request with a copy of these rows to be fed in place of its prompt's; None: as is.

    Raises
    ------
    RequestError : they are no array of floats, or not one finite row for each id of the prompt.
    """
    if rows is None:
        return request
    if not isinstance(rows, np.ndarray) or rows.dtype.kind != "f":
        what = f"an array of floats is wanted, not {shown(rows)}"
        raise RequestError(what, where="embeddings", hint="token_embeddings makes one of ids")
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused as such
        copied = np.array(rows, np.float32, order="C")
    check_embeddings(copied, len(request.prompt), program)
    return replace(request, embeddings=copied)


def check_embeddings(rows: npt.NDArray[np.float32] | None, tokens: int, program: Program) -> None:
    """Refuse embeddings that are not one finite row for each of a prompt's tokens."""
    embed = program.trunk.values.get("embed")
    if rows is None:
        return
    if embed is None or rows.shape != (tokens, *embed.shape):
        wanted = "none" if embed is None else [tokens, *embed.shape]
        message = f"the embeddings are {list(rows.shape)}, the model takes {wanted}"
        raise RequestError(message, where="prompt")
    if not np.isfinite(rows).all():
        raise RequestError("an embedding is not finite", where="prompt")
