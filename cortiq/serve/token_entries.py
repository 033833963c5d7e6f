"""Tokens and their log-probabilities as responses name them."""

from __future__ import annotations

from typing import Any

from cortiq.engine.output import TokenLogprobs
from cortiq.model.prompt_logprobs import PromptToken
from cortiq.tokenizer.tokenizer import Tokenizer


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's text, incomplete UTF-8 as U+FFFD."""
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def token_key(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's text where texts name tokens; of incomplete UTF-8 its bytes.

    `bytes:\\xe2\\x80` is how OpenAI's text completions name them: U+FFFD would name all of them.
    """
    data = tokenizer.token_bytes(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def prompt_entry(tokenizer: Tokenizer, scored: PromptToken) -> dict[str, Any]:
    """Return a prompt token's entry in `prompt_logprobs`: it and the most likely ones, by id."""
    made, found = scored.logprobs, {}
    for rank, (token, logprob) in enumerate(made.top, 1):
        found[token] = (logprob, rank)
    found.setdefault(made.token_id, (made.logprob, scored.rank))
    return {
        str(token): {
            "logprob": logprob, "rank": rank, "decoded_token": token_text(tokenizer, token),
        }
        for token, (logprob, rank) in found.items()
    }  # fmt: skip


def logprob_entry(tokenizer: Tokenizer, made: TokenLogprobs) -> dict[str, Any]:
    """Return a token's entry in a chat completion's `logprobs`."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        text = data.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(data)}

    top = [entry(token, logprob) for token, logprob in made.top]
    return entry(made.token_id, made.logprob) | {"top_logprobs": top}
