"""The notice about patents that whoever uses a skill is shown."""

from __future__ import annotations

NOTICE = (
    "skills (cortiq-skills): overlays of skills and routing by reconstruction error are the "
    "subject of patent applications of the author of CMF (PATENTS.md there); check whether you may "
    "use them"
)
