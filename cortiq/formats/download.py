"""HTTP downloads: resumed after an interruption, renamed into place once verified."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from cortiq.errors import DownloadError
from cortiq.formats.cache import check_space
from cortiq.formats.digest import file_sha256

PART_SUFFIX = ".part"
"""Suffix of the name of an incomplete file."""

OFFLINE = "is this machine online? Behind a proxy, set HTTPS_PROXY"
RETRY_PAUSES = (0.5, 2.0, 5.0, 10.0)
"""Seconds to wait after each attempt that made no progress; then the download fails."""

TIMEOUT = 60.0
"""Seconds that a server may stay silent."""

_CHUNK = 1 << 20
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
"""Status codes after which a retry may succeed."""
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_CONNECTION_ERRORS = (urllib.error.URLError, http.client.HTTPException, OSError)
ReportBytes = Callable[[int, int], None]
"""Called with the bytes received and the total."""


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server.

    Attributes
    ----------
    url : http or https.
    size : bytes, None if unknown.
    sha256 : in hex, None if unknown.
    headers : sent to this server, but not after a redirect to another.
    git_id : SHA-1, in hex, that Git gives a file of these bytes; None if unknown.
    """

    url: str
    size: int | None = None
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    git_id: str | None = None

    @property
    def has_hash(self) -> bool:
        """Whether bytes of another file would be found out."""
        return bool(self.sha256 or self.git_id)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to what others can read and change.

    Headers for a server only stay with requests to it: the hub redirects from a repository's
    earlier name.
    """

    def redirect_request(
        self, request: Any, answer: Any, code: int, reason: str, headers: Any, target: str
    ) -> urllib.request.Request | None:
        before, after = urlsplit(request.full_url), urlsplit(target)
        if after.scheme not in {"https", request.type}:
            raise DownloadError(f"the server sends on to {target}", where=request.full_url)
        made = super().redirect_request(request, answer, code, reason, headers, target)
        if made and (before.scheme, before.netloc) == (after.scheme, after.netloc):
            made.unredirected_hdrs.update(request.unredirected_hdrs)
        return made


def download(remote: RemoteFile, target: Path, report: ReportBytes) -> None:
    """Download a file to `target`, resuming `target.part` if there is one.

    An interruption leaves `target.part`, which only this function reads; `target` appears once size
    and SHA-256 are right and its bytes are on the disk.

    Raises
    ------
    DownloadError : the server refuses or cannot be reached, and what has arrived is kept; or size
        or SHA-256 are wrong, and nothing is kept.
    """
    part = target.with_name(target.name + PART_SUFFIX)
    _receive_all(remote, part, report)
    try:
        _check(remote, part)
    except DownloadError:
        part.unlink()
        raise
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, target)


def _receive_all(remote: RemoteFile, part: Path, report: ReportBytes) -> None:
    """Request the missing rest, with retries, until it is complete."""
    failures, tags = 0, dict[str, str]()
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _receive(remote, part, before, report, tags):
                return
            error: Exception = ConnectionError("the connection broke off")
        except urllib.error.HTTPError as refusal:
            error = refusal
            if refusal.code not in _TRANSIENT:
                what = f"the server answers {refusal.code} {refusal.reason}"
                raise DownloadError(what, where=remote.url) from None
        except ValueError as invalid:
            what = f"the server's answer is not valid: {invalid}"
            raise DownloadError(what, where=remote.url) from invalid
        except _CONNECTION_ERRORS as broken:
            if isinstance(broken, OSError) and broken.errno in _DISK_ERRORS:
                raise
            error = broken
        failures = 0 if part.exists() and part.stat().st_size > before else failures + 1
        if failures > len(RETRY_PAUSES):
            hint = "the same command resumes the download" if remote.has_hash else None
            if not before and not isinstance(error, urllib.error.HTTPError):
                hint = OFFLINE
            what = f"could not be fetched: {error}"
            raise DownloadError(what, where=remote.url, hint=hint) from error
        time.sleep(RETRY_PAUSES[max(failures - 1, 0)])


def _receive(
    remote: RemoteFile, part: Path, start: int, report: ReportBytes, tags: dict[str, str]
) -> bool:
    """Make one request; return whether the file is complete, as far as server and size tell.

    Without a hash, the rest is asked for by the tag that the server gave the file, in `tags`, or
    not at all: it could be another file's.
    """
    if remote.size is not None and start >= remote.size:
        return True  # or too long, which the check reports
    request = urllib.request.Request(remote.url, headers={"Accept-Encoding": "identity"})
    for name, value in remote.headers.items():
        request.add_unredirected_header(name, value)  # a token is for this server only
    if start and (remote.has_hash or tags):
        headers = {"Range": f"bytes={start}-"} | ({} if remote.has_hash else tags)
        request.headers.update({name.capitalize(): value for name, value in headers.items()})
    try:
        response = urllib.request.build_opener(_Redirects).open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return _restart(part, error)
    with response, part.open("ab") as file:
        if start and not _continues(response, start):
            file.truncate(start := 0)
        if tag := _strong_tag(response):
            tags["If-Range"] = tag
        total = _total(remote, response, start)
        check_space(part.parent, (total or start) - start, remote.url)
        there = _copy(response, file, start, report, total)
    return total is None or there >= total


def _strong_tag(response: Any) -> str | None:
    """Return the tag that stands for a file's very bytes, if the server gives one."""
    tag = response.headers.get("ETag", "")
    return tag if re.fullmatch('"[!#-~]{1,200}"', tag) else None


def _total(remote: RemoteFile, response: Any, start: int) -> int | None:
    """Return the size of the whole file, if server or `remote` tell it."""
    length = response.headers.get("Content-Length")
    if length is not None:
        if not re.fullmatch("[0-9]{1,18}", length):
            raise ValueError(f"a length of {length[:30]}")
        return start + int(length)
    if not (remote.has_hash or remote.size or response.chunked):
        what = "the server does not say how long the file is, so that a part could pass for it"
        raise DownloadError(what, where=remote.url, hint=f"name its hash: {remote.url}#sha256=HEX")
    return remote.size


def _restart(part: Path, error: Any) -> bool:
    """Handle status 416: return whether the part is complete; remove a part of another file."""
    total = error.headers.get("Content-Range", "").rpartition("/")[2]
    if total == str(part.stat().st_size):
        return True
    part.unlink()
    return False


def _continues(response: Any, start: int) -> bool:
    """Return whether a response is the requested rest, and not the whole file."""
    told = response.headers.get("Content-Range", "")
    return response.status == http.HTTPStatus.PARTIAL_CONTENT and told.startswith(f"bytes {start}-")


def _copy(
    response: Any, file: IO[bytes], there: int, report: ReportBytes, total: int | None
) -> int:
    """Append what arrives, up to the file's size; return the part's new size."""
    while chunk := response.read1(_CHUNK):  # returns what is available, however little
        file.write(chunk)
        there += len(chunk)
        report(there, max(there, total or 0))
        if total is not None and there > total:
            break
    return there


def _check(remote: RemoteFile, part: Path) -> None:
    """Check size and digests; raise DownloadError for the first that is wrong."""
    size = part.stat().st_size
    if remote.size is not None and size != remote.size:
        raise _damaged(remote, part, f"{size} bytes", str(remote.size))
    found = file_sha256(part) if remote.sha256 else None
    if found != remote.sha256:
        raise _damaged(remote, part, f"SHA-256 {found}", str(remote.sha256))
    found = git_blob_id(part.read_bytes()) if remote.git_id else None
    if found != remote.git_id:
        raise _damaged(remote, part, f"the Git id {found}", str(remote.git_id))


def _damaged(remote: RemoteFile, part: Path, has: str, expected: str) -> DownloadError:
    hint = "the download is damaged or of another file; nothing of it was kept"
    return DownloadError(f"{part.stem} has {has}, expected {expected}", where=remote.url, hint=hint)


def git_blob_id(content: bytes) -> str:
    """Return the id that Git gives a file: SHA-1 of `blob`, its size, a zero, and its bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
