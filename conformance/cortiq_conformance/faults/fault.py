"""Properties of a planted fault: the cases that find it first, and the names they report."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Fault:
    """The cases that find a fault.

    Attributes
    ----------
    families : of the cases that differ in the first stage that can see it.
    op : the operator that the report names.
    stage : that stage of level 0.
    order : of `cortiq_conformance.summation_orders`, if the fault is another order of these terms.
    fewest : terms that the order needs; with fewer no bit differs.
    also : operators that cases name which see the fault in what follows it alone.
    """

    families: tuple[str, ...]
    op: str
    stage: int = 1
    order: str = ""
    fewest: int = 0
    also: tuple[str, ...] = ()

    def in_order(self, order: str, fewest: int) -> Fault:
        """Return the fault as one of a summation order."""
        return replace(self, order=order, fewest=fewest)

    def sentence(self) -> str:
        """Describe what finds the fault."""
        found = ", ".join(self.families)
        met = f", where {self.fewest} meet," if self.order else ""
        return f"found{met} at stage {self.stage} by the cases of {found}" if found else "found"
