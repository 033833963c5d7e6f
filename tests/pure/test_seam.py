"""Every call of the seam: what a wrong backend returns is a sentence, and breaks nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import click
import numpy as np
import pytest
from click.testing import CliRunner

import cortiq
from cortiq.backend import (
    Argmax,
    Batch,
    BatchResult,
    CompileOptions,
    Declined,
    Device,
    Digest,
    Finished,
    Named,
    Row,
    Top,
    Versions,
)
from cortiq.backend.seam import compiled_on
from cortiq.cli.backends import backends
from cortiq.cli.doctor import doctor
from cortiq.cli.generate import generate
from cortiq.cli.main import cli
from cortiq.errors import BackendError, OptionError
from cortiq.model.backend_check import check_backends
from cortiq.plugins import find_backend, load_plugins, use_files
from cortiq_conformance import models
from cortiq_conformance.report import CaseOutcome
from cortiq_conformance.runner import run
from cortiq_reference.backend import ReferenceBackend
from cortiq_reference.executable import ReferenceExecutable

MODEL = "synthetic:tiny-llama?seed=1"
PLUGIN = """
from cortiq.backend import Device
from cortiq.hookspecs import hookimpl
from cortiq_reference.backend import ReferenceBackend

class Wrong(ReferenceBackend):
    name, priority = "wrong", 1000
    def {what}

@hookimpl
def cortiq_backends():
    return [Wrong()]
"""
DEVICES = {
    "texts": ("devices(self): return ['one']", "'one' in its list; it returns a list of"),
    "a text": ("devices(self): return 'one'", "returned 'one'; it returns a list of"),
    "none": ("devices(self): return None", "returned None; it returns a list of"),
    "no name": ("devices(self): return [Device('')]", "Device(name='', description='') in its"),
    "twice": ("devices(self): return [Device('one')] * 2", "the device 'one' twice; it returns"),
}


class Returning(ReferenceBackend):
    """The reference, but for one call."""

    name = "returning"

    def __init__(self, **calls):
        for name, made in calls.items():
            setattr(self, name, made)


class Wrapped:
    """An executable of somebody's own, with one thing replaced."""

    def __init__(self, inner, **other):
        self._inner = inner
        vars(self).update(other)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def compiled(**other):
    """An executable with this replaced: functions are given the reference's own executable."""
    model = models.load("tiny-llama")

    def compile(program, weights, options):
        inner = ReferenceExecutable(program, weights, options)
        made = {n: v(inner) if callable(v) else v for n, v in other.items()}
        return Wrapped(inner, **made)

    options = CompileOptions(threads=1)
    return compiled_on(Returning(compile=compile), model.program, model.weights, options)


@pytest.fixture
def wrong_file(tmp_path):
    def write(what):
        path = tmp_path / "wrong.py"
        path.write_text(PLUGIN.format(what=what))
        use_files([path])
        return path

    yield write
    use_files([])


@pytest.mark.parametrize("kind", DEVICES)
def test_devices_that_are_none_are_a_sentence_and_others_go_on(kind, wrong_file):
    what, sentence = DEVICES[kind]
    wrong_file(what)
    listed = CliRunner().invoke(backends, ["--json"])
    assert listed.exit_code == 0, listed.output
    found = {facts["name"]: facts["unavailable"] for facts in json.loads(listed.output)["backends"]}
    said = found.pop("wrong")
    assert said.startswith("devices() of the backend 'wrong' returned") and "\n" not in said
    assert sentence in said and None in found.values()
    made = CliRunner().invoke(generate, [MODEL, "-p", "x", "--max-tokens", "2", "--threads", "1"])
    assert made.exit_code == 0, made.output
    with pytest.raises(BackendError, match=r"'wrong' is not available: devices\(\)"):
        find_backend("wrong")


def test_a_compile_that_returns_none_is_a_sentence_and_doctor_tries_the_others(wrong_file):
    path = wrong_file("compile(self, program, weights, options): return None")
    sentence = "compile() of the backend 'wrong' returned None, which lacks open, import_, forward"
    with pytest.raises(BackendError, match=re.escape(sentence)):
        cortiq.load(MODEL, backend="wrong")
    made = {t.backend: t for t in check_backends(load_plugins(only=["reference"], files=[path]))}
    assert made["wrong"].works is False and sentence in made["wrong"].problem
    assert made["reference"].works is True


@pytest.mark.parametrize("what", ["devices(self)", "compile(self, program, weights, options)"])
def test_a_backend_that_exits_ends_neither_doctor_nor_a_program(what, wrong_file):
    path = wrong_file(f"{what}: raise SystemExit(3)")
    made = {t.backend: t for t in check_backends(load_plugins(only=["reference"], files=[path]))}
    assert made["wrong"].works is False and "SystemExit: 3" in made["wrong"].problem
    assert made["reference"].works is True
    with pytest.raises(BackendError, match="SystemExit: 3"):
        cortiq.load(MODEL, backend="wrong")


def test_doctor_goes_on_where_a_backend_finds_one_device_twice(wrong_file):
    wrong_file(DEVICES["twice"][0])
    done = CliRunner().invoke(doctor, ["--no-trial", "--json"])
    made = {facts["backend"]: facts for facts in json.loads(done.output)["backends"]}
    assert "the device 'one' twice" in made["wrong"]["problem"]
    assert made["reference"]["works"] is None


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"program": None}, "`program` of an executable of the backend 'returning' returned None"),
        ({"placement": None}, "`placement` of an executable of the backend 'returning' returned"),
        ({"placement": {"embed": 1}}, "it returns a mapping of the nodes' names to the backends'"),
        ({"placement": {"x": "y"}}, "nothing about the node"),
        ({"windows": [1]}, "`windows` of an executable of the backend 'returning' returned [1]"),
        ({"close": 1}, "which lacks close"),
    ],
)
def test_an_executable_that_lacks_something_is_refused(other, sentence):
    with pytest.raises(BackendError, match=re.escape(sentence)):
        compiled(**{n: (lambda inner, v=v: v) for n, v in other.items()})


def answered(executable, *wants):
    """Return `forward`'s results for two rows, the last of which wants something."""
    state = executable.open(4)
    rows = [Row(state, 0, 1), Row(state, 1, 2, wants)]
    return executable.forward(Batch(rows)).result()


def changed(change):
    """A `forward` whose result is changed."""
    return lambda inner: lambda batch: change(inner.forward(batch).result())


def other_answer(value):
    """A `forward` whose last row brings this for what it wants."""

    def change(result):
        rows = [*result.rows[:-1], dict.fromkeys(result.rows[-1], value)]
        return Finished(replace(result, rows=rows))

    return changed(change)


@pytest.mark.parametrize(
    ("forward", "sentence"),
    [
        (changed(lambda r: None), "forward() of the backend 'returning' returned None; it returns"),
        (changed(lambda r: Finished(None)), "returned None; it returns what a BatchResult"),
        (changed(lambda r: Finished(replace(r, rows=r.rows[:1]))), "1 rows for a batch of 2"),
        (changed(lambda r: Finished(replace(r, outcomes={}))), "None for a sequence"),
        (changed(lambda r: Finished(replace(r, rows=[{}, {}]))), "nothing for Argmax("),
        (changed(lambda r: Finished(replace(r, rows=[{}, None]))), "None in row 1; it returns"),
        (other_answer("7"), "'7' for Argmax(name='logits') in row 1; it returns an id below"),
        (other_answer(1 << 20), "returned 1048576 for Argmax"),
        (other_answer(-1), "returned -1 for Argmax"),
    ],
)
def test_a_result_that_answers_no_batch_is_refused(forward, sentence):
    with pytest.raises(BackendError, match=re.escape(sentence)):
        answered(compiled(forward=forward), Argmax())


@pytest.mark.parametrize(
    ("want", "value", "sentence"),
    [
        (Named("hidden"), np.zeros(64), "float64[64] for Named(name='hidden')"),
        (Named("hidden"), np.zeros(3, np.float32), "it returns float32["),
        (Named("hidden"), None, "returned None for Named"),
        (Digest(), (1, 2, 3), "it returns four 32-bit words"),
        (Top(3), (1, 2), "it returns ids, values and logsumexp"),
    ],
)
def test_an_answer_of_another_type_is_refused(want, value, sentence):
    with pytest.raises(BackendError, match=re.escape(sentence)):
        answered(compiled(forward=other_answer(value)), want)


def test_a_ticket_is_checked_when_its_result_is_there():
    class Late:
        def result(self):
            return BatchResult({}, [])

    state_of = compiled(forward=lambda inner: lambda batch: Late())
    ticket = state_of.forward(Batch([Row(state_of.open(4), 0, 1)]))
    with pytest.raises(BackendError, match="0 rows for a batch of 1"):
        ticket.result()


@pytest.mark.parametrize(
    ("call", "made", "sentence"),
    [
        ("open", None, "open() of the backend 'returning' returned None, which lacks length"),
        ("state_bytes", "4 GB", "state_bytes() of the backend 'returning' returned '4 GB'; it"),
        ("free_bytes", 0.5, "free_bytes() of the backend 'returning' returned 0.5; it returns"),
    ],
)
def test_other_calls_of_an_executable_are_checked(call, made, sentence):
    executable = compiled(**{call: lambda inner: lambda *given: made})
    with pytest.raises(BackendError, match=re.escape(sentence)):
        getattr(executable, call)(*[4] * (call != "free_bytes"))


def test_a_sound_result_passes_as_it_is():
    executable = compiled()
    result = answered(executable, Argmax(), Named("hidden"), Digest("hidden"), Top(3))
    assert set(result.rows[1]) == {Argmax(), Named("hidden"), Digest("hidden"), Top(3)}


@pytest.mark.parametrize("answer", [None, True, Declined(None), "Supported"])
def test_what_supports_returns_is_an_answer_or_an_error(answer):
    backend = Returning(supports=lambda node, graph, program: answer)
    sentence = "supports() of the backend 'returning' returned"
    report = run(backend, levels=(0,), only="level0/Add[")
    assert {result.outcome for result in report.results} == {CaseOutcome.ERROR}
    assert all(result.reason.startswith(sentence) for result in report.results)
    with pytest.raises(BackendError, match=re.escape(sentence)):
        cortiq.load(MODEL, backend=backend)


def test_in_the_kit_a_compile_that_returns_none_is_an_error_of_the_case():
    backend = Returning(compile=lambda program, weights, options: None)
    (result, *_) = run(backend, levels=(0,), only="level0/Add[").results
    assert result.outcome is CaseOutcome.ERROR
    assert result.reason.startswith("compile() of the backend 'returning' returned None")
    with pytest.raises(BackendError, match=r"devices\(\) of the backend 'returning' returned"):
        run(Returning(devices=lambda: ["cpu"]), levels=(0,), only="level0/Add[")


def test_a_backend_itself_can_be_given_instead_of_its_name():
    backend = Returning(devices=lambda: [Device("one"), Device("two")])
    options = {"max_tokens": 4, "ignore_eos": True}
    with cortiq.load(MODEL, backend="reference", threads=1) as model:
        expected = model.generate("x", **options).digest
    with cortiq.load(MODEL, backend=backend, device="two", threads=1) as model:
        assert (model.backend, model.device) == ("returning", "two")
        assert model.generate("x", **options).digest == expected
        made = model.generate("x", draft=f"model:{MODEL}", **options)
        assert made.digest == expected
    with cortiq.load(MODEL, backend=backend, threads=1) as model:
        assert model.device == "one"
    with pytest.raises(BackendError, match="'returning' has no device 'three'"):
        cortiq.load(MODEL, backend=backend, device="three")


@pytest.mark.parametrize(
    ("backend", "kind", "sentence"),
    [
        (ReferenceBackend, BackendError, "ReferenceBackend is a class"),
        (Returning(versions=Versions(contract=99)), BackendError, "contract version 99"),
        (Returning(devices=list), BackendError, "it found no device"),
        (7, OptionError, "backend must be a text or a backend, not 7"),
    ],
)
def test_what_is_no_backend_is_refused(backend, kind, sentence):
    with pytest.raises(kind, match=re.escape(sentence)):
        cortiq.load(MODEL, backend=backend)


def test_a_command_that_hides_one_of_ours_is_refused_aloud(tmp_path):
    file = tmp_path / "hiding.py"
    file.write_text(
        "import click\nfrom cortiq.hookspecs import hookimpl\n"
        "@click.command()\ndef pull():\n    click.echo('MINE')\n"
        "@hookimpl\ndef cortiq_commands():\n    return [pull]\n"
    )
    (problem,) = load_plugins(only=[], files=[file]).problems
    assert problem.sentence == "brings the command 'pull', which cortiq has itself"
    try:
        with pytest.raises(BackendError, match="--plugin hiding: brings the command 'pull'"):
            cli.make_context("cortiq", ["--plugin", str(file), "list"])
    finally:
        use_files([])
    assert isinstance(cli.get_command(click.Context(cli), "pull"), click.Command)
