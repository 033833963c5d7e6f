"""Byte-level BPE by ranks, as tekken.json and tiktoken files hold it, as a tokenizer.json.

Of two neighbours whose concatenation is a token, those with the lowest rank merge first. A list of
merges says the same: every pair whose concatenation is a token, in the order of its rank.

A tiktoken file has neither pattern nor special tokens: they are in code beside it, which is not
run. `CLASSES` says them by the class that tokenizer_config.json names. Sources: the models'
tokenization_kimi.py, tokenization_chatglm.py, tokenization_qwen.py and tokenization_hy.py.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import NoTokenizerError, TokenizerError, shown
from cortiq.formats.tokenizer_files import TokenizerFiles
from cortiq.tokenizer.byte_level import byte_alphabet
from cortiq.tokenizer.description import BYTE_LEVEL, begins_with, special_tokens
from cortiq.tokenizer.pretokenizers import plain_pattern, pre_tokenizer

__all__ = ["CLASSES", "tekken_json", "tiktoken_json", "tokenizer_bytes"]

LONGEST = 1 << 10
"""Bytes of a token; the longest known has 128."""


@dataclass(frozen=True)
class RankClass:
    """Words and special tokens that a class of tokenizer adds to its file.

    Attributes
    ----------
    pre : the name of its pre-tokenizer. special : special tokens, from the first free id on.
    reserved : ids behind the file's that are all special, named by their number where nothing else
        names them.
    """

    pre: str
    special: tuple[str, ...] = ()
    reserved: int = 0


_EXTRAS = tuple(f"<|extra_{n}|>" for n in range(205))
CLASSES: Mapping[str, RankClass] = {
    "TikTokenTokenizer": RankClass("kimi-k2", reserved=256),
    "ChatGLM4Tokenizer": RankClass("chatglm-bpe"),
    "QWenTokenizer": RankClass(
        "qwen2", ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *_EXTRAS)
    ),
    "HYTokenizer": RankClass(
        "qwen2",
        ("<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", *_EXTRAS[:204]),
    ),
}  # fmt: skip


def tiktoken_json(data: bytes, settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the tokenizer.json of a tiktoken file.

    Parameters
    ----------
    data : lines of a token in Base64 and its rank.
    settings : of tokenizer_config.json.

    Raises
    ------
    NoTokenizerError : nothing says which words its tokenizer makes.
    """
    name = settings.get("tokenizer_class")
    known = CLASSES.get(str(name))
    if known is None:
        what = f"how a {shown(name)} cuts words is in its code, which is not run"
        hint = f"put a tokenizer.json beside it (known classes: {', '.join(CLASSES)})"
        raise NoTokenizerError(what, where=where, hint=hint)
    ranks = dict(_lines(data, where))
    start = max(ranks.values(), default=-1) + 1
    added = {start + n: text for n, text in enumerate(known.special)}
    added |= {start + n: f"<|reserved_token_{start + n}|>" for n in range(known.reserved)}
    for token, entry in (settings.get("added_tokens_decoder") or {}).items():
        if not str(token).isdecimal() or not isinstance(entry, dict):
            raise TokenizerError(f"added token {shown(token)} is no id with an object", where=where)
        added[int(token)] = str(entry.get("content"))
    pre = pre_tokenizer(known.pre)
    patterns = [plain_pattern(stage) for stage in pre.stages]
    return _described(ranks, added, patterns, where) | {
        "normalizer": {"type": "NFC"} if pre.nfc else None
    }


def tokenizer_bytes(files: TokenizerFiles) -> bytes:
    """Return the tokenizer.json of a file: as it has it, or of the words that it has; empty where
    it has neither.
    """
    if not files.words:
        return files.data
    ranks = {word: rank for rank, word in enumerate(files.words) if word}
    if len(ranks) < sum(map(bool, files.words)):
        raise TokenizerError("two tokens have the same bytes", where=files.where)
    patterns = [plain_pattern(stage) for stage in pre_tokenizer("gpt-2").stages]
    return json.dumps(_described(ranks, files.named, patterns, files.where)).encode()


def _lines(data: bytes, where: str) -> Iterator[tuple[bytes, int]]:
    for number, line in enumerate(data.splitlines(), 1):
        parts = line.split()
        if parts and (len(parts) != 2 or not parts[1].isdigit()):
            raise TokenizerError(f"line {number} is no token with its rank", where=where)
        if parts:
            yield _decoded(parts[0], where), int(parts[1])


def _decoded(text: str | bytes, where: str) -> bytes:
    try:
        token = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise TokenizerError(f"{shown(text)} is no token in Base64", where=where) from None
    if not 0 < len(token) <= LONGEST:
        raise TokenizerError(f"a token has {len(token)} bytes, not 1 to {LONGEST}", where=where)
    return token


def tekken_json(file: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the tokenizer.json of a tekken.json.

    Its special tokens have the first ids; those without a name are called by their number.
    """
    try:
        config, special = file["config"], file["special_tokens"]
        first, size = config["default_num_special_tokens"], config["default_vocab_size"]
        pattern = config["pattern"]
        tokens = {_decoded(entry["token_bytes"], where): entry["rank"] for entry in file["vocab"]}
        named = {entry["rank"]: entry["token_str"] for entry in special}
    except (KeyError, TypeError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else "has entries of another form"
        hint = "put the model's tokenizer.json beside it"
        raise TokenizerError(what, where=where, hint=hint) from None
    numbers = (first, size, *tokens.values(), *named)
    if not all(type(n) is int and n >= 0 for n in numbers) or not isinstance(pattern, str):
        raise TokenizerError("a rank is no number, or the pattern no text", where=where)
    if max(named, default=0) >= first:
        what = f"special token {max(named)} is not below default_num_special_tokens, {first}"
        raise TokenizerError(what, where=where)
    ranks = {token: first + rank for token, rank in tokens.items() if first + rank < size}
    added = {n: str(named.get(n, f"<SPECIAL_{n}>")) for n in range(min(first, size))}
    made = _described(ranks, added, [pattern], where)
    return made | ({"post_processor": begins_with("<s>", 1)} if added.get(1) == "<s>" else {})


def _described(
    ranks: Mapping[bytes, int], added: Mapping[int, str], patterns: list[str], where: str
) -> dict[str, Any]:
    """Return a tokenizer.json that merges by ranks, of words that patterns cut."""
    if len({*ranks.values(), *added}) != len(ranks) + len(added):
        raise TokenizerError("two tokens have the same id", where=where)
    letters = byte_alphabet()
    pieces = {token: "".join(letters[byte] for byte in token) for token in ranks}
    same = {*pieces.values()} & {*added.values()}
    if same:
        what = f"{shown(min(same))} is a special token and another one's letters"
        raise TokenizerError(what, where=where)
    stages = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in patterns
    ]
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": special_tokens(added),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*stages, dict(BYTE_LEVEL)]},
        "post_processor": None, "decoder": dict(BYTE_LEVEL),
        "model": {
            "type": "BPE", "ignore_merges": True,
            "vocab": {text: token for token, text in added.items()}
            | {pieces[token]: rank for token, rank in ranks.items()},
            "merges": [[pieces[left], pieces[right]] for left, right in _merges(ranks)],
        },
    }  # fmt: skip


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield every pair of tokens whose concatenation is a token, in the order of its rank."""
    for token in sorted(ranks, key=ranks.__getitem__):
        halves = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = [pair for pair in halves if pair[0] in ranks and pair[1] in ranks]
        yield from sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
