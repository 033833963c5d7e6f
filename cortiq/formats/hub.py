"""Models from the Hugging Face hub, through huggingface_hub: weights and text, never code.

A revision is resolved to its commit once, so that all files are of one commit; a branch stays at
the commit at which it was first fetched.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from cortiq.errors import CortiqError, DownloadError, ModelNotFoundError, UnsupportedError
from cortiq.formats.cache import Progress, models_folder, workspace
from cortiq.formats.download import OFFLINE, RemoteFile, ReportBytes, download
from cortiq.formats.hash_records import first_mismatch, record_hashes, recorded_hashes

PREFIX = "hf:"

_NAME = re.compile(
    r"hf:(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(?:@(?P<revision>[A-Za-z0-9][\w./-]*))?",
    re.ASCII,
)
_TEXT_FILES = {
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("chat_template.jinja", "model.safetensors.index.json"),
}
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


class HubRepository(NamedTuple):
    """A hub repository at a revision."""

    repository: str
    revision: str

    @property
    def name(self) -> str:
        """The name as the user writes it, with the revision."""
        return f"{PREFIX}{self.repository}@{self.revision}"

    @property
    def folder(self) -> Path:
        """The folder in the cache, one for every (repository, revision)."""
        return models_folder() / quote(self.name, safe="@")


def is_hub_name(name: str) -> bool:
    """Return whether a name is that of a repository, with the prefix."""
    return _NAME.fullmatch(name) is not None


def parse(name: str) -> HubRepository:
    """Read "hf:organisation/name@revision"; without a revision it is "main"."""
    match = _NAME.fullmatch(name)
    if not match:
        raise ModelNotFoundError("is not hf:ORGANISATION/NAME@REVISION", where=name)
    return HubRepository(match["repository"], match["revision"] or "main")


def cached(name: str) -> Path | None:
    """Return the folder of a fetched repository, or None."""
    folder = parse(name).folder
    return folder if folder.is_dir() else None


def list_cached() -> dict[str, Path]:
    """Return all fetched repositories by name."""
    folders = sorted(models_folder().glob(f"{quote(PREFIX)}*"))
    return {unquote(folder.name): folder for folder in folders}


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch config, tokenizer, chat template and safetensors of a repository.

    An interrupted download is resumed if the revision is still the same commit.

    Raises
    ------
    DownloadError : huggingface_hub is missing, the hub refuses, or a digest is wrong.
    UnsupportedError : the repository has no safetensors.
    """
    source = parse(name)
    with workspace(source.folder.name, progress, keep=True) as temporary:
        if source.folder.is_dir():
            return source.folder
        try:
            folder = _fetch(source, temporary, progress)
        except CortiqError:
            raise
        except Exception as error:
            # huggingface_hub raises its own, its HTTP library's and built-in errors, and their
            # classes change between its versions.
            message = f"could not be fetched: {type(error).__name__}: {error}"
            hint = OFFLINE if re.search("connect|timeout", message, re.IGNORECASE) else ""
            raise DownloadError(message, where=source.name, hint=hint) from error
        os.replace(folder, source.folder)
        record_hashes(source.folder, _file_names(source.folder))
    return source.folder


def verified(name: str) -> Path | None:
    """Return the folder of a fetched repository after verifying its hashes, or None.

    Raises
    ------
    DownloadError : a file was changed or removed since it was fetched.
    """
    folder = cached(name)
    if folder is None:
        return None
    expected = recorded_hashes(folder)
    if not expected:  # fetched before hashes were kept
        record_hashes(folder, _file_names(folder))
    elif wrong := first_mismatch(folder, expected):
        hint = f"fetch it again: cortiq rm {name} && cortiq pull {name}"
        raise DownloadError(f"{wrong} is not the file that was fetched", where=name, hint=hint)
    return folder


def _file_names(folder: Path) -> list[str]:
    """Return the names of a folder's files."""
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def _fetch(source: HubRepository, temporary: Path, progress: Progress | None) -> Path:
    """Fetch and verify every file of the revision's current commit; return their folder."""
    if not importlib.util.find_spec("huggingface_hub"):
        hint = "pip install 'cortiq[hub]'"
        raise DownloadError("needs the package huggingface_hub", where=source.name, hint=hint)
    import huggingface_hub

    api = huggingface_hub.HfApi()
    info = api.model_info(source.repository, revision=source.revision, files_metadata=True)
    files = _files_to_fetch(source, info.siblings or [])
    folder = temporary / str(info.sha)
    for other in temporary.iterdir():
        if other != folder:  # left by another commit
            shutil.rmtree(other, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    before, total = 0, sum(file.size or 0 for file in files)
    for file in files:

        def report(done: int, _: int, before: int = before) -> None:
            if progress:
                progress(f"downloading {source.name}", min(before + done, total), total)

        _fetch_file(source, info.sha, file, folder / file.rfilename, report)
        before += file.size or 0
    return folder


def _fetch_file(
    source: HubRepository, commit: str | None, file: Any, path: Path, report: ReportBytes
) -> None:
    """Fetch one file, unless it is there: files are renamed into place once verified."""
    if path.is_file():
        return
    import huggingface_hub
    from huggingface_hub.utils import build_hf_headers

    if not (file.lfs.sha256 if file.lfs else file.blob_id):
        what = f"{file.rfilename}: the hub has no hash of it, so that it could not be verified"
        raise DownloadError(what, where=source.name, hint="nothing of it was fetched")
    url = huggingface_hub.hf_hub_url(source.repository, file.rfilename, revision=commit)
    sha256 = file.lfs.sha256 if file.lfs else None
    remote = RemoteFile(
        url, file.size, sha256, build_hf_headers(), None if file.lfs else file.blob_id
    )
    try:
        download(remote, path, report)
    except DownloadError as error:
        named = error.what.startswith(file.rfilename)
        what = error.what if named else f"{file.rfilename}: {error.what}"
        raise DownloadError(what, where=source.name, hint=error.hint) from error.__cause__


def _files_to_fetch(source: HubRepository, files: list[Any]) -> list[Any]:
    """Return the files to fetch: known names at the top level, and safetensors."""
    names = {file.rfilename for file in files}
    # Some repositories hold the weights a second time, in their author's own arrangement.
    weights = {name for name in names if name.endswith(".safetensors") and "/" not in name}
    weights = {name for name in weights if not name.startswith("consolidated")}
    if "config.json" not in names:
        hint = "download a GGUF file of the repository and name that file"
        raise UnsupportedError("has no config.json", where=source.name, hint=hint)
    if not weights:
        pickled = sorted(name for name in names if name.endswith(_PICKLED))
        found = f"; pickled weights are refused: {pickled[0]}" if pickled else ""
        raise UnsupportedError(f"has no safetensors{found}", where=source.name)
    return [file for file in files if file.rfilename in weights | _TEXT_FILES]
