"""Streaming text, stopped after the first sentence."""

from __future__ import annotations

import sys

import cortiq

with cortiq.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as model:
    with model.stream("Once upon a time", max_tokens=60, temperature=0.8, seed=7) as stream:
        for piece in stream:
            print(piece, end="", flush=True)
            if "." in piece:
                stream.cancel()
    print(f"\n[{stream.generation.finish_reason}]")
