"""Load a model, generate, and inspect the result."""

from __future__ import annotations

import sys

import cortiq

with cortiq.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as model:
    print(model)
    made = model.generate("The capital of France is", max_tokens=12)
    print(made.text)
    print(made.finish_reason, made.stats.as_dict()["decode_tokens_per_second"], "tokens/s")
    print("digest of every logit that was drawn from:", made.digest)
