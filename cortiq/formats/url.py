"""Models from any server: the address of a GGUF file, and the SHA-256 that its bytes must have.

`https://host/path/model.gguf#sha256=HEX`. The hash is part of the name: two servers may hold a
file, and a server may change its mind, but a name stands for one file.
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
from cortiq.formats.checked import differing
from cortiq.formats.download import Remote, download

SCHEMES = ("https://", "http://")
FOLDER = "sha256-"
ORIGIN = "origin"
"""Beside a file: the name it was asked for by."""

_FRAGMENT = re.compile(r"sha256=([0-9a-fA-F]{64})")
_FILE = re.compile(r"[\w][\w.+-]{0,150}\.gguf", re.ASCII | re.IGNORECASE)


class Source(NamedTuple):
    """A file on a server."""

    url: str
    sha256: str
    file: str

    @property
    def name(self) -> str:
        """As the user writes it."""
        return f"{self.url}#sha256={self.sha256}"

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return models_folder() / f"{FOLDER}{self.sha256}"

    @property
    def path(self) -> Path:
        """The file itself."""
        return self.folder / self.file


def is_url(name: str) -> bool:
    """Whether a name is an address."""
    return name.startswith(SCHEMES)


def parse(name: str) -> Source:
    """Read an address with its hash.

    Raises
    ------
    ModelNotFoundError : it names no GGUF file, or no hash.
    """
    url, _, fragment = name.partition("#")
    try:
        file = unquote(urlsplit(url).path).rpartition("/")[2]
    except ValueError as error:
        raise ModelNotFoundError(f"is no address: {error}", where=name) from None
    if not _FILE.fullmatch(file):
        raise ModelNotFoundError("is not the address of a GGUF file", where=name)
    digest = _FRAGMENT.fullmatch(fragment)
    if digest is None:
        hint = f"add what the file's bytes must have: {url}#sha256=HEX"
        raise ModelNotFoundError("has no SHA-256", where=name, hint=hint)
    return Source(url, digest[1].lower(), file)


def cached(name: str) -> Path | None:
    """The file of an address that was fetched, or None."""
    path = parse(name).path
    return path if path.is_file() else None


def check(name: str) -> Path | None:
    """The file of an address that was fetched, or None: also where its bytes are others now."""
    source = parse(name)
    return source.path if _whole(source) else None


def _whole(source: Source) -> bool:
    return differing(source.folder, {source.file: source.sha256}) is None


def list_cached() -> dict[str, Path]:
    """All fetched files, by the name they were asked for by."""
    found = {}
    for origin in sorted(models_folder().glob(f"{FOLDER}*/{ORIGIN}")):
        source = parse(origin.read_text("utf-8"))
        if source.path.is_file():
            found[source.name] = source.path
    return found


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch a file, going on from what an interrupted attempt has left.

    Raises
    ------
    ModelNotFoundError : the name is no address with a hash.
    DownloadError : the server refuses, or its bytes are others.
    """
    source = parse(name)
    with workspace(source.folder.name, progress, keep=True) as temporary:
        if _whole(source):
            return source.path

        def report(done: int, total: int) -> None:
            if progress:
                progress(f"downloading {source.file}", done, total)

        download(Remote(source.url, sha256=source.sha256), temporary / source.file, report)
        (temporary / ORIGIN).write_text(source.name, "utf-8")
        shutil.rmtree(source.folder, ignore_errors=True)  # it may be there without its file
        os.replace(temporary, source.folder)
    return source.path
