"""The engine: many sequences in one batch, prefixes reused, drafts verified; no token changes.

Everything here is scheduling. A row's bits depend on that row's inputs only (docs/NUMERICS.md), so
who rides in a batch, where a prompt is cut, what is reused and what was drafted decide how long a
token takes, never which one it is.
"""

from __future__ import annotations
