"""The folder of conformance reports: what may be listed, and that the page is current."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cortiq_conformance import golden
from cortiq_conformance.catalogue import cases

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "conformance_reports.py"


def run(*arguments):
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def report(**changes):
    """A report in which every case of levels 0 and 1 brought its golden digest."""
    results = []
    for case in cases(profile="quick"):
        if case.level < 2:
            digest = golden.read(case.level)["cases"].get(case.id, {"digest": "0" * 32})["digest"]
            results.append({"id": case.id, "outcome": "same", "digest": digest})
    facts = {
        "backend": "acme", "device": "gpu", "kit": "0.1.0", "contract": 1, "case_list": "ab" * 8,
        "counts": {"same": len(results)}, "computed_by": {"acme": 9}, "cut_short": "",
        "versions": {"device": "Acme 9000"}, "passed": True, "results": results,
    }  # fmt: skip
    return facts | changes


def test_the_page_is_what_the_reports_say():
    assert run() == (0, "")


def test_a_whole_run_with_golden_digests_can_be_listed(tmp_path):
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report()))
    assert run("--check", file)[0] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.update(passed=False), "did not pass"),
        (lambda r: r.update(cut_short="interrupted"), "cut short: interrupted"),
        (lambda r: r["results"].pop(), "1 cases of its levels did not run"),
        (lambda r: r["results"][3].update(digest="1" * 32), "expected"),
        (lambda r: r["results"][3].update(digest="<script>"), "is no digest"),
        (lambda r: r.pop("counts"), "it lacks counts"),
    ],
)
def test_anything_else_is_refused_with_a_reason(tmp_path, change, words):
    changed = report()
    change(changed)
    file = tmp_path / "report.json"
    file.write_text(json.dumps(changed))
    code, said = run("--check", file)
    assert code == 1 and words in said


def test_what_is_no_report_is_refused(tmp_path):
    file = tmp_path / "report.json"
    file.write_text("[1")
    assert run("--check", file)[0] == 1
