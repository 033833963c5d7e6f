"""A folder that collects texts which no skill is near to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cortiq_skills.router import Decision

BUFFER, MARKER = "buffer.jsonl", "last_request"


class NovelTexts:
    """The texts that were novel, a JSON line each in `buffer.jsonl`.

    Parameters
    ----------
    clock : gives the time in seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder, self._clock = folder, clock
        folder.mkdir(parents=True, exist_ok=True)

    def saw(self, decision: Decision, ids: Sequence[int], text: str, calibrated: bool) -> bool:
        """Note a request; keep its text if it is novel. Return whether it was kept."""
        (self.folder / MARKER).touch()
        if not decision.is_novel:
            return False
        nearest = decision.ranked[0] if decision.ranked else None
        line = {
            "ts": self._clock(),
            "e_min": None if nearest is None else nearest.relative,
            "nearest": decision.skill,
            "novelty": decision.novelty,
            "confidence": decision.confidence,
            "calibrated": calibrated,
            "tokens": list(ids),
            "text": text,
        }
        with (self.folder / BUFFER).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return True
