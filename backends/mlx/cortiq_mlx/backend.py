"""The backend object: its devices, its kernels, and what it declines."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from cortiq.backend import CompileOptions, Device, KernelBackend, KernelTable, Versions
from cortiq.backend.float_weights import MATRICES, stack_of
from cortiq.backend.plan import Bound, joined
from cortiq.errors import BackendError
from cortiq.ir import Graph, KVRows, Node, Op, Program
from cortiq.numerics.layouts import Weight

if TYPE_CHECKING:
    from cortiq_mlx.array_library import MlxArrays
    from cortiq_mlx.executable import MlxExecutable

HINT = "pip install mlx; on Linux 'mlx[cpu]' or, with an NVIDIA GPU, 'mlx[cuda]'"


class MlxBackend(KernelBackend):
    """MLX array operations whose results are defined, on the CPU, Metal and CUDA."""

    name = "mlx"
    versions = Versions(hookspec=1, ir=1, contract=1)

    def devices(self) -> Sequence[Device]:
        """Return the GPU if MLX has one, and the CPU."""
        try:
            from cortiq_mlx.library import DEVICES, description, there
        except ImportError as missing:
            raise BackendError(f"MLX is not here: {missing}", hint=HINT) from missing
        return [Device(name, description(name)) for name in reversed(DEVICES) if there(name)]

    def library(self, device: str, options: CompileOptions) -> MlxArrays:
        """Open MLX on a device; BackendError where its arithmetic is not IEEE's."""
        from cortiq_mlx.executable import arrays_on
        from cortiq_mlx.self_test import check_device

        check_device(device)
        return arrays_on(device)

    def table(self) -> KernelTable:
        """Return the kernels, the joined heads' included."""
        from cortiq_mlx.join_heads import JoinedHeads, joined_heads
        from cortiq_mlx.kernels import KERNELS, OPTIONS

        return KernelTable({**KERNELS, JoinedHeads: joined_heads}, OPTIONS)

    def executable(self) -> type[MlxExecutable]:
        """The executable's class."""
        from cortiq_mlx.executable import MlxExecutable

        return MlxExecutable

    def prepare(self, library: Any, op: Op, role: str, weight: Weight, name: str) -> Any:
        """Convert a weight to the form that the kernel of `op` takes."""
        from cortiq_mlx.kernels import prepare

        return prepare(library, op, role, weight, name)

    def form(self, op: Op, role: str) -> Hashable:
        """Return the form's key: a table that is also the last matrix is held once."""
        return stack_of(op) if isinstance(op, MATRICES) else (op, role)

    def declines(self, node: Node, program: Program) -> str | None:
        """Decline keys that are too wide for exact sums."""
        from cortiq_mlx.attention import WIDEST_KEY

        slots = [program.slots[name] for name in node.slots.values()]
        wide = [s.key_dim for s in slots if isinstance(s, KVRows) and s.key_dim > WIDEST_KEY]
        reason = f"float32 sums are exact up to {WIDEST_KEY}"
        return f"keys of {wide[0]} values: {reason}" if wide else None

    def rewrite(self, nodes: list[Bound], graph: Graph) -> list[Bound]:
        """Join the matrices that multiply the same rows, and the heads of q, k and v."""
        from cortiq_mlx.join_heads import join_heads

        return nodes if self.given else join_heads(joined(nodes), graph)
