"""A generation that anybody can verify on other hardware: every step is recomputed."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import cortiq

with cortiq.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as model:
    made = model.generate("To be or not to be", max_tokens=12, temperature=0.7, seed=3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "receipt.json"
        made.receipt().write(path)
        verdict = model.verify(cortiq.Receipt.read(path))
    print(made.text)
    print(f"identical: {verdict.identical}, {verdict.steps} steps")
    assert verdict
