"""The backend under test on several ranks, each with a share of every program."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from cortiq.errors import RequestError
from cortiq.model.devices import backend_named, weights_of
from cortiq.plugins import used_files
from cortiq.ranks.backend import DeviceSplit, RanksBackend
from cortiq.ranks.start import device_count, start_ranks
from cortiq_conformance.runner import make_subject
from cortiq_conformance.subject import Subject


def split_of(kind: str, devices: int) -> DeviceSplit:
    """Return the split of a kind: one of a model's, or two stretches of layers, each divided
    like tensors ("mixed").

    Raises
    ------
    RequestError : there are too few devices for it.
    """
    if kind == "mixed":
        if devices < 3:
            what = f"a mixed split needs three devices or more, and --devices is {devices}"
            raise RequestError(what, where="split", hint="--split tensor, or --split layer")
        first = tuple(range(-(-devices // 2)))
        return DeviceSplit((first, tuple(range(len(first), devices))))
    return DeviceSplit.of(kind, devices)


@contextmanager
def subject_on(spec: str | None, devices: int, kind: str) -> Iterator[Subject]:
    """Start ranks, yield a backend over them as the one under test, and end them.

    Raises
    ------
    RequestError : there are too few devices.
    BackendError : the ranks did not meet; or no backend is named so.
    OptionError : torchrun started another number of ranks.
    """
    split, subject = split_of(kind, device_count(devices)), make_subject(spec)
    ranks = start_ranks(devices, backend_named, weights_of, used_files())
    try:
        subject.backend = RanksBackend(ranks.driver, subject.backend, split)
        subject.split = f"{kind} split over {devices} devices"
        gc.freeze()  # ranks collect after every case: no more than that case's
        yield subject
    finally:
        gc.unfreeze()
        ranks.close()
