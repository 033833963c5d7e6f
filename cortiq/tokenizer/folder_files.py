"""Find the file of a folder that holds the tokenizer; what is no tokenizer.json becomes one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cortiq.errors import NoTokenizerError
from cortiq.formats.strict_json import read_bytes, read_object
from cortiq.tokenizer.rank_files import tekken_json, tiktoken_json
from cortiq.tokenizer.sentencepiece_model import sentencepiece_json

__all__ = ["FoundTokenizer", "find_tokenizer"]

RANKS = ("*.tiktoken", "tiktoken.model", "tokenizer.model")
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")


@dataclass(frozen=True)
class FoundTokenizer:
    """A tokenizer of a folder.

    Attributes
    ----------
    data : of its tokenizer.json. where : the file that was read.
    names : texts of special tokens, where no configuration says others.
    """

    data: bytes
    where: str
    names: Mapping[str, str] = field(default_factory=dict)


def find_tokenizer(path: Path, settings: Mapping[str, Any]) -> FoundTokenizer:
    """Find the tokenizer of a folder: tokenizer.json, tekken.json, tiktoken or SentencePiece files.

    Parameters
    ----------
    settings : of tokenizer_config.json.

    Raises
    ------
    NoTokenizerError : there is none, or only code, which is not run.
    """
    file = path / "tokenizer.json"
    if file.is_file():
        return FoundTokenizer(read_bytes(file), str(file))
    file = path / "tekken.json"
    if file.is_file():
        made = tekken_json(read_object(file), str(file))
        return _found(made, file, {"bos_token": "<s>", "eos_token": "</s>"})
    for file in sorted(found for name in RANKS for found in path.glob(name)):
        data = read_bytes(file)
        if _RANK_LINE.match(data):
            return _found(tiktoken_json(data, settings, str(file)), file)
        made, names = sentencepiece_json(data, str(file), bos=settings.get("add_bos_token"))
        return _found(made, file, names)
    raise _no_tokenizer(path, settings)


def _found(
    made: Mapping[str, Any], file: Path, names: Mapping[str, str] | None = None
) -> FoundTokenizer:
    return FoundTokenizer(json.dumps(made, ensure_ascii=False).encode(), str(file), names or {})


def _no_tokenizer(path: Path, settings: Mapping[str, Any]) -> NoTokenizerError:
    """Return the error for a folder without a file that holds a tokenizer."""
    what = "the folder has no tokenizer.json: give token ids instead of text"
    hint = (
        "On the command line with --ids. Or save one with transformers: "
        "AutoTokenizer.from_pretrained(...).save_pretrained()."
    )
    code = settings.get("auto_map")
    if isinstance(code, dict) and code.get("AutoTokenizer"):
        name = code["AutoTokenizer"]
        module = str(name[0] if isinstance(name, list) else name).split(".")[0]
        what = f"its tokenizer is code ({module}.py), which is not run; a tokenizer.json would do"
    return NoTokenizerError(what, where=str(path), hint=hint)
