"""Loading: a name to a model, compiled for a backend."""

from __future__ import annotations

import time
from collections.abc import Mapping
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
    extra: Mapping[str, Any] | None = None,
    **options: Any,
) -> Model:
    """Open a model and compile it for a backend.

    Parameters
    ----------
    name : a known name, a file, a folder, `hf:organisation/name@revision`, or `synthetic:NAME`.
    progress : called while a model is fetched: what is done, bytes done, bytes in all.
    extra : options of the backend's own (`CompileOptions.extra`); none changes a bit.
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
        compile_options = CompileOptions(device=device, threads=chosen.threads, extra=extra or {})
        executable = _compile(source, backend, compile_options, chosen.strict_placement)
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


def _compile(source: Source, backend: Backend, options: CompileOptions, strict: bool) -> Executable:
    from cortiq.runtime.place import place

    return place(backend, source.program, source.weights, options, strict=strict)
