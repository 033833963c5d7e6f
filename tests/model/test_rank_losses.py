"""A rank that is lost or hangs beside images, adapters and masks: a named error, in time."""

from __future__ import annotations

import faulthandler
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")
pytest.importorskip("torch")

import numpy as np
import vision_folders
from adapter_folders import write_lora

import cortiq
from cortiq.model import devices
from cortiq.numerics.masks import mask_of
from cortiq.ranks.connections import RankLostError

pytestmark = pytest.mark.slow
"""Each loads a model on processes of its own."""
MODEL = "synthetic:tiny-llama"
Process = subprocess.Popen[bytes]
HANGS = 600.0
"""Seconds after which a test that does not end is one that hangs, on a host however busy."""


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """End the process, with its stacks, where a test hangs: it is about the error that comes."""
    faulthandler.dump_traceback_later(HANGS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def killed(process: Process) -> None:
    process.kill()


def stopped(process: Process) -> None:
    process.send_signal(19)  # SIGSTOP


def assert_lost(model: Any, prompt: Any, fail: Callable[[Process], None], **options: Any) -> None:
    """Check that a stream whose last rank fails amid it ends with our error, and what follows."""
    processes = devices._Running.ranks.processes  # type: ignore[union-attr]
    pieces = 0
    with pytest.raises(RankLostError, match="the connection between the devices broke"):
        for _ in model.stream(prompt, max_tokens=200, ignore_eos=True, seed=1, **options):
            pieces += 1
            if pieces == 2:
                fail(processes[-1])
    assert pieces >= 2
    with pytest.raises(RankLostError):
        model.generate([1, 2], max_tokens=2)
    model.close()
    assert all(process.poll() is not None for process in processes)


@pytest.mark.parametrize("fail", [killed, stopped])
@pytest.mark.parametrize("split", ["tensor", "layer"])
def test_with_images(
    split: str, fail: Callable[[Process], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt with an image, whose tower the ranks computed."""
    monkeypatch.setenv("CORTIQ_RANK_TIMEOUT", "15")
    vision_folders.gemma3(tmp_path)
    image = np.random.default_rng(0).integers(0, 256, (24, 30, 3), np.uint8)
    given: dict[str, Any] = {"backend": "cpu", "threads": 1, "images": True, "split": split}
    model = cortiq.load(tmp_path, devices=2, **given)
    assert_lost(model, model.image_prompt("look", [image]), fail)


@pytest.mark.parametrize("fail", [killed, stopped])
def test_with_an_adapter_and_masks(
    fail: Callable[[Process], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that names an adapter, and may draw some ids only; a new model answers again."""
    monkeypatch.setenv("CORTIQ_RANK_TIMEOUT", "15")
    given: dict[str, Any] = {"backend": "cpu", "threads": 1, "keep_weights": False}
    with cortiq.load(MODEL, **given) as alone:
        folder = write_lora(tmp_path / "one", alone, 1)
        size = max(spec.shape[0] for spec in alone.program.weights.values())
        alone.load_adapter("one", folder)
        allowed = mask_of(range(40, 120), size)
        options: dict[str, Any] = {"adapter": "one", "masks": lambda ids: allowed}
        expected = alone.generate("why", max_tokens=4, **options).digest
    adapters = (f"one={folder}",)
    model = cortiq.load(MODEL, devices=2, adapters=adapters, **given)
    assert model.generate("why", max_tokens=4, **options).digest == expected
    assert_lost(model, "why", fail, **options)
    with cortiq.load(MODEL, devices=2, adapters=adapters, **given) as again:
        assert again.generate("why", max_tokens=4, **options).digest == expected
