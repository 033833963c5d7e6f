"""The MLX backend on one device, by one command: gate, own kernels, conformance, speed, memory.

    python benchmarks/mlx_backend.py [--device gpu] [--levels 0 1 2 3 4] [--tokens 64]
                                     [--memory 2000] [--model smollm2] [--json out.json]

Prints one JSON object: what the device's gate said, which of our own kernels have the bits of the
array operations there, each level's last line, decode steps of a model on this device with and
without our own kernels beside the CPU backend in turn, and the memory held over many tokens. Exit
code 1 if the device is refused, a case differs, a stream differs, or memory grows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from cortiq.backend import Argmax, Batch, CompileOptions, Digest, Drawn, Row
from cortiq.errors import CortiqError
from cortiq.formats import fetch
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq_mlx.backend import MlxBackend

PROMPT = [(11 + 7919 * i) % 40000 for i in range(66)]
WANTS = (Argmax(), Digest("logits"))
WARM = 200
"""Tokens before memory is looked at first."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GROWTH = 8 << 20
"""Bytes that the process may grow by after that, beyond what the sequence reserved."""


class GreedyDecoder:
    """A model on a backend, one greedy token at a time."""

    def __init__(self, executable: Any, limit: int) -> None:
        self.executable, self.state = executable, executable.open(limit)
        self.state.reserve(limit)
        self.chain: list[Any] = []
        rows = [Row(self.state, i, t, WANTS if i == 65 else ()) for i, t in enumerate(PROMPT)]
        self.chain.append(executable.forward(Batch(rows)).result().rows[-1])
        self.drawn = Drawn(len(PROMPT) - 1)

    def step(self) -> float:
        """Return seconds of the next token."""
        start = time.perf_counter()
        row = Row(self.state, self.state.length(), self.drawn, WANTS)
        self.chain.append(self.executable.forward(Batch([row])).result().rows[0])
        self.drawn = Drawn(0)
        return time.perf_counter() - start


def speeds(decoders: dict[str, GreedyDecoder], tokens: int) -> dict[str, float]:
    """Return median tokens a second of each, a token of each in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in decoders}
    for _ in range(tokens):
        for name, decoder in decoders.items():
            seconds[name].append(decoder.step())
    return {name: round(1 / statistics.median(times), 2) for name, times in seconds.items()}


def measured(loaded: Any, device: str, tokens: int) -> dict[str, Any]:
    """Measure decode speed beside the CPU backend's, and compare all streams."""
    from cortiq_cpu.backend import CpuBackend

    def compiled(backend: Any, **options: Any) -> Any:
        return backend.compile(loaded.program, loaded.weights, CompileOptions(**options))

    executables = {"mlx": compiled(MlxBackend(), device=device), "cpu": compiled(CpuBackend())}
    if executables["mlx"].own:
        executables["mlx, array operations only"] = compiled(MlxBackend(), device=device)
        executables["mlx, array operations only"].own = frozenset()
    limit = len(PROMPT) + tokens + 1
    decoders = {name: GreedyDecoder(executable, limit) for name, executable in executables.items()}
    found: dict[str, Any] = {"tokens_per_second": speeds(decoders, tokens)}
    first, *others = (decoder.chain for decoder in decoders.values())
    found["same_stream"] = all(chain == first for chain in others)
    for executable in executables.values():
        executable.close()
    return found


def resident() -> int:
    """Resident bytes of this process, 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * PAGE_BYTES if statm.exists() else 0


def memory(loaded: Any, device: str, tokens: int) -> dict[str, Any]:
    """Return bytes held after `WARM` tokens and at the end."""
    from cortiq_mlx.library import mx

    options = CompileOptions(device=device)
    with closing(MlxBackend().compile(loaded.program, loaded.weights, options)) as executable:
        decoder, sizes = GreedyDecoder(executable, len(PROMPT) + tokens + 1), {}
        for step in range(tokens):
            decoder.step()
            decoder.chain.clear()
            if step in (WARM - 1, tokens - 1):
                sizes[step + 1] = {"resident": resident(), "mlx": mx.get_active_memory()}
    first, last = sizes[min(sizes)], sizes[max(sizes)]
    grown = max(last[kind] - first[kind] for kind in last)
    return {"by_tokens": sizes, "grown": grown, "grows": grown > GROWTH}


def levels(device: str, chosen: list[int]) -> dict[str, Any]:
    """Return the last line of each level."""
    from cortiq_conformance.runner import run

    found = {}
    for level in chosen:
        report = run(f"mlx:{device}", levels=(level,))
        found[str(level)] = {"passed": report.passed, "summary": report.summary()}
        print(report.summary(), file=sys.stderr)
    return found


def report_on(device: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run all measurements and return the report."""
    from cortiq_mlx.kernel_trial import TRIALS, confirmed
    from cortiq_mlx.library import description
    from cortiq_mlx.self_test import check_device

    found: dict[str, Any] = {"device": description(device)}
    try:
        check_device(device)
    except CortiqError as error:
        return {**found, "refused": str(error)}
    own = confirmed(device)
    found["own_kernels"] = {body.name: body.name in own for body, _ in TRIALS}
    found["levels"] = levels(device, options.levels)
    with closing(open_checkpoint(fetch.pull(options.model))) as checkpoint:
        loaded = load_program(checkpoint)
        parts: dict[str, tuple[int, Callable[..., dict[str, Any]]]] = {
            "decode": (options.tokens, measured),
            "memory": (options.memory, memory),
        }
        for name, (tokens, part) in parts.items():
            if tokens:
                found[name] = part(loaded, device, tokens)
    return found


def sound(found: dict[str, Any]) -> bool:
    """Return whether all checks passed."""
    passed = all(level["passed"] for level in found.get("levels", {}).values())
    same = found.get("decode", {}).get("same_stream", True)
    return "refused" not in found and passed and same and not found.get("memory", {}).get("grows")


def main() -> int:
    """Measure the device that is named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", default=MlxBackend().devices()[0].name)
    parser.add_argument("--levels", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = report_on(options.device, options)
    text = json.dumps(found, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text)
    return 0 if sound(found) else 1


if __name__ == "__main__":
    sys.exit(main())
