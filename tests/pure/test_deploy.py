"""Files of deployment: variables are options, copied paths are there, systemd accepts the unit."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from cortiq.options import LoadOptions, environment_name, specs
from cortiq.serve.options import ServeOptions

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERS = sorted(DEPLOY.glob("Containerfile*"))
OTHERS = {"CORTIQ_CACHE", "CORTIQ_SERVED"}
"""The folder of models, and the unit's own variable: models to serve."""


@pytest.mark.parametrize("file", [*CONTAINERS, DEPLOY / "cortiq.service"], ids=lambda f: f.name)
def test_variables_are_options_of_the_server(file):
    known = {environment_name(n) for options in (ServeOptions, LoadOptions) for n in specs(options)}
    used = set(re.findall(r"\bCORTIQ_[A-Z_]+", file.read_text()))
    assert used and used <= known | OTHERS


@pytest.mark.parametrize("file", CONTAINERS, ids=lambda f: f.name)
def test_what_a_container_copies_and_installs_is_there(file):
    text = file.read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        assert all((ROOT / source).exists() for source in line.split()[:-1]), line
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = re.findall(r"'\.\[([a-z,]+)\]'", text)
    assert set(wanted.split(",")) <= set(extras["optional-dependencies"])
    copied = set(re.findall(r"^COPY (backends/\w+) ", text, re.MULTILINE))
    assert {f"'./{folder}'" for folder in copied} == set(re.findall(r"'\./backends/\w+'", text))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_unit(tmp_path):
    unit = tmp_path / "cortiq.service"
    text = (DEPLOY / "cortiq.service").read_text()
    unit.write_text(text.replace("/opt/cortiq/bin/cortiq", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
