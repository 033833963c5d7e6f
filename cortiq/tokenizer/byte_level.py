"""Byte-level BPE: the printable alphabet of bytes, and a merge engine of `tokenizers`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from cortiq.errors import TokenizerError
from cortiq.tokenizer.pretokenizers import PreTokenizer

if TYPE_CHECKING:
    import tokenizers

__all__ = [
    "ByteLevelEncoder",
    "byte_alphabet",
    "encoded",
    "in_one_line",
    "library_errors",
    "missing_bytes",
    "piece_bytes",
    "refuse_missing_bytes",
]

LONG = 1 << 14
"""Characters of a text that others should not have to wait for."""


@cache
def byte_alphabet() -> tuple[str, ...]:
    """Return the 256 characters that stand for bytes in a byte-level vocabulary, in byte order.

    Bytes 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for themselves; the other 68, ascending, are
    U+0100, U+0101, ... Source: GPT-2's encoder.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


@cache
def _byte_of() -> dict[str, int]:
    return {character: byte for byte, character in enumerate(byte_alphabet())}


def piece_bytes(piece: str) -> bytes:
    """Return the bytes of a byte-level piece; one with a foreign character is plain text."""
    table = _byte_of()
    try:
        return bytes([table[character] for character in piece])
    except KeyError:
        return piece.encode("utf-8", "surrogateescape")  # as invalid UTF-8 does


class ByteLevelEncoder:
    """Text to ids by byte-level BPE; the merging is done by the `tokenizers` library.

    Parameters
    ----------
    vocabulary : piece -> id, of the tokens that text may become.
    merges : pairs of pieces, first merged first.
    pre_tokenizer : splits text into words before merging.

    Raises
    ------
    TokenizerError : when a merge names a piece that the vocabulary lacks.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        pre_tokenizer: PreTokenizer,
    ) -> None:
        self._engine = _build(vocabulary, merges, pre_tokenizer)
        self._missing = missing_bytes(vocabulary)
        self._normalized = _nfc() if pre_tokenizer.nfc else str

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, from which special tokens have been cut."""
        text = self._normalized(text)
        refuse_missing_bytes(text, self._missing)
        with library_errors("the text cannot be encoded"):
            return encoded(self._engine, text)


def encoded(engine: tokenizers.Tokenizer, text: str) -> list[int]:
    """Encode a text with the library, without special tokens.

    A long one goes as a batch of one: only for batches does the library let other threads run
    meanwhile, and a text of megabytes takes seconds.
    """
    if len(text) < LONG:
        return engine.encode(text, add_special_tokens=False).ids
    return engine.encode_batch_fast([text], add_special_tokens=False)[0].ids


@contextmanager
def library_errors(what: str, where: str | None = None) -> Iterator[None]:
    """Turn what `tokenizers` raises into a TokenizerError: bare Exceptions, and what Rust panics
    with, which is an exception that is no Exception.
    """
    try:
        yield
    except BaseException as error:
        foreign = type(error) is Exception or type(error).__name__ == "PanicException"
        if not foreign and not isinstance(error, (ValueError, OverflowError)):
            raise
        raise TokenizerError(f"{what}: {in_one_line(error)}", where=where) from error


def in_one_line(error: BaseException) -> str:
    """Return the library's message, which may quote much of a file, cut to 300 characters."""
    return " ".join(str(error)[:1000].split())[:300]


def missing_bytes(vocabulary: Container[str]) -> frozenset[int]:
    """Return the bytes without a piece in a vocabulary (SmolLM2 lacks 0x04, 0x06, 0x13, ...)."""
    return frozenset(b for b, letter in enumerate(byte_alphabet()) if letter not in vocabulary)


def refuse_missing_bytes(text: str, missing: frozenset[int]) -> None:
    """Raise a TokenizerError when `text` has bytes without a piece.

    The merge engine would drop them, and a prompt must not lose characters silently.
    """
    found = missing.intersection(text.encode("utf-8")) if missing else None
    if found:
        names = ", ".join(f"0x{byte:02X}" for byte in sorted(found))
        raise TokenizerError(
            f"the vocabulary has no token for byte {names} of the text",
            hint="Remove the character, or use a model whose vocabulary covers all bytes.",
        )


def _nfc() -> Callable[[str], str]:
    """Return the library's NFC normaliser: Python's may follow another version of Unicode."""
    from tokenizers.normalizers import NFC

    normalized: Callable[[str], str] = NFC().normalize_str
    return normalized


def _build(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    pre_tokenizer: PreTokenizer,
) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    with library_errors("vocabulary and merges do not fit"):
        model = BPE(
            vocab=dict(vocabulary),
            merges=list(merges),
            ignore_merges=pre_tokenizer.ignore_merges,
        )
    engine = Tokenizer(model)
    stages = [Split(Regex(stage), "isolated") for stage in pre_tokenizer.stages]
    alphabet = ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = Sequence([*stages, alphabet])
    return engine
