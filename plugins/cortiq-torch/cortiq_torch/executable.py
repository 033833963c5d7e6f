"""A program bound to its weights on a device; see `cortiq.backend.Executable`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

import torch

from cortiq.backend import Batch, CompileOptions
from cortiq.backend.executable import Accepted, Brought
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.backend.plan import Plan, Prepared, joined
from cortiq.backend.stored import StoredExecutable, StoredState
from cortiq.ir import Node, Program, Slot, expand, ops
from cortiq.numerics.layouts import Weight
from cortiq_torch.kernels import KERNELS, LAYERS, form, prepare
from cortiq_torch.run import Run
from cortiq_torch.stores import Store, open_store


class TorchExecutable(StoredExecutable[StoredState, Plan]):
    """A program on one device."""

    trims: ClassVar[bool] = True

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: CompileOptions,
        device: str,
        name: str,
        given: GivenKernels = NO_KERNELS,
    ) -> None:
        self.device = device
        layouts = {weight: spec.layout for weight, spec in program.weights.items()}
        whole = {} if given else LAYERS  # a kernel of others is for the primitives inside, too

        def is_claimed(node: Node) -> bool:
            return type(node.op) in whole

        graphs = {n: expand(g, layouts, is_claimed) for n, g in program.graphs.items()}
        kernels = {**KERNELS, **LAYERS, **{op: kernel.function for op, kernel in given.items()}}
        prepared = Prepared(weights, partial(prepare, device=device), form)
        rewrite = list if ops.MatMul in given else joined
        plans = {n: Plan(g, prepared.bound(g), kernels, rewrite) for n, g in graphs.items()}
        super().__init__(program, options, plans)
        nodes = [node for graph in program.graphs.values() for node in graph.nodes]
        theirs = {op: kernel.owner for op, kernel in given.items()}
        self.placement = {node.name: theirs.get(type(node.op), name) for node in nodes}

    @property
    def provenance(self) -> Mapping[str, str]:
        """What computes here, for receipts: PyTorch, CUDA, the device."""
        facts = {"torch": str(torch.__version__), "device": self.device}
        if self.device != "cpu":
            facts["device"] = torch.cuda.get_device_name(self.device)
            facts["cuda"] = str(torch.version.cuda)
        return facts

    def new_state(self, limit: int) -> StoredState:
        """An empty sequence of at most `limit` positions."""
        return StoredState(self, limit)

    def new_store(self, name: str, slot: Slot) -> Store:
        """An empty store for the slot of this name."""
        page, poison = self.options.page_rows, bool(self.options.extra.get("poison"))
        return open_store(slot, self.device, page, poison, self.extent(name))

    def device_bytes(self) -> int:
        """Memory the device has free."""
        return super().device_bytes() if self.device == "cpu" else _free_memory(self.device)

    def compute(
        self, plan: Plan, batch: Batch, accepted: Sequence[Accepted[StoredState]]
    ) -> list[list[Brought] | None]:
        """What the rows of each sequence bring, None for one with a fault."""
        with _threads(self.options.threads):
            return Run(plan, batch, accepted, self.device).compute()


def _free_memory(device: str) -> int:
    """Memory a GPU has free."""
    return torch.cuda.mem_get_info(device)[0]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let torch use so many host threads, 0 for what it chose itself."""
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count:
            torch.set_num_threads(before)
