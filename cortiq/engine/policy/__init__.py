"""Policies of drafting depth: pure functions over recorded rounds; no clock is read.

None of this can change a token. A policy that is wrong costs time, so all of it is judged by
measured walls, and a run's recorded rounds replayed to a new policy give the same decisions.
"""

from __future__ import annotations
