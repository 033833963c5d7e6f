"""A report as JUnit XML."""

from __future__ import annotations

from xml.etree import ElementTree

from cortiq_conformance.report import CaseResult, Outcome, Report

ELEMENTS = {
    Outcome.DIFFERENT: "failure",
    Outcome.ERROR: "error",
    Outcome.DECLINED: "failure",
    Outcome.NOT_RUN: "skipped",
}


def junit(report: Report) -> str:
    """One test suite; a case's class is its level and family. Declined is never passed."""
    facts = report.as_dict()
    declined, allowed = report.count(Outcome.DECLINED), report.allow_declined
    failed = report.count(Outcome.DIFFERENT) + (0 if allowed else declined)
    suite = ElementTree.Element(
        "testsuite",
        name=f"cortiq conform {report.backend}",
        tests=str(len(report.results)),
        failures=str(failed),
        errors=str(report.count(Outcome.ERROR)),
        skipped=str(report.count(Outcome.NOT_RUN) + (declined if allowed else 0)),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name in ("backend", "device", "kit", "contract", "case_list", "passed"):
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
    if result.outcome is Outcome.SAME:
        return element
    allowed = result.outcome is Outcome.DECLINED and allow_declined
    kind = "skipped" if allowed else ELEMENTS[result.outcome]
    message = f"{result.outcome.value}: {result.reason}"
    ElementTree.SubElement(element, kind, message=message).text = message
    return element
