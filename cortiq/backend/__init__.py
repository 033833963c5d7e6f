"""The backend seam: what a backend implements, and what the runtime asks of it.

Hooks are used when things are built; between a runtime and an executable there are only the calls
on this page. Besides data and protocols there is `KernelBackend`, which makes a backend of a table
of kernels over an array library. A backend imports this package, `cortiq.ir` and `cortiq.numerics`,
and nothing else of cortiq.
"""

from cortiq.backend.arithmetic import Arithmetic
from cortiq.backend.array_kernels import ARRAY_KERNELS, ARRAY_OPTIONS
from cortiq.backend.arrays import ArrayLibrary
from cortiq.backend.batch import (
    FAULT,
    LATE,
    Argmax,
    Batch,
    BatchResult,
    Digest,
    Draw,
    Drawn,
    DrawnLogit,
    Finished,
    LateTicket,
    Named,
    Outcome,
    Row,
    Status,
    Ticket,
    Top,
    Want,
)
from cortiq.backend.fallback_kernels import FallbackKernels
from cortiq.backend.float64 import FLOAT64_KERNELS, FLOAT64_OPTIONS, Float64Arrays
from cortiq.backend.float_weights import MATRICES, float_weight, stack_of
from cortiq.backend.functional_arrays import FunctionalArrays, RowFlags
from cortiq.backend.kernel import Kernel, OperatorExample, StepKernel, TakesKernels
from cortiq.backend.kernel_backend import KernelBackend, KernelTable
from cortiq.backend.kernel_walk import KernelCall
from cortiq.backend.matrices import Float64Matrix
from cortiq.backend.numpy_arrays import NumPyArrays
from cortiq.backend.protocol import (
    BATCH_ROWS,
    HOOKSPEC_VERSION,
    Backend,
    CompileOptions,
    Declined,
    Device,
    Executable,
    OptionalCapabilities,
    Support,
    Supported,
    Versions,
    WeightKeeper,
)
from cortiq.backend.state import ExportedState, KVPlanes, Snapshot, State, check_exported

__all__ = [
    "LATE",
    "LateTicket",
    "ARRAY_KERNELS",
    "ARRAY_OPTIONS",
    "Argmax",
    "Arithmetic",
    "ArrayLibrary",
    "BATCH_ROWS",
    "Backend",
    "Batch",
    "BatchResult",
    "CompileOptions",
    "Declined",
    "FallbackKernels",
    "Device",
    "Digest",
    "Draw",
    "Drawn",
    "DrawnLogit",
    "Executable",
    "ExportedState",
    "FAULT",
    "FLOAT64_KERNELS",
    "FLOAT64_OPTIONS",
    "Finished",
    "Float64Arrays",
    "Float64Matrix",
    "FunctionalArrays",
    "HOOKSPEC_VERSION",
    "KVPlanes",
    "Kernel",
    "KernelBackend",
    "KernelCall",
    "KernelTable",
    "MATRICES",
    "Named",
    "NumPyArrays",
    "OperatorExample",
    "OptionalCapabilities",
    "Outcome",
    "Row",
    "RowFlags",
    "Snapshot",
    "State",
    "Status",
    "StepKernel",
    "Support",
    "Supported",
    "TakesKernels",
    "Ticket",
    "Top",
    "Versions",
    "WeightKeeper",
    "Want",
    "check_exported",
    "float_weight",
    "stack_of",
]
