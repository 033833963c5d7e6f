"""Starting: nothing is imported for a backend that is not chosen, or a model that is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cortiq.models.registry import OWN, families, family_for

LIBRARIES = ("torch", "mlx", "wgpu", "triton")
RUN = """
import sys
from cortiq.cli.main import main
try: main({arguments!r})
except SystemExit as done: code = done.code
wanted = {libraries!r}
print(code, *sorted({{m.split('.')[0] for m in sys.modules}} & set(wanted)), file=sys.stderr)
"""


def imported(arguments, libraries):
    """Return the exit code, and which of the libraries a command imports."""
    ambient = {
        k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "CORTIQ_PLUGINS")
    }
    script = RUN.format(arguments=arguments, libraries=libraries)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=ambient, check=True
    )
    code, *found = done.stderr.splitlines()[-1].split()
    return int(code or 0), found


def test_generating_on_the_cpu_imports_no_library_of_another_backend():
    arguments = ["generate", "synthetic:tiny-llama", "-p", "a", "-n", "1", "-b", "cpu"]
    assert imported(arguments, LIBRARIES) == (0, [])


def test_the_best_backend_is_found_without_importing_the_others():
    pytest.importorskip("torch")
    arguments = ["generate", "synthetic:tiny-llama", "-p", "a", "-n", "1"]
    code, found = imported(arguments, LIBRARIES)
    assert code == 0 and (found == [] or "triton" in found)  # a machine with a GPU takes that


@pytest.mark.parametrize(
    "command", [("generate", "-p", "a"), ("chat",), ("serve",), ("score", "-")]
)
def test_a_model_that_is_not_there_is_said_before_numpy_is_imported(command):
    name, *rest = command
    assert imported([name, "no-such-model", *rest], ("numpy", "pluggy")) == (2, [])


class Checkpoint:
    """A checkpoint of an architecture, and nothing more."""

    kind, config = "huggingface", {}

    def __init__(self, architecture):
        self.architecture = architecture


def test_a_family_found_by_its_name_is_that_of_the_registry():
    known = families()
    for name, module in known.items():
        assert family_for(Checkpoint(name)) is module
    assert sum(name in OWN for name in known) > 10
    extra = type(sys)("extra")
    extra.ARCHITECTURES = ("llama",)
    assert family_for(Checkpoint("llama"), [extra]) is extra
