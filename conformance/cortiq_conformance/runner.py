"""Run cases: build each, observe it on the backend, and compare it with what is expected."""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from cortiq.backend import Backend
from cortiq.backend.seam import devices_of
from cortiq.errors import CortiqError, RequestError, shown
from cortiq.plugins import default_plugins, used_files
from cortiq_conformance import golden
from cortiq_conformance.case import Case, Check, NotRunError
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.catalogue import LEVELS, cases, list_hash
from cortiq_conformance.compare import Divergence, digest_of, first_difference, live_elements
from cortiq_conformance.expectations import apply_expectation
from cortiq_conformance.expectations import read as read_expectations
from cortiq_conformance.outputs import Observations
from cortiq_conformance.report import CaseOutcome, CaseResult, Report
from cortiq_conformance.subject import DeclinedNodesError, Subject
from cortiq_conformance.workers import InProcessRunner, RunSpec, WorkerPool

Watch = Callable[[Report, bool], None]
"""Called with a report as it stands, and whether the run is over."""
FEWEST_DISTINCT = 2
"""Distinct live values below which a comparison proves nothing."""


def run(
    backend: Backend | Subject | str | None,
    *,
    levels: Iterable[int] = LEVELS,
    profile: str = "quick",
    models: Sequence[str] | None = None,
    only: str | Sequence[str] | None = None,
    allow_declined: bool = False,
    use_golden: bool = True,
    out: str | Path | None = None,
    stop_early: bool = False,
    expectations: str | Path | None = None,
    progress: Callable[[CaseResult], None] | None = None,
    watch: Watch | None = None,
    jobs: int = 1,
) -> Report:
    """Run the cases on a backend.

    Parameters
    ----------
    backend : a backend, or its name (`NAME[:DEVICE]`), or None for the best available; or a
        subject, as `subject_on` makes of several devices.
    levels, profile, models : see `cases`.
    only : run cases whose id contains this, or one of these.
    allow_declined : a declined case does not fail the run; it is never counted as passed.
    use_golden : compare with golden digests where there are any; the definitions take longer.
    out : folder for a replay file of each difference.
    stop_early : stop after the first stage of a level in which a case failed.
    expectations : a `conformance.toml`: cases that are known to fail; see `expectations`.
    progress : called with each result.
    watch : called with the report and whether the run is over, before each case and at any end.
    jobs : processes that take cases from one list; they find the backend by its name.

    Raises
    ------
    RequestError : `jobs` with a backend that has no name to be found by.
    """
    subject, levels = make_subject(backend), tuple(levels)
    known = read_expectations(expectations) if expectations is not None else {}
    listed = select(cases(levels, profile, models), only)
    report = _report(subject, listed)
    report.allow_declined, report.required = allow_declined, profile == "full" or models is not None
    running: InProcessRunner | WorkerPool = InProcessRunner(
        subject, listed, use_golden=use_golden, out=out
    )
    if jobs > 1:
        chosen = tuple(models) if models is not None else None
        how = (levels, profile, chosen, only, use_golden, out)
        running = WorkerPool(RunSpec(_spec(backend, subject), used_files(), *how), listed, jobs)
    with _noted(report, listed, watch), running:
        for places in _stretches(listed, stop_early):
            for at, result, account in running.ran(places, partial(_begin, report, listed, watch)):
                report.running.remove(result.case.id)
                noted = apply_expectation(result, known)
                report.note(noted, account, at)
                if progress:
                    progress(noted)
            if stop_early and report.failed_results():
                break
    return report


def _begin(report: Report, listed: Sequence[Case], watch: Watch | None, at: int) -> None:
    report.running.append(listed[at].id)
    if watch:
        watch(report, False)


@contextmanager
def _noted(report: Report, listed: Sequence[Case], watch: Watch | None) -> Iterator[None]:
    """Record in a report why it was cut short, if it was, and notify its watcher."""
    try:
        yield
        if len(report.results) < len(listed):
            report.cut_short = "stopped after the first stage with a failure"
    except BaseException as error:
        report.cut_short = "interrupted" if isinstance(error, KeyboardInterrupt) else repr(error)
        raise
    finally:
        report.settle({case.id: at for at, case in enumerate(listed)})
        if watch:
            watch(report, True)


def _report(subject: Subject, listed: Sequence[Case]) -> Report:
    """Return an empty report on the cases."""
    devices = {device.name: device for device in devices_of(subject.backend)}
    name = subject.device or next(iter(devices))
    versions = {"device": devices[name].description} if name in devices else {}
    return Report(
        subject.name,
        name,
        [],
        list_hash(listed),
        plugin=subject.plugin,
        versions=versions | ({"backend": subject.source} if subject.source else {}),
        asked=len(listed),
        split=subject.split,
    )


def _spec(backend: Backend | Subject | str | None, subject: Subject) -> str:
    """Return the name by which other processes find the same backend."""
    if backend is None or isinstance(backend, str):
        return f"{subject.name}:{subject.device}" if subject.device else subject.name
    what = f"several processes find a backend by its name, not by {shown(backend)}"
    raise RequestError(what, where="jobs", hint="a plugin brings it: docs/plugins.md")


def _stretches(listed: Sequence[Case], by_stage: bool) -> Iterator[list[int]]:
    """Yield places of cases that may run together: all, or those of a stage."""
    if not by_stage:
        yield list(range(len(listed)))
        return
    places = range(len(listed))
    for _, stage in itertools.groupby(places, lambda at: (listed[at].level, listed[at].stage)):
        yield list(stage)


def make_subject(backend: Backend | Subject | str | None) -> Subject:
    """Make the backend under test, found by name if it is not given."""
    if isinstance(backend, Subject):
        return backend
    if backend is None or isinstance(backend, str):
        from cortiq.plugins import find_backend

        found, device = find_backend(backend)
        return Subject(found, device, _plugin_file(found.name), _source(found.name))
    return Subject(backend)


def _source(name: str) -> str:
    """Return a backend's origin: a distribution with its version, or a file."""
    plugins = default_plugins()
    return plugins.sources.get(plugins.brought_by.get(name, ""), "")


def _plugin_file(name: str) -> str | None:
    """Return the file that registers a backend, if a file does."""
    source = _source(name)
    return source if source.endswith(".py") else None


def select(listed: Iterable[Case], only: str | Sequence[str] | None) -> list[Case]:
    """Return the cases whose id contains one of `only`, in any case, by level and stage."""
    texts = [only] if isinstance(only, str) else only or [""]
    wanted = [text.casefold() for text in texts]
    found = (case for case in listed if any(text in case.id.casefold() for text in wanted))
    return sorted(found, key=lambda case: (case.level, case.stage))


def run_case(
    case: Case, subject: Subject, *, use_golden: bool = True, out: str | Path | None = None
) -> CaseResult:
    """Run one case; any exception of the backend is an outcome."""
    start = time.perf_counter()
    subject.begin()
    try:
        result = _run(case, subject, use_golden, out)
    except NotRunError as reason:
        result = CaseResult(case, CaseOutcome.NOT_RUN, str(reason))
    except DeclinedNodesError as declined:
        result = CaseResult(case, CaseOutcome.DECLINED, str(declined))
    except (Exception, SystemExit) as error:  # a backend may raise anything at all
        result = CaseResult(case, CaseOutcome.ERROR, _described(error))
    return replace(result, seconds=time.perf_counter() - start)


def _described(error: BaseException) -> str:
    if isinstance(error, CortiqError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"


def _run(case: Case, subject: Subject, use_golden: bool, out: str | Path | None) -> CaseResult:
    check = case.build(CaseData(case.id))
    known = golden.entry(case, check) if use_golden else None
    got = check.observe(subject)
    digest = digest_of(got)
    if known is not None and known["digest"] == digest:
        return replace(_live(case, got, True), digest=digest)
    expected = check.expected()
    if known is not None and known["digest"] != digest_of(expected):
        reason = "the definition gives other bits here than the golden digest: this machine's "
        return CaseResult(case, CaseOutcome.ERROR, reason + "NumPy, or an outdated golden file")
    difference = first_difference(expected, got, case.level, case.op)
    if difference is None:
        return replace(_live(case, expected, False), digest=digest)
    found = _localised(check, subject, difference)
    replay = None
    if out is not None:
        arrays = {"inputs": check.inputs(), "expected": expected, "got": got}
        from cortiq_conformance.replay import save  # it runs cases, and so imports this

        replay = str(save(Path(out), case, subject, found, arrays))
    reason = found.sentence()
    return CaseResult(case, CaseOutcome.DIFFERENT, reason, found, replay=replay, digest=digest)


def _live(case: Case, expected: Observations, by_golden: bool) -> CaseResult:
    """Return the outcome "same" if the compared values could have differed."""
    live, distinct = live_elements(expected)
    if distinct < FEWEST_DISTINCT:
        reason = f"proves nothing: {live} live elements, {distinct} distinct"
        return CaseResult(case, CaseOutcome.ERROR, reason, live=live)
    return CaseResult(case, CaseOutcome.SAME, live=live, golden=by_golden)


def _localised(check: Check, subject: Subject, found: Divergence) -> Divergence:
    """Return the first divergence inside, or the one seen if the backend cannot show more.

    What is computed to find it counts nowhere.
    """
    try:
        return check.localise(subject.apart(), found)
    except Exception as error:  # the backend is known to be wrong; it may fail in other ways too
        return replace(found, remark=f"{found.remark} (not localised: {_described(error)})".strip())
