"""Sequences, prefix files and receipts that go from one split to another, and late ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cortiq
from cortiq.errors import BackendError
from cortiq.ranks import start

MODEL = "synthetic:tiny-llama"
PROMPT = [(37 * n + 11) % 300 for n in range(90)]
EXACT: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
TENSOR_OF_TWO: dict[str, Any] = {"devices": 2, "split": "tensor"}
LAYERS_OF_THREE: dict[str, Any] = {"devices": 3, "split": "layer"}
ONE: dict[str, Any] = {}


def late_follower(
    rank: int, count: int, address: str, seat: int, files: Any
) -> subprocess.Popen[bytes]:
    """Start a rank as `start_follower`, the last one a second later."""
    wait = 1.0 if rank == count - 1 else 0.0
    code = (
        f"import runpy, sys, time; time.sleep({wait}); "
        f"sys.argv = ['follower', '{rank}', '{count}', '{address}', '{seat}']; "
        f"runpy.run_module({start.FOLLOWER!r}, run_name='__main__')"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)


@pytest.mark.slow
def test_prefixes_and_receipts_go_between_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of two ranks are continued by three, those by one process, and its own by two; the
    last rank of each is late. Twenty seconds of a processor, for five processes.
    """
    monkeypatch.setattr(start, "start_follower", late_follower)
    with cortiq.load(MODEL, threads=1, **ONE) as alone:
        expected = alone.generate(PROMPT, **EXACT)
        before: Path | None = None
        for number, split in enumerate((TENSOR_OF_TWO, LAYERS_OF_THREE, ONE, TENSOR_OF_TWO)):
            after = tmp_path / f"prefix {number}"
            with cortiq.load(MODEL, threads=1, **split) as model:
                if before is not None:
                    assert model.load_prefix(before)
                    model.save_prefix(PROMPT, after)  # its rows are those of the split before
                made = model.generate(PROMPT, **EXACT)
                if before is None:
                    model.save_prefix(PROMPT, after)
                assert made.digest == expected.digest, split
                assert (made.stats.reused_tokens > 0) == (before is not None), split
                assert alone.verify(made.receipt()).identical, split
            before = after


def test_a_rank_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 says which time passed, and ends the ranks that did come."""
    there: list[subprocess.Popen[bytes]] = []

    def absent(*given: Any) -> subprocess.Popen[bytes]:
        there.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return there[-1]

    monkeypatch.setattr(start, "start_follower", absent)
    monkeypatch.setenv("CORTIQ_RANK_TIMEOUT", "1")
    with pytest.raises(BackendError, match="rank 0 of 2 did not meet the others") as raised:
        cortiq.load(MODEL, threads=1, devices=2)
    assert "within 1 seconds" in str(raised.value)
    assert [process.returncode for process in there] == [-9]
