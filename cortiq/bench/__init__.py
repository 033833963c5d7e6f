"""Benchmarks: measure a model's speed, and drafting's, beside llama.cpp."""
