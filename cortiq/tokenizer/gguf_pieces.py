"""GGUF tokenizers of encoders: word pieces ("bert") and Unigram ("t5"), as a tokenizer.json.

What stands around a text is what llama.cpp puts there (`add_bos_token`, `add_eos_token`,
`add_sep_token`). A pair of word pieces has BERT's form, in which the second text is told apart.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from cortiq.errors import TokenizerError
from cortiq.tokenizer.description import special_tokens
from cortiq.tokenizer.frames import Frames, Part
from cortiq.tokenizer.gguf_fields import HIDDEN, PREFIX, Tokens, array, flag, named_id
from cortiq.tokenizer.library_vocabulary import LibraryVocabulary, engine_of
from cortiq.tokenizer.score_merge import SPACE
from cortiq.tokenizer.sentencepiece_model import SentenceModel, described

__all__ = ["frames_in_gguf", "unigram", "word_pieces"]

LONGEST_WORD = 100
"""Characters; BERT's tokenizer takes a longer word for unknown."""
CLS, SEP, UNKNOWN = 101, 102, 100
"""Ids of BERT's vocabulary, which files of llama.cpp may leave out."""
CONTINUES = "##"


def frames_in_gguf(
    metadata: Mapping[str, Any], size: int, *, bos: int | None, eos: bool = False, sep: bool = False
) -> Frames | None:
    """Return what a file puts around a text, and around two; None where that is BOS at most.

    Parameters
    ----------
    bos : the token before a text, None without one.
    eos, sep : whether a text ends with EOS, and a pair is parted by SEP, where the file says
        nothing.
    """
    ends = flag(metadata, "add_eos_token", eos)
    parted = flag(metadata, "add_sep_token", sep)
    if not ends and not parted:
        return None
    before: tuple[Part, ...] = () if bos is None else (((bos,), 0),)
    end = _part(metadata, "eos", size) if ends else ()
    between = _part(metadata, "seperator", size) if parted else ()
    single = (*before, ("A", 0), *end)
    return Frames(single, (*single, *between, ("B", 0), *end))


def _part(metadata: Mapping[str, Any], name: str, size: int) -> tuple[Part, ...]:
    token = named_id(metadata, name, size, None)
    if token is None:
        message = "a text is framed by a token that the file does not name"
        raise TokenizerError(message, where=f"{PREFIX}{name}_token_id")
    return (((token,), 0),)


def word_pieces(metadata: Mapping[str, Any], tokens: Tokens) -> LibraryVocabulary:
    """Open BERT's vocabulary: a word's first piece begins with ▁ in the file, others do not."""
    ids = {
        name: named_id(metadata, name, tokens.size, default)
        for name, default in (("bos", CLS), ("seperator", SEP), ("unknown", UNKNOWN))
    }
    if missing := [name for name, token in ids.items() if token is None]:
        message = "word pieces need this token, which the file does not name"
        raise TokenizerError(message, where=f"{PREFIX}{missing[0]}_token_id")
    lower = flag(metadata, "normalizer.lowercase", True)
    texts = [_piece(text, kind) for text, kind in zip(tokens.texts, tokens.types, strict=True)]
    hidden = {n: texts[n] for n, kind in enumerate(tokens.types) if kind in HIDDEN}
    cls, sep, unknown = (texts[token] for token in ids.values() if token is not None)
    made = _file(
        hidden, {"type": "BertProcessing", "cls": [cls, ids["bos"]],
                 "sep": [sep, ids["seperator"]]},
        normalizer={
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": flag(metadata, "normalizer.strip_accents", lower), "lowercase": lower,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": CONTINUES, "cleanup": True},
        model={
            "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": CONTINUES,
            "max_input_chars_per_word": LONGEST_WORD,
            "vocab": {text: token for token, text in enumerate(texts)},
        },
    )  # fmt: skip
    return _opened(made)


def _piece(text: str, kind: int) -> str:
    """Return a piece as BERT's files write it; old converters left `[unused1]` as it is."""
    if kind in HIDDEN or (text.startswith("[") and text.endswith("]") and len(text) > 2):
        return text
    return text[1:] if text.startswith(SPACE) else CONTINUES + text


def unigram(metadata: Mapping[str, Any], tokens: Tokens) -> LibraryVocabulary:
    """Open SentencePiece's Unigram, with the normalizer that the file has."""
    scores = array(metadata, "scores", tokens.size)
    if not all(isinstance(score, (int, float)) and math.isfinite(score) for score in scores):
        raise TokenizerError("a token's score is not a finite number", where=PREFIX + "scores")
    unknown = named_id(metadata, "unknown", tokens.size, 2)
    bos = named_id(metadata, "bos", tokens.size, None)
    normalizer: dict[int, list[Any]] = {
        2: [_charsmap(metadata)], 3: [flag(metadata, "add_space_prefix", False)],
        4: [flag(metadata, "remove_extra_whitespaces", False)], 5: [True],
    }  # fmt: skip
    pieces = list(zip(tokens.texts, map(float, scores), tokens.types, strict=True))
    model = SentenceModel(pieces, {40: [unknown or 0]}, normalizer, PREFIX + "model")
    frames = frames_in_gguf(
        metadata, tokens.size, bos=bos if flag(metadata, "add_bos_token", False) else None, eos=True
    )
    return _opened(described(model, "Unigram", _template(frames, tokens)))


def _charsmap(metadata: Mapping[str, Any]) -> bytes:
    """Return the table of characters that the normalizer replaces; empty without one."""
    key = "precompiled_charsmap"
    if PREFIX + key not in metadata:
        return b""
    values = array(metadata, key)
    if not all(type(value) is int and -128 <= value <= 255 for value in values):
        raise TokenizerError("an array of bytes was expected", where=PREFIX + key)
    return bytes(value & 255 for value in values)


def _template(frames: Frames | None, tokens: Tokens) -> dict[str, Any] | None:
    """Return the post-processor of frames."""
    if frames is None:
        return None
    used = {token for part, _ in (*frames.single, *frames.pair) if not isinstance(part, str)
            for token in part}  # fmt: skip

    def written(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
        return [
            {"Sequence": {"id": part, "type_id": kind}} if isinstance(part, str)
            else {"SpecialToken": {"id": tokens.texts[part[0]], "type_id": kind}}
            for part, kind in parts
        ]  # fmt: skip

    named = {tokens.texts[token]: [token] for token in sorted(used)}
    return {
        "type": "TemplateProcessing", "single": written(frames.single),
        "pair": written(frames.pair),
        "special_tokens": {
            text: {"id": text, "ids": ids, "tokens": [text]} for text, ids in named.items()
        },
    }  # fmt: skip


def _file(hidden: Mapping[int, str], post: Mapping[str, Any], **parts: Any) -> dict[str, Any]:
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": special_tokens(hidden), "post_processor": post, **parts,
    }  # fmt: skip


def _opened(made: Mapping[str, Any]) -> LibraryVocabulary:
    data = json.dumps(made, ensure_ascii=False).encode()
    return LibraryVocabulary(engine_of(data, PREFIX + "model"), PREFIX + "model")
