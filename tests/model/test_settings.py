"""Whatever the process and its libraries are set to, real models give the same bits.

Threads, OpenBLAS's kernels, NumPy's SIMD kernels, and flushing of subnormals: each in a process of
its own, since all of them are decided when a process or a thread starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from work import HANG_SECONDS

PROBE = Path(__file__).with_name("settings_probe.py")
AVX2, AVX512 = {"X86_V3", "AVX2"}, {"X86_V4", "AVX512F"}
"""Names that NumPy's versions give to these groups of instructions."""
CORES = {
    "Prescott": ("Katmai", None),
    "Haswell": ("Haswell", AVX2),
    "Zen": ("Haswell", AVX2),
    "SkylakeX": ("SkylakeX", AVX512),
}
"""Values of OPENBLAS_CORETYPE: the kernels NumPy's OpenBLAS then names, and what they need.

Zen's kernels are Haswell's, which is why it is in the slow tests.
"""


def probe(paths, *flags, **environment):
    command = [sys.executable, str(PROBE), *flags, *map(str, paths)]
    made = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)


@pytest.fixture(scope="module")
def paths(smollm2_path, gemma3_path):
    return [smollm2_path, gemma3_path]


@pytest.fixture(scope="module")
def plain(paths):
    facts = probe(paths, "--tables")
    assert facts["flushing"] == [False] * 3
    assert len(set(facts["chains"])) == 2
    assert [len(tables) for tables in facts["tables"]] == [1, 2]
    return facts


def same(facts, plain):
    """Whether a probe of the first models found what the plain one did."""
    count = len(facts["chains"])
    tables = plain["tables"][:count]
    return facts["chains"] == plain["chains"][:count] and facts.get("tables", tables) == tables


def found_features():
    """SIMD features beyond NumPy's baseline that it uses on this processor."""
    return set(np.show_config(mode="dicts")["SIMD Extensions"].get("found", []))


def test_one_thread(paths, plain):
    assert same(probe(paths[:1], "--threads", "1"), plain)


@pytest.mark.parametrize(
    "core", [pytest.param(core, marks=[pytest.mark.slow] * (core == "Zen")) for core in CORES]
)
def test_openblas_kernels(paths, plain, core):
    kernels, needed = CORES[core]
    if not plain["blas"] or plain["blas"][0].lower() in ("armv8", "neoversen1"):
        pytest.skip(f"NumPy's BLAS is not an OpenBLAS for x86: {plain['blas']}")
    if needed and not needed & found_features():
        pytest.skip(f"this processor does not run the {core} kernels")
    facts = probe(paths[:1], OPENBLAS_CORETYPE=core)
    assert facts["blas"] in ([kernels], [core])
    assert same(facts, plain)


@pytest.mark.parametrize("level", ["AVX-512", "AVX2"])
def test_numpy_kernels(paths, plain, level):
    found = found_features()
    off = {name for name in found if name.startswith("AVX512") or name in AVX512}
    if level == "AVX2":
        off |= found & (AVX2 | {"FMA3"})
    if not off:
        pytest.skip(f"NumPy uses no {level} kernels on this processor")
    models = paths if level == "AVX2" else paths[:1]
    facts = probe(models, "--tables", NPY_DISABLE_CPU_FEATURES=" ".join(sorted(off)))
    assert not set(facts["simd"]) & off
    assert same(facts, plain)


def test_flush_to_zero_and_denormals_are_zero(paths, plain):
    """The flags hold in every thread: a thread starts with those of the one that starts it."""
    facts = probe(paths[:1], "--flush", "--tables")
    assert facts["flushing"] == [True] * 3
    assert same(facts, plain)
