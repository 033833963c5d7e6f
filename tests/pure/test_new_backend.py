"""`cortiq new-backend`: what it writes is installed and tested as a newcomer would."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner
from environments import fresh_python, install, run_in

import cortiq
from cortiq.errors import RequestError
from cortiq_conformance.cli import new_backend
from cortiq_conformance.scaffold import rendered, write_backend

NAME = "acme-one"


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """The package, written by the command."""
    parent = tmp_path_factory.mktemp("home")
    done = CliRunner().invoke(new_backend, [NAME, "--into", str(parent)])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1].endswith("cortiq conform -b acme-one --level 0")
    return parent / f"cortiq-{NAME}"


@pytest.fixture(scope="module")
def python(project, tmp_path_factory) -> Path:
    """The Python of a fresh environment with the package installed."""
    python = fresh_python(tmp_path_factory.mktemp("environment"))
    install(python, project)
    return python


def test_its_own_tests_pass_as_it_is_written(project, python):
    strict = ("-W", "error")  # a newcomer sees no warning of ours
    level = ("-m", "level1")  # `test_tutorial.py` runs level 0 too
    report = "--junitxml=conformance.xml"
    done = run_in(python, project, "-m", "pytest", report, "-q", *strict, *level)
    assert done.returncode == 0, done.stdout + done.stderr
    (suite,) = ElementTree.parse(project / "conformance.xml").getroot().findall("testsuite")
    assert int(suite.attrib["tests"]) > 120
    assert {suite.attrib[kind] for kind in ("failures", "errors", "skipped")} == {"0"}
    assert re.search(r"cortiq conformance kit [\d.]+, \d+ cases \w+, \d+ run: ", done.stdout)


def test_the_levels_are_markers(project, python):
    arguments = (
        "-m",
        "pytest",
        "-q",
        "-m",
        "level0",
        "-k",
        "they and not keys",
        "--strict-markers",
    )
    done = run_in(python, project, *arguments)
    assert done.returncode == 0, done.stdout
    assert " 3 run: 3 same" in done.stdout


def test_the_report_says_that_it_delegates(project, python):
    conform = ("-m", "cortiq", "conform", "--backend", NAME, "--level", "0", "--only", "RMSNorm")
    done = run_in(python, project, *conform)
    assert done.returncode == 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert re.search(rf" 0 of [1-9]\d* nodes computed by {NAME}: passed", last), last


def test_a_kernel_of_its_own_is_counted(project, python):
    kernels = project / "cortiq_acme_one" / "kernels.py"
    text = kernels.read_text()
    try:
        kernels.write_text(text.replace("KERNELS: Mapping[type[Op], Callable] = {}", OWN_KERNEL))
        conform = ("-m", "cortiq", "conform", "-b", NAME, "--level", "0", "--only", "level0/Scale[")
        done = run_in(python, project, *conform)
    finally:
        kernels.write_text(text)
    last = done.stdout.splitlines()[-1]
    assert re.search(rf" ([1-9]\d*) of \1 nodes computed by {NAME}: passed", last), done.stdout


OWN_KERNEL = """
import numpy as np
from cortiq.ir import ops
from cortiq.numerics.contract import snap

KERNELS: Mapping[type[Op], Callable] = {
    ops.Scale: lambda call, x: snap(x * np.float32(call.op.factor), call.faults)
}
"""


def test_the_conformance_test_has_three_lines():
    text = dict(rendered(NAME))["tests/test_conformance.py"]
    assert len([line for line in text.splitlines() if line]) == 2
    assert text.count("\n") == 3


def test_nothing_is_left_unfilled_and_versions_are_those_of_this_cortiq():
    for path, text in rendered(NAME):
        assert "{{" not in path + text, path
    files = dict(rendered(NAME))
    assert "Versions(hookspec=1, ir=1, contract=1)" in files["cortiq_acme_one/backend.py"]
    points = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]
    assert points["cortiq.plugins"] == {NAME: "cortiq_acme_one"}
    assert cortiq.__version__


def test_its_workflow_runs_the_tests_and_keeps_the_reports():
    workflow = yaml.safe_load(dict(rendered(NAME))[".github/workflows/conformance.yml"])
    (job,) = workflow["jobs"].values()
    steps = " ".join(step.get("run", "") for step in job["steps"])
    assert "python -m pytest --junitxml=conformance.xml --conformance-out=out" in steps
    assert f"cortiq conform --backend {NAME} --level 1 --json" in steps
    kept = job["steps"][-1]["with"]["path"].split()
    assert kept == ["conformance.xml", "conformance.json", "conformance.html", "out"]


@pytest.mark.parametrize("name", ["Acme", "a b", "1st", "a--b", "", "../x", "reference", "acme_x"])
def test_a_name_that_cannot_be_one_is_refused(name, tmp_path):
    with pytest.raises(RequestError, match="name"):
        write_backend(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path):
    write_backend(NAME, tmp_path)
    with pytest.raises(RequestError, match="is there already"):
        write_backend(NAME, tmp_path)
