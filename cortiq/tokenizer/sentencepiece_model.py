"""SentencePiece's tokenizer.model, BPE or Unigram, as a tokenizer.json.

The file is a message of Protocol Buffers (sentencepiece_model.proto): pieces with scores, and the
settings of trainer and normalizer. Words are not cut; what stands for a space is a letter.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import TokenizerError, UnsupportedError
from cortiq.tokenizer.description import begins_with, special_tokens
from cortiq.tokenizer.score_merge import SPACE

__all__ = ["SentenceModel", "described", "sentencepiece_json"]

NAMES = ("unk_token", "bos_token", "eos_token")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
MODELS: Mapping[int, str] = {1: "Unigram", 2: "BPE"}
Fields = Mapping[int, list[Any]]


def _fields(data: bytes) -> dict[int, list[Any]]:
    """Return a message's fields by number; IndexError or struct.error if it is none."""
    at, found = 0, dict[int, list[Any]]()
    while at < len(data):
        key, at = _number(data, at)
        kind = key & 7
        value: Any
        if kind == 0:
            value, at = _number(data, at)
        elif kind == 2:
            length, at = _number(data, at)
            value, at = data[at : at + length], at + length
        else:
            form = {1: "<d", 5: "<f"}[kind]
            (value,) = struct.unpack_from(form, data, at)
            at += struct.calcsize(form)
        found.setdefault(key >> 3, []).append(value)
    if at > len(data):
        raise IndexError
    return found


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 128 and shift < 63:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | (data[at] & 127) << shift, at + 1


@dataclass(frozen=True)
class SentenceModel:
    """Pieces and settings of the file."""

    pieces: list[tuple[str, float, int]]
    trainer: Fields
    normalizer: Fields
    where: str

    @classmethod
    def read(cls, data: bytes, where: str) -> SentenceModel:
        """Read the file; TokenizerError if it is none, or has a piece twice."""
        try:
            whole = _fields(data)
            pieces = [
                (entry[1][0].decode(), float(entry.get(2, [0.0])[0]), int(entry.get(3, [1])[0]))
                for entry in map(_fields, whole[1])
            ]
            settings = [_fields(whole.get(number, [b""])[0]) for number in (2, 3)]
        except (IndexError, KeyError, struct.error, TypeError, ValueError, AttributeError):
            raise TokenizerError("is no model of SentencePiece", where=where) from None
        if len({text for text, _, _ in pieces}) != len(pieces):
            raise TokenizerError("a piece appears twice", where=where)
        if not all(math.isfinite(score) for _, score, _ in pieces):
            raise TokenizerError("a piece's score is not a finite number", where=where)
        return cls(pieces, settings[0], settings[1], where)

    def flag(self, number: int, default: bool) -> bool:
        """Return a switch of the normalizer."""
        return bool(self.normalizer.get(number, [default])[0])

    def names(self) -> dict[str, str]:
        """Return the texts of the unknown token, BOS and EOS."""
        ids = {name: int(self.trainer.get(40 + n, [n])[0]) for n, name in enumerate(NAMES)}
        return {name: self.pieces[n][0] for name, n in ids.items() if 0 <= n < len(self.pieces)}

    def of(self, kind: int) -> dict[int, str]:
        """Return the pieces of a kind by id."""
        return {n: text for n, (text, _, own) in enumerate(self.pieces) if own == kind}


def sentencepiece_json(
    data: bytes, where: str, *, bos: bool | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tokenizer.json of a tokenizer.model, and the texts of its special tokens.

    Parameters
    ----------
    bos : whether BOS goes before a text; None: before BPE's, as Llama's tokenizer does.

    Raises
    ------
    UnsupportedError : its model is neither BPE nor Unigram, or writes spaces behind words.
    """
    model = SentenceModel.read(data, where)
    kind = int(model.trainer.get(3, [1])[0])
    if kind not in MODELS:
        raise UnsupportedError("its model is of words or characters", where=where)
    if model.trainer.get(24, [0])[0]:
        raise UnsupportedError("it writes a space behind each word", where=where)
    first = MODELS[kind] == "BPE" if bos is None else bos
    return described(model, MODELS[kind], _beginning(model) if first else None), model.names()


def described(
    model: SentenceModel, kind: str, post_processor: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the tokenizer.json of a model of a kind, `BPE` or `Unigram`."""
    special = {**model.of(CONTROL), **model.of(UNKNOWN)}
    user = sorted(model.of(USER_DEFINED).values(), key=len, reverse=True)
    whole = {"Regex": "|".join(map(re.escape, user))}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": special_tokens(special),
        "normalizer": {"type": "Sequence", "normalizers": list(_normalizers(model))},
        "pre_tokenizer": {
            "type": "Split", "pattern": whole, "behavior": "Isolated", "invert": False,
        } if user else None,
        "post_processor": post_processor,
        "decoder": {"type": "Sequence", "decoders": list(_decoders(model))},
        "model": _bpe(model) if kind == "BPE" else _unigram(model),
    }  # fmt: skip


def _replace(pattern: Mapping[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": dict(pattern), "content": content}


def _normalizers(model: SentenceModel) -> Iterator[dict[str, Any]]:
    """Yield the steps that SentencePiece takes, in its order."""
    table = model.normalizer.get(2, [b""])[0]
    if table:
        encoded = base64.b64encode(table).decode()
        yield {"type": "Precompiled", "precompiled_charsmap": encoded}
    if model.flag(4, True):
        yield _replace({"Regex": r"\A +| +\z"}, "")
        yield _replace({"Regex": " {2,}"}, " ")
    if model.flag(3, True):
        yield {"type": "Prepend", "prepend": SPACE}
    if model.flag(5, True):
        yield _replace({"String": " "}, SPACE)


def _decoders(model: SentenceModel) -> Iterator[dict[str, Any]]:
    yield _replace({"String": SPACE}, " ")
    yield {"type": "ByteFallback"}
    yield {"type": "Fuse"}
    if model.flag(3, True):
        yield {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _beginning(model: SentenceModel) -> dict[str, Any]:
    text = model.names().get("bos_token")
    if text is None:
        raise TokenizerError("BOS is wanted, but the file has none", where=model.where)
    return begins_with(text, [piece for piece, _, _ in model.pieces].index(text))


def _unigram(model: SentenceModel) -> dict[str, Any]:
    return {
        "type": "Unigram", "unk_id": int(model.trainer.get(40, [0])[0]),
        "byte_fallback": bool(model.of(BYTE)),
        "vocab": [[text, 0.0 if kind == USER_DEFINED else score]
                  for text, score, kind in model.pieces],
    }  # fmt: skip


def _bpe(model: SentenceModel) -> dict[str, Any]:
    """Return BPE whose merges make a piece of any two, the best score first."""
    normal = {text: (-score, token) for token, (text, score, kind) in enumerate(model.pieces)
              if kind == NORMAL}  # fmt: skip
    merges = [
        [text[:at], text[at:]]
        for text in sorted(normal, key=normal.__getitem__)
        for at in range(1, len(text))
        if text[:at] in normal and text[at:] in normal
    ]
    unknown = model.of(UNKNOWN)
    return {
        "type": "BPE", "unk_token": next(iter(unknown.values()), None), "fuse_unk": True,
        "byte_fallback": bool(model.of(BYTE)), "ignore_merges": bool(model.of(USER_DEFINED)),
        "vocab": {text: token for token, (text, _, _) in enumerate(model.pieces)},
        "merges": merges,
    }  # fmt: skip
