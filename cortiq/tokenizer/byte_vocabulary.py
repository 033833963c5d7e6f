"""The vocabulary of synthetic models: bytes, and two control tokens."""

from __future__ import annotations

from cortiq.errors import TokenizerError
from cortiq.tokenizer.decoders import ByteStream

__all__ = ["ByteVocabulary"]


class ByteVocabulary:
    """Token i is byte i; then `<bos>`, `<eos>`, and placeholders up to the size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._names = {"<bos>": 256, "<eos>": 257}
        self._names |= {f"<{token}>": token for token in range(258, size)}
        self._texts = {token: name for name, token in self._names.items()}

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Return the ids of a text."""
        if not parse_special:
            return self._encode_bytes(text)
        ids: list[int] = []
        for index, part in enumerate(_split_bos_eos(text)):
            ids += [self._names[part]] if index % 2 else self._encode_bytes(part)
        return ids

    def _encode_bytes(self, text: str) -> list[int]:
        data = text.encode("utf-8")
        if data and max(data) >= self.size:
            raise TokenizerError(
                f"byte 0x{max(data):02X} of the text is out of a vocabulary of {self.size} ids"
            )
        return list(data)

    def piece_bytes(self, token_id: int) -> bytes:
        """Return the bytes of an id."""
        return bytes([token_id]) if token_id < 256 else self._texts[token_id].encode()

    def stream(self, continuation: bool) -> ByteStream:
        """Open a stream that decodes ids."""
        return ByteStream(self.piece_bytes)

    def own_text(self, token_id: int) -> str:
        """Return the text by which `find` finds this token."""
        return self._texts.get(token_id, chr(token_id))

    def find(self, text: str) -> int | None:
        """Return the id of the token written exactly like this, if there is one."""
        token = self._names.get(text)
        return token if token is not None and token < self.size else None


def _split_bos_eos(text: str) -> list[str]:
    import re

    return re.split("(<bos>|<eos>)", text)
