"""Drawing again: the token of a row whose logits narrow its mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from cortiq.backend import DrawnLogit, Want
from cortiq.engine.masks import CheckedMasks
from cortiq.engine.request import LOGITS, Request
from cortiq.numerics.contract import F32
from cortiq.numerics.masks import allowed_ids
from cortiq.numerics.sampling import draw, drawn_logit


def redrawn(
    request: Request, ids: Sequence[int], row: Mapping[Want, Any]
) -> tuple[int, Mapping[Want, Any]]:
    """Draw the token after these ids with the narrowed mask; return it, and the row as if a backend
    had drawn it, where logits of tokens that are not allowed do not exist.
    """
    checked, logits = cast(CheckedMasks, request.masks), np.asarray(row[LOGITS], F32)
    assert request.narrowing is not None
    mask = checked.checked(request.narrowing.narrowed(ids, logits))
    token = draw(logits, request.sampling, ids, len(ids), request.choice, mask=mask)
    allowed = allowed_ids(mask, logits.size)
    place = int(np.searchsorted(allowed, token))
    known: dict[Want, Any] = {
        want: drawn_logit(logits[allowed], place, want.scale)
        for want in row
        if isinstance(want, DrawnLogit)
    }
    return token, {**row, **known}
