"""What is known of a planted fault: which cases find it first, and what they name."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Fault:
    """What finds a fault.

    Attributes
    ----------
    families : of the cases that differ in the first stage that can see it.
    op : the operator that the report names.
    stage : that stage of level 0.
    order : of `cortiq_conformance.orders`, if the fault is another order of these terms.
    fewest : terms that have to meet in it; where fewer do, no bit differs.
    """

    families: tuple[str, ...]
    op: str
    stage: int = 1
    order: str = ""
    fewest: int = 0

    def in_order(self, order: str, fewest: int) -> Fault:
        """As the fault of an order."""
        return replace(self, order=order, fewest=fewest)

    def sentence(self) -> str:
        """What finds it, for people."""
        found = ", ".join(self.families)
        met = f", where {self.fewest} meet," if self.order else ""
        return f"found{met} at stage {self.stage} by the cases of {found}" if found else "found"
