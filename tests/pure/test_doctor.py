"""`cortiq doctor`: what works is tried, what doesn't is said with what mends it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cortiq.backend import Device
from cortiq.cli import doctor as module
from cortiq.model import machine
from cortiq.model.backend_check import check_backends
from cortiq.plugins import Plugins, load_plugins
from cortiq.plugins.extras import extras, missing_requirements
from cortiq.plugins.selection import MOST_LISTED
from cortiq_reference.backend import ReferenceBackend

PLUGIN = """
from cortiq.hookspecs import hookimpl
from cortiq.errors import BackendError
from cortiq_faulty.backend import ChosenFault
from cortiq_reference.backend import ReferenceBackend

class Wrong(ChosenFault):
    name, for_tests = "wrong", False
    def devices(self):
        return [d for d in super().devices() if d.name == "reordered-canonical-sum"]

class Absent(ReferenceBackend):
    name, priority = "absent", -1
    def devices(self):
        raise BackendError("there is no driver", hint="install the driver")

class Broken(ReferenceBackend):
    name, priority = "broken", -1
    def compile(self, program, weights, options):
        raise OSError("libacme.so: no such file")

@hookimpl
def cortiq_backends():
    return [Wrong(), Absent(), Broken()]
"""


def own_plugins(*files):
    """The backends without a device library, and files: a trial of all takes half a minute."""
    return load_plugins(only=["reference", "cpu"], files=files)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    file = tmp_path_factory.mktemp("plugins") / "four.py"
    file.write_text(PLUGIN)
    return {made.backend: made for made in check_backends(own_plugins(file))}


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_a_backend_that_works_has_the_bits_of_the_reference(found, name):
    made = found[name]
    assert (made.works, made.same, made.problem, made.mend) == (True, True, None, None)
    assert made.seconds > 0 and made.digest == found["reference"].digest


def test_a_backend_that_is_not_available_says_why_and_is_not_tried(found):
    made = found["absent"]
    assert (made.works, made.same, made.seconds) == (False, None, None)
    assert "there is no driver" in made.problem and "install the driver" in made.problem


def test_whatever_a_backend_raises_is_a_sentence(found):
    assert found["broken"].works is False
    assert "libacme.so" in found["broken"].problem


def test_other_bits_are_seen(found):
    made = found["wrong"]
    assert (made.works, made.same) == (True, False)
    assert made.mend == "cortiq conform --backend wrong"


def test_backends_that_are_made_for_tests_are_not_tried(tmp_path):
    file = tmp_path / "for_tests.py"
    file.write_text(PLUGIN.replace('for_tests = "wrong", False', 'for_tests = "wrong", True'))
    (made,) = (m for m in check_backends(own_plugins(file)) if m.backend == "wrong")
    assert (made.works, made.device, made.problem) == (None, None, None)


def test_without_a_trial_nothing_is_run():
    assert {made.works for made in check_backends(load_plugins(), run=False)} == {None}


def test_a_package_that_is_missing_is_named(tmp_path):
    info = tmp_path / "acme_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme-backend\nVersion: 1.0\n"
        "Requires-Dist: numpy\nRequires-Dist: acme-driver>=2\n"
        "Requires-Dist: other-thing; sys_platform == 'nowhere'\n"
        "Requires-Dist: pretty; extra == 'pretty'\n"
    )
    (info / "entry_points.txt").write_text("[cortiq.plugins]\nacme = acme_backend\n")
    (tmp_path / "acme_backend.py").write_text(PLUGIN.replace('"absent"', '"acme"'))
    program = "from cortiq.cli.main import main; main(['doctor', '--no-trial', '--json'])"
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    variables = os.environ | {"PYTHONPATH": paths, "CORTIQ_API_KEY": "hush"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    acme = next(made for made in facts["backends"] if made["backend"] == "acme")
    assert acme["mend"] == "pip install acme-driver" and acme["source"] == "acme-backend 1.0"
    assert facts["environment"]["CORTIQ_API_KEY"] == "(set)" and "hush" not in done.stdout


def test_extras_are_those_of_the_package(monkeypatch):
    from cortiq.plugins import extras as module

    lines = ["numpy>=2", "acme-triton==1; extra == 'triton'", "rich >= 1 ; extra=='pretty'"]
    monkeypatch.setattr(module.metadata, "requires", lambda name: lines)
    pretty, triton = extras()
    assert (pretty.name, pretty.missing) == ("pretty", [])
    monkeypatch.chdir(module.checkout_root())
    assert triton.missing == ["acme-triton"] and triton.command == "pip install -e '.[triton]'"
    assert missing_requirements("cortiq") == []


def test_a_checkout_s_own_packages_are_installed_from_its_folders(monkeypatch):
    from cortiq.plugins import extras as module

    monkeypatch.chdir(Path(module.__file__).parents[2])
    monkeypatch.setattr(module.metadata, "requires", lambda name: ["cortiq-wgpu; extra == 'w'"])
    monkeypatch.setattr(module, "_version", lambda package: None)
    (wgpu,) = extras()
    assert wgpu.command == "pip install -e backends/wgpu"
    assert module.install_command("cortiq-torch", "numba") == (
        "pip install -e plugins/cortiq-torch numba"
    )
    monkeypatch.setattr(module, "__file__", "/nowhere/site-packages/cortiq/plugins/extras.py")
    assert wgpu.command == "pip install 'cortiq[w]'"


def test_the_page_and_the_object_say_the_same(monkeypatch):
    monkeypatch.setattr("cortiq.plugins.default_plugins", own_plugins)
    facts = module.machine_report(trial=True)
    monkeypatch.setattr(module, "machine_report", lambda **_: facts)
    text = CliRunner().invoke(module.doctor, [])
    assert text.exit_code == 0, text.output
    assert facts["processor"]["name"] in text.stdout and facts["cache"]["folder"] in text.stdout
    for made in facts["backends"]:
        said = "works, same bits" if made["same"] else ""  # of one that is wrong on purpose
        row = rf"^{made['backend']} +{made['device'] or '-'} +{said}"
        assert re.search(row, text.stdout, re.MULTILINE)
    whole = CliRunner().invoke(module.doctor, ["--json"])
    assert json.loads(whole.stdout) == json.loads(json.dumps(facts))


def test_where_nothing_works_the_exit_code_says_so(monkeypatch):
    facts = module.machine_report(trial=False)
    for made in facts["backends"]:
        made["works"] = False
    monkeypatch.setattr(module, "machine_report", lambda **_: facts)
    assert CliRunner().invoke(module.doctor, ["--json"]).exit_code == 1


def test_memory_is_what_the_system_says():
    memory = machine.memory()
    assert 0 < memory["free"] <= memory["total"]
    assert machine.processor()["cores"] == machine.cores() >= 1


def test_a_container_has_the_memory_of_its_limit(monkeypatch):
    files = {
        "/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 900 kB\n",
        "/sys/fs/cgroup/memory.max": "512000\n",
        "/sys/fs/cgroup/memory.current": "12000\n",
    }
    monkeypatch.setattr(machine, "_read", lambda path: files.get(path, ""))
    assert machine.memory() == {"total": 512000, "free": 500000}
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert machine.memory() == {"total": 1024000, "free": 921600}


class ManyDevices(ReferenceBackend):
    """The reference, with as many devices as `devices` says."""

    def __init__(self, count):
        self.count = count

    def devices(self):
        return [Device(str(number), "NumPy") for number in range(self.count)]


def test_a_backend_of_many_devices_is_one_line_and_none_of_them_is_tried():
    for count, lines in ((MOST_LISTED, MOST_LISTED), (MOST_LISTED + 1, 1)):
        plugins = Plugins(backends={"reference": ManyDevices(count)})
        made = check_backends(plugins, run=count > MOST_LISTED)
        assert len(made) == lines
    assert made[0].works is None and str(count) in made[0].description
