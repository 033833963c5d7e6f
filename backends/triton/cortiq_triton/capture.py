"""CUDA graphs of launches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


@cache
def _captures(device: str) -> tuple[torch.cuda.Stream, Any, torch.cuda.CUDAGraph]:
    """Stream and memory pool in which launches of a device are captured: graphs follow one
    another, so that all of them may have the same. A graph that stays keeps the pool: PyTorch takes
    no handle again whose last graph is gone, as when a model was closed and another one opened.
    """
    stream, pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
    keeper = torch.cuda.CUDAGraph()
    _capture(keeper, stream, pool, torch.zeros(1, device=device).zero_)
    return stream, pool, keeper


def _capture(
    graph: torch.cuda.CUDAGraph, stream: Any, pool: Any, launch: Callable[[], Any]
) -> None:
    """Capture launches as a graph."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            launch()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)


class Captured:
    """A graph of launches, or, on the CPU, the launches themselves."""

    def __init__(self, launch: Callable[[], None], device: str) -> None:
        if device == "cpu":
            self.replay = launch
            return
        graph, (stream, pool, _) = torch.cuda.CUDAGraph(), _captures(device)
        _capture(graph, stream, pool, launch)
        self.replay = graph.replay
