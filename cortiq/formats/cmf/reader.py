"""CMF files, memory-mapped: opened in the order of checks of the format, in one part or several."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from mmap import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, UnsupportedError, shown
from cortiq.formats.cmf.directory import (
    ENVELOPE_BYTES,
    SKILL_FILE,
    UNIT,
    Entry,
    Envelope,
    read_directory,
    read_envelope,
)
from cortiq.formats.cmf.dtypes import fits
from cortiq.formats.cmf.hash64 import hash64
from cortiq.formats.cmf.header import Header, parse_header
from cortiq.formats.cmf.layouts import FLOATS, layout_of, tensor_of
from cortiq.formats.cmf.masks import MaskCatalogue, read_masks, read_sparse_index
from cortiq.formats.cmf.payloads import problem
from cortiq.formats.digest import file_sha256, files_sha256
from cortiq.formats.mapped import MappedTensors, TensorInfo, map_file, refuse_overlaps
from cortiq.formats.own_layout import OwnTensor
from cortiq.formats.packed_tensors import PackedTensor
from cortiq.formats.raw_tensor import RawTensor

SUFFIX, SKILL_PREFIX = ".cmf", "skill."
SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.cmf", re.DOTALL)
"""Names of parts."""
Bytes = npt.NDArray[np.uint8]


@dataclass
class CMFPart:
    """One file: its sections, checked.

    Attributes
    ----------
    masks, vocabulary : of the first file of a model. indexed : entries of the sparse index.
    """

    path: Path
    buffer: mmap
    envelope: Envelope
    header: Header
    entries: list[Entry]
    masks: MaskCatalogue = field(default_factory=MaskCatalogue)
    indexed: int = 0

    def section(self, name: str) -> Bytes:
        """Return the bytes of a section; none if it is absent."""
        first, length = self.envelope.place(name)
        return np.frombuffer(self.buffer, np.uint8, length, first if length else 0)

    def payload(self, entry: Entry) -> Bytes:
        """Return the bytes of a tensor."""
        first = self.envelope.place("data")[0] + entry.offset
        return np.frombuffer(self.buffer, np.uint8, entry.nbytes, first)

    def problems(self) -> Iterator[str]:
        """Yield what does not have the hash that the file holds; reads all."""
        where, envelope = self.path.name, self.envelope
        for name, wanted in (
            ("header", envelope.header_hash), ("directory", envelope.directory_hash),
        ):  # fmt: skip
            if wanted and hash64(self.section(name)) != wanted:
                yield f"{where}: the {name} differs from its hash"
        yield from self._section_problems()
        for entry in self.entries:
            if hash64(self.payload(entry)) != entry.hash:
                yield f"{where}: tensor {entry.name!r} differs from its hash"

    def _section_problems(self) -> Iterator[str]:
        said = self.header.section_hashes
        for name in ("masks", "vocabulary", "index"):
            text = getattr(said, {"vocabulary": "vocab"}.get(name, name), None)
            if text is None:
                continue
            if not re.fullmatch(r"[0-9a-f]{16}", text):
                yield f"{self.path.name}: the hash of the {name} is {shown(text)}"
            elif int(text, 16) not in (0, hash64(self.section(name))):
                yield f"{self.path.name}: the {name} differs from its hash"


def read_part(path: Path, strict: bool = True) -> CMFPart:
    """Open one file of a model and check it whole, but for hashes; tensors' codes are not read.

    Raises
    ------
    ModelNotFoundError : there is no such file.
    FormatError : it is truncated, corrupt or inconsistent.
    UnsupportedError : a version, feature or encoding that is not known.
    """
    where, buffer = str(path), map_file(path)
    envelope = read_envelope(buffer[:ENVELOPE_BYTES], len(buffer), where)
    whole = np.frombuffer(buffer, np.uint8)
    first, length = envelope.place("header")
    header = parse_header(buffer[first : first + length], where, strict)
    first, length = envelope.place("directory")
    entries = read_directory(whole[first : first + length], where, strict)
    part = CMFPart(path, buffer, envelope, header, entries)
    for entry in entries:
        _check_entry(part, entry, strict)
    names = {entry.name for entry in entries}
    if len(names) != len(entries):
        raise FormatError("has two tensors of one name", where=where)
    if strict:
        infos = [_info(part, 0, entry, "") for entry in entries]
        refuse_overlaps(infos, path)
    if envelope.place("masks")[1]:
        part.masks = read_masks(part.section("masks"), header.arch, where)
    if envelope.place("index")[1]:
        part.indexed = read_sparse_index(part.section("index"), where)
    return part


def _check_entry(part: CMFPart, entry: Entry, strict: bool) -> None:
    inside = part.envelope.place("data")[1]
    where, name = str(part.path), shown(entry.name)
    if entry.offset % UNIT or entry.offset + entry.nbytes > inside:
        what = f"{name} lies at {entry.offset}, {entry.nbytes} bytes long, in {inside} of data"
        raise FormatError(what, where=where)
    if prod(entry.shape) >= 1 << 63:
        raise FormatError(f"{name} has the shape {list(entry.shape)}", where=where)
    unfit = fits(entry.dtype, entry.shape)
    if unfit:  # the original opens some of these, and reads past their ends
        raise FormatError(f"{name}: {unfit}", where=where)
    found = problem(entry.dtype, entry.shape, part.payload(entry), strict)
    if found:
        raise FormatError(f"{name} {found}", where=where)


def _info(part: CMFPart, number: int, entry: Entry, layout: str) -> TensorInfo:
    first = part.envelope.place("data")[0] + entry.offset
    row = entry.nbytes // max(1, prod(entry.shape[:-1]))
    return TensorInfo(entry.name, entry.shape, layout, number, first, entry.nbytes, row)


class CMFFile(MappedTensors):
    """An open model: its graph's tensors in layouts of the contract, and everything else typed.

    Attributes
    ----------
    parts : the files. strict : whether they were checked whole; else tensors are when used.
    header : the first one's. entries : every tensor, with its file.
    skill_tensors : names of tensors that belong to skills. blobs : names of those of plain bytes.
    """

    def __init__(self, parts: list[CMFPart], strict: bool = True) -> None:
        self.parts, self.header, self.strict = parts, parts[0].header, strict
        self.entries: dict[str, tuple[CMFPart, Entry]] = {}
        tensors: dict[str, TensorInfo] = {}
        for number, part in enumerate(parts):
            for entry in part.entries:
                if entry.name in self.entries:
                    what = f"tensor {entry.name!r} is also in another part"
                    raise FormatError(what, where=str(part.path))
                self.entries[entry.name] = part, entry
                if entry.dtype.decodes and not entry.name.startswith(SKILL_PREFIX):
                    layout = layout_of(entry.dtype, entry.shape, part.payload(entry))
                    tensors[entry.name] = _info(part, number, entry, layout)
        self.skill_tensors = tuple(n for n in self.entries if n.startswith(SKILL_PREFIX))
        self.blobs = tuple(n for n, (_, entry) in self.entries.items() if not entry.dtype.decodes)
        paths = [part.path for part in parts]
        super().__init__(paths[0], paths, tensors, [part.buffer for part in parts])

    @property
    def masks(self) -> MaskCatalogue:
        """The task masks."""
        return self.parts[0].masks

    @property
    def vocabulary(self) -> Bytes:
        """The bytes of tokenizer.json; none where it lies beside the file."""
        return self.parts[0].section("vocabulary")

    @property
    def is_skill(self) -> bool:
        """Whether this is a detached skill file: tensors for another model."""
        own = any(skill.base_dir_hash for skill in self.header.skills)
        return own or bool(self.parts[0].envelope.features & SKILL_FILE)

    def joined(self, name: str) -> OwnTensor | PackedTensor | None:
        """Return a tensor that is not of plain numbers, in its layout; None for one that is."""
        part, entry = self.entries[name]
        if entry.dtype.name in FLOATS:
            return None
        if not self.strict:
            found = problem(entry.dtype, entry.shape, part.payload(entry))
            if found:
                raise FormatError(f"{shown(name)} {found}", where=str(part.path))
        return tensor_of(name, entry.dtype, entry.shape, part.payload(entry))

    def tensor(self, name: str) -> RawTensor | OwnTensor | PackedTensor:
        """Return any tensor that has values, those of skills too."""
        part, entry = self.entries[name]
        joined = self.joined(name)
        if joined is not None:
            return joined
        raw = part.payload(entry).reshape(*entry.shape[:-1], -1)
        return RawTensor(name, entry.shape, FLOATS[entry.dtype.name], raw)

    def sha256(self) -> str:
        """Return the hash of the file, or of all files, that tells models apart; reads all."""
        return file_sha256(self.paths[0]) if len(self.paths) == 1 else files_sha256(self.paths)

    def problems(self) -> Iterator[str]:
        """Yield what of all parts does not have the hash that it was written with; reads all."""
        for part in self.parts:
            yield from part.problems()

    def close(self) -> None:
        """Release the files."""
        super().close()


def open_cmf(path: str | Path, strict: bool = True) -> CMFFile:
    """Open a model by its file, or by its first part.

    Parameters
    ----------
    strict : check everything that a file says; otherwise what the original engine checks.

    Raises
    ------
    ModelNotFoundError, FormatError, UnsupportedError : as `read_part`, or parts are missing.
    """
    path = Path(path)
    first = read_part(path, strict)
    shard = first.header.shard
    if shard is None or shard.count == 1:
        return CMFFile([first], strict)
    name = SHARD_NAME.fullmatch(path.name)
    if shard.no != 1 or not name or (int(name["no"]), int(name["count"])) != (1, shard.count):
        what = f"is part {shard.no} of {shard.count}"
        hint = f"open part 1, whose name ends in -00001-of-{shard.count:05}.cmf"
        raise FormatError(what, where=str(path), hint=hint)
    names = [f"{name['stem']}-{no:05}-of-{shard.count:05}.cmf" for no in range(2, shard.count + 1)]
    missing = [other for other in names if not (path.parent / other).is_file()]
    if missing:
        what = f"{len(missing)} of {shard.count} parts are missing, the first: {missing[0]}"
        raise FormatError(what, where=str(path), hint=f"all parts belong in {path.parent}")
    parts = [first]
    for number, other in enumerate(names, 2):
        part = read_part(path.parent / other, strict)
        said = part.header.shard
        if said is None or (said.no, said.count) != (number, shard.count):
            what = f"does not say that it is part {number} of {shard.count}"
            raise FormatError(what, where=str(part.path))
        parts.append(part)
    return CMFFile(parts, strict)


def refuse_skill(file: CMFFile) -> None:
    """Raise UnsupportedError for a detached skill file, which is no model by itself."""
    if file.is_skill:
        skill = file.header.skills[0].id if file.header.skills else "?"
        base = file.header.skills[0].base_arch if file.header.skills else None
        what = f"is the skill {shown(skill)} alone, of a model {shown(base)}"
        hint = "apply it to that model first; a skill file runs nothing by itself"
        raise UnsupportedError(what, where=str(file.path), hint=hint)
