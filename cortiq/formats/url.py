"""Models by URL: the URL of a GGUF file with its SHA-256.

`https://host/path/model.gguf#sha256=HEX`. The hash is part of the name: two servers may hold
a file, and a server may replace it, but a name stands for one file. A URL without a hash is fetched
once somebody says that it is to be trusted; its hash is then remembered, and a later file with
another one is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from cortiq.atomic import write_atomically
from cortiq.errors import CortiqError, DownloadError, ModelNotFoundError, UntrustedError
from cortiq.formats.cache import Progress, models_folder, workspace
from cortiq.formats.digest import file_sha256
from cortiq.formats.download import RemoteFile, ReportBytes, download
from cortiq.formats.hash_records import first_mismatch
from cortiq.formats.strict_json import read_object

SCHEMES = ("https://", "http://")
FOLDER = "sha256-"
ORIGIN = "origin"
"""Name of the file beside the model that holds its URL."""

_FRAGMENT = re.compile(r"sha256=([0-9a-fA-F]{64})")
_FILE = re.compile(r"[\w][\w.+-]{0,150}\.gguf", re.ASCII | re.IGNORECASE)


class ModelURL(NamedTuple):
    """A GGUF file's URL and hash; `is_remembered` says that the user did not write the hash."""

    url: str
    sha256: str
    file: str
    is_remembered: bool = False

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
    """Parse a URL with its hash; one without it has the hash that was remembered.

    Raises
    ------
    ModelNotFoundError : it names no GGUF file.
    UntrustedError : it has no hash, and none is remembered.
    """
    url, file, fragment = _split(name)
    digest = _FRAGMENT.fullmatch(fragment)
    if digest is None and fragment:
        raise ModelNotFoundError("has no SHA-256 behind its #", where=name, hint=_with_hash(url))
    if digest is not None:
        return ModelURL(url, digest[1].lower(), file)
    known = remembered(url)
    if known is None:
        hint = f"{_with_hash(url)}; or trust the server once: cortiq pull --trust {url}"
        raise UntrustedError("has no SHA-256", where=name, hint=hint)
    return ModelURL(url, known, file, True)


def _with_hash(url: str) -> str:
    return f"add the file's hash: {url}#sha256=HEX"


def _split(name: str) -> tuple[str, str, str]:
    """Return the URL, the file that it names, and what stands behind the #."""
    url, _, fragment = name.partition("#")
    try:
        file = unquote(urlsplit(url).path).rpartition("/")[2]
    except ValueError as error:
        raise ModelNotFoundError(f"is not a valid URL: {error}", where=name) from None
    if not _FILE.fullmatch(file):
        raise ModelNotFoundError("is not the URL of a GGUF file", where=name)
    return url, file, fragment


def remembered(url: str) -> str | None:
    """Return the hash that was remembered for a URL, if there is one."""
    try:
        known = read_object(_record(url)).get("sha256")
    except CortiqError:  # none, or a damaged one: it is asked again
        return None
    return known if isinstance(known, str) and re.fullmatch("[0-9a-f]{64}", known) else None


def _record(url: str) -> Path:
    name = hashlib.sha256(url.encode()).hexdigest()
    return models_folder().parent / "trusted" / f"{name}.json"


def _remember(url: str, sha256: str) -> None:
    """Write down the hash of a trusted URL; it outlives the file in the cache."""
    place = _record(url)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, [json.dumps({"url": url, "sha256": sha256}).encode()])


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


def pull(name: str, progress: Progress | None = None, *, trust: bool = False) -> Path:
    """Fetch a file; resume an interrupted download, if its hash is known.

    Parameters
    ----------
    trust : fetch a URL without a hash and remember the hash of what arrives.

    Raises
    ------
    ModelNotFoundError : the name is no URL.
    UntrustedError : it has no hash.
    DownloadError : the server refuses, or the file's hash differs.
    """
    if trust and "#" not in name:
        return _pull_trusted(name, progress)
    source = parse(name)
    with workspace(source.folder.name, progress, keep=True) as temporary:
        if _is_verified(source):
            return source.path
        remote = RemoteFile(source.url, sha256=source.sha256)
        try:
            download(remote, temporary / source.file, _report(source.file, progress))
        except DownloadError as error:
            if not source.is_remembered or "has SHA-256" not in error.what:
                raise
            hint = f"to trust the new file: cortiq pull --trust {source.url}"
            what = f"{error.what}: not the file that was trusted"
            raise DownloadError(what, where=source.url, hint=hint) from error
        _put(source, temporary)
    return source.path


def _pull_trusted(name: str, progress: Progress | None) -> Path:
    """Fetch the file of a URL anew, and remember its hash."""
    url, file, _ = _split(name)
    with workspace(f"url-{hashlib.sha256(url.encode()).hexdigest()}", progress) as temporary:
        download(RemoteFile(url), temporary / file, _report(file, progress))
        source = ModelURL(url, file_sha256(temporary / file), file)
        _put(source, temporary)
    _remember(url, source.sha256)
    return source.path


def _report(file: str, progress: Progress | None) -> ReportBytes:
    def report(done: int, total: int) -> None:
        if progress:
            progress(f"downloading {file}", done, total)

    return report


def _put(source: ModelURL, temporary: Path) -> None:
    """Move a verified file's folder to its place in the cache."""
    (temporary / ORIGIN).write_text(source.name, "utf-8")
    shutil.rmtree(source.folder, ignore_errors=True)  # it may be there without its file
    os.replace(temporary, source.folder)
