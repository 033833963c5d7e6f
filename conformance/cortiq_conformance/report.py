"""What a run found: five outcomes counted apart, who computed, what was covered."""

from __future__ import annotations

import platform
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq_conformance import KIT_VERSION
from cortiq_conformance.case import Case
from cortiq_conformance.compare import Divergence
from cortiq_conformance.requirements import sentence

FOUNDATIONS = (0, 0)
"""Level and stage of what everything else stands on."""
MOST_ULPS = 64
"""Another order of operations moves a result by fewer; a wrong formula by more."""


class Outcome(StrEnum):
    """What became of a case."""

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
    golden : whether it was held against a golden digest instead of the definition.
    replay : file that replays it.
    digest : of what the backend brought, where it brought something.
    excused : the reason of `conformance.toml` for which the failure is expected, if it is.
    """

    case: Case
    outcome: Outcome
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
        """Whether the failure is not the kind that its family stands for: an error, or far off."""
        if self.divergence is None:
            return self.outcome is Outcome.ERROR
        return self.divergence.dubious or (self.divergence.ulps or 0) > MOST_ULPS

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
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
    covered : number of compiled nodes by (operator, type of the first input, weight layout).
    requirements : by name, how many cases that require it came to each outcome.
    declined : requirements that were declined, with the reason.
    decomposed : layers that were declined as a whole and computed as their parts, with the reason.
    required : whether a case that could not be run fails the run.
    plugin : the file that brings the backend, if one does.
    """

    backend: str
    device: str
    results: list[CaseResult]
    case_list_hash: str
    computed: Mapping[str, int] = field(default_factory=dict)
    covered: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    requirements: dict[str, Counter[str]] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)
    decomposed: Mapping[str, str] = field(default_factory=dict)
    allow_declined: bool = False
    required: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    plugin: str | None = None

    def count(self, outcome: Outcome, level: int | None = None) -> int:
        """Cases with this outcome."""
        found = (r for r in self.results if level is None or r.case.level == level)
        return sum(result.outcome is outcome for result in found)

    @property
    def levels(self) -> list[int]:
        """Levels that cases were asked for at."""
        return sorted({result.case.level for result in self.results})

    def failures(self) -> Iterator[str]:
        """Why the run did not pass, a sentence each."""
        if not self.results:
            yield "no case was asked for"
        for level in self.levels:
            if not self.count(Outcome.SAME, level):
                yield f"level {level}: nothing was computed and found the same"
        for outcome in (Outcome.DIFFERENT, Outcome.ERROR, Outcome.DECLINED, Outcome.NOT_RUN):
            counting = sum(result.outcome is outcome for result in self.failed_results())
            if counting:
                yield f"{counting} cases: {outcome.value}"

    def _counts_against(self, outcome: Outcome) -> bool:
        if outcome is Outcome.DECLINED:
            return not self.allow_declined
        return self.required if outcome is Outcome.NOT_RUN else True

    @property
    def passed(self) -> bool:
        """Whether everything asked for ran and passed."""
        return not any(True for _ in self.failures())

    def failed_results(self) -> list[CaseResult]:
        """Results that count against the backend."""
        return [
            r
            for r in self.results
            if r.outcome is not Outcome.SAME and self._counts_against(r.outcome) and not r.excused
        ]

    @property
    def excused(self) -> int:
        """Failures that `conformance.toml` expects."""
        return sum(bool(result.excused) for result in self.results)

    def note(self, result: CaseResult, required: set[str], declined: Mapping[str, str]) -> None:
        """Add a result, and count it for what its programs required, or were declined for."""
        self.results.append(result)
        self.declined |= declined
        for name in declined or sorted(required):
            self.requirements.setdefault(name, Counter())[result.outcome.value] += 1

    def blamed(self) -> set[str]:
        """Families that failed at the lowest level and stage: what later failures follow from.

        A foundation is seen through an operator. That operator is named instead where the
        difference is not one that the foundation would make.
        """
        failed = [r for r in self.results if r.outcome in (Outcome.DIFFERENT, Outcome.ERROR)]
        first = min(((r.case.level, r.case.stage) for r in failed), default=None)
        found = [r for r in failed if (r.case.level, r.case.stage) == first]
        dubious = {r.case.family for r in found if r.dubious} if first == FOUNDATIONS else set()
        return {r.case.op if r.case.family in dubious else r.case.family for r in found}

    def replay_command(self, result: CaseResult) -> str:
        """What runs a result's case again."""
        plugin = f" --plugin {shlex.quote(self.plugin)}" if self.plugin else ""
        return f"cortiq{plugin} replay {shlex.quote(result.replay or '')}"

    def summary(self) -> str:
        """The last line."""
        counts = ", ".join(f"{self.count(outcome)} {outcome.value}" for outcome in Outcome)
        total = sum(self.computed.values())
        own = self.computed.get(self.backend, 0)
        excused = f", {self.excused} of them expected" if self.excused else ""
        verdict = "passed" if self.passed else f"FAILED ({'; '.join(self.failures())})"
        return (
            f"{self.backend}:{self.device}, contract {CONTRACT_VERSION}, kit {KIT_VERSION}, "
            f"{len(self.results)} cases {self.case_list_hash}: {counts}{excused}; "
            f"{own} of {total} nodes computed by {self.backend}: {verdict}"
        )

    def coverage(self) -> dict[str, dict[str, list[str]]]:
        """By operator and type of its first input, the weight layouts it was computed with."""
        table: dict[str, dict[str, list[str]]] = {}
        for op, dtype, layout in sorted(self.covered):
            layouts = table.setdefault(op, {}).setdefault(dtype, [])
            layouts += [layout] if layout else []
        return table

    def requirement_rows(self) -> list[dict[str, Any]]:
        """A row for each requirement: name, sentence, counts by outcome, why it was declined."""
        return [
            {
                "name": name,
                "sentence": sentence(name),
                "counts": dict(counts),
                "declined": self.declined.get(name, ""),
            }
            for name, counts in sorted(self.requirements.items())
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: everything needed to judge the report without the machine."""
        return {
            "backend": self.backend, "device": self.device, "passed": self.passed,
            "failures": list(self.failures()), "kit": KIT_VERSION, "contract": CONTRACT_VERSION,
            "cases": len(self.results), "case_list": self.case_list_hash,
            "counts": {outcome.value: self.count(outcome) for outcome in Outcome},
            "blamed": sorted(self.blamed()), "computed_by": dict(self.computed),
            "coverage": self.coverage(), "versions": {**machine_versions(), **self.versions},
            "allow_declined": self.allow_declined, "excused": self.excused,
            "requirements": self.requirement_rows(), "decomposed": dict(self.decomposed),
            "results": [result.as_dict() for result in self.results],
        }  # fmt: skip


def machine_versions() -> dict[str, str]:
    """Python, NumPy, processor."""
    import numpy as np

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.platform(),
    }


def listed(results: Sequence[CaseResult], outcome: Outcome) -> list[CaseResult]:
    """Results with this outcome."""
    return [result for result in results if result.outcome is outcome]
