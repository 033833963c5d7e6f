"""llama.cpp as a runner, through llama-cpp-python's bindings of its C interface."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from cortiq.bench.measure import Workload
from cortiq.errors import BackendError, CortiqError, RequestError

BATCH_ROWS = 512
"""Prompt rows llama.cpp is given at a time."""


class LlamaCppRunner:
    """Runs a GGUF file with llama.cpp, on as many threads.

    Raises
    ------
    CortiqError : llama-cpp-python is not installed.
    RequestError : the model is no GGUF file.
    BackendError : llama.cpp refuses the file or a batch.
    """

    def __init__(self, path: Path, work: Workload, threads: int) -> None:
        if find_spec("llama_cpp") is None:
            raise CortiqError(
                "llama-cpp-python is not installed", hint="pip install llama-cpp-python"
            )
        if path.suffix != ".gguf":
            raise RequestError("llama.cpp reads GGUF files only", where=str(path))
        import llama_cpp

        self._api, self._work, self._tokens = llama_cpp, work, [0] * work.batch
        self._api.llama_log_set(_quiet, None)
        self._api.llama_backend_init()
        model_options = self._api.llama_model_default_params()
        self._model = self._api.llama_model_load_from_file(str(path).encode(), model_options)
        if not self._model:
            raise BackendError("llama.cpp cannot read this file", where=str(path))
        self._vocabulary = self._api.llama_vocab_n_tokens(
            self._api.llama_model_get_vocab(self._model)
        )
        self._context = self._api.llama_init_from_model(self._model, self._options(threads))
        self._batch = self._api.llama_batch_init(max(BATCH_ROWS, work.batch), 0, 1)

    def _options(self, threads: int) -> Any:
        options = self._api.llama_context_default_params()
        options.n_ctx = self._work.limit * self._work.batch + BATCH_ROWS
        options.n_batch = options.n_ubatch = BATCH_ROWS
        options.n_seq_max = self._work.batch
        options.n_threads = options.n_threads_batch = threads
        return options

    @property
    def version(self) -> str:
        """Version of llama-cpp-python, and what its llama.cpp was built with."""
        features = self._api.llama_print_system_info().decode()
        return f"llama-cpp-python {metadata.version('llama-cpp-python')} ({features.strip()})"

    def prefill(self, prompt: Sequence[int]) -> None:
        """Feed the prompt to every sequence, one after the other."""
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)
        for number in range(self._work.batch):
            for start in range(0, len(prompt), BATCH_ROWS):
                chunk = prompt[start : start + BATCH_ROWS]
                ends = start + len(chunk) == len(prompt)
                rows = [(token, start + i, number) for i, token in enumerate(chunk)]
                self._decode(rows, [len(chunk) - 1] if ends else [])
            self._tokens[number] = self._argmax(len(chunk) - 1)
        self._position = len(prompt)

    def decode(self, steps: int) -> None:
        """Greedy steps with all sequences at once."""
        everyone = range(self._work.batch)
        for _ in range(steps):
            rows = [(self._tokens[number], self._position, number) for number in everyone]
            self._decode(rows, list(everyone))
            self._tokens = [self._argmax(number) for number in everyone]
            self._position += 1

    def _decode(self, rows: Sequence[tuple[int, int, int]], drawing: Sequence[int]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = 0
        for i in drawing:
            batch.logits[i] = 1
        failed = self._api.llama_decode(self._context, batch)
        if failed:
            raise BackendError(f"llama.cpp refused a batch (code {failed})")

    def _argmax(self, row: int) -> int:
        logits = self._api.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())

    def close(self) -> None:
        """Free model and context."""
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _quiet(level: int, text: bytes, data: int) -> None:
    """Drop what llama.cpp logs."""
