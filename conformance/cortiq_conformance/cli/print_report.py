"""Print a report on the terminal: failures, where to look first, who computed each operator."""

from __future__ import annotations

import click

from cortiq_conformance.coverage import summarise, table_lines
from cortiq_conformance.report import CaseOutcome, Report

MOST_SHOWN = 40
"""Failing cases printed one by one; the reports hold all."""


def print_report(report: Report) -> None:
    """Print a report; its summary is the last line."""
    shown = [r for r in report.results if r.outcome is not CaseOutcome.SAME]
    for result in shown[:MOST_SHOWN]:
        excused = f"\n  expected: {result.excused}" if result.excused else ""
        click.echo(f"{result.outcome.value}: {result.case.id}\n  {result.reason}{excused}")
        if result.replay:
            click.echo(f"  replay: {report.replay_command(result)}")
    if len(shown) > MOST_SHOWN:
        click.echo(f"and {len(shown) - MOST_SHOWN} more")
    _print_blame(report)
    for text in table_lines(report.coverage()):
        click.echo(f"computed {text}")
    for kind, reason in report.decomposed.items():
        click.echo(f"decomposed {kind}: {reason}")
    for owner, table in report.computed_by_others().items():
        click.echo(f"still the {owner}'s: {summarise(table, report.coverage())}")
    for owner, count in sorted(report.computed.items()):
        click.echo(f"nodes computed by {owner}: {count}")
    click.echo(report.summary())


def _print_blame(report: Report) -> None:
    """Print where to look first: functions before those that depend on them."""
    blamed, causes = sorted(report.blamed()), report.causes()
    if not blamed:
        return
    first = [name for name in causes if name not in blamed]
    then = f"; these failures follow from it: {', '.join(blamed)}" if first else ""
    click.echo(f"look first at: {', '.join(causes if first else blamed)}{then}")
