"""Reasons why operators were declined; of several, that of the first case in the list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Reasons:
    """Collect reasons by name, each from the first case in the list that has one."""

    found: dict[str, tuple[int, str]] = field(default_factory=dict)

    def note(self, at: int, reasons: Mapping[str, str]) -> None:
        """Add the reasons of case `at`."""
        for name, reason in reasons.items():
            if name not in self.found or at < self.found[name][0]:
                self.found[name] = at, reason

    def by_name(self) -> dict[str, str]:
        """Return the reasons, in the order of their cases."""
        order = sorted(self.found, key=lambda name: (self.found[name][0], name))
        return {name: self.found[name][1] for name in order}
