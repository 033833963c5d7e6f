"""Protocols of a backend and its executables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from cortiq.backend.batch import Batch, Ticket
from cortiq.backend.peers import ALONE, Peers
from cortiq.backend.state import ExportedState, State
from cortiq.errors import BackendError
from cortiq.ir import IR_VERSION, Graph, Node, Program
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq.numerics.layouts import Weight

BATCH_ROWS = 256
"""Rows of a batch where an executable does not say how many suit its device."""
HOOKSPEC_VERSION = 1
"""Version of this page and of the hooks."""


@dataclass(frozen=True)
class Versions:
    """Versions a backend was built for; another major version is refused when it is loaded."""

    hookspec: int = HOOKSPEC_VERSION
    ir: int = IR_VERSION
    contract: int = CONTRACT_VERSION


@dataclass(frozen=True)
class Device:
    """A device a backend found: `name` selects it (`--backend wgpu:NAME`)."""

    name: str
    description: str = ""


@dataclass(frozen=True)
class Supported:
    """The backend executes the node itself."""


@dataclass(frozen=True)
class Declined:
    """The backend does not execute the node, and why.

    `requirement` names what is not met, as conformance reports do (`weights.q3_k`,
    `attention.sinks`); by default it is the operator.
    """

    reason: str
    requirement: str | None = None


Support = Supported | Declined


class WeightKeeper(Protocol):
    """Weights as a backend prepared them, kept between runs.

    A backend with `keeps_weights = True` gets one, when a model of files is loaded. Of each weight
    it asks `find`, and gives what is not there to `add`; after `place` it takes the bytes, which
    are a mapped file's or in memory.

    Attributes
    ----------
    taken : names that were found; what they were made of was checked when they were kept.
    """

    taken: set[str]

    def find(self, name: str, form: str, nbytes: int, pool: Executor | None = None) -> bool:
        """Return whether a weight of this form and size is there."""

    def add(
        self, name: str, form: str, nbytes: int, parts: Iterable[npt.NDArray[np.uint8]]
    ) -> None:
        """Take a weight that is prepared now, its bytes part by part."""

    def place(self, pool: Executor | None = None) -> None:
        """Have the bytes of all weights so far where they stay."""

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """Return a weight's bytes, after `place`: at a multiple of 64, not to be changed."""


@dataclass(frozen=True)
class CompileOptions:
    """Options of `Backend.compile`; none changes a bit.

    Attributes
    ----------
    device : name of the device, or `None` for the backend's first.
    threads : host threads to use, 0 for the number of cores.
    page_rows : rows by which a sequence's storage grows.
    memory_limit : bytes for all sequences together, or `None` for what the device has.
    full_windows : keep rows behind attention windows too, so that a sequence can be cut anywhere.
    extra : options of the backend's own, by name.
    kept : weights as this backend prepared them before, and where it leaves them for the next run;
        None keeps nothing.
    peers : the devices that compute the program together with this one.
    """

    device: str | None = None
    threads: int = 0
    page_rows: int = 64
    memory_limit: int | None = None
    full_windows: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    kept: WeightKeeper | None = None
    peers: Peers = ALONE


class OptionalCapabilities:
    """The capabilities that an executable need not have, as one without them has them."""

    @property
    def windows(self) -> Mapping[str, int]:
        """Windows of the slots whose rows are given up behind them (`cortiq.backend.windows`)."""
        return {}

    @property
    def asynchronous(self) -> bool:
        """Whether `forward` returns before the batch is computed.

        Generation then submits the step after the one whose token it awaits (`Drawn`), and the
        device never waits for the host. Where `forward` computes at once that would only hold
        every token back by one step.
        """
        return False

    def late_masks(self, batch: Batch) -> bool:
        """Check whether draws of this batch may have masks that come later (`LATE`), so that the
        device computes logits while the host finds out which ids may follow.

        The ticket is a `LateTicket` then.
        """
        return False

    @property
    def batch_rows(self) -> int:
        """Rows of a batch with which its device computes prompts best.

        `free_bytes` leaves room for what a batch of so many rows takes while it is computed.
        """
        return BATCH_ROWS

    @property
    def profile(self) -> Any:
        """Recorder of the times of ops (`start`, `stop`, `limits`); None where nothing records."""
        return None

    @property
    def provenance(self) -> Mapping[str, str]:
        """Names and texts for receipts: the driver, libraries, kernels (docs/receipts.md)."""
        return {}

    @property
    def takes_overlays(self) -> bool:
        """Whether it can `vary`."""
        return False

    def vary(self, program: Program | None, weights: Mapping[str, Weight]) -> None:
        """Take a program with overlays (`cortiq.ir.overlays`) in place of the one before; None has
        none any more. Rows that choose one are computed by it, over the sequences that are there.

        Parameters
        ----------
        weights : those of the program it was compiled from, and the banks.

        Raises
        ------
        BackendError : it cannot.
        """
        raise BackendError("the backend computes no overlays", hint="merge the adapter: --lora")

    def revise(self, number: int, weights: Mapping[str, Weight]) -> bool:
        """Change the overlay of a number, which no sequence's rows choose now, in the program that
        `vary` took; return False where all banks must be given again.

        Parameters
        ----------
        weights : the number's part of every bank, in the bank's layout; none to ask if it ever can.
        """
        return False

    def warm(self, progress: Callable[[int, int], None] = lambda done, total: None) -> bool:
        """Compile ahead what serving needs; return whether there is anything to compile.

        Parameters
        ----------
        progress : called with how much is ready, and how much there is.
        """
        return False


class Executable(Protocol):
    """A compiled program: weights uploaded once, sequences opened and advanced.

    What a backend compiles may lack the members of `OptionalCapabilities`; it has their defaults
    then (`cortiq.backend.seam`), so that whoever holds an executable finds them all.
    """

    @property
    def program(self) -> Program:
        """The program it was compiled from."""

    @property
    def placement(self) -> Mapping[str, str]:
        """Name of the backend that computes each node not decomposed further, by node name."""

    @property
    def windows(self) -> Mapping[str, int]:
        """See `OptionalCapabilities`."""

    @property
    def asynchronous(self) -> bool:
        """See `OptionalCapabilities`."""

    @property
    def batch_rows(self) -> int:
        """See `OptionalCapabilities`."""

    @property
    def profile(self) -> Any:
        """See `OptionalCapabilities`."""

    @property
    def provenance(self) -> Mapping[str, str]:
        """See `OptionalCapabilities`."""

    def late_masks(self, batch: Batch) -> bool:
        """See `OptionalCapabilities`."""

    @property
    def takes_overlays(self) -> bool:
        """See `OptionalCapabilities`."""

    def vary(self, program: Program | None, weights: Mapping[str, Weight]) -> None:
        """See `OptionalCapabilities`."""

    def revise(self, number: int, weights: Mapping[str, Weight]) -> bool:
        """See `OptionalCapabilities`."""

    def warm(self, progress: Callable[[int, int], None] = ...) -> bool:
        """See `OptionalCapabilities`."""

    def open(self, limit: int) -> State:
        """Open an empty sequence of at most `limit` positions."""

    def import_(self, exported: ExportedState, limit: int) -> State:
        """Open a sequence that continues an exported one, once `check_exported` has let it pass."""

    def forward(self, batch: Batch) -> Ticket:
        """Compute a batch: prefill chunk, decode step, verify, scoring and inspection alike."""

    def state_bytes(self, rows: int) -> int:
        """Return the memory that a sequence of this many rows takes."""

    def free_bytes(self) -> int:
        """Return the memory left for sequences."""

    def close(self) -> None:
        """Release weights and sequences."""


@runtime_checkable
class Backend(Protocol):
    """A backend: what a plugin's `cortiq_backends` hook returns.

    Attributes
    ----------
    name : selects it (`--backend NAME`).
    priority : the highest available one is the default; the reference has 0.
    versions : what it was built for.
    """

    name: str
    priority: int
    versions: Versions

    def devices(self) -> Sequence[Device]:
        """List the devices found; `BackendError` says why there are none."""

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Say whether the backend executes this node: a layer as a whole, or a primitive.

        A declined layer is decomposed and asked again; a declined primitive goes to the reference.
        """

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> Executable:
        """Compile a program; every node of it was supported."""
