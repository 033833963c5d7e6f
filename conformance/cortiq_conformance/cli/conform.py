"""`cortiq conform`: prove a backend right, to the bit."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cortiq.errors import RequestError

if TYPE_CHECKING:
    from cortiq_conformance.report import Report

HIGHEST_LEVEL = 4
SPLITS = ("tensor", "expert", "layer", "mixed")


@click.command("conform")
@click.option("--backend", "-b", metavar="NAME[:DEVICE]", help="Backend to test.")
@click.option(
    "--level", type=click.IntRange(0, HIGHEST_LEVEL), default=HIGHEST_LEVEL, show_default=True,
    help="Run levels 0 to this one.",
)  # fmt: skip
@click.option("--full", is_flag=True, help="Every schedule and prompt, on the real models too.")
@click.option("--model", "models", multiple=True, help="Levels 2 to 4 on this model only.")
@click.option(
    "--only", metavar="TEXT", multiple=True, help="Cases whose id contains this; may be repeated."
)
@click.option("--allow-declined", is_flag=True, help="Declined nodes do not fail the run.")
@click.option("--stop-early", is_flag=True, help="Stop after the first stage with a failure.")
@click.option(
    "--jobs", "-j", type=click.IntRange(1), default=1, show_default=True, metavar="N",
    help="Processes that run cases, each taking the next of one list.",
)  # fmt: skip
@click.option(
    "--devices", type=click.IntRange(1), default=1, show_default=True, metavar="N",
    help="Devices, or processes on CPUs, that compute every program together.",
)  # fmt: skip
@click.option(
    "--split", type=click.Choice(SPLITS),
    help="How devices divide programs: as a model (by default tensor), or mixed, two stretches of "
    "layers, each of them a tensor split.",
)  # fmt: skip
@click.option(
    "--recompute", is_flag=True, help="Compute the definitions instead of using golden digests."
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write a JSON report.")
@click.option("--junit", "junit_file", type=click.Path(dir_okay=False), help="Write JUnit XML.")
@click.option("--html", "html_file", type=click.Path(dir_okay=False), help="Write a page.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for replay files.")
@click.option(
    "--expect", metavar="FILE", type=click.Path(),
    help="Cases that are known to fail; conformance.toml of this folder if there is one.",
)  # fmt: skip
@click.option("--list", "list_only", is_flag=True, help="List the cases and run none.")
@click.option("--rewrite-golden", is_flag=True, help="Write golden digests of new cases.")
def conform(level: int, rewrite_golden: bool, **options: Any) -> None:
    """Test a backend against the contract, bit by bit.

    Exit code 0 only if everything asked for ran and passed; the last line is the summary.
    """
    if rewrite_golden:
        from cortiq_conformance.rewrite_golden import rewrite

        click.echo(rewrite(range(level + 1)))
    elif options["list_only"]:
        _list(level, options)
    else:
        _run(level, options)


def _chosen(level: int, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "levels": range(level + 1),
        "profile": "full" if options["full"] else "quick",
        "models": list(options["models"]) or None,
    }


def _list(level: int, options: dict[str, Any]) -> None:
    from cortiq_conformance.catalogue import cases
    from cortiq_conformance.runner import select

    listed = select(cases(**_chosen(level, options)), options["only"])
    for case in listed:
        click.echo(case.id)
    click.echo(f"{len(listed)} cases")


def _run(level: int, options: dict[str, Any]) -> None:
    from cortiq_conformance.catalogue import cases
    from cortiq_conformance.cli.print_report import print_report
    from cortiq_conformance.json_file import JsonFile
    from cortiq_conformance.progress import Progress
    from cortiq_conformance.runner import run, select

    _check_reports(options)
    chosen = _chosen(level, options)
    file = JsonFile(options["json_file"]) if options["json_file"] else None
    latest: list[Report] = []

    def watch(report: Report, over: bool) -> None:
        latest[:] = [report]
        progress.running(report.running)
        if file is not None:
            file.update(report, over=over)

    listed = select(cases(**chosen), options["only"])
    try:
        with _subject(options) as subject, Progress(listed) as progress:
            run(
                subject,
                **chosen,
                only=options["only"],
                allow_declined=options["allow_declined"],
                use_golden=not options["recompute"],
                out=options["out"],
                stop_early=options["stop_early"],
                expectations=options["expect"] or _expectations(),
                progress=progress.step,
                watch=watch,
                jobs=options["jobs"],
            )
    finally:  # an interrupted run is shown too, as far as it went
        for report in latest:
            _write_reports(report, options)
            print_report(report)
    if not latest[0].passed:
        raise click.exceptions.Exit(1)


def _subject(options: dict[str, Any]) -> AbstractContextManager[Any]:
    """Return what holds the backend under test: its name, or several devices that share it."""
    devices, split = options["devices"], options["split"]
    if devices == 1 and split:
        raise RequestError("needs several devices", where="split", hint="--devices 2")
    if devices == 1:
        return nullcontext(options["backend"])
    if options["jobs"] > 1:
        what = f"{options['jobs']} processes cannot share {devices} devices"
        raise RequestError(what, where="jobs", hint="leave out --jobs, or --devices")
    from cortiq_conformance.on_ranks import subject_on

    return subject_on(options["backend"], devices, split or "tensor")


def _expectations() -> str | None:
    """Read this folder's file, if there is one; the summary counts the cases it excuses."""
    from cortiq_conformance.expectations import FILE

    return FILE if Path(FILE).is_file() else None


def _check_reports(options: dict[str, Any]) -> None:
    """Refuse reports that cannot be written, before minutes of computing."""
    for kind in ("json", "junit", "html"):
        path = options[f"{kind}_file"]
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise RequestError("its folder is not there", where=path, hint=f"--{kind} FILE")


def _write_reports(report: Report, options: dict[str, Any]) -> None:
    if options["junit_file"]:
        from cortiq_conformance.junit import junit

        Path(options["junit_file"]).write_text(junit(report), "utf-8")
    if options["html_file"]:
        from cortiq_conformance.page import write_page

        write_page([report.as_dict()], options["html_file"])
