"""Find the most likely of some answers, as multiple-choice tests are scored."""

from __future__ import annotations

import sys

import cortiq

ANSWERS = (" Paris", " London", " banana")

with cortiq.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as model:
    ids = [model.tokenizer.encode(answer, add_bos=False) for answer in ANSWERS]
    found = model.likelihoods("The capital of France is", ids)
    for answer, one in sorted(zip(ANSWERS, found, strict=True), key=lambda p: -p[1].logprob):
        print(f"{one.logprob:9.4f}{answer}{'  (greedy)' if one.greedy else ''}")
