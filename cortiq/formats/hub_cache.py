"""The hub's own cache, which programs that use huggingface_hub share.

A repository's folder there has `blobs`, files named by their hash, and `snapshots`, for every
commit links to the blobs by name; `refs` holds the commit of a branch. This module puts files where
huggingface_hub finds them, and lets it make the links.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cortiq.atomic import write_atomically
from cortiq.errors import DownloadError
from cortiq.formats.digest import file_sha256
from cortiq.formats.download import PART_SUFFIX, RemoteFile, ReportBytes, download, git_blob_id
from cortiq.formats.hub_files import HubFile
from cortiq.formats.hub_names import HubName


class StoredFile(NamedTuple):
    """A file in the hub's cache; `is_new` says that it was fetched just now."""

    file: HubFile
    path: Path
    is_new: bool


class HubCache:
    """The files of a repository's commit in the hub's cache.

    Attributes
    ----------
    source : the model.
    folder : the repository's folder.
    """

    def __init__(self, source: HubName, commit: str) -> None:
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        self.source, self._commit = source, commit
        root = Path(constants.HF_HUB_CACHE).expanduser()
        self.folder = root / repo_folder_name(repo_id=source.repository, repo_type="model")

    def find(self, file: HubFile) -> Path | None:
        """Return a file that is there already and has the right hash, else None."""
        pointer = self.folder / "snapshots" / self._commit / file.name
        if pointer.is_file() and is_right(pointer, file):
            return pointer
        blob = self.folder / "blobs" / file.etag
        return self._pointer(file) if blob.is_file() and is_right(blob, file) else None

    def received(self, file: HubFile, temporary: Path) -> int:
        """Return the bytes of a file that an interrupted download has left."""
        part = temporary / f"{file.etag}{PART_SUFFIX}"
        return min(part.stat().st_size, file.size) if part.is_file() else 0

    def fetch(self, file: HubFile, temporary: Path, report: ReportBytes) -> Path:
        """Fetch and verify a file, and return its path in the cache."""
        import huggingface_hub
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers

        if file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:  # needs the hub's own Xet
            return self._pointer(file, whole=True)
        url = huggingface_hub.hf_hub_url(self.source.repository, file.name, revision=self._commit)
        remote = RemoteFile(url, file.size, file.sha256, build_hf_headers(), file.git_id)
        target = temporary / file.etag
        download(remote, target, report)
        blob = self.folder / "blobs" / file.etag
        blob.parent.mkdir(parents=True, exist_ok=True)
        pointer = self.folder / "snapshots" / self._commit / file.name
        pointer.unlink(missing_ok=True)  # to a damaged file, or to none
        _move(target, blob)
        return self._pointer(file)

    def _pointer(self, file: HubFile, *, whole: bool = False) -> Path:
        """Let huggingface_hub link a file whose bytes are there, or fetch it whole; return its
        path.
        """
        import huggingface_hub

        path = Path(
            huggingface_hub.hf_hub_download(
                self.source.repository, file.name, revision=self._commit
            )
        )
        if (whole or path.resolve().name != file.etag) and not is_right(path, file):
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            what = f"{file.name}: the hub sends another file than the one that it lists"
            raise DownloadError(what, where=self.source.name)
        return path

    def write_ref(self) -> None:
        """Note the commit of the branch or tag, unless some program has noted one."""
        place = self.folder / "refs" / self.source.revision
        if self.source.revision != self._commit and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, [self._commit.encode()])


def is_right(path: Path, file: HubFile) -> bool:
    """Return whether a file has its size and hash."""
    if path.stat().st_size != file.size:
        return False
    if file.sha256 is not None:
        return file_sha256(path) == file.sha256
    return git_blob_id(path.read_bytes()) == file.git_id


def _move(source: Path, target: Path) -> None:
    """Move a file to its final name, from another file system, too."""
    try:
        os.replace(source, target)
    except OSError:
        name = hashlib.sha256(str(source).encode()).hexdigest()[:8]
        part = target.with_name(f"{target.name}.{name}.incomplete")
        shutil.copyfile(source, part)
        os.replace(part, target)
        source.unlink()


def link(target: Path, path: Path) -> None:
    """Make a link to a file; where there are none (Windows), another name of it, or a copy."""
    try:
        path.symlink_to(target.absolute())
    except OSError:
        try:
            os.link(target.resolve(), path)
        except OSError:
            shutil.copyfile(target, path)


def release(links: Sequence[Path], used: set[str]) -> int:
    """Remove files that links lead to from the hub's cache, but for `used` ones.

    A file that another commit has, too, stays; its name in this one is removed. Return the bytes
    freed.
    """
    freed = 0
    for path in links:
        blob, pointer = Path(os.path.realpath(path)), Path(os.readlink(path))
        if str(blob) in used or "snapshots" not in pointer.parts:
            continue
        pointer.unlink(missing_ok=True)
        snapshots = Path(*pointer.parts[: pointer.parts.index("snapshots") + 1])
        others = (other for other in snapshots.rglob(f"*{pointer.suffix}") if other.is_symlink())
        shared = blob.parent.name == "blobs" and str(blob) in map(os.path.realpath, others)
        if blob.is_file() and not shared:
            freed += blob.stat().st_size
            blob.unlink()
    return freed
