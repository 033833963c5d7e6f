"""Conversion of models: to a folder of our own layout, or to GGUF, in formats chosen by matrix."""
