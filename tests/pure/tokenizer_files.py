"""Small tokenizer.json files, as dictionaries to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LETTERS = [*"abcdefghijklmnopqrstuvwxyz ▁Ġ"]
VOCABULARY = {letter: token for token, letter in enumerate(LETTERS)}


def described(**changes: Any) -> dict[str, Any]:
    """A tokenizer.json of letters, without normalizer, pre-tokenizer and decoder."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "unk_token": "a", "vocab": VOCABULARY, "merges": []},
    } | changes


def sequence(inside: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", inside: parts}


def replacing(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def template(single: list[str], ids: list[int]) -> dict[str, Any]:
    """A template over the text ("A") and a token of several ids ("x")."""
    pieces = [
        {"Sequence" if name == "A" else "SpecialToken": {"id": name, "type_id": 0}}
        for name in single
    ]
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    special = {"x": {"id": "x", "ids": ids, "tokens": ["x"] * len(ids)}}
    return {
        "type": "TemplateProcessing",
        "single": pieces,
        "pair": pair,
        "special_tokens": special,
    }


def added(token: int, content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": token, "content": content, **plain, **flags}


def write(folder: Path, file: dict[str, Any]) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(file))
    return folder
