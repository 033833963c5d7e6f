"""Files over HTTP: continued where an earlier attempt ended, and checked before they get a name."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cortiq.errors import DownloadError
from cortiq.formats.digest import file_sha256

PART = ".part"
"""What is added to the name of a file that is not whole yet."""

OFFLINE = "is this machine on the network? Behind a proxy, HTTPS_PROXY has to name it"
PAUSES = (0.5, 2.0, 5.0, 10.0)
"""Seconds to wait after an attempt that brought nothing; after so many of them it is given up."""

TIMEOUT = 60.0
"""Seconds that a server may say nothing."""

_CHUNK = 1 << 20
_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Status codes of servers that may answer later."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_BROKEN = (urllib.error.URLError, http.client.HTTPException, OSError)
Report = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes in all."""


@dataclass(frozen=True)
class Remote:
    """A file on a server.

    Attributes
    ----------
    url : http or https.
    size : bytes, None where nobody says.
    sha256 : in hex, None where nobody says.
    headers : sent to this server, and to no other that it may point to.
    git_id : SHA-1, in hex, that Git gives a file of these bytes; None where nobody says.
    """

    url: str
    size: int | None = None
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    git_id: str | None = None


def download(remote: Remote, target: Path, report: Report) -> None:
    """Bring a file to `target`, going on from `target.part` if there is one.

    A kill in the middle leaves `target.part`, which nothing but this function reads; `target` is
    there when size and SHA-256 are right and its bytes are on the disk.

    Raises
    ------
    DownloadError : the server refuses or cannot be reached, and what has arrived stays; or size or
        SHA-256 are wrong, and nothing does.
    """
    part = target.with_name(target.name + PART)
    _receive_all(remote, part, report)
    try:
        _check(remote, part)
    except DownloadError:
        part.unlink()
        raise
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, target)


def _receive_all(remote: Remote, part: Path, report: Report) -> None:
    """Ask again and again for what is missing."""
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _receive(remote, part, before, report):
                return
            error: Exception = DownloadError("the connection broke off", where=remote.url)
        except urllib.error.HTTPError as refusal:
            error = refusal
            if refusal.code not in _PASSING:
                what = f"the server answers {refusal.code} {refusal.reason}"
                raise DownloadError(what, where=remote.url) from None
        except _BROKEN as broken:
            if isinstance(broken, OSError) and broken.errno in _FULL:
                raise
            error = broken
        failures = 0 if part.exists() and part.stat().st_size > before else failures + 1
        if failures > len(PAUSES):
            hint = "the same command goes on from what has arrived"
            if not before and not isinstance(error, urllib.error.HTTPError):
                hint = OFFLINE
            what = f"could not be fetched: {error}"
            raise DownloadError(what, where=remote.url, hint=hint) from error
        time.sleep(PAUSES[max(failures - 1, 0)])


def _receive(remote: Remote, part: Path, start: int, report: Report) -> bool:
    """One request; whether the file is whole, as far as server and size can tell."""
    if remote.size is not None and start >= remote.size:
        return True  # or longer than it should be, which the check will say
    request = urllib.request.Request(remote.url, headers={"Accept-Encoding": "identity"})
    for name, value in remote.headers.items():
        request.add_unredirected_header(name, value)  # a token is for this server only
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return _restart(part, error)
    with response, part.open("ab") as file:
        if start and not _continues(response, start):
            file.truncate(start := 0)
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None else remote.size
        there = _copy(response, file, start, report, total)
    return total is None or there >= total


def _restart(part: Path, error: Any) -> bool:
    """There is nothing from there on: the file is whole, or another than the one of the part."""
    total = error.headers.get("Content-Range", "").rpartition("/")[2]
    if total == str(part.stat().st_size):
        return True
    part.unlink()
    return False


def _continues(response: Any, start: int) -> bool:
    """Whether this is the rest of the file, and not all of it once more."""
    told = response.headers.get("Content-Range", "")
    return response.status == http.HTTPStatus.PARTIAL_CONTENT and told.startswith(f"bytes {start}-")


def _copy(response: Any, file: IO[bytes], there: int, report: Report, total: int | None) -> int:
    """Append what arrives, but not more than the file has; how much is there then."""
    while chunk := response.read1(_CHUNK):  # what there is, however little
        file.write(chunk)
        there += len(chunk)
        report(there, max(there, total or 0))
        if total is not None and there > total:
            break
    return there


def _check(remote: Remote, part: Path) -> None:
    """Size and digests; DownloadError for the first that is wrong."""
    size = part.stat().st_size
    if remote.size is not None and size != remote.size:
        raise _damaged(remote, part, f"{size} bytes", str(remote.size))
    found = file_sha256(part) if remote.sha256 else None
    if found != remote.sha256:
        raise _damaged(remote, part, f"SHA-256 {found}", str(remote.sha256))
    found = git_id_of(part.read_bytes()) if remote.git_id else None
    if found != remote.git_id:
        raise _damaged(remote, part, f"the Git id {found}", str(remote.git_id))


def _damaged(remote: Remote, part: Path, has: str, expected: str) -> DownloadError:
    hint = "the download is damaged, or not the file it should be; nothing of it was kept"
    return DownloadError(f"{part.stem} has {has}, expected {expected}", where=remote.url, hint=hint)


def git_id_of(content: bytes) -> str:
    """The id Git gives a file: SHA-1, in hex, of `blob`, its size, a zero, and its bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
