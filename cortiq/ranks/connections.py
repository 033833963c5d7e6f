"""Torch.distributed, how long ranks wait for one another, and the error of a lost one."""

from __future__ import annotations

import os
import platform
import re
import uuid
from pathlib import Path
from typing import Any

from cortiq.errors import BackendError, ExecutableLostError

TIMEOUT_VARIABLE = "CORTIQ_RANK_TIMEOUT"
TIMEOUT_SECONDS = 300.0
"""Seconds that a rank waits for another in a batch before it counts as lost, by default."""
SPIN_SECONDS = 0.05
"""Seconds of waiting for a device without a pause; steps take less."""
COMPILE_SECONDS = 3600.0
"""Seconds to wait for a command or its answer: preparing a large model's weights takes a while.
A rank whose process ends is missed at once."""


def timeout_seconds() -> float:
    """Return how long a rank waits for another.

    Raises
    ------
    BackendError : the variable is no positive number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text or TIMEOUT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        what = f"{text!r} is no number of seconds above 0"
        raise BackendError(what, where=TIMEOUT_VARIABLE, hint="how long ranks wait for one another")
    return seconds


def distributed() -> Any:
    """Return torch.distributed.

    Raises
    ------
    BackendError : PyTorch is not installed, or was built without it.
    """
    try:
        import torch.distributed as found
    except ImportError:
        what = "several devices need PyTorch, which connects them"
        raise BackendError(what, hint="pip install torch") from None
    if not (found.is_available() and found.is_gloo_available()):
        raise BackendError("this PyTorch was built without torch.distributed, or without gloo")
    return found


def all_gather_of(dist: Any) -> Any:
    """Return what gathers one tensor of every rank in one tensor, by its name in this PyTorch."""
    newer = getattr(dist, "all_gather_single", None)
    return newer or dist.all_gather_into_tensor


class RankLostError(ExecutableLostError):
    """A rank does not answer any more; requests that were under way cannot go on."""


def lost_error(why: str) -> RankLostError:
    """Return the error of a lost rank."""
    return RankLostError(why, hint="Start all ranks again; no answer was changed by it.")


def first_sentence(error: BaseException) -> str:
    """Return what an error says, without the place in its source."""
    said = str(error).strip().split("\n")[0] or type(error).__name__
    return re.sub(r"^\[[^\]]*\]\s*", "", said).split(". ")[0]


def this_host() -> str:
    """Return what names this host and the start of its kernel, the same in all its processes; where
    no kernel names its start, the network's hardware address stands for it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = f"{uuid.getnode():x}"
    return f"{platform.node()} {boot}"
