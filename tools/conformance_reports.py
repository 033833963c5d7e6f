"""Conformance reports of devices: check new ones, list them, write their page.

    python tools/conformance_reports.py --check report.json   # can it be listed?
    python tools/conformance_reports.py --add report.json     # check it, put it into the folder
    python tools/conformance_reports.py [--write]             # the page, compared or written

A report is what `cortiq conform --backend NAME --json FILE` writes. Listed, it keeps the facts of
the run and the digest of every case (`conformance/reports/BACKEND-DEVICE-LIST.json`). A detached
signature beside it is optional: `ssh-keygen -Y sign -n cortiq-conformance -f KEY FILE` writes
`FILE.sig`, which is checked with `ssh-keygen -Y check-novalidate`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cortiq_conformance import golden
from cortiq_conformance.catalogue import cases

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "conformance" / "reports"
PAGE = ROOT / "docs" / "conformance-reports.md"
NAMESPACE = "cortiq-conformance"
KEPT = ("backend", "device", "kit", "contract", "case_list", "counts", "computed_by", "versions")
DIGEST = re.compile(r"[0-9a-f]{32}")
HEAD = """# Conformance reports

Runs of the conformance kit on real devices, each with the digest of every case. A run that is
listed passed: every case was computed and every bit was the expected one. To add a device, see
[conformance](conformance.md#reports-of-devices).

| backend | device | cases | same | computed by itself | kit, contract | signed by |
|---|---|---|---|---|---|---|
"""


def problems(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a whole report cannot be listed."""
    missing = [name for name in (*KEPT, "results", "passed", "cut_short") if name not in report]
    if missing:
        yield f"it lacks {', '.join(missing)}: is it a report of `cortiq conform --json`?"
        return
    if report["cut_short"]:
        yield f"the run was cut short: {report['cut_short']}"
    if not report["passed"] or report.get("excused") or report.get("allow_declined"):
        yield "the run did not pass, or passed only with failures that it excused"
    yield from left_out({result["id"] for result in report["results"]})
    yield from wrong_digests({r["id"]: r["digest"] for r in report["results"]
                              if r["outcome"] == "same"}, report["contract"])  # fmt: skip


def left_out(ran: set[str]) -> Iterator[str]:
    """Yield why the cases that ran are not all of levels 0 and 1, or not all of a level."""
    levels = {0, 1, *(int(case[5]) for case in ran if re.match(r"level[0-4]/", case))}
    missing = [case.id for case in cases(profile="quick") if case.level in levels]
    missing = [case for case in missing if case not in ran]
    if missing:
        yield f"{len(missing)} cases of its levels did not run, the first: {missing[0]}"


def wrong_digests(digests: Mapping[str, str], contract: int) -> Iterator[str]:
    """Yield cases whose digest is malformed or not the golden one of this contract version."""
    for case, digest in digests.items():
        level = re.match(r"level([0-4])/", case)
        if not level or not DIGEST.fullmatch(digest):
            yield f"{case}: {digest!r} is no digest of a case"
            continue
        known = golden.read(int(level[1]))
        expected = known["cases"].get(case, {}).get("digest")
        if known["contract"] == contract and expected not in (None, digest):
            yield f"{case}: digest {digest}, expected {expected}"


def listed(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the folder keeps of a report."""
    digests = {r["id"]: r["digest"] for r in report["results"] if r["outcome"] == "same"}
    return {**{name: report[name] for name in KEPT}, "digests": digests}


def name_of(report: Mapping[str, Any]) -> str:
    """Return the file name of a listed report."""
    parts = (report["backend"], report["versions"].get("device", report["device"]))
    slug = re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
    return f"{slug}-{report['case_list']}.json"


def signer(path: Path) -> str:
    """Return the fingerprint of the key that signed a file, "-" without signature.

    Raises
    ------
    ValueError : there is a signature and it is not one of this file.
    """
    signature = path.with_name(f"{path.name}.sig")
    if not signature.exists():
        return "-"
    command = ["ssh-keygen", "-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(signature)]
    done = subprocess.run(command, input=path.read_bytes(), capture_output=True)
    found = re.search(rb"SHA256:\S+", done.stdout)
    if done.returncode or not found:
        raise ValueError(f"{signature.name} is not a signature of {path.name}")
    return found[0].decode()


def row(path: Path) -> str:
    """Return the row of a listed report; ValueError if it does not hold."""
    report = json.loads(path.read_text("utf-8"))
    wrong = list(wrong_digests(report["digests"], report["contract"]))
    if wrong or path.name != name_of(report):
        raise ValueError(f"{path.name}: {wrong[0] if wrong else 'it has another name'}")
    counts, versions = report["counts"], report["versions"]
    nodes = report["computed_by"]
    own = f"{nodes.get(report['backend'], 0)} of {sum(nodes.values())} nodes"
    device = ", ".join(filter(None, (versions.get("device", report["device"]),
                                     versions.get("driver", ""))))  # fmt: skip
    cells = (
        f"{report['backend']} ({versions.get('backend', 'unknown version')})", device,
        sum(counts.values()), counts["same"], own,
        f"{report['kit']}, {report['contract']}", signer(path),
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def page() -> str:
    """Return the text of the page."""
    return HEAD + "".join(f"{row(path)}\n" for path in sorted(FOLDER.glob("*.json")))


def examine(path: Path, add: bool) -> int:
    """Check a report; with `add`, put it into the folder. Return the exit code."""
    try:
        report = json.loads(path.read_text("utf-8"))
        found = list(problems(report))
    except (OSError, ValueError, TypeError, KeyError) as error:
        found = [f"it cannot be read: {error}"]
    print(*(f"{path}: {problem}" for problem in found[:9]), sep="\n")
    if found:
        return 1
    if add:
        kept = FOLDER / name_of(report)
        kept.write_text(json.dumps(listed(report), indent=1, sort_keys=True) + "\n", "utf-8")
        PAGE.write_text(page(), "utf-8")
        print(f"{kept.relative_to(ROOT)} and {PAGE.relative_to(ROOT)} were written")
    return 0


def main() -> int:
    """Check, add, compare or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--add", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true", help="write the page")
    options = parser.parse_args()
    if options.check or options.add:
        return examine(options.check or options.add, bool(options.add))
    if options.write:
        PAGE.write_text(page(), "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != page():
        print(f"{PAGE.name} is not what the reports say: {sys.argv[0]} --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
