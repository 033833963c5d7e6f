"""Memory that ranks of a host open to one another, to write rows into it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cortiq.backend.peers import PeerRows
from cortiq.errors import BackendError
from cortiq.ranks.connections import this_host

EXCHANGE_VARIABLE = "CORTIQ_EXCHANGE"
MEMORY, NCCL, HOST = "memory", "nccl", "host"
"""Ways to exchange, as the variable names them; without it NCCL, or the host where it is not."""
OpenRows = Callable[[str, int, int, float], PeerRows | None]
"""Makes memory of (device, rank, ranks, seconds until one is lost); see `TakesKernels.peer_rows`"""


def no_rows(device: str, rank: int, size: int, seconds: float) -> None:
    """Return None: a backend without memory for peers."""


def asked_exchange() -> str:
    """Return the way that the environment asks for; empty if it does not.

    Raises
    ------
    BackendError : there is no such way.
    """
    way = os.environ.get(EXCHANGE_VARIABLE, "")
    if way not in ("", MEMORY, NCCL, HOST):
        hint = f"There are {MEMORY}, {NCCL} and {HOST}."
        raise BackendError(f"{way!r} is no exchange", where=EXCHANGE_VARIABLE, hint=hint)
    return way


def shared_rows(
    make: Callable[[], PeerRows | None],
    told: Callable[[Any], list[Any]],
) -> tuple[PeerRows | None, str]:
    """Return the memory of this rank, connected with that of the others of its group, or why not.

    They use it if every one of them can.

    Parameters
    ----------
    make : makes this rank's memory. told : asks every rank of the group.
    """
    rows, why = None, ""
    try:
        rows = make()
        why = "the backend has no memory for peers" if rows is None else ""
    except BackendError as error:
        why = error.what
    offers = told((why, this_host(), rows.handle if rows is not None else b""))
    why = next((why for why, _, _ in offers if why), "")
    if not why and len({host for _, host, _ in offers}) > 1:
        why = "ranks are on several hosts"
    refused = ""
    try:
        if rows is not None and not why:
            rows.connect([handle for _, _, handle in offers])
    except BackendError as error:
        refused = error.what
    why = why or next((said for said in told(refused) if said), "")
    if rows is not None and why:
        rows.close()
    return (None if why else rows), why
