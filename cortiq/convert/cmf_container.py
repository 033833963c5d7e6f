"""CMF files: a model's matrices in the encodings of a recipe, under the original engine's names."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.convert.cmf_arch import arch_of, check_arch, quant_type
from cortiq.convert.cmf_plan import (
    FORMATS,
    MADE_OTHERWISE,
    RECIPES,
    EncodedTensor,
    encoded_tensors,
    recoded_tensors,
    weights_of,
)
from cortiq.convert.cmf_tokenizer import bundle_of, tokenizer_json
from cortiq.convert.plan import PlannedTensor
from cortiq.convert.recipes import Recipe, read_recipe
from cortiq.convert.work_folder import WEIGHTS, Place, WorkFolder, publish
from cortiq.formats.checkpoint import Checkpoint
from cortiq.formats.cmf.decode import matrix_of
from cortiq.formats.cmf.directory import PAGE, Entry
from cortiq.formats.cmf.encode import encode_rows, part_sizes
from cortiq.formats.cmf.hash64 import hash64
from cortiq.formats.cmf.header import VERSION
from cortiq.formats.cmf.reader import CMFFile
from cortiq.formats.cmf.writer import TrailingSections, head_bytes, lay_out
from cortiq.models.bind import LoadedProgram

CHUNK = 1 << 22
_NAME = re.compile(r"(?P<stem>.*?)(-\d{5}-of-\d{5})?\.cmf", re.DOTALL)


def cmf_container(
    loaded: LoadedProgram, checkpoint: Checkpoint, out: Path, name: str, patterns: Sequence[str],
    shard_bytes: int = 0,
) -> tuple[Sequence[PlannedTensor], CMFContainer, Recipe]:  # fmt: skip
    """Plan a CMF file of a model.

    Raises
    ------
    RequestError : there is no such recipe.
    UnsupportedError : the format cannot describe the model, or its tokenizer.
    """
    if checkpoint.container is not None:
        weights = weights_of(loaded, checkpoint)
        return recoded_container(checkpoint.container, out, name, patterns, shard_bytes, weights)
    recipe = read_recipe(name, patterns, RECIPES, FORMATS)
    planned = list(encoded_tensors(loaded, recipe))
    recipe.check_used()
    arch = arch_of(loaded.family, loaded.config)
    shapes = {tensor.name: tensor.shape for tensor in planned}
    check_arch(arch, shapes, loaded.family, loaded.config)
    header = {
        "format": "cmf", "version": VERSION, "arch": arch,
        "tokenizer_config": bundle_of(checkpoint),
        "provenance": _provenance(recipe, checkpoint.model_hash()),
    }  # fmt: skip
    sections = TrailingSections(tokenizer_json(checkpoint))
    return planned, CMFContainer(planned, header, sections, out, shard_bytes), recipe


def recoded_container(
    file: CMFFile, out: Path, name: str, patterns: Sequence[str], shard_bytes: int = 0,
    weights: Mapping[str, str] | None = None,
) -> tuple[Sequence[PlannedTensor], CMFContainer, Recipe]:  # fmt: skip
    """Plan a CMF file of another one, whatever its family: no graph is made.

    Parameters
    ----------
    weights : canonical names of weights by the file's, where the graph is known.

    Raises
    ------
    RequestError : there is no such recipe, or a pattern fits no matrix.
    """
    recipe = read_recipe(name, patterns, RECIPES, FORMATS)
    planned = list(recoded_tensors(file, recipe, weights or {}))
    recipe.check_used()
    given = file.header.raw
    header = {k: v for k, v in given.items() if k not in ("shard", "section_hashes")}
    held = given.get("provenance")
    header["provenance"] = {
        **(held if isinstance(held, Mapping) else {"source": held} if held else {}),
        **_provenance(recipe, file.sha256()),
    }
    first = file.parts[0]
    names = ("vocabulary", "masks", "index")
    sections = TrailingSections(*(first.section(name).tobytes() for name in names))
    return planned, CMFContainer(planned, header, sections, out, shard_bytes), recipe


def _provenance(recipe: Recipe, source: str) -> dict[str, Any]:
    return {"tool": "cortiq", "source_sha256": source, "recipe": recipe.rule}


@dataclass
class _Shard:
    """A file of the model: its tensors, and where it begins among all files' bytes."""

    tensors: list[EncodedTensor]
    entries: list[Entry]
    size: int
    header: dict[str, Any]
    sections: TrailingSections
    at: int = 0
    head: int = 0

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.at + self.head + self.size + len(self.sections.joined)


class CMFContainer:
    """A CMF file, or several.

    Parameters
    ----------
    tensors : as planned. header : without hashes. sections : of the first file.
    out : its path. shard_bytes : most bytes of a file's tensors, 0 for one file.
    """

    def __init__(
        self, tensors: Sequence[EncodedTensor], header: Mapping[str, Any],
        sections: TrailingSections,
        out: Path, shard_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.out = out
        self._sizes = {t.name: self._part_sizes(t) for t in tensors}
        sizes: dict[str, int] = {}
        for tensor in tensors:
            size = sum(self._sizes[tensor.name])
            sizes[tensor.encoding] = sizes.get(tensor.encoding, 0) + size
        header = {**header, "quant_type": quant_type(sizes)}
        groups = list(self._groups(tensors, shard_bytes))
        self.shards = [
            self._shard(part, n + 1, len(groups), header, sections) for n, part in enumerate(groups)
        ]
        count = len(self.shards)
        parts = [shard_path(out, number, count) for number in range(1, count + 1)]
        self.files = [out] if count == 1 else parts
        at = 0
        for shard in self.shards:
            shard.at = -(-at // PAGE) * PAGE
            shard.head = len(self._head(shard, {}))
            at = shard.end
        self.size = at
        self.places: Mapping[str, Sequence[Place]] = dict(self._places())

    def _part_sizes(self, tensor: EncodedTensor) -> list[int]:
        if tensor.payload is not None:
            return [len(tensor.payload)]
        shape = matrix_of(tensor.shape)
        return part_sizes(tensor.encoding, shape, tensor.survey)

    def _groups(self, tensors: Sequence[EncodedTensor], most: int) -> Iterator[list[EncodedTensor]]:
        group: list[EncodedTensor] = []
        held = 0
        for tensor in tensors:
            size = sum(self._sizes[tensor.name])
            if group and most and held + size > most:
                yield group
                group, held = [], 0
            group.append(tensor)
            held += size
        yield group

    def _shard(
        self, tensors: list[EncodedTensor], no: int, count: int, header: Mapping[str, Any],
        sections: TrailingSections,
    ) -> _Shard:  # fmt: skip
        listed = [(t.name, t.encoding, t.shape, sum(self._sizes[t.name])) for t in tensors]
        entries, size = lay_out(listed)
        own = dict(header)
        if count > 1:
            own["shard"] = {"no": no, "count": count}
        if no > 1:
            own = {k: v for k, v in own.items() if k not in ("tokenizer_config", "skills")}
            sections = TrailingSections()
        return _Shard(tensors, entries, size, own, sections)

    def _places(self) -> Iterator[tuple[str, list[Place]]]:
        for shard in self.shards:
            for tensor, entry in zip(shard.tensors, shard.entries, strict=True):
                start, found = shard.at + shard.head + entry.offset, []
                for number, size in enumerate(self._sizes[tensor.name]):
                    found.append(Place(f"{tensor.name}#{number}", start, size))
                    start += size
                yield tensor.name, found

    @staticmethod
    def _head(shard: _Shard, hashes: Mapping[str, tuple[int, str]]) -> bytes:
        """Return a file's bytes before its tensors, of one length whatever the hashes."""
        zero = (0, "0" * 64)
        entries = [replace(e, hash=hashes.get(e.name, zero)[0]) for e in shard.entries]
        listed = {e.name: hashes.get(e.name, zero)[1] for e in entries}
        header = {**shard.header, "cortiq": {"sha256": listed}}
        return head_bytes(header, entries, shard.size, shard.sections)

    def header(self, hashes: Mapping[str, Mapping[str, str]]) -> bytes:
        """Return the first file's first bytes, without hashes: `publish` writes those."""
        return self._head(self.shards[0], {})

    def pieces(self, tensor: PlannedTensor) -> Iterator[Sequence[npt.NDArray[Any]]]:
        """Yield rows of a tensor as the file has them, by part; the bytes of one that stays."""
        assert isinstance(tensor, EncodedTensor)
        if tensor.payload is not None:
            raw = tensor.payload
            yield from ([raw[at : at + CHUNK]] for at in range(0, len(raw), CHUNK))
            return
        if tensor.target == "q4_fit":
            yield from ([rows] for rows in tensor.fitted())
            return
        name = tensor.target if tensor.target in MADE_OTHERWISE else tensor.encoding
        start = 0
        for values in tensor.values():
            yield encode_rows(name, values, tensor.survey, start)
            start += len(values)

    def publish(self, work: WorkFolder, out: Path) -> None:
        """Write hashes and sections, and give every file its name, the first one last."""
        for shard in self.shards:
            hashes = {e.name: self._hashes(work, shard, e) for e in shard.entries}
            work.write(shard.at, self._head(shard, hashes))
            work.write(shard.at + shard.head + shard.size, shard.sections.joined)
        whole = work.finish()
        if len(self.shards) == 1:
            publish(whole, out)
            return
        for number in range(len(self.shards), 0, -1):
            part = work.path / "shard.part"
            _copied(whole, part, self.shards[number - 1])
            publish(part, self.files[number - 1])

    @staticmethod
    def _hashes(work: WorkFolder, shard: _Shard, entry: Entry) -> tuple[int, str]:
        work.weights.flush()
        at = shard.at + shard.head + entry.offset
        raw: npt.NDArray[np.uint8] = np.memmap(work.path / WEIGHTS, np.uint8, "r", at, entry.nbytes)
        return hash64(raw), hashlib.sha256(raw.data).hexdigest()


def shard_path(out: Path, number: int, count: int) -> Path:
    """Return the path of one of several files."""
    name = _NAME.fullmatch(out.name)
    stem = name["stem"] if name else out.name
    return out.with_name(f"{stem}-{number:05}-of-{count:05}.cmf")


def _copied(whole: Path, part: Path, shard: _Shard) -> None:
    """Copy one of the files out of all their bytes."""
    with whole.open("rb") as source, part.open("wb") as target:
        source.seek(shard.at)
        left = shard.end - shard.at
        while left:
            data = source.read(min(CHUNK, left))
            target.write(data)
            left -= len(data)
        target.flush()
        os.fsync(target.fileno())
