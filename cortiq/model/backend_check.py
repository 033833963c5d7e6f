"""A short check of every backend: whether it works here, with the reference's bits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cortiq.errors import CortiqError
from cortiq.options import LoadOptions
from cortiq.plugins import Plugins, availability
from cortiq.plugins.extras import install_command, missing_requirements
from cortiq.plugins.selection import FALLBACK, MOST_LISTED

if TYPE_CHECKING:
    from cortiq.backend import Backend

MODEL = "synthetic:tiny-llama?seed=1"
OPTIONS: dict[str, Any] = {"max_tokens": 4, "temperature": 0.8, "seed": 1, "ignore_eos": True}


@dataclass
class BackendCheck:
    """Result of checking a backend, or one of its devices.

    Attributes
    ----------
    works : whether it generated something; None where it was not tried.
    same : whether its logits have the reference's bits; None where there is nothing to compare.
    problem : why it does not work.
    mend : a command that may help, if one is known.
    """

    backend: str
    device: str | None
    description: str
    source: str
    works: bool | None = None
    same: bool | None = None
    seconds: float | None = None
    digest: str | None = None
    problem: str | None = None
    mend: str | None = None


def check_backends(plugins: Plugins, *, run: bool = True) -> list[BackendCheck]:
    """Check every installed backend and device; only list them if `run` is false.

    The trial generates a few tokens with a tiny synthetic model, nothing declined, and compares
    the digest of all logits with the reference's. (`cortiq conform` is the thorough proof.)
    """
    made = [trial for name in plugins.backends for trial in _devices_of(name, plugins)]
    for trial in made if run else ():
        if trial.problem is None and trial.device is not None:
            _try(trial, plugins.backends[trial.backend])
    expected = next((t.digest for t in made if t.backend == FALLBACK and t.digest), None)
    for trial in made:
        if expected is not None and trial.digest is not None:
            trial.same = trial.digest == expected
            if not trial.same:
                trial.problem = "its logits are not the reference's"
                trial.mend = f"cortiq conform --backend {trial.backend}"
    return made


def _devices_of(name: str, plugins: Plugins) -> list[BackendCheck]:
    backend = plugins.backends[name]
    source = plugins.sources.get(plugins.brought_by.get(name, ""), "")
    devices, reason = availability(backend)
    if getattr(backend, "for_tests", False):
        return [BackendCheck(name, None, "for tests of backends", source)]
    if len(devices) > MOST_LISTED:
        return [BackendCheck(name, None, f"{len(devices)} devices, none of them tried", source)]
    if reason is None:
        return [BackendCheck(name, d.name, d.description, source) for d in devices]
    missing = missing_requirements(source.partition(" ")[0])
    mend = install_command(*missing) if missing else None
    return [BackendCheck(name, None, "", source, works=False, problem=reason, mend=mend)]


def _try(trial: BackendCheck, backend: Backend) -> None:
    """Generate with a backend; note the digest or the error."""
    from cortiq.model.load import model_of
    from cortiq.model.source import open_source

    started, options = time.perf_counter(), LoadOptions(threads=1, strict_placement=True)
    try:
        source, placed = open_source(MODEL, options), (backend, trial.device or "")
        with model_of(MODEL, source, placed, options) as model:
            trial.digest = model.generate("Is it so?", **OPTIONS).digest
        trial.works = True
    except CortiqError as error:
        trial.works, trial.problem = False, str(error)
    except (Exception, SystemExit) as error:  # a device's library may raise anything at all
        trial.works, trial.problem = False, f"{type(error).__name__}: {error}"
    trial.seconds = round(time.perf_counter() - started, 3)
