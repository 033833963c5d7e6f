"""Embeddings: the sentence nearest to a query. Their bits are the same everywhere."""

from __future__ import annotations

import sys

import cortiq

SENTENCES = [
    "Bread is baked from flour, water, salt and yeast.",
    "The train to the coast leaves at nine in the morning.",
    "A heart pumps blood through the body.",
]
QUERY = "The train leaves at nine."  # a model of 135M is a toy: it sees words more than sense

with cortiq.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as model:
    vectors = model.embed(SENTENCES)  # float32 [3, width], each of length 1
    likeness = vectors @ model.embed(QUERY)
    for sentence, cosine in sorted(zip(SENTENCES, likeness, strict=True), key=lambda p: -p[1]):
        print(f"{cosine:.4f}  {sentence}")
