"""The backend object: what it supports, and how a program is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cortiq.backend import CompileOptions, Declined, Device, Support, Supported, Versions
from cortiq.errors import BackendError
from cortiq.ir import Graph, Node, Program, primitives_within
from cortiq.numerics.layouts import Weight
from cortiq_cpu import native
from cortiq_cpu.executable import CpuExecutable
from cortiq_cpu.kernels import refusal

EXTRA_OPTIONS = ("isa", "profile", "poison")


class CpuBackend:
    """Native kernels on the host's cores: every primitive, and every layer through them."""

    name = "cpu"
    priority = 10
    versions = Versions()

    def devices(self) -> Sequence[Device]:
        """The CPU, described by its best instruction set; `BackendError` if nothing was built."""
        return [Device("cpu", f"native kernels, {native.best_isa()}")]

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Primitives that have a kernel, and whatever decomposes into them."""
        parts = (refusal(part, graph, program) for part in primitives_within(node, graph, program))
        reason = next(filter(None, parts), "")
        return Declined(reason) if reason else Supported()

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> CpuExecutable:
        """Decompose to primitives, pack the weights, and make ready to compile op lists.

        Raises
        ------
        BackendError : an option in `extra` is unknown, or its instruction set does not run here.
        """
        unknown = sorted(set(options.extra) - set(EXTRA_OPTIONS))
        if unknown:
            raise BackendError(
                f"the CPU backend has no options {unknown}",
                hint=f"its options are {', '.join(EXTRA_OPTIONS)}",
            )
        return CpuExecutable(program, weights, options)
