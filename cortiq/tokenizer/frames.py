"""Frames: the tokens that a tokenizer's post-processor puts around one text, or around two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import TokenizerError, shown
from cortiq.tokenizer.encoding_cost import flattened

__all__ = ["FramedText", "Frames", "frames_of"]

Part = tuple[str | tuple[int, ...], int]
"""`A` or `B` for a text, or ids; and the number of the text that they count with."""


@dataclass(frozen=True)
class Frames:
    """Tokens around one text, and around a pair of texts."""

    single: tuple[Part, ...]
    pair: tuple[Part, ...]


@dataclass(frozen=True)
class FramedText:
    """Ids of one text or two, and for each the number of its text."""

    ids: tuple[int, ...]
    segments: tuple[int, ...]


def framed(parts: tuple[Part, ...], texts: Mapping[str, list[int]]) -> FramedText:
    """Put texts, ids by `A` and `B`, into a frame."""
    made = [
        (token, segment)
        for what, segment in parts
        for token in (texts[what] if isinstance(what, str) else what)
    ]
    return FramedText(tuple(t for t, _ in made), tuple(s for _, s in made))


def frames_of(processor: Mapping[str, Any] | None, where: str) -> Frames | None:
    """Return the frames of a tokenizer.json's post-processor; None where it adds nothing.

    Raises
    ------
    TokenizerError : a template names a token that it has no ids for.
    """
    found = None
    for step in flattened(processor, "processors"):
        if step["type"] == "TemplateProcessing":
            tokens = step["special_tokens"]
            found = Frames(*(_template(step[kind], tokens, where) for kind in ("single", "pair")))
        elif step["type"] in ("BertProcessing", "RobertaProcessing"):
            cls, sep = ((step[name][1],) for name in ("cls", "sep"))
            second = 1 if step["type"] == "BertProcessing" else 0
            single: tuple[Part, ...] = ((cls, 0), ("A", 0), (sep, 0))
            between: tuple[Part, ...] = () if second else ((sep, 0),)
            found = Frames(single, (*single, *between, ("B", second), (sep, second)))
    return found


def _template(pieces: Any, tokens: Mapping[str, Any], where: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    for piece in pieces:
        if "Sequence" in piece:
            parts.append((piece["Sequence"]["id"], piece["Sequence"]["type_id"]))
            continue
        name = piece["SpecialToken"]["id"]
        if name not in tokens:
            what = f"the post-processor's template has no ids for {shown(name)}"
            raise TokenizerError(what, where=where)
        parts.append((tuple(tokens[name]["ids"]), piece["SpecialToken"]["type_id"]))
    return tuple(parts)
