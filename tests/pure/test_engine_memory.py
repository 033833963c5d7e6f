"""Memory stays flat over many requests; benchmarks/engine_memory.py is the long run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import cortiq

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "engine_memory.py"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_flat_over_many_requests():
    spec = importlib.util.spec_from_file_location("engine_memory", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    with cortiq.load("synthetic:tiny-llama", context=1024, threads=1) as model:
        script.serve(model, script.requests(model, 40, 40))
        free = model.executable.free_bytes
        pages = getattr(model.executable, "pages", None)
        sizes = script.serve(model, script.requests(model, 160, 40))
        assert sizes[-1] - sizes[0] < 2 << 20
        assert pages is None or pages.count == 0
        assert free() > 0
