"""The backend seam: what a backend implements, and what the runtime asks of it.

Hooks are used when things are built; between a runtime and an executable there are only the calls
on this page. Everything here is data or a protocol: a backend imports this package, `cortiq.ir`
and `cortiq.numerics`, and nothing else of cortiq.
"""

from cortiq.backend.batch import (
    FAULT,
    Argmax,
    Batch,
    BatchResult,
    Digest,
    Draw,
    Drawn,
    Finished,
    Named,
    Outcome,
    Row,
    Status,
    Ticket,
    Top,
    Want,
)
from cortiq.backend.kernel import Kernel, TakesKernels
from cortiq.backend.kernel_backend import KernelBackend, KernelTable
from cortiq.backend.protocol import (
    HOOKSPEC_VERSION,
    Backend,
    CompileOptions,
    Declined,
    Device,
    Executable,
    Support,
    Supported,
    Versions,
)
from cortiq.backend.state import ExportedState, KVPlanes, Snapshot, State, check_exported

__all__ = [
    "FAULT",
    "HOOKSPEC_VERSION",
    "Argmax",
    "Backend",
    "Batch",
    "BatchResult",
    "CompileOptions",
    "Declined",
    "Device",
    "Digest",
    "Draw",
    "Drawn",
    "Executable",
    "Finished",
    "ExportedState",
    "KVPlanes",
    "Kernel",
    "KernelBackend",
    "KernelTable",
    "Named",
    "Outcome",
    "Row",
    "Snapshot",
    "State",
    "Status",
    "Support",
    "Supported",
    "TakesKernels",
    "Ticket",
    "Top",
    "Versions",
    "Want",
    "check_exported",
]
