"""GGUF files written field by field, so that a test can get any one of them wrong."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

_FORMS = "BbHhIif?__Qqd"
_NUMBERS = {form: number for number, form in enumerate(_FORMS)}


def string(text: str | bytes) -> bytes:
    """A length-prefixed string."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def scalar(key: str | bytes, form: str, value: Any) -> bytes:
    """A metadata entry with one number, `form` as in struct."""
    return string(key) + struct.pack("<I", _NUMBERS[form]) + struct.pack("<" + form, value)


def text(key: str | bytes, value: str | bytes) -> bytes:
    """A metadata entry with one string."""
    return string(key) + struct.pack("<I", 8) + string(value)


def numbers(key: str, form: str, values: list[Any]) -> bytes:
    """A metadata entry with an array of numbers."""
    head = string(key) + struct.pack("<IIQ", 9, _NUMBERS[form], len(values))
    return head + struct.pack(f"<{len(values)}{form}", *values)


def texts(key: str, values: list[str | bytes]) -> bytes:
    """A metadata entry with an array of strings."""
    head = string(key) + struct.pack("<IIQ", 9, 8, len(values))
    return head + b"".join(map(string, values))


def tensor(name: str | bytes, dims: list[int], kind: int, offset: int) -> bytes:
    """A line of the tensor table; dims innermost first."""
    head = string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
    return head + struct.pack("<IQ", kind, offset)


@dataclass
class File:
    """The pieces of a GGUF file."""

    entries: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    entry_count: int | None = None
    alignment: int = 32

    def header(self) -> bytes:
        """Everything before the padding."""
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        entries = len(self.entries) if self.entry_count is None else self.entry_count
        head = self.magic + struct.pack("<IQQ", self.version, tensors, entries)
        return head + b"".join(self.entries) + b"".join(self.tensors)

    def __bytes__(self) -> bytes:
        head = self.header()
        return head + bytes(-len(head) % self.alignment) + self.data


def small() -> File:
    """Two tensors, F32 [2, 3] and Q4_1 [1, 32], and an entry of every kind."""
    entries = [text("general.architecture", "llama"), scalar("a.u8", "B", 255)]
    entries += [scalar("a.i8", "b", -1), scalar("a.u16", "H", 65535), scalar("a.i16", "h", -2)]
    entries += [scalar("a.u32", "I", 1 << 31), scalar("a.i32", "i", -3), scalar("a.f32", "f", 0.5)]
    entries += [scalar("a.yes", "?", True), scalar("a.u64", "Q", 1 << 63)]
    entries += [scalar("a.i64", "q", -4), scalar("a.f64", "d", 0.1), text("a.text", "Ġ ∑")]
    entries += [numbers("b.i32", "i", [1, -2, 3]), numbers("b.none", "f", [])]
    entries += [numbers("b.yes", "?", [True, False]), texts("b.texts", ["", "a", "∑"])]
    tensors = [tensor("first", [3, 2], 0, 0), tensor("second.weight", [32, 1], 3, 32)]
    return File(entries, tensors, struct.pack("<6f", *range(6)) + bytes(8) + bytes(range(20)))


def parts(count: int) -> list[File]:
    """A model in parts, one tensor each; part 0 has the metadata."""
    files = []
    for number in range(count):
        entries = [scalar("split.no", "H", number), scalar("split.count", "H", count)]
        entries += [scalar("split.tensors.count", "i", count)]
        if number == 0:
            entries.append(text("general.architecture", "llama"))
        data = struct.pack("<4f", *[number] * 4)
        files.append(File(entries, [tensor(f"t{number}", [4], 0, 0)], data))
    return files
