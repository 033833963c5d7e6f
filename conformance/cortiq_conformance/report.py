"""The report of a run: five outcomes counted apart, owners of kernels, coverage."""

from __future__ import annotations

import platform
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq_conformance import KIT_VERSION
from cortiq_conformance.case import Case
from cortiq_conformance.causes import causes_of, name_of
from cortiq_conformance.compare import Divergence
from cortiq_conformance.coverage import Table, by_owner, computed_by_others, merged_table
from cortiq_conformance.decline_reasons import Reasons
from cortiq_conformance.requirements import sentence
from cortiq_conformance.subject import CompileCounts, Covered

FOUNDATIONS = (0, 0)
"""Level and stage of what everything else stands on."""
MOST_ULPS = 64
"""Another order of operations moves a result by fewer; a wrong formula by more."""


class CaseOutcome(StrEnum):
    """Outcome of a case."""

    SAME = "same"
    DIFFERENT = "different"
    DECLINED = "declined"
    ERROR = "error"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class CaseResult:
    """One case's outcome.

    Attributes
    ----------
    reason : why it is not `same`. live : live elements compared.
    golden : whether it was compared with a golden digest instead of the definition.
    replay : file that replays it.
    digest : of the backend's results, if there are any.
    excused : the reason of `conformance.toml` for which the failure is expected, if it is.
    """

    case: Case
    outcome: CaseOutcome
    reason: str = ""
    divergence: Divergence | None = None
    live: int = 0
    golden: bool = False
    seconds: float = 0.0
    replay: str | None = None
    digest: str = ""
    excused: str = ""

    @property
    def dubious(self) -> bool:
        """Whether the failure is untypical of its family: an error, or far off."""
        if self.divergence is None:
            return self.outcome is CaseOutcome.ERROR
        return self.divergence.dubious or (self.divergence.ulps or 0) > MOST_ULPS

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        case = self.case
        return {
            "id": case.id, "level": case.level, "family": case.family, "op": case.op,
            "outcome": self.outcome.value, "reason": self.reason, "live_elements": self.live,
            "golden": self.golden, "seconds": round(self.seconds, 4), "replay": self.replay,
            "model": case.model, "digest": self.digest, "excused": self.excused,
            "divergence": self.divergence.as_dict() if self.divergence else None,
        }  # fmt: skip


@dataclass
class Report:
    """A whole run.

    Attributes
    ----------
    computed : nodes compiled, by the backend that `placement` says computes them.
    covered : number of compiled primitives by operator, type, layout, and who computes them.
    requirements : by name, how many cases that require it came to each outcome.
    declines : requirements that were declined.
    parts : layers that were declined as a whole and computed as their parts.
    required : whether a case that could not be run fails the run.
    plugin : the file that brings the backend, if one does.
    asked : number of listed cases. split : how devices divided the programs, in words, if any.
    running : ids of cases under way.
    cut_short : why not every case ran; empty if all did.
    """

    backend: str
    device: str
    results: list[CaseResult]
    case_list_hash: str
    computed: Counter[str] = field(default_factory=Counter)
    covered: Counter[Covered] = field(default_factory=Counter)
    requirements: dict[str, Counter[str]] = field(default_factory=dict)
    declines: Reasons = field(default_factory=Reasons)
    parts: Reasons = field(default_factory=Reasons)
    allow_declined: bool = False
    required: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    plugin: str | None = None
    asked: int = 0
    running: list[str] = field(default_factory=list)
    cut_short: str = ""
    split: str = ""

    def count(self, outcome: CaseOutcome, level: int | None = None) -> int:
        """Count the cases with this outcome."""
        found = (r for r in self.results if level is None or r.case.level == level)
        return sum(result.outcome is outcome for result in found)

    @property
    def levels(self) -> list[int]:
        """Levels that cases were asked for at."""
        return sorted({result.case.level for result in self.results})

    def failures(self) -> Iterator[str]:
        """Yield the reasons why the run did not pass, a sentence each."""
        if self.cut_short:
            yield f"cut short: {self.cut_short}"
        elif not self.results:
            yield "no case was asked for"
        for level in self.levels:
            if not self.count(CaseOutcome.SAME, level):
                yield f"level {level}: nothing was computed and found the same"
        for outcome in (
            CaseOutcome.DIFFERENT,
            CaseOutcome.ERROR,
            CaseOutcome.DECLINED,
            CaseOutcome.NOT_RUN,
        ):
            counting = sum(result.outcome is outcome for result in self.failed_results())
            if counting:
                yield f"{counting} cases: {outcome.value}"

    def _counts_against(self, outcome: CaseOutcome) -> bool:
        if outcome is CaseOutcome.DECLINED:
            return not self.allow_declined
        return self.required if outcome is CaseOutcome.NOT_RUN else True

    @property
    def passed(self) -> bool:
        """Whether everything asked for ran and passed."""
        return not any(True for _ in self.failures())

    def failed_results(self) -> list[CaseResult]:
        """Return the results that count against the backend."""
        return [
            r
            for r in self.results
            if r.outcome is not CaseOutcome.SAME
            and self._counts_against(r.outcome)
            and not r.excused
        ]

    @property
    def excused(self) -> int:
        """Failures that `conformance.toml` expects."""
        return sum(bool(result.excused) for result in self.results)

    def note(self, result: CaseResult, account: CompileCounts, at: int) -> None:
        """Add the result of case `at`, and what its programs counted.

        The order in which results come changes nothing but their own: see `settle`.
        """
        self.results.append(result)
        self.computed.update(account.computed)
        self.covered.update(account.covered)
        self.declines.note(at, account.declined)
        self.parts.note(at, account.decomposed)
        for name in account.declined or account.required:
            self.requirements.setdefault(name, Counter())[result.outcome.value] += 1

    def settle(self, order: Mapping[str, int]) -> None:
        """Sort the results, and what is running, into the order of the list."""
        self.results.sort(key=lambda result: order[result.case.id])
        self.running.sort(key=order.__getitem__)

    @property
    def declined(self) -> dict[str, str]:
        """Return the requirements that were declined, with the reason."""
        return self.declines.by_name()

    @property
    def decomposed(self) -> dict[str, str]:
        """Return the layers that were declined as a whole, with the reason."""
        return self.parts.by_name()

    def blamed(self) -> set[str]:
        """Return families that failed at the lowest level and stage, which cause later failures.

        A foundation is seen through an operator. That operator is named instead where the
        difference is not one that the foundation would make.
        """
        failed = [
            r for r in self.results if r.outcome in (CaseOutcome.DIFFERENT, CaseOutcome.ERROR)
        ]
        first = min(((r.case.level, r.case.stage) for r in failed), default=None)
        found = [r for r in failed if (r.case.level, r.case.stage) == first]
        dubious = {r.case.family for r in found if r.dubious} if first == FOUNDATIONS else set()
        return {r.case.op if r.case.family in dubious else r.case.family for r in found}

    def causes(self) -> list[str]:
        """Return failed functions of the foundations that depend on no other failed one.

        There are none where one of them failed in another way than by some bits.
        """
        failed = [
            r for r in self.results if r.outcome in (CaseOutcome.DIFFERENT, CaseOutcome.ERROR)
        ]
        found = [r for r in failed if (r.case.level, r.case.stage) == FOUNDATIONS]
        named = [(name_of(r.case.id, r.case.family), r.dubious) for r in found]
        causes = causes_of(name for name, _ in named)
        return [] if any(dubious for name, dubious in named if name in causes) else causes

    def replay_command(self, result: CaseResult) -> str:
        """Return the command that runs a result's case again."""
        plugin = f" --plugin {shlex.quote(self.plugin)}" if self.plugin else ""
        return f"cortiq{plugin} replay {shlex.quote(result.replay or '')}"

    def summary(self) -> str:
        """Return the last line of the report."""
        counts = ", ".join(f"{self.count(outcome)} {outcome.value}" for outcome in CaseOutcome)
        total = sum(self.computed.values())
        own = self.computed.get(self.backend, 0)
        excused = f", {self.excused} of them expected" if self.excused else ""
        whole = f" of {self.asked}" if self.cut_short else ""
        split = f", {self.split}" if self.split else ""
        cases = f"{len(self.results)}{whole} cases"
        verdict = "passed" if self.passed else f"FAILED ({'; '.join(self.failures())})"
        return (
            f"{self.backend}:{self.device}{split}, contract {CONTRACT_VERSION}, kit {KIT_VERSION}, "
            f"{cases} {self.case_list_hash}: {counts}{excused}; "
            f"{own} of {total} nodes computed by {self.backend}: {verdict}"
        )

    def coverage(self) -> Table:
        """Return the covered weight layouts by operator and type of its first input."""
        return merged_table(self.covered)

    def computed_by_others(self) -> dict[str, Table]:
        """Return the operators computed by no kernel of the backend, by owner."""
        return computed_by_others(self.backend, self.covered)

    def requirement_rows(self) -> list[dict[str, Any]]:
        """Return each requirement's name, sentence, counts by outcome, and reason if declined."""
        declined = self.declined
        return [
            {
                "name": name,
                "sentence": sentence(name),
                "counts": dict(counts),
                "declined": declined.get(name, ""),
            }
            for name, counts in sorted(self.requirements.items())
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON: everything needed to judge it without the machine."""
        return {**self.facts(), "results": [result.as_dict() for result in self.results]}

    def facts(self) -> dict[str, Any]:
        """Return the report for JSON without the results."""
        return {
            "backend": self.backend, "device": self.device, "passed": self.passed,
            "failures": list(self.failures()), "kit": KIT_VERSION, "contract": CONTRACT_VERSION,
            "cases": len(self.results), "case_list": self.case_list_hash, "split": self.split,
            "listed": self.asked, "cut_short": self.cut_short, "running": list(self.running),
            "counts": {outcome.value: self.count(outcome) for outcome in CaseOutcome},
            "blamed": sorted(self.blamed()), "causes": self.causes(),
            "computed_by": dict(sorted(self.computed.items())), "coverage": self.coverage(),
            "coverage_by": by_owner(self.covered),
            "still_others": self.computed_by_others(),
            "versions": {**machine_versions(), **self.versions},
            "allow_declined": self.allow_declined, "excused": self.excused,
            "requirements": self.requirement_rows(), "decomposed": self.decomposed,
        }  # fmt: skip


def machine_versions() -> dict[str, str]:
    """Return the versions of Python and NumPy, and the processor."""
    import numpy as np

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.platform(),
    }
