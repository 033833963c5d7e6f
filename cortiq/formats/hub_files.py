"""Files of a hub repository that make a model: GGUF files by quantisation, or a folder's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from cortiq.errors import DownloadError, SeveralModelsError, UnsupportedError, shown
from cortiq.formats.adapter_files import CONFIG as ADAPTER
from cortiq.formats.hub_names import HubName
from cortiq.formats.quantisation import OPT_FILE

_TEXT_FILES = {
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("chat_template.jinja", "model.safetensors.index.json", OPT_FILE, ADAPTER),
}
_TOKENIZERS = ("tekken.json", "tokenizer.model", "tiktoken.model", "*.tiktoken", "rwkv_vocab_*.txt")
"""Files that hold a tokenizer where there is no tokenizer.json."""
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_PART = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_QUANTISATION = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|F16|FP16|F32|FP32|MXFP4(?:_MOE)?|NVFP4))$",
    re.IGNORECASE | re.ASCII,
)
_UNSAFE = re.compile(r"[\\:\x00-\x1f]|.{256}")
"""What no part of a path may hold: separators of other systems, control characters."""
_OTHERS = re.compile(r"(?:^|[-._])(?:mmproj|imatrix)(?:[-._]|$)", re.IGNORECASE)
"""GGUF files beside a model that are not one: projectors of images, statistics of a calibration."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository.

    Attributes
    ----------
    name : path in the repository.
    size : bytes.
    sha256 : in hex, of a large file; git_id : SHA-1 that Git gives a small one.
    """

    name: str
    size: int
    sha256: str | None
    git_id: str | None

    @property
    def base(self) -> str:
        """Name without its folder."""
        return self.name.rpartition("/")[2]

    @property
    def etag(self) -> str:
        """Name of the file's bytes in the hub's cache: its hash."""
        return self.sha256 or self.git_id or ""


@dataclass(frozen=True)
class GGUFModel:
    """A model in GGUF, in one file or several parts.

    Attributes
    ----------
    stem : path of its file, without part numbers and suffix.
    files : its parts in order.
    """

    stem: str
    files: tuple[HubFile, ...]

    @property
    def label(self) -> str:
        """Its quantisation if its name has one, else its name."""
        base = self.stem.rpartition("/")[2]
        found = _QUANTISATION.search(base)
        return found[1] if found else base

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(file.size for file in self.files)


def read_listing(source: HubName, siblings: Sequence[Any]) -> list[HubFile]:
    """Return the files that the hub lists, with sizes and hashes that have their form.

    Raises
    ------
    DownloadError : an entry is none.
    """
    found = []
    for entry in siblings:
        name, size, git_id = entry.rfilename, entry.size, entry.blob_id
        sha256 = entry.lfs.sha256 if entry.lfs else None
        if not _is_inside(name) or type(size) is not int or size < 0:
            what = f"the hub's list of files is damaged: {shown(name)}"
            raise DownloadError(what, where=source.name)
        large, small = _hex(sha256, 64), None if entry.lfs else _hex(git_id, 40)
        found.append(HubFile(name, size, large, small))
    return found


def _is_inside(name: Any) -> bool:
    """Return whether a name is the path of a file inside its repository, on any system."""
    parts = name.split("/") if isinstance(name, str) else [""]
    return not any(part in ("", ".", "..") or _UNSAFE.search(part) for part in parts)


def _hex(text: Any, digits: int) -> str | None:
    """Return a hash if a text is one."""
    is_hash = isinstance(text, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", text)
    return text if is_hash else None


def choose_files(source: HubName, files: Sequence[HubFile]) -> list[HubFile]:
    """Return the files of the model that a name stands for; the parts of a GGUF model in order.

    Raises
    ------
    SeveralModelsError : the name fits several models, or none; the error lists what there is.
    UnsupportedError : the repository holds none, or only pickled weights.
    """
    named = [file for file in files if fnmatchcase(file.name, source.files or "*")]
    weights = [f for f in named if f.name.endswith(".safetensors") and _is_model(f, source)]
    if weights:
        return _folder_files(source, weights, files)
    models = list(_gguf_models(source, files))
    fitting = [model for model in models if _fits(model, source.files)]
    if len(fitting) == 1:
        return list(fitting[0].files)
    if not models:
        raise _no_weights(source, files)
    raise SeveralModelsError.of(source.name, _choices(source, fitting or models), bool(fitting))


def _is_model(file: HubFile, source: HubName) -> bool:
    """Return whether a safetensors file is the model's: one in a folder must be asked for.

    Some repositories hold the weights a second time, in their author's own arrangement.
    """
    asked = bool(source.files)
    return asked or ("/" not in file.name and not file.name.startswith("consolidated"))


def _folder_files(
    source: HubName, weights: Sequence[HubFile], files: Sequence[HubFile]
) -> list[HubFile]:
    """Return the weights and the texts beside them; texts of the root where there are none."""
    folders = {file.name.rpartition("/")[0] for file in weights}
    if len(folders) > 1:
        listed = ", ".join(sorted(folders))
        hint = "write a pattern that fits the files of one of them"
        raise UnsupportedError(f"{source.files} fits files of {listed}", where=source.name,
                               hint=hint)  # fmt: skip
    texts = {}
    for place in ("", folders.pop()):
        for file in files:
            folder, _, base = file.name.rpartition("/")
            if folder == place and (base in _TEXT_FILES or _holds_tokenizer(base)):
                texts[base] = file
    if "tokenizer.json" in texts:
        texts = {base: file for base, file in texts.items() if not _holds_tokenizer(base)}
    if "config.json" not in texts and ADAPTER not in texts:
        hint = "download a GGUF file of the repository and name that file"
        raise UnsupportedError("has no config.json", where=source.name, hint=hint)
    return [*texts.values(), *weights]


def _holds_tokenizer(base: str) -> bool:
    return any(fnmatchcase(base, name) for name in _TOKENIZERS)


def _gguf_models(source: HubName, files: Sequence[HubFile]) -> Iterator[GGUFModel]:
    """Yield the models in GGUF; raise DownloadError if parts of one are missing."""
    parts: dict[str, list[HubFile]] = {}
    for file in sorted(files, key=lambda file: file.name):
        if file.name.endswith(".gguf") and not _OTHERS.search(file.base.removesuffix(".gguf")):
            stem = _PART.sub("", file.name).removesuffix(".gguf")
            parts.setdefault(stem, []).append(file)
    for stem, found in parts.items():
        numbers = [_PART.search(file.name) for file in found]
        counts = {int(number["count"]) if number else 1 for number in numbers}
        if counts != {len(found)}:
            what = f"{stem}: {len(found)} of its {max(counts)} parts are there"
            raise DownloadError(what, where=source.name)
        yield GGUFModel(stem, tuple(found))


def _fits(model: GGUFModel, wanted: str) -> bool:
    """Return whether a model is meant by a quantisation, a file's name, or a pattern."""
    if not wanted:
        return True
    label, base = model.label.lower(), model.stem.rpartition("/")[2]
    lower = wanted.lower()
    names = {label, base.lower(), model.stem.lower(), *(f.name.lower() for f in model.files)}
    is_named = not names.isdisjoint({lower, lower.removesuffix(".gguf")})
    return is_named or any(fnmatchcase(file.name, wanted) for file in model.files)


def _choices(source: HubName, models: Sequence[GGUFModel]) -> list[tuple[str, int]]:
    """Return a name for each model, with its size: its quantisation where that says enough."""
    labels = [model.label.lower() for model in models]
    found = [
        (m.label if labels.count(m.label.lower()) == 1 else f"{m.stem}.gguf", m.size)
        for m in sorted(models, key=lambda model: model.size)
    ]
    return [(source.choosing(name), size) for name, size in found]


def _no_weights(source: HubName, files: Sequence[HubFile]) -> UnsupportedError:
    """Return the error about a repository without a model that can be read."""
    pickled = sorted(file.name for file in files if file.name.endswith(_PICKLED))
    found = f"; pickled weights are refused: {pickled[0]}" if pickled else ""
    fitting = f" that fit {source.files}" if source.files else ""
    return UnsupportedError(f"has no safetensors and no GGUF files{fitting}{found}",
                            where=source.name)  # fmt: skip
