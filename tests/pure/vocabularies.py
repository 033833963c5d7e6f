"""Small vocabularies as GGUF metadata, for the tests of tokenizers."""

from __future__ import annotations

from cortiq.tokenizer import Tokenizer
from cortiq.tokenizer.byte_level import byte_alphabet

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "",
    " ",
    "Hello world! It's 12345 o'clock, isn't it?",
    "def f(x):\n\n\n    return x**2\t# two\r\n",
    "   leading, and trailing   ",
    "Café déjà vu — naïve ﬁ ½ 😊 👩‍👩‍👧 機械学習 한국어 עברית",
    "ab\u0301c \u00a0 \u2003x \ufeff",
]


def byte_level_metadata(pre: str = "smollm", **changes: object) -> dict[str, object]:
    """A vocabulary of all bytes, some merges, three control tokens and one user-defined one."""
    pieces = list(byte_alphabet())
    merges = ["Ġ t", "h e", "l l", "Ġt he", "ll o", "1 2", "Ġ Ġ"]
    pieces += [merge.replace(" ", "") for merge in merges]
    tokens = [*CONTROL, *pieces, "[user]"]
    types = [3] * len(CONTROL) + [1] * len(pieces) + [4]
    metadata = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    metadata |= changes
    return {f"tokenizer.ggml.{name}": v for name, v in metadata.items() if v is not None}


def score_metadata(**changes: object) -> dict[str, object]:
    """A small score-based vocabulary with byte tokens, and user-defined tokens that overlap."""
    scored = {"▁": -9.0, "a": -8.0, "b": -8.5, "c": -8.6, "d": -8.7, "ab": -1.0, "bc": -0.5}
    scored |= {"▁a": -2.0, "▁ab": -4.0, "aa": -2.5, "aaaa": -2.6}
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    user = ["[ab]", "[ab", "ab]cd"]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *user, *scored]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [2, 3, 3, *[6] * 256, *[4] * 3, *[1] * len(scored)],
        "scores": [0.0] * (3 + 256 + 3) + list(scored.values()),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    metadata |= changes
    return {f"tokenizer.ggml.{name}": v for name, v in metadata.items() if v is not None}


def pieces_of(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    return [tokenizer.token_bytes(i).decode() for i in tokenizer.encode(text, **options)]


BYTE_LEVEL = Tokenizer.from_gguf(byte_level_metadata())
SCORED = Tokenizer.from_gguf(score_metadata())
UNSPACED = Tokenizer.from_gguf(score_metadata(add_space_prefix=False))
