"""A report as JUnit XML."""

from __future__ import annotations

from xml.etree import ElementTree

from cortiq_conformance.report import CaseOutcome, CaseResult, Report

ELEMENTS = {
    CaseOutcome.DIFFERENT: "failure",
    CaseOutcome.ERROR: "error",
    CaseOutcome.DECLINED: "failure",
    CaseOutcome.NOT_RUN: "skipped",
}


def junit(report: Report) -> str:
    """Return one test suite; a case's class is its level and family. Declined is never passed."""
    facts = report.as_dict()
    kinds = [_kind(result, report.allow_declined) for result in report.results]
    suite = ElementTree.Element(
        "testsuite",
        name=f"cortiq conform {report.backend}",
        tests=str(len(report.results)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        skipped=str(kinds.count("skipped")),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name in ("backend", "device", "kit", "contract", "cases", "case_list", "passed"):
        ElementTree.SubElement(properties, "property", name=name, value=str(facts[name]))
    for name, value in facts["versions"].items():
        ElementTree.SubElement(properties, "property", name=name, value=value)
    for result in report.results:
        suite.append(_case(result, report.allow_declined))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _case(result: CaseResult, allow_declined: bool) -> ElementTree.Element:
    case = result.case
    element = ElementTree.Element(
        "testcase",
        classname=f"level{case.level}.{case.family}",
        name=case.id,
        time=f"{result.seconds:.4f}",
    )
    kind = _kind(result, allow_declined)
    if kind:
        excused = f" (expected: {result.excused})" if result.excused else ""
        message = f"{result.outcome.value}: {result.reason}{excused}"
        ElementTree.SubElement(element, kind, message=message).text = message
    return element


def _kind(result: CaseResult, allow_declined: bool) -> str:
    """Return the element for a case's outcome; none if it passed."""
    if result.outcome is CaseOutcome.SAME:
        return ""
    allowed = result.outcome is CaseOutcome.DECLINED and allow_declined
    return "skipped" if allowed or result.excused else ELEMENTS[result.outcome]
