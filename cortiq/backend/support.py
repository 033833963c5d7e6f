"""Refusals that backends word alike: of nodes, options and devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from cortiq.backend.admission import BY_ROW
from cortiq.backend.float_weights import MATRICES
from cortiq.backend.kernel import GivenKernels, Kernel
from cortiq.backend.protocol import CompileOptions, Declined, Device, Support, Supported
from cortiq.errors import BackendError, shown
from cortiq.ir import Graph, Node, Op, Program, ops, primitives_of, primitives_within

Refusal: TypeAlias = Callable[[Node, Graph, Program], str]
"""Says why a primitive is declined; empty if it is not."""
POSITIONED = (
    ops.Rope, ops.Attend, ops.ChooseBlocks, ops.ChooseKeys, ops.Recall, ops.OwnBlock, ops.ListKeys,
    ops.Compress, ops.WindowBlocks,
)  # fmt: skip
"""Primitives that take positions."""


def no_kernel(op: Op, kernels: Collection[type[Op]], options: frozenset[str]) -> str:
    """Say why a primitive has no kernel, or none with its options; empty if it has one."""
    if type(op) not in kernels:
        return f"no kernel for {op.kind}"
    unknown = sorted(op.options() - options)
    return f"no kernel for {op.kind} with {', '.join(unknown)}" if unknown else ""


def unplaced(node: Node, graph: Graph, program: Program) -> str:
    """Say why a primitive is declined where the host has to know tokens and positions before a
    batch runs; empty if it knows them.
    """
    op = node.op
    if isinstance(op, ops.EmbedRows) and not _within_table(op, node.inputs[0], graph, program):
        return "rows of a table are looked up for what rows have or supply, or hashes of tokens"
    if isinstance(op, ops.HashNGrams) and node.inputs[0] != "token":
        return "n-grams are hashed of the rows' tokens only"
    if isinstance(op, ops.KeepListed) and node.inputs[1] != "token":
        return "lists of experts are looked up for the row's token only"
    if isinstance(op, POSITIONED):
        supplied = getattr(op, "until", False) or getattr(op, "sections", None)
        first = isinstance(op, ops.Recall | ops.OwnBlock | ops.ListKeys)
        position = node.inputs[0 if first else 1]
        if position not in (graph.inputs if supplied else ("position",)):
            return f"{op.kind} is computed at positions that rows have or supply only"
    return ""


def _within_table(op: ops.EmbedRows, number: str, graph: Graph, program: Program) -> bool:
    """Return whether numbers are a table's: checked ones, or hashes that have no others."""
    if number in graph.inputs:
        return True
    nodes = [*graph.nodes, *primitives_of(program).graphs[graph.name].nodes]
    maker = next((node.op for node in nodes if number in node.outputs), None)
    return isinstance(maker, ops.HashNGrams) and sum(maker.heights) <= op.vocab


def package_refusal(node: Node, graph: Graph, kernel: Kernel) -> str:
    """Say why a package's kernel is not given a node on a compiled backend; empty if it is.

    There a kernel computes rows of f32 and i32 values from such rows. It has no state, unless its
    function `steps` from one row to the next.
    """
    steps = getattr(kernel.function, "steps", False)
    if bool(node.slots) != steps:
        has = "a state, and this {} has none" if steps else "no state, and this {} has"
        return f"the kernel {kernel.owner} has {has.format(node.op.kind)}"
    if isinstance(node.op, ops.Reshape):
        return "Reshape computes nothing: its output shares the input's memory"
    for name in (*node.inputs, *node.outputs):
        late = name in BY_ROW and not (steps and name == "position")
        if late or graph.values[name].dtype not in ("f32", "i32"):
            return f"the kernel {kernel.owner} takes f32 and i32 values of the graph, not {name!r}"
    return ""


def refusal_with(given: GivenKernels, refusal: Refusal) -> Refusal:
    """Return a refusal that asks a package's kernel first, where one is given for the operator."""

    def refused(node: Node, graph: Graph, program: Program) -> str:
        kernel = given.get(type(node.op))
        if kernel is None:
            return refusal(node, graph, program)
        return package_refusal(node, graph, kernel)

    return refused


def check_package_kernel(kernel: Kernel, kind: type, backend: str) -> None:
    """Refuse a package's kernel of another kind, or one for an operator that takes none.

    Raises
    ------
    BackendError : which it is.
    """
    if not isinstance(kernel.function, kind):
        name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        what = f"the function of {kernel.owner} is {shown(kernel.function)}"
        raise BackendError(what, hint=f"The backend {backend} takes a {name}.")
    if issubclass(kernel.op, (*MATRICES, ops.Reshape)):
        what = f"{kernel.owner} is for {kernel.op.__name__}, which takes no kernel on {backend}"
        raise BackendError(what, hint="Matrices are packed for the backend's own kernels.")


def supported_within(node: Node, graph: Graph, program: Program, refusal: Refusal) -> Support:
    """Support a primitive that is not refused, or a layer of such."""
    within = primitives_within(node, graph, program)
    reason = next(filter(None, (refusal(part, within, program) for part in within.nodes)), "")
    return Declined(reason) if reason else Supported()


def check_extra(backend: str, options: CompileOptions, known: Sequence[str]) -> None:
    """Refuse options in `extra` that a backend does not know."""
    unknown = sorted(set(options.extra) - set(known))
    if unknown:
        what, hint = f"the {backend} backend has no options {unknown}", ", ".join(known)
        raise BackendError(what, hint=f"its options are {hint}")


def device_named(backend: str, options: CompileOptions, devices: Sequence[Device]) -> str:
    """Return the name of the device that is asked for, or of the first."""
    names = [device.name for device in devices]
    device = options.device or names[0]
    if device not in names:
        raise BackendError(f"{backend} has no device {device!r}", hint=f"There are {names}")
    return device
