"""Fixtures for tests of the wgpu backend: an adapter."""

import pytest

from cortiq.errors import BackendError
from cortiq_wgpu import adapters


def why_not():
    """Why they cannot run here; empty if they can."""
    try:
        adapters.found()
    except BackendError as error:
        return str(error)
    return ""


REASON = why_not()
needed = pytest.mark.skipif(bool(REASON), reason=REASON or "there is an adapter")
