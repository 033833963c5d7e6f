"""The page of reports: complete as text, and readable in a browser, on a phone too."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import pytest
from click.testing import CliRunner
from work import HANG_SECONDS

from cortiq.errors import FormatError
from cortiq_conformance.cli import matrix
from cortiq_conformance.faults import FaultyBackend
from cortiq_conformance.faults.table import DECLINES
from cortiq_conformance.page import page, read_reports
from cortiq_conformance.runner import run
from cortiq_reference.backend import ReferenceBackend

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
MEASURE = """<script>
const cell = (name) => document.querySelector(".matrix ." + name);
const colour = (name) => getComputedStyle(cell(name)).backgroundColor;
const sizes = [...document.querySelectorAll("body *")].filter((e) => e.getClientRects().length)
  .map((e) => parseFloat(getComputedStyle(e).fontSize));
document.title = JSON.stringify({
  wider: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  same: colour("same"), different: colour("different"), declined: colour("declined"),
  smallest: Math.min(...sizes), cells: document.querySelectorAll(".matrix td").length,
  anchors: [...document.querySelectorAll(".matrix a")].every(
    (a) => document.querySelector(a.getAttribute("href"))),
});
</script>"""


@pytest.fixture(scope="module")
def reports():
    """A sound backend, a faulty one and one that declines, on levels 0 and 2."""
    chosen = {"levels": (0, 2), "only": "tiny-llama"}
    plain = run(ReferenceBackend(), levels=(0,), only="level0/RMSNorm")
    faulty = run(FaultyBackend("fused multiply-add in RMSNorm"), levels=(0,), only="level0/RMSNorm")
    declining = run(FaultyBackend(DECLINES), levels=(0,), only="level0/RMSNorm")
    model = run(ReferenceBackend(), **chosen)
    return [report.as_dict() for report in (plain, faulty, declining, model)]


def test_everything_that_judging_needs_is_on_the_page(reports):
    text = html.unescape(page(reports))
    for facts in reports:
        assert facts["backend"] in text and facts["device"] in text
        assert facts["case_list"] in text and facts["versions"]["numpy"] in text
        for result in facts["results"]:
            assert result["id"] in text and result["digest"] in text
            assert result["reason"] in text
    assert "level 2<br>tiny-llama" in text
    assert "RMSNorm is not implemented" in text
    assert "http" not in re.sub(r"https?://\S+ is ", "", page(reports))  # loads nothing


def test_what_is_expected_to_fail_is_neither_green_nor_red(reports):
    failing = json.loads(json.dumps(reports[1]))
    for result in failing["results"]:
        result["excused"] = "bug 1" if result["outcome"] == "different" else ""
    text = page([failing])
    assert re.search(r'class="declined" title="[^"]*">\d+ same, \d+ expected to fail<', text)
    assert "Expected: bug 1" in text


def test_text_of_a_report_is_never_markup(reports):
    hostile = {**reports[0], "device": "<script>alert(1)</script>"}
    assert "<script>alert" not in page([hostile])


def test_the_command_reads_reports_and_refuses_others(reports, tmp_path):
    files = []
    for number, facts in enumerate(reports):
        files.append(str(tmp_path / f"{number}.json"))
        (tmp_path / f"{number}.json").write_text(json.dumps(facts))
    done = CliRunner().invoke(matrix, [*files, "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "page.html").read_text() == page(reports)
    (tmp_path / "0.json").write_text("{}")
    with pytest.raises(FormatError, match="is no report"):
        read_reports(files)
    with pytest.raises(FormatError, match="cannot be read"):
        read_reports([tmp_path / "missing.json"])


@pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium-headless-shell")
@pytest.mark.parametrize("width", [360, 1280])
def test_in_a_browser_it_fits_the_screen_and_its_colours_tell_outcomes_apart(
    reports, tmp_path, width
):
    path = tmp_path / "page.html"
    path.write_text(page(reports).replace("</body>", f"{MEASURE}</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'user'}"]
    command = [BROWSER, *flags, f"--window-size={width},800", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    seen = json.loads(html.unescape(title[1]))
    assert seen["wider"] <= 0
    assert seen["smallest"] >= 14
    assert seen["same"] == "rgb(26, 127, 55)" and seen["different"] == "rgb(194, 32, 44)"
    assert seen["declined"] == "rgb(154, 103, 0)"
    columns = page(reports).count("<th>level ")
    assert seen["cells"] == len(reports) * columns and seen["anchors"] is True
