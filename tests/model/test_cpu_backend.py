"""The CPU backend on real models and through the conformance harness."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from types import FunctionType

import numpy as np
import pytest

import cortiq
from cortiq.backend import Argmax, Batch, CompileOptions, Digest, Draw, Drawn, Named, Row, Top
from cortiq.errors import BackendError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.numerics.sampling import Sampling

pytest.importorskip("cortiq_cpu")
from cortiq_cpu.backend import CpuBackend
from cortiq_cpu.executable import CpuExecutable
from cortiq_cpu.native import best_isa, supported_isas

try:
    ISAS = supported_isas()
except BackendError as error:
    pytest.skip(str(error), allow_module_level=True)

PROMPT = [(11 + 7919 * i) % 40000 for i in range(70)]
"""More than a tile of attention."""
WANTS = (Argmax(), Digest("logits"))
MEGABYTE = 1 << 20


@pytest.fixture(scope="module", params=["smollm2_path", "gemma3_path"])
def loaded(request):
    with closing(open_checkpoint(request.getfixturevalue(request.param))) as checkpoint:
        yield load_program(checkpoint)


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    with closing(open_checkpoint(smollm2_path)) as checkpoint:
        yield load_program(checkpoint)


def compiled(loaded, **options):
    extra = {"isa": options.pop("isa")} if "isa" in options else {}
    chosen = CompileOptions(extra=extra, **options)
    return CpuBackend().compile(loaded.program, loaded.weights, chosen)


def stream(executable, prompt=PROMPT, steps=4, wants=WANTS):
    """Return the results of the last row of a prompt and of each greedy step."""
    state = executable.open(len(prompt) + steps)
    last = len(prompt) - 1
    rows = [Row(state, i, t, wants if i == last else ()) for i, t in enumerate(prompt)]
    brought, drawn = [executable.forward(Batch(rows)).result().rows[-1]], Drawn(last)
    for step in range(steps):
        row = Row(state, len(prompt) + step, drawn, wants)
        brought.append(executable.forward(Batch([row])).result().rows[0])
        drawn = Drawn(0)
    state.release()
    return brought


@pytest.mark.parametrize("level", [0, 1])
def test_conformance(level):
    from cortiq_conformance.report import CaseOutcome
    from cortiq_conformance.runner import run

    report = run("cpu", levels=[level])
    assert report.passed, report.summary()
    assert set(report.computed) == {"cpu"}
    assert {r.outcome for r in report.results} == {CaseOutcome.SAME}


def test_golden_streams_of_the_real_models():
    from cortiq_conformance.runner import run

    report = run("cpu", levels=[4])
    assert report.passed, report.summary()


def test_every_node_of_a_real_model_is_computed_here(loaded):
    backend, program = CpuBackend(), loaded.program
    for graph in program.graphs.values():
        for node in graph.nodes:
            assert type(backend.supports(node, graph, program)).__name__ == "Supported"


def test_threads_and_instruction_sets_change_no_bit(loaded, request):
    """All instruction sets on one model, the first and the best on the other."""
    prompt = PROMPT[:20]  # more than a tile of AMX; some instruction sets are slow
    one = request.node.callspec.params["loaded"] == "smollm2_path"
    executable = compiled(loaded, threads=1)
    expected = stream(executable, prompt, steps=2)
    executable.close()
    for isa in ISAS if one else (ISAS[0], best_isa()):
        executable = compiled(loaded, threads=2, isa=isa)
        assert stream(executable, prompt, steps=2) == expected, isa
        executable.close()


def test_chunks_of_any_length_change_no_bit(smollm2):
    executable = compiled(smollm2, threads=2)
    expected = stream(executable, prompt=PROMPT * 5, steps=1)
    state = executable.open(400)
    brought = {}
    for start, stop in ((0, 1), (1, 3), (3, 66), (66, 345), (345, 350)):
        rows = [Row(state, i, (PROMPT * 5)[i], WANTS) for i in range(start, stop)]
        brought = executable.forward(Batch(rows)).result().rows[-1]
    assert brought == expected[0]
    executable.close()


def forbidden(*arguments, **options):
    raise AssertionError("a function of cortiq.numerics was called while a batch ran")


def test_numerics_is_not_called_while_a_batch_runs(smollm2, monkeypatch):
    wants = (
        *WANTS,
        Named("logits"),
        Named("layers.3.out"),
        Top(5),
        Draw(Sampling(seed=3, top_k=9)),
    )
    executable = compiled(smollm2, threads=2)
    expected = stream(executable, wants=wants)
    executable.close()
    executable = compiled(smollm2, threads=2)
    state = executable.open(len(PROMPT) + 1)
    replaced = 0
    for name, module in list(sys.modules.items()):
        if not name.startswith(("cortiq.numerics", "cortiq_cpu")):
            continue
        for key, value in list(vars(module).items()):
            home = getattr(value, "__module__", "") or ""
            if isinstance(value, FunctionType) and home.startswith("cortiq.numerics"):
                monkeypatch.setattr(module, key, forbidden)
                replaced += 1
    assert replaced > 100
    last = len(PROMPT) - 1
    rows = [Row(state, i, t, wants if i == last else ()) for i, t in enumerate(PROMPT)]
    brought = executable.forward(Batch(rows)).result().rows[-1]
    monkeypatch.undo()
    assert_equal_wants(brought, expected[0])
    executable.close()


def parts_of(answer):
    """Return the result of a want as a list of arrays or numbers."""
    return list(answer) if isinstance(answer, tuple) else [answer]


def assert_equal_wants(brought, expected):
    assert brought.keys() == expected.keys()
    for want, value in expected.items():
        for mine, other in zip(parts_of(brought[want]), parts_of(value), strict=True):
            np.testing.assert_array_equal(mine, other, err_msg=str(want))


def resident():
    """Resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


linux_only = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")


@linux_only
def test_nothing_grows_while_decoding(smollm2):
    executable = compiled(smollm2, threads=2)
    state = executable.open(300)
    state.reserve(300)
    sizes = []
    for step in range(260):
        token = Drawn(0) if step else 5
        executable.forward(Batch([Row(state, step, token, WANTS)])).result()
        sizes.append(resident())
    # The first steps touch pages of the sequence for the first time: 4.4 MB a page of 64 rows.
    pages = executable.state_bytes(300) - executable.state_bytes(60)
    assert sizes[-1] - sizes[59] < pages + MEGABYTE
    executable.close()


MEMORY_PROGRAM = """
import json, sys
from cortiq.backend import Argmax, Batch, CompileOptions, Row
from cortiq.options import LoadOptions
from cortiq.model.source import open_source
from cortiq_cpu.backend import CpuBackend
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
source = open_source(sys.argv[1], LoadOptions())
before = resident()
executable = CpuBackend().compile(source.program, source.weights, CompileOptions(threads=2))
state = executable.open(600)
rows = [Row(state, i, 5 + i, (Argmax(),) if i == 511 else ()) for i in range(512)]
executable.forward(Batch(rows)).result()
print(json.dumps({"grown": resident() - before - state.nbytes()}))
"""


@linux_only
def test_memory_stays_near_the_file(request):
    for fixture in ("smollm2_path", "gemma3_path"):
        path = request.getfixturevalue(fixture)
        command = [sys.executable, "-c", MEMORY_PROGRAM, str(path)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert json.loads(printed)["grown"] <= 1.3 * path.stat().st_size, path


def test_the_first_token_costs_one_pass_over_the_prompt(smollm2_path, monkeypatch):
    fed, forward = [], CpuExecutable.forward

    def counted(self, batch):
        fed.append(len(batch.rows))
        return forward(self, batch)

    monkeypatch.setattr(CpuExecutable, "forward", counted)
    with cortiq.load(smollm2_path, backend="cpu") as model:
        prompt = model.tokenizer.encode("Once upon a time")
        made = model.generate("Once upon a time", max_tokens=1, temperature=0)
    assert len(made.token_ids) == 1 and fed == [len(prompt)]
