"""A CMF file as a checkpoint: configuration, tensors under the family's names, and tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cortiq.errors import FormatError
from cortiq.formats.cmf.directory import MAGIC
from cortiq.formats.cmf.families import family_of, renamed
from cortiq.formats.cmf.reader import SHARD_NAME, SUFFIX, CMFFile, open_cmf, refuse_skill
from cortiq.formats.mapped import MappedTensors
from cortiq.formats.own_layout import GGUF_HEADER
from cortiq.formats.strict_json import read_bytes
from cortiq.formats.text_model import RenamedTensors
from cortiq.formats.tokenizer_files import TokenizerFiles


@dataclass(frozen=True)
class CMFModel:
    """A file as a graph is made of it.

    Attributes
    ----------
    file : everything else that the file says.
    """

    file: CMFFile
    architecture: str
    config: Mapping[str, Any]
    tensors: MappedTensors
    tokenizer: TokenizerFiles


def is_cmf(path: Path) -> bool:
    """Return whether a file is called, or begins, as one of this format."""
    if path.suffix == SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def container_of(folder: Path) -> Path | None:
    """Return the first file of the one model of this format in a folder, if there is one."""
    files = sorted(folder.glob(f"*{SUFFIX}"))
    stems = {SHARD_NAME.fullmatch(file.name) or file.name for file in files}
    names = {stem if isinstance(stem, str) else stem["stem"] for stem in stems}
    return files[0] if len(names) == 1 else None


def container_at(path: Path) -> Path | None:
    """Return the file of this format that a path opens: itself, or the only model of a folder."""
    if not path.is_dir():
        return path if is_cmf(path) else None
    others = any(path.glob("*.gguf")) or (path / "config.json").is_file()
    return None if others or (path / GGUF_HEADER).is_file() else container_of(path)


def open_model(path: Path, strict: bool = True) -> CMFModel:
    """Open a model's file for running it; errors as `open_cmf`, and of families."""
    file = open_cmf(path, strict)
    refuse_skill(file)
    arch, where = file.header.arch, str(path)
    family = family_of(arch, file.tensors, where)
    config = {key: value for key, value in family.config.items() if value is not None}
    if arch.tie_word_embeddings != ("lm_head.weight" not in file.tensors):
        config["tie_word_embeddings"] = "lm_head.weight" not in file.tensors
    own = renamed(family.names, file.tensors)
    if len(own) != len(file.tensors):
        raise FormatError("has two tensors that are one to its family", where=where)
    tensors = RenamedTensors(file, own)
    return CMFModel(file, family.architecture, config, tensors, _tokenizer(file, path))


def _tokenizer(file: CMFFile, path: Path) -> TokenizerFiles:
    """Return the tokenizer in the file, else that of tokenizer.json beside it."""
    bundle, data, where = file.header.tokenizer_config, file.vocabulary.tobytes(), str(path)
    beside = path.parent / "tokenizer.json"
    if not data and beside.is_file():
        data, where = read_bytes(beside), str(beside)
    gemma = file.header.arch.norm_style == "gemma" and "gemma" in file.header.arch.arch_name
    if bundle is None:
        return TokenizerFiles(data, where)
    return TokenizerFiles(
        data, where, bundle.chat_template, bundle.eos_token_ids, bundle.bos_token_id,
        gemma and bundle.bos_token_id is not None, bundle.pad_token_id,
    )  # fmt: skip


def left_unread(file: CMFFile | None) -> Iterator[str]:
    """Yield lines about what a file, if there is one, holds that its graph does not use."""
    if file is None:
        return
    skills, masks = len(file.header.skills), len(file.masks.masks)
    if skills or masks:
        yield f"the file holds {skills} skills and {masks} task masks, which are not applied"
    if file.header.calibration is not None:
        t = file.header.calibration.temperature
        yield f"its probabilities are calibrated at the temperature {t:g}, which is not applied"
