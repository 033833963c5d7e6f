"""Other programs' names of options, and hints about unknown ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

SYNONYMS: Mapping[str, str] = {
    "temp": "temperature",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "n": "max_tokens",
    "c": "context",
    "ctx": "context",
    "n_ctx": "context",
    "num_ctx": "context",
    "ctx_size": "context",
    "max_model_len": "context",
    "repeat_penalty": "repetition_penalty",
    "random_seed": "seed",
    "stop_token_ids": "stop_ids",
    "stop_sequences": "stop",
    "n_threads": "threads",
    "num_threads": "threads",
    "n_gpu_layers": "backend",
    "ngl": "backend",
    "gpu_layers": "backend",
    "model": "model",
    "m": "model",
}
"""Names of options in llama.cpp, transformers, Ollama and vLLM, and our names for them."""


def closest_option(name: str, known: Iterable[str]) -> str | None:
    """Return the option that a name means: another program's name, or the closest."""
    known = list(known)
    same = SYNONYMS.get(name.lstrip("-").replace("-", "_").lower())
    if same in known:
        return same
    return next(iter(get_close_matches(name, known, 1)), None)


def option_hint(name: str, known: Iterable[str], where: str) -> str:
    """Return the hint about an unknown option; `where` says what lists the known ones."""
    option = closest_option(name, known)
    return f"did you mean {option!r}?" if option else f"{where} lists the options"
