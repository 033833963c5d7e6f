"""Ranks as processes of this host, connected by gloo: splits, sequences, failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import cortiq
from cortiq.backend import Argmax, Batch, CompileOptions, Digest, Executable, Named, Row, Status
from cortiq.errors import BackendError, OptionError, RequestError
from cortiq.model.devices import backend_named, weights_of
from cortiq.model.source import ModelSource, open_source
from cortiq.options import LoadOptions
from cortiq.placement.place import place
from cortiq.ranks.backend import DeviceSplit, RanksBackend
from cortiq.ranks.start import INTERFACE, LOOPBACK, Ranks, free_port, start_ranks
from cortiq_conformance import on_ranks, run
from cortiq_conformance.cli import conform

MODEL = "synthetic:tiny-llama"
CPU = backend_named("cpu")
SPLITS = {
    "tensor of two": ((0, 1),),
    "tensor of three": ((0, 1, 2),),
    "layers": ((0,), (1,), (2,)),
    "tensors on two of three stages' ranks": ((0, 1), (2,)),
    "not on rank 0": ((1, 2),),
}
IDS = [(37 * n + 11) % 300 for n in range(24)]
WANTS = (Digest("hidden"), Digest(), Argmax())


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Three ranks; the last of them starts late."""
    made = start_ranks(3, backend_named, weights_of)
    yield made
    made.close()
    assert [process.returncode for process in made.processes] == [0, 0]


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return open_source(MODEL, LoadOptions())


@pytest.fixture(scope="module")
def one(source: ModelSource) -> Executable:
    """The model on one rank."""
    return place(CPU, source.program, source.weights, CompileOptions(threads=1))


def compiled(ranks: Ranks, source: ModelSource, split: str, opened: bool = True) -> Executable:
    """Compile the model for a split; ranks open its weights themselves, or get them of rank 0."""
    named = (MODEL, LoadOptions()) if opened else None
    backend = RanksBackend(ranks.driver, CPU, DeviceSplit(SPLITS[split]), named)
    return place(backend, source.program, source.weights, CompileOptions(threads=1))


def fed(executable: Executable, state: Any, ids: Sequence[int], chunk: int = 7) -> list[Any]:
    """Feed ids in chunks; return what each row brought."""
    found: list[Any] = []
    for start in range(0, len(ids), chunk):
        first = state.length()
        part = ids[start : start + chunk]
        rows = [Row(state, first + n, token, WANTS) for n, token in enumerate(part)]
        result = executable.forward(Batch(rows)).result()
        assert result.outcomes[state].status is Status.COMPLETED, result.outcomes[state]
        found += [[_plain(row[want]) for want in WANTS] for row in result.rows]
    return found


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("split", SPLITS)
def test_sequences(ranks: Ranks, source: ModelSource, one: Executable, split: str) -> None:
    """Rows, rewinds, copies, forks and exports give the bits of one rank."""
    expected = fed(one, one.open(64), IDS)
    on = compiled(ranks, source, split, opened=split != "tensor of two")
    state = on.open(64)
    assert fed(on, state, IDS) == expected
    assert state.rewind(10) == 10
    assert fed(on, state, IDS[10:]) == expected[10:]
    copy = state.snapshot()
    fork = state.fork(12)
    state.rewind(5)
    state.restore(copy)
    assert state.length() == len(IDS)
    assert fed(on, fork, IDS[12:]) == expected[12:]
    for source_on, target in ((on, one), (one, on), (on, on)):
        sender = source_on.open(64)
        fed(source_on, sender, IDS[:15])
        taken = target.import_(sender.export(), 64)
        assert fed(target, taken, IDS[15:]) == expected[15:]
    del copy
    state.release()
    with pytest.raises(BackendError, match=r"no living sequence|was released"):
        fed(on, state, IDS)
    on.close()


def test_a_sequence_goes_from_split_to_split(
    ranks: Ranks, source: ModelSource, one: Executable
) -> None:
    """What two ranks began three continue by layers, then one process, and back again."""
    expected = fed(one, one.open(64), IDS)
    two, three = (compiled(ranks, source, split) for split in ("tensor of two", "layers"))
    state, at = two.open(64), 0
    fed(two, state, IDS[:6])
    for number, on in enumerate((three, one, two, three, two, one), 1):
        state, at = on.import_(state.export(), 64), state.length()
        assert at == state.length() == 6 + 3 * (number - 1)
        assert fed(on, state, IDS[at : at + 3], 2) == expected[at : at + 3]
    two.close()
    three.close()


def test_any_value_can_be_asked_for(ranks: Ranks, source: ModelSource, one: Executable) -> None:
    """A value that is cut is put together for rows that want it, and cut where rows supply it."""
    on = compiled(ranks, source, "tensor of three")
    names = [n for n in on.program.trunk.values if n not in ("token", "position")]
    wants = tuple(Named(name) for name in names)
    given = {"layers.1.attention": np.full(64, 0.25, np.float32)}
    found = []
    for executable in (one, on):
        state = executable.open(8)
        rows = [Row(state, 0, 5, wants), Row(state, 1, 6, wants, given)]
        result = executable.forward(Batch(rows)).result()
        assert result.outcomes[state].status is Status.COMPLETED
        found.append([[row[want].tobytes() for want in wants] for row in result.rows])
    assert found[0] == found[1]
    on.close()


def test_what_ranks_refuse(ranks: Ranks, source: ModelSource) -> None:
    """Errors of rows and requests come from the ranks as they are, and the ranks go on."""
    on = compiled(ranks, source, "tensor of three")
    state = on.open(8)
    result = on.forward(Batch([Row(state, 3, 5)])).result()
    assert result.outcomes[state].status is Status.DECLINED
    with pytest.raises(RequestError, match="no entry graph"):
        on.forward(Batch([Row(state, 0, 5)], "head"))
    with pytest.raises(RequestError):
        state.rewind(4)
    fed(on, state, IDS[:3])
    on.close()


def test_a_fault_on_one_rank_fails_the_sequence_on_all(ranks: Ranks, source: ModelSource) -> None:
    """A value that leaves the domain in one rank's part clears the sequence everywhere."""
    on = compiled(ranks, source, "tensor of three")
    state, other = on.open(8), on.open(8)
    bad = {"layers.1.attention.q": np.zeros(64, np.float32)}
    bad["layers.1.attention.q"][50] = np.inf
    result = on.forward(Batch([Row(state, 0, 5, (), bad), Row(other, 0, 5, WANTS)])).result()
    assert result.outcomes[state].status is Status.FAILED
    assert result.outcomes[other].status is Status.COMPLETED
    assert state.length() == 0
    fed(on, state, IDS[:3])
    on.close()


QUICK = ("level3/cancel[tiny-llama", "level4/together[tiny-llama, other")


@pytest.mark.parametrize("split", ["tensor of two", "layers"])
def test_conformance(ranks: Ranks, split: str) -> None:
    """Golden digests: a cancelled request that is begun again, several filters in one batch."""
    backend = RanksBackend(ranks.driver, CPU, DeviceSplit(SPLITS[split]))
    report = run(backend, levels=(3, 4), only=QUICK)
    assert {str(result.outcome) for result in report.results} == {"same"}
    assert len(report.results) == 2


def test_whole_experts(ranks: Ranks) -> None:
    """Golden digests of a model whose experts are divided among three ranks."""
    backend = RanksBackend(ranks.driver, CPU, DeviceSplit.of("expert", 3))
    report = run(backend, levels=(2,), only="graph chunks[tiny-mixtral")
    assert {str(result.outcome) for result in report.results} == {"same"}


@pytest.mark.parametrize("kind", ["tensor", "expert", "layer", "mixed"])
def test_the_kit_on_several_devices(
    ranks: Ranks, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`cortiq conform --devices` runs a case on the split that it names."""
    started: list[int] = []

    def start(count: int, *given: Any) -> Ranks:
        started.append(count)
        return ranks

    monkeypatch.setattr(on_ranks, "start_ranks", start)
    monkeypatch.setattr(Ranks, "close", lambda self: None)
    report = tmp_path / "report.json"
    command = ["-b", "cpu", "--devices", "3", "--split", kind, "--only", KIT, "--json", str(report)]
    done = CliRunner().invoke(conform, command)
    assert done.exit_code == 0, done.output
    assert f"cpu:cpu, {kind} split over 3 devices" in done.stdout
    facts = json.loads(report.read_text())
    assert (facts["split"], facts["cases"]) == (f"{kind} split over 3 devices", 2)
    assert started == [3]


KIT = "level2/graph chunks[tiny-mixtral"


@pytest.mark.parametrize(("devices", "stages"), [(3, ((0, 1), (2,))), (4, ((0, 1), (2, 3)))])
def test_a_mixed_split(devices: int, stages: tuple[tuple[int, ...], ...]) -> None:
    """Two stretches of layers, the first with the odd device."""
    assert on_ranks.split_of("mixed", devices) == DeviceSplit(stages)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (("--split", "tensor"), "needs several devices"),
        (("--devices", "2", "--split", "mixed"), "needs three devices or more"),
        (("--devices", "2", "--jobs", "3"), "3 processes cannot share 2 devices"),
    ],
)
def test_what_the_kit_refuses_of_devices(given: tuple[str, ...], what: str) -> None:
    """Options that do not go together are refused before anything is started."""
    done = CliRunner().invoke(conform, ["-b", "cpu", "--only", KIT, *given])
    assert isinstance(done.exception, RequestError) and what in str(done.exception)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tensor", "expert"])
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_backends_of_tensors(backend: str, kind: str) -> None:
    """Backends whose arrays are PyTorch's exchange them where they are; Triton's interpreter."""
    with on_ranks.subject_on(backend, 2, kind) as subject:
        report = run(subject, levels=(2, 4), only=(KIT, "level4/together[tiny-llama, other"))
    assert {str(result.outcome) for result in report.results} == {"same"}
    assert len(report.results) == 3


@pytest.mark.slow
def test_two_processes_that_store_into_each_others_memory() -> None:
    """A whole model on Triton's interpreter: each launch of one process waits for the other's.

    It takes 20 seconds where both have a core; programs go in step, so that it takes as many
    switches of processes as rows are exchanged where they share one.
    """
    pytest.importorskip("triton")
    ids, options = list(range(20)), {"max_tokens": 6, "ignore_eos": True, "temperature": 0}
    with cortiq.load(MODEL, backend="cpu", threads=1) as model:
        expected = model.generate(ids, **options).digest
    code = f"""
import cortiq
from cortiq.model import devices
with cortiq.load({MODEL!r}, backend="triton", threads=1, devices=2, keep_weights=False) as model:
    world = devices._Running.ranks.driver.world
    print(model.generate({ids}, **{options}).digest, world.group((0, 1)).rows.words[0].item() >> 20)
"""
    done = run_python(code, CORTIQ_EXCHANGE="memory", TRITON_INTERPRET="1")
    digest, exchanges = done.stdout.split()
    assert digest == expected, done.stderr
    assert int(exchanges) > 26


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tensor", "expert", "layer", "mixed"])
@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("level", [2, 3, 4])
def test_whole_conformance(devices: int, kind: str, level: int) -> None:
    """Every case of levels 2 to 4."""
    if (devices, kind) == (2, "mixed"):
        pytest.skip("needs three devices")
    with on_ranks.subject_on("cpu", devices, kind) as subject:
        report = run(subject, levels=(level,))
    assert {str(result.outcome) for result in report.results} <= {"same", "not run"}


TEXT = "The keys of a sequence lie on the rank that has their heads."


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something holds, and fail if it never does."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own: a process has one set of ranks."""
    command = [sys.executable, "-c", code]
    given = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=given)


def test_models_on_two_devices(tmp_path: Path) -> None:
    """Text, samples, a stream that is left, a receipt and a prefix file that one CPU takes."""
    with cortiq.load(MODEL, threads=1) as model:
        expected = model.generate(TEXT, max_tokens=12)
        sampled = model.generate(TEXT, max_tokens=12, temperature=0.9, seed=3)
        done = run_python(SCRIPT.format(model=MODEL, text=TEXT, folder=str(tmp_path)))
        assert done.returncode == 0, done.stderr
        digests = done.stdout.split()
        assert digests == [expected.digest, sampled.digest, expected.digest, expected.digest]
        assert cortiq.verify(tmp_path / "receipt.json", model)
        assert model.load_prefix(tmp_path / "prefix")
        again = model.generate(TEXT, max_tokens=12)
        assert (again.digest, again.stats.reused_tokens > 0) == (expected.digest, True)


def test_points_need_devices() -> None:
    """An option that would have no effect is refused."""
    with pytest.raises(OptionError, match="needs several devices"):
        cortiq.load(MODEL, split_at=(1,))


@pytest.mark.slow
def test_ranks_that_torchrun_starts() -> None:
    """Both processes run one program; rank 0 prints, the other works and ends with it."""
    with cortiq.load(MODEL, threads=1) as model:
        expected = model.generate(TEXT, max_tokens=6).digest
    code = f"""
import cortiq
with cortiq.load({MODEL!r}, threads=1) as model:
    print(model.generate({TEXT!r}, max_tokens=6).digest)
"""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    common = {**os.environ, **address, "LOCAL_WORLD_SIZE": "2", INTERFACE: LOOPBACK}
    late = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep(2)\n{code}"],
        env={**common, "RANK": "1"}, stdout=subprocess.PIPE,
    )  # fmt: skip
    first = run_python(
        code, **{**address, "LOCAL_WORLD_SIZE": "2", "RANK": "0", INTERFACE: LOOPBACK}
    )
    assert first.stdout.split() == [expected], first.stderr
    assert (late.communicate(timeout=60)[0], late.returncode) == (b"", 0)


@pytest.mark.slow
def test_a_ray_cluster_of_two_nodes() -> None:
    """Actors on two nodes give the answer of one process."""
    pytest.importorskip("ray")
    with cortiq.load(MODEL, threads=1) as model:
        expected = model.generate(TEXT, max_tokens=6).digest
    code = f"""
import cortiq, ray
from ray.cluster_utils import Cluster
cluster = Cluster(True, head_node_args=dict(num_cpus=2, include_dashboard=False))
cluster.add_node(num_cpus=2)
ray.init(address=cluster.address, log_to_driver=False)
for split in ("tensor", "layer"):
    with cortiq.load({MODEL!r}, threads=1, devices=3, ray=True, split=split) as model:
        print(model.generate({TEXT!r}, max_tokens=6).digest)
ray.shutdown()
cluster.shutdown()
"""
    done = run_python(code)
    assert done.stdout.split() == [expected, expected], done.stderr


def test_a_rank_that_is_lost() -> None:
    """The request that it carried, and the next one, fail with our error; nothing hangs; models
    can be loaded on new ranks afterwards, and the other ranks end.
    """
    done = run_python(LOST.format(model=MODEL, text=TEXT), CORTIQ_RANK_TIMEOUT="60")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("RankLostError") and "the connection between the devices" in said[0]
    assert said[1].startswith("RankLostError")
    assert said[2:] == ["others ended", "same"]


@pytest.mark.slow
def test_ranks_end_without_rank_0() -> None:
    """Ranks whose rank 0 is killed end by themselves, and say why."""
    code = """
import os, signal
from cortiq.model.devices import backend_named, weights_of
from cortiq.ranks.start import start_ranks
made = start_ranks(3, backend_named, weights_of)
made.driver.ask(range(3), ("nothing",))
print(*(process.pid for process in made.processes), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run_python(code)
    assert done.returncode == -signal.SIGKILL
    assert done.stderr.count("the connection between the devices broke") == 2
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in done.stdout.split()))


SCRIPT = """
import cortiq
with cortiq.load({model!r}, threads=1, devices=2) as model:
    made = model.generate({text!r}, max_tokens=12)
    print(made.digest)
    print(model.generate({text!r}, max_tokens=12, temperature=0.9, seed=3).digest)
    made.receipt().write({folder!r} + "/receipt.json")
    for piece in model.stream({text!r}, max_tokens=12):
        break
    print(model.generate({text!r}, max_tokens=12).digest)
    model.save_prefix({text!r}, {folder!r} + "/prefix")
with cortiq.load({model!r}, threads=1, devices=2, split="layer", split_at=(1,)) as model:
    print(model.generate({text!r}, max_tokens=12).digest)
"""
LOST = """
import cortiq
from cortiq.model import devices
expected = None
def generate(model):
    try:
        for number, piece in enumerate(model.stream({text!r}, max_tokens=400)):
            if number == 3:
                devices._Running.ranks.processes[1].kill()
    except cortiq.CortiqError as error:
        print(type(error).__name__, str(error).split("\\n")[0])
with cortiq.load({model!r}, threads=1) as model:
    expected = model.generate({text!r}, max_tokens=6).digest
model = cortiq.load({model!r}, threads=1, devices=3)
generate(model)
generate(model)
processes = devices._Running.ranks.processes
model.close()
print("others ended" if all(p.poll() is not None for p in processes) else "others go on")
with cortiq.load({model!r}, threads=1, devices=2) as model:
    print("same" if model.generate({text!r}, max_tokens=6).digest == expected else "different")
"""
