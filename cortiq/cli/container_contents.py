"""`cortiq inspect` of a CMF file: its sections, typed, and the signatures beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cortiq.cli.render import byte_count, counted, echo, progress_bar
from cortiq.errors import CortiqError, shown
from cortiq.formats.fetch import SYNTHETIC, resolve

if TYPE_CHECKING:
    from cortiq.formats.cmf.reader import CMFFile


def print_contents(model: str, full: bool, strict: bool) -> None:
    """Print what a CMF file holds, and an empty line; nothing of other models.

    Parameters
    ----------
    full : list every tensor. strict : check all that the file says.
    """
    if model.startswith(SYNTHETIC):
        return
    from cortiq.formats.cmf.model import container_at
    from cortiq.formats.cmf.reader import open_cmf

    with progress_bar(in_bytes=True) as bar:
        path = container_at(Path(resolve(model, progress=bar)))
    if path is None:
        return
    with open_cmf(path, strict) as file:
        for line in (*_sections(file), *_signatures(file.paths), *(_tensors(file) if full else ())):
            echo(line)
    echo()


def _sections(file: CMFFile) -> Iterator[str]:
    header, sizes = file.header, sum(path.stat().st_size for path in file.paths)
    kind = f"CMF {header.version}, {shown(header.arch.arch_name)}"
    yield f"container: {kind}, {counted(len(file.paths), 'file')} of {byte_count(sizes)}"
    count, held = Counter[str](), Counter[str]()
    for _, entry in file.entries.values():
        count[entry.dtype.name] += 1
        held[entry.dtype.name] += entry.nbytes
    listed = (f"{name} {count[name]} ({byte_count(size)})" for name, size in held.most_common())
    yield f"tensors: {len(file.entries)}, of these {', '.join(listed)}"
    template = header.tokenizer_config is not None and header.tokenizer_config.chat_template
    vocabulary = byte_count(len(file.vocabulary)) if len(file.vocabulary) else "none"
    yield f"vocabulary: {vocabulary}, {'with a' if template else 'no'} chat template"
    yield from _parts_of_tasks(file)
    if file.parts[0].indexed:
        yield f"sparse index: {file.parts[0].indexed} entries"


def _parts_of_tasks(file: CMFFile) -> Iterator[str]:
    """Yield lines about masks, skills, calibration and routing."""
    header = file.header
    for mask in file.masks.masks:
        record = mask.record
        active = sum(mask.is_active(layer) for layer in range(header.arch.num_layers))
        yield f"mask: {shown(record.name)}, {record.sparsity:.0%} sparse, {active} layers active"
    for skill in header.skills:
        own = sum(name.startswith(f"skill.{skill.id}.") for name in file.skill_tensors)
        alone = f", for a model {shown(skill.base_arch)}" if skill.base_dir_hash else ""
        yield f"skill: {shown(skill.id)}, {counted(own, 'tensor')}{alone}"
    if header.calibration is not None:
        yield f"calibration: probabilities at the temperature {header.calibration.temperature:g}"
    if header.routing is not None:
        routing = header.routing
        told = f"temperature {routing.temperature:g}, novel above {routing.novelty_theta:g}"
        yield f"routing: {told}, from {counted(routing.samples, 'sample')}"


def _signatures(paths: list[Path]) -> Iterator[str]:
    from cortiq.receipts.file_signature import check_signature, signature_path
    from cortiq.receipts.signing import fingerprint_of

    if not any(signature_path(path).is_file() for path in paths):
        yield "signature: none"
    for path in paths:
        try:
            found = check_signature(path)
        except CortiqError as error:
            yield f"signature of {path.name}: {error}"
            continue
        if found is not None:
            yield f"signature of {path.name}: {fingerprint_of(found.public_key)}"


def _tensors(file: CMFFile) -> Iterator[str]:
    for name, (_, entry) in file.entries.items():
        yield f"  {shown(name)}: {entry.dtype.name} {list(entry.shape)}"
