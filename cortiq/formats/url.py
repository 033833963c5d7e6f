"""Models by URL: the URL of a GGUF file with its SHA-256.

`https://host/path/model.gguf#sha256=HEX`. The hash is part of the name: two servers may hold
a file, and a server may replace it, but a name stands for one file.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from cortiq.errors import ModelNotFoundError
from cortiq.formats.cache import Progress, models_folder, workspace
from cortiq.formats.download import RemoteFile, download
from cortiq.formats.hash_records import first_mismatch

SCHEMES = ("https://", "http://")
FOLDER = "sha256-"
ORIGIN = "origin"
"""Name of the file beside the model that holds its URL."""

_FRAGMENT = re.compile(r"sha256=([0-9a-fA-F]{64})")
_FILE = re.compile(r"[\w][\w.+-]{0,150}\.gguf", re.ASCII | re.IGNORECASE)


class ModelURL(NamedTuple):
    """A GGUF file's URL and hash."""

    url: str
    sha256: str
    file: str

    @property
    def name(self) -> str:
        """The name as the user writes it."""
        return f"{self.url}#sha256={self.sha256}"

    @property
    def folder(self) -> Path:
        """The folder in the cache."""
        return models_folder() / f"{FOLDER}{self.sha256}"

    @property
    def path(self) -> Path:
        """The file in the cache."""
        return self.folder / self.file


def is_url(name: str) -> bool:
    """Return whether a name is a URL."""
    return name.startswith(SCHEMES)


def parse(name: str) -> ModelURL:
    """Parse a URL with its hash.

    Raises
    ------
    ModelNotFoundError : it names no GGUF file, or no hash.
    """
    url, _, fragment = name.partition("#")
    try:
        file = unquote(urlsplit(url).path).rpartition("/")[2]
    except ValueError as error:
        raise ModelNotFoundError(f"is not a valid URL: {error}", where=name) from None
    if not _FILE.fullmatch(file):
        raise ModelNotFoundError("is not the URL of a GGUF file", where=name)
    digest = _FRAGMENT.fullmatch(fragment)
    if digest is None:
        hint = f"add the file's hash: {url}#sha256=HEX"
        raise ModelNotFoundError("has no SHA-256", where=name, hint=hint)
    return ModelURL(url, digest[1].lower(), file)


def cached(name: str) -> Path | None:
    """Return the fetched file of a URL, or None."""
    path = parse(name).path
    return path if path.is_file() else None


def verified(name: str) -> Path | None:
    """Return the fetched file of a URL if its hash is right, else None."""
    source = parse(name)
    return source.path if _is_verified(source) else None


def _is_verified(source: ModelURL) -> bool:
    return first_mismatch(source.folder, {source.file: source.sha256}) is None


def list_cached() -> dict[str, Path]:
    """Return all fetched files by URL."""
    found = {}
    for origin in sorted(models_folder().glob(f"{FOLDER}*/{ORIGIN}")):
        source = parse(origin.read_text("utf-8"))
        if source.path.is_file():
            found[source.name] = source.path
    return found


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch a file; resume an interrupted download.

    Raises
    ------
    ModelNotFoundError : the name is no URL with a hash.
    DownloadError : the server refuses, or the file's hash differs.
    """
    source = parse(name)
    with workspace(source.folder.name, progress, keep=True) as temporary:
        if _is_verified(source):
            return source.path

        def report(done: int, total: int) -> None:
            if progress:
                progress(f"downloading {source.file}", done, total)

        download(RemoteFile(source.url, sha256=source.sha256), temporary / source.file, report)
        (temporary / ORIGIN).write_text(source.name, "utf-8")
        shutil.rmtree(source.folder, ignore_errors=True)  # it may be there without its file
        os.replace(temporary, source.folder)
    return source.path
