"""Parts of a request that were ignored: never silently, the response and the log name them.

What reads a request runs in the context of its task, so that no reader has to pass this on.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import quote

HEADER = "x-cortiq-ignored"
MOST_NAMES, MOST_LETTERS = 16, 80


@dataclass
class IgnoredParts:
    """The ignored parts of one request.

    Attributes
    ----------
    lenient : whether unknown fields are ignored. names : paths of what was, such as `tools[0]`.
    """

    lenient: bool = False
    names: list[str] = field(default_factory=list)

    @property
    def header(self) -> str:
        """Value of the response's header: the names, quoted as in addresses."""
        shown = [quote(name[:MOST_LETTERS], safe=".[]") for name in self.names[:MOST_NAMES]]
        more = len(self.names) - MOST_NAMES
        return ", ".join(shown) + (f", and {more} more" if more > 0 else "")


CURRENT: ContextVar[IgnoredParts | None] = ContextVar("ignored", default=None)
"""Of the request that is being read; None where nothing may be ignored."""


def ignores(path: str) -> bool:
    """Return whether an unknown field is ignored, and note it if so."""
    ignored = CURRENT.get()
    if ignored is None or not ignored.lenient:
        return False
    note_ignored(path)
    return True


def note_ignored(path: str) -> None:
    """Note a part of the request that has no effect."""
    ignored = CURRENT.get()
    if ignored is not None and path not in ignored.names:
        ignored.names.append(path)
