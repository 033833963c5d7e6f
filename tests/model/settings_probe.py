"""Run in a process of its own by `test_settings.py`: what the machine's settings are, and the bits.

Usage: settings_probe.py [--flush] [--tables] [--threads N] MODEL_FILE...; prints one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import threadpool_info

import cortiq
from cortiq.backend import Argmax, Batch, Digest, Row
from cortiq.engine.digest_chain import START, chain
from cortiq.engine.session import Session, digest_of
from cortiq.ir import primitives_of

PROMPT_ROWS, DIGESTED_ROWS, STEPS = 70, 6, 2
TEXT = "Everyone is permitted to copy and distribute verbatim copies of this license document. " * 6
TABLE_POSITIONS, TABLE_STEP = 131_072, 8_192
EVERY = 5
"""Positions of a table that are looked at."""


def flushes() -> bool:
    """Whether this thread takes subnormal results for zero (FTZ), as NumPy's loops show."""
    return bool((np.full(64, 1e-38, np.float32) * np.float32(0.1) == 0).all())


def subnormals_are_zero() -> bool:
    """Whether this thread takes subnormal operands for zero (DAZ)."""
    subnormal = np.full(64, 1, np.int32).view(np.float32)
    return bool((subnormal * np.float32(2.0**100) == 0).all())


def in_workers() -> list[bool]:
    """Return the result of two threads that start now, as the reference's do at their first
    work.
    """
    together = threading.Barrier(2)

    def look(_: int) -> bool:
        together.wait()
        return flushes() and subnormals_are_zero()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(look, range(2)))


def digest_chain(path: str, threads: int) -> str:
    """Chain over the digests of the last rows of a prompt and of greedy steps after it."""
    wants = (Argmax(), Digest("logits"))
    link = START
    with cortiq.load(path, backend="reference", threads=threads) as model:
        ids = model.ids(TEXT)[:PROMPT_ROWS]
        with Session(model.executable, PROMPT_ROWS + STEPS) as session:
            rows = [
                Row(session.state, at, token, wants if at >= PROMPT_ROWS - DIGESTED_ROWS else ())
                for at, token in enumerate(ids)
            ]
            brought = model.executable.forward(Batch(rows)).result().rows[-DIGESTED_ROWS:]
            for row in brought:
                link = chain(link, digest_of(row))
            session.length, row = PROMPT_ROWS, brought[-1]
            for _ in range(STEPS):
                row = session.read(session.feed([int(row[Argmax()])], wants))
                link = chain(link, digest_of(row))
    return link.hex()


def table_digests(path: str) -> dict[str, str]:
    """SHA-256 of every rotary table of a model, over its whole length."""
    with cortiq.load(path, backend="reference") as model:
        nodes = [n for g in primitives_of(model.program).graphs.values() for n in g.nodes]
    tables = {node.op.table for node in nodes if hasattr(node.op, "table")}
    found = {}
    for table in tables:
        digest = hashlib.sha256()
        for start in range(0, TABLE_POSITIONS, TABLE_STEP):
            for part in table.compute(np.arange(start, start + TABLE_STEP, EVERY)):
                digest.update(part.tobytes())
        found[f"base {table.base:g}, {table.dim} dimensions"] = digest.hexdigest()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flush", action="store_true")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("paths", nargs="+")
    arguments = parser.parse_args()
    if arguments.flush:
        import torch

        assert torch.set_flush_denormal(True)
    facts = {
        "blas": [i["architecture"] for i in threadpool_info() if i["user_api"] == "blas"],
        "simd": np.show_config(mode="dicts")["SIMD Extensions"].get("found", []),
        "flushing": [flushes() and subnormals_are_zero(), *in_workers()],
        "chains": [digest_chain(path, arguments.threads) for path in arguments.paths],
    }
    if arguments.tables:
        facts["tables"] = [table_digests(path) for path in arguments.paths]
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
