"""The command line on a model, with a backend that declines some of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PARTIAL = """
from cortiq.backend import Declined
from cortiq.hookspecs import hookimpl
from cortiq_reference.backend import ReferenceBackend

class Partial(ReferenceBackend):
    name = "partial"
    priority = -1
    def supports(self, node, graph, program):
        if node.op.kind in ("GatedMLP", "Activation"):
            return Declined("no activations here")
        return super().supports(node, graph, program)
    def compile(self, program, weights, options):
        executable = super().compile(program, weights, options)
        executable.placement = dict.fromkeys(executable.placement, self.name)
        return executable

@hookimpl
def cortiq_backends():
    return [Partial()]
"""
MODEL = "synthetic:tiny-llama"


def run(*arguments, **environment):
    command = [sys.executable, "-m", "cortiq", *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)


@pytest.fixture
def plugin(tmp_path):
    file = tmp_path / "partial.py"
    file.write_text(PARTIAL)
    return ["--plugin", str(file)]


def generate(*before, backend, more=()):
    arguments = ["generate", MODEL, "-p", "hello", "-n", "4", "--ignore-eos", "--json"]
    return run(*before, *arguments, "--backend", backend, *more)


def test_declined_nodes_go_to_the_reference_which_is_said_and_changes_nothing(plugin):
    plain = json.loads(generate(backend="reference").stdout)
    done = generate(*plugin, backend="partial")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert set(made["placement"]) == {"partial", "reference"}
    assert done.stderr.count("partial declines 3 nodes") == 1
    for key in ("token_ids", "digest", "fingerprint", "model_hash", "text"):
        assert made[key] == plain[key], key


def test_strict_placement_makes_a_decline_an_error(plugin):
    done = generate(*plugin, backend="partial", more=["--strict-placement"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "no activations here" in done.stderr


def test_inspect_says_what_a_backend_declines(plugin):
    done = run(*plugin, "inspect", MODEL, "--backend", "partial")
    assert done.returncode == 0, done.stderr
    assert "graph trunk(token i32[], position i32[])" in done.stdout
    assert done.stdout.count("declined: layers.") == 3
    assert "layers.1.mlp.activation: no activations here" in done.stdout
    whole = run("inspect", MODEL, "--backend", "reference", "--full", "--check")
    assert "declined" not in whole.stdout and "on reference:cpu: reference 21" in whole.stdout
    assert "weights are finite" in whole.stderr


def test_backend_and_device_come_from_the_environment():
    done = run("generate", MODEL, "-p", "x", "-n", "1", "--json", CORTIQ_BACKEND="reference:cpu")
    assert json.loads(done.stdout)["device"] == "cpu"
    done = run("generate", MODEL, "-p", "x", CORTIQ_BACKEND="reference:gpu")
    assert done.returncode == 2 and "has no device 'gpu'" in done.stderr


def test_text_may_hold_any_unicode(tmp_path):
    done = run("generate", MODEL, "-p", "é€😀", "-n", "2", "--json")
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-m", "cortiq", "generate", MODEL, "-p", b"a\xff"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 2 and b"-p: byte 1 is 0xff" in done.stderr
