"""The contract's kernels in every stack that is installed: the same bits as `cortiq.numerics`."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp())  # software Vulkan asks for one

from stacks.__main__ import STACKS, main, open_stacks, run, run_case, table
from stacks.base import KERNELS, Case, NotHereError, Stack, compare
from stacks.vectors import cases

ROOT = Path(__file__).parents[2]
F32 = np.float32


@cache
def all_cases() -> tuple[Case, ...]:
    return tuple(cases())


@cache
def opened(name: str) -> tuple[Stack, ...] | str:
    """The devices of a stack, or why it is not run."""
    try:
        return tuple(open_stacks(name))
    except NotHereError as reason:
        return str(reason)


@pytest.fixture(params=STACKS)
def stack_devices(request: pytest.FixtureRequest) -> tuple[Stack, ...]:
    devices = opened(request.param)
    if isinstance(devices, str):
        pytest.skip(f"{request.param} not run: {devices}")
    return devices


def test_every_stack_has_every_kernel(stack_devices):
    for stack in stack_devices:
        assert set(stack.kernels) == set(KERNELS)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Triton's interpreter, on masked lanes
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_gives_the_contracts_bits(stack_devices, kernel):
    mine = [case for case in all_cases() if case.kernel == kernel]
    lines = [line for stack in stack_devices for line in run_lines(stack, mine)]
    assert len(lines) == len(mine) * len(stack_devices)
    wrong = [line for line in lines if line.get("differing") != 0]
    assert not wrong, wrong[0]


def run_lines(stack: Stack, some: list[Case]) -> list[dict]:
    return [run_case(stack, case) for case in some]


def test_every_kernel_has_cases_and_live_values():
    assert {case.kernel for case in all_cases()} == set(KERNELS)
    for kernel in KERNELS:
        mine = [case for case in all_cases() if case.kernel == kernel]
        live = sum(compare(case.expected, case.expected).live for case in mine)
        assert live >= 12, kernel


def fused_horner(x: np.ndarray) -> np.ndarray:
    """`exp2g` with a multiply-add that rounds once."""
    from cortiq.numerics.scalar import EXP2_POLYNOMIAL

    y = np.full_like(x, EXP2_POLYNOMIAL[0])
    for c in EXP2_POLYNOMIAL[1:]:
        y = (y.astype(np.float64) * x + np.float64(c)).astype(F32)
    return y


def quantise_half_up(x: np.ndarray) -> tuple[np.ndarray, ...]:
    from cortiq.numerics.quantise import planes, quantise_rows

    right = quantise_rows(x)
    q = np.floor(x.astype(np.float64) * 2.0 ** -right.e[:, None] + 0.5).astype(np.int32)
    return (*planes(np.where(right.q.any(axis=1)[:, None], q, 0)), right.e)


def last_maximum(x: np.ndarray) -> np.ndarray:
    return (x.shape[1] - 1 - x[:, ::-1].argmax(axis=1)).astype(np.int32)


def sum_in_order(x: np.ndarray) -> np.ndarray:
    return np.cumsum(x, axis=1, dtype=F32)[:, -1]


MISTAKES = {
    "rint": lambda x: np.floor(x + F32(0.5)) + F32(0),
    "divide": lambda a, b: a * (F32(1) / b),
    "sqrt": lambda a: a * (F32(1) / np.sqrt(a)),
    "exp2g": fused_horner,
    "round_two_planes": lambda h, low: h.astype(F32) * F32(256) + low.astype(F32),
    "round_int32": lambda i: (i >> 4).astype(F32) * F32(16) + (i & 15).astype(F32),
    "quantise_rows": quantise_half_up,
    "canonical_sum": sum_in_order,
    "argmax": last_maximum,
    "snap": lambda x: (x, np.zeros(len(x), bool)),
}
"""What an implementer might write: each must differ from the contract on our vectors."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kernel", MISTAKES)
def test_vectors_find_the_usual_mistake(kernel):
    stack = Stack("mistaken", "host", {kernel: MISTAKES[kernel]})
    lines = run_lines(stack, [case for case in all_cases() if case.kernel == kernel])
    assert not any("error" in line for line in lines), lines
    assert any(line["differing"] for line in lines)
    assert all("first" in line for line in lines if line["differing"])


def test_a_result_of_another_type_differs_in_every_value():
    want, got = np.ones(3, F32), np.ones(3, np.float64)
    assert compare((want,), (got,)).differing == 3
    assert compare((want,), ()).differing == 3


def test_missing_kernels_and_stacks_are_never_counted_as_passed(monkeypatch):
    def absent(name: str) -> list[Stack]:
        if name == "triton":
            raise NotHereError("no such thing")
        return [Stack(name, "host", {"add": np.add})]

    monkeypatch.setattr("stacks.__main__.open_stacks", absent)
    some = [case for case in all_cases() if case.kernel in ("add", "multiply")]
    lines, reasons = run(["triton", "numba"], some)
    assert reasons == {"triton": "no such thing"}
    assert [line["kernel"] for line in lines if "not_run" in line] == ["multiply"]
    assert table(lines, some).splitlines()[2].endswith("not run")


def test_exit_status_tells_a_difference_an_error_and_an_empty_run(monkeypatch, capsys, tmp_path):
    def status(kernel: object) -> int:
        devices = [] if kernel is None else [Stack("host", "cpu", {"add": kernel})]
        monkeypatch.setattr("stacks.__main__.open_stacks", lambda name: devices)
        report = tmp_path / "report.json"
        return main(["--only", "host", "--kernels", "add", "--json", str(report)])

    assert status(np.add) == 0
    assert status(lambda a, b: np.nextafter(a + b, F32(np.inf))) == 1
    assert "expected" in capsys.readouterr().out
    assert status(lambda a: a) == 1
    assert "TypeError" in capsys.readouterr().out
    assert status(None) == 1


def lint(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "stacks.ptx", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


@needs_triton
def test_ptx_holds_nothing_that_rounds_otherwise():
    ran = lint("--targets", "90")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "sm_90 attention: clean" in ran.stdout
    ran = lint("--targets", "80", "--only", "rms_norm,softplus,matmul_q4_1")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_triton
def test_ptx_lint_finds_fusion():
    ran = lint("--targets", "90", "--only", "exp,rms_norm", "--fusion")
    assert ran.returncode == 1
    assert ran.stdout.count("a fused multiply-add") == 2
