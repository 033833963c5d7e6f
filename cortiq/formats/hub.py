"""Models from the Hugging Face hub, through huggingface_hub: weights and text, never code.

A revision is resolved to its commit once, so that all files are of one commit; a branch stays at
the commit at which it was first fetched, until the model is removed. Files lie in the hub's own
cache, which other programs share; a model is a folder of links to them and a file that says where
they are from.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cortiq.errors import CortiqError, DownloadError
from cortiq.formats.cache import Progress, check_space, workspace
from cortiq.formats.download import OFFLINE
from cortiq.formats.hash_records import first_mismatch, record_hashes, recorded_hashes
from cortiq.formats.hub_cache import HubCache, StoredFile, is_right, link, release
from cortiq.formats.hub_files import HubFile, choose_files, read_listing
from cortiq.formats.hub_names import PREFIX, HubName, is_hub_name, names_in_cache, parse
from cortiq.formats.strict_json import read_object

__all__ = [
    "PREFIX", "cached", "is_hub_name", "list_cached", "origin", "parse", "pull", "release_files",
    "verified",
]  # fmt: skip

ORIGIN = "origin.json"
"""Name of the file that says where a model's files are from."""


class Listing(NamedTuple):
    """A commit, and the files of a model in it."""

    commit: str
    files: list[HubFile]


def cached(name: str) -> Path | None:
    """Return the file or folder of a fetched model, or None if files of it are gone."""
    return _path_in(parse(name).folder)


def list_cached() -> dict[str, Path]:
    """Return all fetched models by name."""
    found = {name: _path_in(folder) for name, folder in names_in_cache().items()}
    return {name: path for name, path in found.items() if path is not None}


def origin(name: str) -> Mapping[str, Any]:
    """Return where a model's files are from, as it was written down; empty for one not fetched."""
    try:
        return read_object(parse(name).folder / ORIGIN)
    except CortiqError:  # not there, or damaged, which the next pull mends
        return {}


def verified(name: str) -> Path | None:
    """Return the path of a fetched model after verifying its hashes, or None.

    Raises
    ------
    DownloadError : a file was changed since it was fetched.
    """
    path, folder = cached(name), parse(name).folder
    expected = recorded_hashes(folder)
    if path is None:
        return None
    wrong = first_mismatch(folder, expected) if expected else _first_other(name, folder)
    if not expected and wrong is None:  # the record was removed
        record_hashes(folder, _file_names(folder))
    if wrong is not None:
        hint = f"fetch it again: cortiq rm {name} && cortiq pull {name}"
        raise DownloadError(f"{wrong} is not the file that was fetched", where=name, hint=hint)
    return path


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch a model in GGUF, or config, tokenizer, chat template and safetensors of a folder.

    An interrupted download is resumed, file by file and byte by byte.

    Raises
    ------
    DownloadError : huggingface_hub is missing, the hub refuses, or a digest is wrong.
    SeveralModelsError : the name does not say which of the repository's models is meant.
    UnsupportedError : the repository has neither safetensors nor GGUF files.
    """
    source = parse(name)
    with workspace(source.folder.name, progress, keep=True) as temporary:
        if path := cached(name):
            return path
        try:
            _fetch(source, temporary, progress)
        except CortiqError:
            raise
        except Exception as error:
            # huggingface_hub raises its own, its HTTP library's and built-in errors, and their
            # classes change between its versions.
            raise _refused(source, error) from error
    path = cached(name)
    assert path is not None
    return path


def release_files(folder: Path) -> int:
    """Remove from the hub's cache what was fetched for a model, whose folder has been moved here.

    Files that were there before, or that other models use, stay. Return the bytes freed.
    """
    try:
        fetched = read_object(folder / ORIGIN).get("fetched", [])
    except CortiqError:
        return 0
    used = {os.path.realpath(p) for other in names_in_cache().values() for p in other.iterdir()}
    names = [name for name in fetched if isinstance(name, str) and (folder / name).is_symlink()]
    return release([folder / name for name in names], used)


def _path_in(folder: Path) -> Path | None:
    """Return what is opened in a model's folder: a GGUF file, its first part, or the folder."""
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return None
    if not files or not all(path.is_file() for path in files):
        return None
    models = [path for path in files if path.suffix == ".gguf"]
    return models[0] if models else folder


def _first_other(name: str, folder: Path) -> str | None:
    """Return the first file of a model that is not what was written down when it was fetched."""
    told = origin(name).get("files")
    for file, text in told.items() if isinstance(told, dict) else ():
        path = folder / str(file).rpartition("/")[2]
        sha256, git_id = (None, text[4:]) if str(text).startswith("git:") else (text, None)
        if not path.is_file() or not is_right(
            path, HubFile(file, path.stat().st_size, sha256, git_id)
        ):
            return path.name
    return None


def _file_names(folder: Path) -> list[str]:
    """Return the names of a folder's files."""
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def _refused(source: HubName, error: Exception) -> DownloadError:
    """Return the error of the hub as one of ours."""
    message = f"could not be fetched: {type(error).__name__}: {error}"
    hint = None
    if re.search("connect|timeout", message, re.IGNORECASE):
        hint = OFFLINE
    elif re.search(r"\b40[13]\b|gated|private", message, re.IGNORECASE):
        hint = _closed(source)
    elif "revision" in message.lower() and origin(source.name):
        hint = f"the commit that was fetched is gone; for the newest: cortiq rm {source.name}"
    return DownloadError(message, where=source.name, hint=hint)


def _closed(source: HubName) -> str:
    page = f"https://huggingface.co/{source.repository}"
    return f"if it is gated or private, accept its terms on {page} and set HF_TOKEN"


def _fetch(source: HubName, temporary: Path, progress: Progress | None) -> None:
    """Fetch and verify every file, and put the model's folder into place."""
    if not importlib.util.find_spec("huggingface_hub"):
        hint = "pip install huggingface-hub"
        raise DownloadError("needs the package huggingface_hub", where=source.name, hint=hint)
    listing = _listing(source)
    cache = HubCache(source, listing.commit)
    stored = _store_all(cache, listing, temporary, progress)
    cache.write_ref()
    made = temporary / "model"
    made.mkdir(exist_ok=True)
    for left in made.iterdir():
        left.unlink()
    for file in stored:
        link(file.path, made / file.file.base)
    (made / ORIGIN).write_text(json.dumps(_origin(source, listing, stored), indent=1), "utf-8")
    shutil.rmtree(source.folder, ignore_errors=True)  # it may be there with files that are gone
    os.replace(made, source.folder)
    known = {file.base: file.sha256 for file in listing.files if file.sha256}
    record_hashes(source.folder, _file_names(source.folder), known)


def _listing(source: HubName) -> Listing:
    """Ask the hub for the commit of a revision, and for its files."""
    import huggingface_hub

    pinned = origin(source.name).get("commit")
    asked = pinned if isinstance(pinned, str) else source.revision
    api = huggingface_hub.HfApi()
    info = api.model_info(source.repository, revision=asked, files_metadata=True)
    commit = str(info.sha)
    if not re.fullmatch("[0-9a-f]{40}", commit):
        raise DownloadError("the hub names no commit", where=source.name)
    files = choose_files(source, read_listing(source, info.siblings or []))
    for file in files:
        if not file.etag:
            what = f"{file.name}: the hub has no hash of it, so that it could not be verified"
            raise DownloadError(what, where=source.name, hint="nothing of it was fetched")
    return Listing(commit, files)


def _store_all(
    cache: HubCache, listing: Listing, temporary: Path, progress: Progress | None
) -> list[StoredFile]:
    """Put every file into the hub's cache, unless it is there."""
    there = {file: cache.find(file) for file in _told(listing.files, cache.source, progress)}
    missing = sum(file.size - cache.received(file, temporary) for file in there if not there[file])
    check_space(cache.folder, missing, cache.source.name)
    largest = max(file.size for file in there)
    check_space(temporary, min(missing, largest), cache.source.name)
    stored, before, total = [], 0, sum(file.size for file in listing.files)
    for file, path in there.items():

        def report(done: int, _: int, before: int = before) -> None:
            if progress:
                progress(f"downloading {cache.source.name}", min(before + done, total), total)

        try:
            own = path or cache.fetch(file, temporary, report)
        except DownloadError as error:
            raise _of_file(cache.source, file, error) from error.__cause__
        stored.append(StoredFile(file, own, path is None))
        before += file.size
    return stored


def _told(
    files: Sequence[HubFile], source: HubName, progress: Progress | None
) -> Iterator[HubFile]:
    """Yield files that are looked for in the cache, where they are hashed."""
    total, before = sum(file.size for file in files), 0
    for file in files:
        if progress and before:
            progress(f"looking for {source.name} in the cache", before, total)
        yield file
        before += file.size


def _of_file(source: HubName, file: HubFile, error: DownloadError) -> DownloadError:
    """Return an error of a download as one about a repository's file."""
    what = error.what if error.what.startswith(file.etag) else f"{file.name}: {error.what}"
    what = what.replace(file.etag, file.name, 1) if what.startswith(file.etag) else what
    refused = re.search(r"answers 40[13]\b", what)
    hint = _closed(source) if refused else error.hint
    return DownloadError(what, where=source.name, hint=hint)


def _origin(source: HubName, listing: Listing, stored: Sequence[StoredFile]) -> dict[str, Any]:
    """Return what is written down about a model: its commit, its files, their hashes."""
    before = origin(source.name).get("fetched", [])
    return {
        "repository": source.repository,
        "revision": source.revision,
        "commit": listing.commit,
        "files": {f.name: f.sha256 or f"git:{f.git_id}" for f in listing.files},
        "fetched": [s.file.base for s in stored if s.is_new or s.file.base in before],
    }
