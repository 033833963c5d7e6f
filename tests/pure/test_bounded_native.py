"""`NystromAttend` in C: the bits of its definition, and sequences that go back, fork and move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bounded import PLUGIN, computed, loaded_plugins, rewritten_model
from package_library import compiled

from cortiq.backend import Batch, CompileOptions, Digest, Row
from cortiq.placement.place import place
from cortiq_bounded import native
from cortiq_bounded.ops import NystromAttend
from cortiq_conformance.runner import run
from cortiq_cpu import NativeKernel
from cortiq_cpu.backend import CpuBackend

ASKED = "nystrom:seal=30,window=8,sinks=2,landmarks=4,exact=2"


@pytest.fixture(scope="module")
def plugins(tmp_path_factory):
    """Backends with the package's kernels, its C function compiled as setup.py does."""
    made = tmp_path_factory.mktemp("nystrom") / "_nystrom.so"
    compiled(PLUGIN.with_name("nystrom.c"), made, "-lm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: made)
        found = loaded_plugins(CpuBackend())
    assert not found.problems and NystromAttend in found.backends["cpu"].given
    return found


def test_the_kit_compares_it_with_its_definition(plugins, monkeypatch):
    monkeypatch.setattr("cortiq_conformance.oracle.default_plugins", lambda: plugins)
    cpu, cases = plugins.backends["cpu"], "level0/NystromAttend["
    report = run(cpu, levels=(0,), only=cases)
    assert report.passed and len(report.results) == 3
    assert set(report.computed) == {"cpu/bounded"}
    given = cpu.given[NystromAttend]
    wrong = NativeKernel(
        given.function.function, lambda op: native.constants(replace(op, scale=op.scale * 1.01)),
        steps=True,
    )  # fmt: skip
    monkeypatch.setattr(cpu, "given", {**cpu.given, NystromAttend: replace(given, function=wrong)})
    found = run(cpu, levels=(0,), only=cases)
    assert not found.passed and found.blamed() == {"NystromAttend"}


@pytest.mark.parametrize(
    "asked",
    [
        ASKED, f"{ASKED},reseal=16", f"{ASKED},rectifier=fm,stride=3",
        "nystrom:seal=290,window=270,sinks=0,landmarks=32",
    ],
)  # fmt: skip
def test_any_batches_give_the_bits_of_the_definition(plugins, asked):
    model, reference = rewritten_model(asked), plugins.backends["reference"]
    tokens = np.arange(296 if "290" in asked else 80) * 7 % 50
    whole = computed(reference, *model, tokens, size=len(tokens), plugins=reference)
    for size in (1, 25):
        found = computed(plugins.backends["cpu"], *model, tokens, size=size, plugins=reference)
        assert (found == whole).all()


def test_a_sequence_goes_back_forks_and_moves(plugins):
    program, weights = rewritten_model(f"{ASKED},reseal=16")
    reference = plugins.backends["reference"]
    one = place(plugins.backends["cpu"], program, weights, CompileOptions(threads=2))
    two = place(reference, program, weights, CompileOptions())
    assert set(one.placement.values()) == {"cpu", "cpu+cpu/bounded"}
    wants = (Digest("logits"),)

    def fed(executable, state, tokens):
        start = state.length()
        rows = [Row(state, start + i, int(t), wants) for i, t in enumerate(tokens)]
        return [row[wants[0]] for row in executable.forward(Batch(rows)).result().rows]

    tokens, state = np.arange(140) * 3 % 50, one.open(200)
    expected = fed(two, two.open(200), tokens)
    assert fed(one, state, tokens) == expected
    for length in (139, 100, 70):  # through kept rows, and behind marks at 64 and 128
        state.rewind(length)
        fed(one, state, tokens[::-1][:8])
        state.rewind(length)
        branch, exported = state.fork(), state.export()
        assert fed(one, branch, tokens[length:]) == expected[length:]
        assert fed(two, two.import_(exported, 200), tokens[length:]) == expected[length:]
        moved = one.import_(exported, 200)
        assert fed(one, moved, tokens[length:]) == expected[length:]
        moved.rewind(length)
        assert fed(one, moved, tokens[length:]) == expected[length:]
    young = one.open(200)
    fed(one, young, tokens[:40])
    young.rewind(20)  # before the seal
    assert fed(one, young, tokens[20:60]) == expected[20:60]


def test_sequences_of_a_batch_and_threads_are_alone(plugins):
    program, weights = rewritten_model(ASKED)
    executable = place(plugins.backends["cpu"], program, weights, CompileOptions(threads=3))
    states, wants, found = [executable.open(60) for _ in range(3)], (Digest("logits"),), []
    for at in range(50):
        rows = [Row(s, at, (at * 3 + n) % 50, wants) for n, s in enumerate(states)]
        found.append([r[wants[0]] for r in executable.forward(Batch(rows)).result().rows])
    alone = executable.open(60)
    rows = [Row(alone, at, (at * 3 + 1) % 50, wants) for at in range(50)]
    made = executable.forward(Batch(rows)).result().rows
    assert [row[1] for row in found] == [row[wants[0]] for row in made]
    assert executable.state_bytes(10) == executable.state_bytes(1_000_000)
