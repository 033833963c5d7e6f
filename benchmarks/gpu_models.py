"""Whole models for `benchmarks/gpu.py`: ours, and transformers in bf16 with its best settings."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import triton.language as tl
from formula_weights import FormulaCodes, by_formula
from gpu_golden import FIRST, LIMIT, WANTS, WARM, completed, prompt, text_of

from cortiq.backend import Batch, CompileOptions, Drawn, Row
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics.layouts import Weight
from cortiq.numerics.philox import key_of_seed
from cortiq_triton import draw, host_codes, kernels, scales, weights
from cortiq_triton.executable import TritonExecutable
from cortiq_triton.language import Tensor, ceil_div, kernel, launch, signed

GEOMETRY = {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "rope_theta": 500000.0, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip


@kernel
def random_codes(
    out: Tensor,
    columns: Tensor,
    first: Tensor,
    tensor: Tensor,
    low: Tensor,
    high: Tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Return codes from the bytes of `numerics.synthetic`, clipped to ±127: [rows, columns].

    Row 0 is row `first` of the tensor.
    """
    row = tl.program_id(0)
    counter = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    words = draw.philox_words(counter, first + row, 0, tensor, low, high)
    for place in tl.static_range(4):
        for byte in tl.static_range(4):
            code = (words[place] << (24 - 8 * byte)) >> 24
            column = counter * 16 + place * 4 + byte
            at = out + row.to(tl.int64) * columns + column
            tl.store(at, tl.maximum(code, -127).to(tl.int8), mask=column < columns)


def made_on_the_device(weight: Weight, name: str, device: str) -> Any:
    """Return `weights.pack` of w8 weights by formula, with the same bits, without the host's
    minutes.
    """
    made: Any = weight.parts.get("codes")
    if not isinstance(made, FormulaCodes) or weight.shape[1] % weights.PAD:
        return weights.pack(weight, name, device)
    rows, columns = weight.shape
    codes = torch.empty(weight.shape, dtype=torch.int8, device=device)
    words = [signed(word) for word in (zlib.crc32(made.name.encode()), *key_of_seed(made.seed))]
    grid = (rows, ceil_div(columns, 16 * 256))
    launch(random_codes, grid, codes, columns, made.rows[0], *words, BLOCK=256)
    scale = torch.from_numpy(weight.parts["scale"]).to(device)
    return weights.Packed(
        rows, columns, columns, host_codes.BYTES, 0, 1, 0, 0, codes,
        scale, None, None, None, (scales.F32S, scales.F32S),
    )  # fmt: skip


def ours(name: str, device: str) -> TritonExecutable:
    """Return a synthetic model on the device."""
    before, kernels.pack = kernels.pack, made_on_the_device
    try:
        loaded = load_program(open_synthetic(name), context=LIMIT)
        made = by_formula(loaded.weights)
        return TritonExecutable(loaded.program, made, CompileOptions(), device)
    finally:
        kernels.pack = before


def prefill_seconds(executable: Any, length: int, times: int = 3) -> tuple[float, str]:
    """Return median seconds of a prompt of this length, and its last row's digest."""
    found = []
    for _ in range(times + 1):
        state = executable.open(length + 8)
        torch.cuda.synchronize()
        start = time.perf_counter()
        row = prompt(executable, state, 0, length)
        found.append(time.perf_counter() - start)
        state.release()
    return median(found[1:]), text_of(row)


def prefill_kernels(executable: Any, length: int) -> list[tuple[str, float, int]]:
    """Return kernels of a prompt, longest first."""

    def run() -> None:
        state = executable.open(length + 8)
        prompt(executable, state, 0, length)
        state.release()

    return kernel_times(run)


def decode(executable: Any, sequences: int, context: int, steps: int) -> dict[str, Any]:
    """Return wall seconds per step with one step ahead, and device seconds by replaying the
    graph.
    """
    states = [executable.open(context + steps + WARM + 1) for _ in range(sequences)]
    for state in states:
        prompt(executable, state, 0, context)
    position = context
    ticket = executable.forward(Batch([Row(s, position, FIRST, WANTS) for s in states]))
    for step in range(steps + WARM):
        if step == WARM:
            completed(ticket.result())
            torch.cuda.synchronize()
            start = time.perf_counter()
        position += 1
        rows = [Row(s, position, Drawn(i), WANTS) for i, s in enumerate(states)]
        after = executable.forward(Batch(rows))
        completed(ticket.result())
        ticket = after
    last = completed(ticket.result())
    wall = (time.perf_counter() - start) / steps
    shape = list(executable.decoder.shapes.values())[-1]
    (answers,) = shape.answers.values()

    def replay() -> None:
        shape.replay()
        answers.replay()

    device, kernels = seconds_of(replay, steps), kernel_times(replay)
    digests = {text_of(row) for row in last.rows}
    for state in states:
        state.release()
    return {
        "wall": wall,
        "device": device,
        "rate": sequences / wall,
        "digests": digests,
        "kernels": kernels,
    }


def seconds_of(run: Callable[[], Any], times: int) -> float:
    """Return mean device seconds of repeated launches, by events."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    torch.cuda.synchronize()
    first.record()
    for _ in range(times):
        run()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1000 / times


def kernel_times(run: Callable[[], Any], times: int = 3) -> list[tuple[str, float, int]]:
    """Return kernels, longest first: name, device microseconds and launches per run."""
    from torch.profiler import ProfilerActivity, profile

    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(times):
            run()
        torch.cuda.synchronize()
    found = [
        (event.key, event.self_device_time_total / times, event.count // times)
        for event in seen.key_averages()
    ]
    return sorted(found, key=lambda each: -each[1])


class Transformers:
    """transformers' Llama of the same geometry in bf16: static cache, decoding in a CUDA graph."""

    def __init__(self, device: str, layers: int = 32) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(**{**GEOMETRY, "num_hidden_layers": layers})
        config._attn_implementation = "sdpa"
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device(device):
                self.model = LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(before)
        self.device = device

    def _cache(self, length: int) -> Any:
        from transformers import StaticCache

        return StaticCache(config=self.model.config, max_cache_len=length)

    @torch.inference_mode()
    def prefill(self, length: int, times: int = 3) -> float:
        """Return median seconds of a prompt."""
        ids = torch.randint(0, 32000, (1, length), device=self.device)
        found = []
        for _ in range(times + 1):
            cache = self._cache(length + 64)
            torch.cuda.synchronize()
            start = time.perf_counter()
            out = self.model(
                ids, past_key_values=cache, use_cache=True, logits_to_keep=1,
                cache_position=torch.arange(length, device=self.device),
            )  # fmt: skip
            out.logits.argmax().item()
            found.append(time.perf_counter() - start)
        return median(found[1:])

    @torch.inference_mode()
    def decode(self, sequences: int, context: int, steps: int) -> float:
        """Return tokens a second of a captured step."""
        ids = torch.randint(0, 32000, (sequences, context), device=self.device)
        cache = self._cache(context + steps + 64)
        self.model(
            ids, past_key_values=cache, use_cache=True, logits_to_keep=1,
            cache_position=torch.arange(context, device=self.device),
        )  # fmt: skip
        token, position = ids[:, :1].clone(), torch.tensor([context], device=self.device)

        def step() -> None:
            out = self.model(
                token, past_key_values=cache, use_cache=True, cache_position=position,
                position_ids=position[None].expand(sequences, 1),
            )  # fmt: skip
            token.copy_(out.logits[:, -1:].argmax(-1))

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return sequences / seconds_of(graph.replay, steps)
