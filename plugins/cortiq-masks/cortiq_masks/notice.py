"""The notice about patents that whoever uses a mask is shown."""

from __future__ import annotations

NOTICE = (
    "task masks (cortiq-masks): their production and use is the subject of patent applications of "
    "the author of CMF (PATENTS.md there); check whether you may use them"
)
