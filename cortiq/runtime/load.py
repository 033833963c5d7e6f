"""Loading: a name to a model, compiled for a backend."""

from __future__ import annotations

import time
from typing import Any

from cortiq.backend import Backend, CompileOptions, Executable
from cortiq.errors import RequestError
from cortiq.formats.cache import Progress
from cortiq.options import LoadOptions, resolve
from cortiq.runtime.model import Model
from cortiq.runtime.source import Source, open_source


def load(
    name: str,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Model:
    """Open a model and compile it for a backend.

    Parameters
    ----------
    name : a known name, a file, a folder, `hf:organisation/name@revision`, or `synthetic:NAME`.
    progress : called while a model is fetched: what is done, bytes done, bytes in all.
    options : fields of `cortiq.options.LoadOptions`.

    Raises
    ------
    ModelNotFoundError, DownloadError, FormatError, UnsupportedError : about the model.
    BackendError, DeclinedError : about the backend.
    """
    started = time.perf_counter()
    chosen = resolve(LoadOptions, options)
    backend, device = choose_backend(chosen)
    source = open_source(name, chosen, progress)
    try:
        executable = _compile(source, backend, device, chosen)
    except BaseException:
        source.close()
        raise
    model = Model(name, source, executable, backend.name, device, chosen)
    model.load_seconds = time.perf_counter() - started
    return model


def choose_backend(options: LoadOptions) -> tuple[Backend, str]:
    """The backend asked for, or the best available, and the name of its device."""
    from cortiq.plugins import find_backend

    name = options.backend
    if options.device is not None:
        if name is None or ":" in name:
            message = f"device {options.device!r} needs a backend named without a device"
            raise RequestError(message, where="--device", hint="--backend NAME --device DEVICE")
        name = f"{name}:{options.device}"
    backend, device = find_backend(name)
    return backend, device or backend.devices()[0].name


def _compile(source: Source, backend: Backend, device: str, options: LoadOptions) -> Executable:
    from cortiq.runtime.place import place

    compile_options = CompileOptions(device=device, threads=options.threads)
    return place(
        backend, source.program, source.weights, compile_options, strict=options.strict_placement
    )
