"""Graphs share a pool that outlives a closed model's; pinned memory waits for its copies."""

from __future__ import annotations

import contextlib
import gc
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

import numpy as np
import torch

from cortiq_triton import capture, current_device, rowset
from cortiq_triton.executable import TritonExecutable

DEVICE = "cuda:7"


class Pool:
    """A handle as PyTorch's allocator takes it: not again once its last graph is gone."""

    def __init__(self):
        self.graphs, self.used = 0, False

    def joined(self):
        if self.used and not self.graphs:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self.used, self.graphs = True, self.graphs + 1


class Graph:
    pool = None

    def capture_begin(self, pool, capture_error_mode):
        pool.joined()
        self.pool = pool

    def capture_end(self):
        pass

    def replay(self):
        pass

    def __del__(self):
        if self.pool is not None:
            self.pool.graphs -= 1


@pytest.fixture
def device(monkeypatch):
    stream = SimpleNamespace(wait_stream=lambda other: None)
    cuda = SimpleNamespace(
        Stream=lambda device: stream, graph_pool_handle=Pool, CUDAGraph=Graph,
        stream=lambda chosen: contextlib.nullcontext(), current_stream=lambda: stream,
    )  # fmt: skip
    zeros = lambda count, device: SimpleNamespace(zero_=lambda: None)  # noqa: E731
    monkeypatch.setattr(capture, "torch", SimpleNamespace(cuda=cuda, zeros=zeros))
    yield DEVICE
    capture._captures.cache_clear()


def test_graphs_are_captured_after_all_earlier_ones_are_gone(device):
    launched = []
    first = capture.Captured(lambda: launched.append(1), device)
    del first
    gc.collect()
    second = capture.Captured(lambda: launched.append(2), device)
    assert launched == [1, 2]
    assert second.replay is not None


def test_host_memory_is_filled_again_only_after_its_copy(monkeypatch):
    copies = []

    class Event:
        waited = False

        def record(self):
            copies.append(self)

        def synchronize(self):
            self.waited = True

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(rowset, "pinned", lambda size: torch.empty(size, dtype=torch.uint8))
    buffer = rowset.RowBuffer("meta", turns=3)
    for number in range(11):
        buffer.fill({"rows": np.full(5, number, np.int32)})
        assert [copy.waited for copy in copies[-3:]] == [False] * min(3, number + 1)
        assert all(copy.waited for copy in copies[:-3])


def test_calls_launch_on_the_own_device_in_any_thread(monkeypatch):
    """The thread's device is what it was afterwards."""
    now, seen = ["cuda:0"], []

    @contextlib.contextmanager
    def entered(device):
        now.append(device)
        yield
        now.pop()

    monkeypatch.setattr(torch.cuda, "device", entered)
    method = current_device.on_own_device(lambda owner: seen.append(now[-1]))
    for device in ("cuda:1", "cpu"):
        method(SimpleNamespace(device=device))
    assert (seen, now) == (["cuda:1", "cuda:0"], ["cuda:0"])
    for name in ("forward", "settle", "settle_state", "new_state", "vary", "warm", "close"):
        assert hasattr(getattr(TritonExecutable, name), "__wrapped__"), name
