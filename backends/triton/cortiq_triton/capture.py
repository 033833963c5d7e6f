"""CUDA graphs of launches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


@cache
def _captures(device: str) -> tuple[torch.cuda.Stream, Any]:
    """Stream and memory pool in which launches of a device are captured: graphs follow one
    another, so that all of them may have the same.
    """
    return torch.cuda.Stream(device), torch.cuda.graph_pool_handle()


class Captured:
    """A graph of launches, or, on the CPU, the launches themselves."""

    def __init__(self, launch: Callable[[], None], device: str) -> None:
        if device == "cpu":
            self.replay = launch
            return
        graph, (stream, pool) = torch.cuda.CUDAGraph(), _captures(device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                launch()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self.replay = graph.replay
