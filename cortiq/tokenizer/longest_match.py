"""Vocabularies of byte strings, of which each place of a text takes the longest: RWKV's World.

Its vocabulary file has a line for every token, `ID LITERAL BYTES`, the literal as Python writes
strings and bytes. GGUF files have the model `rwkv`, with tokens as Python writes bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cortiq.errors import TokenizerError, shown
from cortiq.tokenizer.rank_files import LONGEST
from cortiq.tokenizer.special_tokens import TokenType

__all__ = ["NAMED_TEMPLATES", "LongestMatchEncoder", "unescaped", "world_file", "world_metadata"]

END_OF_TEXT = "<|rwkv_tokenizer_end_of_text|>"
"""Text of token 0, which the vocabulary file leaves out, unless a configuration says another."""
NAMED_TEMPLATES: Mapping[str, str] = {
    "rwkv-world": "{% set names = {'system': 'System', 'user': 'User', 'assistant': 'Assistant'} %}"
    "{% for m in messages %}{{ names[m.role] }}: {{ m.content | trim }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}",
}
"""Chat templates that GGUF files name instead of holding them."""
MOST_TOKENS = 1 << 22
_BYTES = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_TEXT = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ID = re.compile("[0-9]{1,7}")
_LINE = re.compile(r"([0-9]{1,7}) (b?)(['\"])(.*)\3 ([0-9]{1,7})", re.DOTALL)
_LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class LongestMatchEncoder:
    """Bytes to ids: at each place the longest token that fits.

    Parameters
    ----------
    pieces : bytes -> id, every single byte among them.

    Raises
    ------
    TokenizerError : a byte has no token, or a token is too long.
    """

    def __init__(self, pieces: Mapping[bytes, int]) -> None:
        missing = [byte for byte in range(256) if bytes([byte]) not in pieces]
        if missing:
            raise TokenizerError(f"the vocabulary has no token for byte 0x{missing[0]:02X}")
        longest = max(map(len, pieces))
        if longest > LONGEST:
            raise TokenizerError(f"a token has {longest} bytes, more than {LONGEST}")
        lengths: dict[bytes, set[int]] = {}
        for piece in pieces:
            lengths.setdefault(piece[:2], set()).add(len(piece))
        self._pieces = pieces
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, from which special tokens have been cut."""
        data, at, ids, pieces = text.encode("utf-8"), 0, [], self._pieces
        while at < len(data):
            for length in (*self._lengths.get(data[at : at + 2], ()), 1):
                piece = data[at : at + length]
                if piece in pieces:
                    break
            ids.append(pieces[piece])
            at += len(piece)
        return ids


def unescaped(text: str) -> bytes:
    """Return the bytes of a token as Python writes them, without `b` and quotes."""
    if "\\" not in text:
        return text.encode("utf-8")
    return _BYTES.sub(
        lambda match: bytes([int(match[1], 16)]) if match[1] else _LETTERS.get(match[2], match[2]),
        text.encode("utf-8"),
    )


def _character(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    return chr(int(code, 16)) if code else unescaped(match[0]).decode("utf-8")


def world_file(folder: Path) -> Path | None:
    """Return the vocabulary file of a folder that has no tokenizer.json, if there is one."""
    if (folder / "tokenizer.json").is_file():
        return None
    return next(iter(sorted(folder.glob("rwkv_vocab_*.txt"))), None)


def world_metadata(data: bytes, settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return what a GGUF file would say of a vocabulary file.

    Parameters
    ----------
    settings : of tokenizer_config.json. What it calls an added token is none where the vocabulary
        has one of that text: transformers' class would give "\\n\\n", which ends an answer, an id
        that no model has seen.

    Raises
    ------
    TokenizerError : a line is none of a vocabulary, or two have the same id.
    """
    pieces = _pieces(data, where)
    named = {name: _text(settings.get(f"{name}_token")) for name in ("bos", "eos")}
    added = {0: END_OF_TEXT} | _added(settings, pieces)
    added = {token: text for token, text in added.items() if token not in pieces}
    size = max(*pieces, *added) + 1
    texts = [added.get(n) or repr(pieces.get(n, b"[PAD%d]" % n))[2:-1] for n in range(size)]
    ids = {piece: token for token, piece in pieces.items()}
    ids |= {text.encode("utf-8"): token for token, text in added.items()}
    made = {
        "model": "rwkv", "tokens": texts,
        "token_type": [
            TokenType.NORMAL if n in pieces
            else TokenType.CONTROL if n in added
            else TokenType.UNUSED
            for n in range(size)
        ],
        **{f"{name}_token_id": ids.get(text.encode("utf-8"), 0) for name, text in named.items()},
        "add_bos_token": settings.get("add_bos_token") is True,
    }  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in made.items()}


def _pieces(data: bytes, where: str) -> dict[int, bytes]:
    """Return the tokens of a vocabulary file."""
    try:
        lines = data.decode("utf-8").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"not UTF-8: {error}", where=where) from None
    found: dict[int, bytes] = {}
    for number, line in enumerate(lines, 1):
        if not line and number == len(lines):
            break
        match = _LINE.fullmatch(line)
        if match is None:
            raise TokenizerError(f"line {number} is no token: {shown(line)}", where=where)
        text = match[4] if match[2] or "\\" not in match[4] else _TEXT.sub(_character, match[4])
        piece = unescaped(match[4]) if match[2] else text.encode("utf-8", "replace")
        token = int(match[1])
        if token in found or len(piece) != int(match[5]) or not piece or token >= MOST_TOKENS:
            what = f"line {number} has an id twice, or other bytes than it says: {shown(line)}"
            raise TokenizerError(what, where=where)
        found[token] = piece
    if len(set(found.values())) != len(found) or not found:
        raise TokenizerError("has a token twice, or none", where=where)
    return found


def _added(settings: Mapping[str, Any], pieces: Mapping[int, bytes]) -> dict[int, str]:
    """Return the added tokens of tokenizer_config.json that are none of the vocabulary."""
    listed, taken = settings.get("added_tokens_decoder"), {*pieces.values(), b""}
    found = {}
    for key, token in listed.items() if isinstance(listed, dict) else ():
        text = _text(token)
        if _ID.fullmatch(key) and text.encode("utf-8", "replace") not in taken:
            found[int(key)] = text
    return found


def _text(token: object) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
