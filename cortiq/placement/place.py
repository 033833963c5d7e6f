"""Compile a program on one backend, on several devices, and on the fallback where they decline.

Declines and layer splits are one mechanism: every node is assigned to a backend
(`placement.assignment`), the program is cut accordingly (`placement.partition`), and the parts are
chained (`placement.chain_executable`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cortiq.backend import Backend, CompileOptions, Executable
from cortiq.backend.compiling import CheckedWeights, compile_checked
from cortiq.backend.error_attribution import attributed_to
from cortiq.errors import GraphError
from cortiq.ir import Program, verify
from cortiq.numerics.layouts import Weight
from cortiq.placement.assignment import PartTarget, PlacementSolver, declined_error
from cortiq.placement.chain_executable import ChainExecutable
from cortiq.placement.partition import partition


def place(
    backend: Backend,
    program: Program,
    weights: Mapping[str, Weight],
    options: CompileOptions | None = None,
    *,
    strict: bool = False,
    fallback: Backend | None = None,
) -> Executable:
    """Compile a program on a backend, and on the fallback what the backend declines.

    Parameters
    ----------
    strict : make a decline an error instead.
    fallback : computes declined nodes; `None` for the reference, found through the plugins.

    Raises
    ------
    DeclinedError : `strict`, and nodes were declined (all are listed with their reasons); or the
        fallback declined one too.
    """
    assignments = [(backend, options or CompileOptions())]
    return place_split(assignments, program, weights, [], strict=strict, fallback=fallback)


def place_split(
    assignments: Sequence[PartTarget],
    program: Program,
    weights: Mapping[str, Weight],
    cuts: Sequence[int | str],
    *,
    strict: bool = False,
    fallback: Backend | None = None,
) -> Executable:
    """Compile a program on several backends or devices, a stretch of the trunk on each.

    Parameters
    ----------
    assignments : backend and options of each stretch.
    cuts : where each stretch but the first begins, ascending: index of a node of the trunk, or
        the name of a node or layer (`layers.7` for its first node). Other entry graphs go to the
        last stretch.
    strict, fallback : as for `place`, whose errors it raises.

    Raises
    ------
    GraphError : the program breaks a rule of the IR, a weight is not of its form, a cut is not a
        node of the trunk, or the cuts do not ascend.
    FormatError : a weight holds what no weight can.
    """
    verify(program)
    checked = CheckedWeights(program, weights)
    homes = _homes(program, cuts, len(assignments))
    placing = PlacementSolver(program, list(assignments), homes)
    placing.settle()
    if placing.declined and strict:
        names = ", ".join(dict.fromkeys(backend.name for backend, _ in assignments))
        raise declined_error(f"{names} declines nodes of this model", placing.declined)
    if placing.declined:
        placing.take_fallback(fallback)
    if len(placing.parts) == 1:
        (part,) = placing.parts
        with attributed_to(part[0].name):
            return compile_checked(part[0], placing.placed, checked, part[1])
    return _compile_chain(placing, checked)


def declined_nodes(executable: Executable) -> Mapping[str, str]:
    """Return the nodes that a backend declined and the fallback computes, each with the reason."""
    return executable.declined if isinstance(executable, ChainExecutable) else {}


def _homes(program: Program, cuts: Sequence[int | str], parts: int) -> dict[tuple[str, str], int]:
    """Return the home part of each node, by (graph, node)."""
    if len(cuts) != parts - 1:
        raise GraphError(f"{parts} parts need {parts - 1} cuts, got {len(cuts)}")
    names = [node.name for node in program.trunk.nodes]
    starts = [_index_of(cut, names) for cut in cuts]
    if sorted(set(starts)) != starts:
        raise GraphError(f"the cuts {list(cuts)} do not ascend")
    homes = {}
    for graph in program.graphs.values():
        for index, node in enumerate(graph.nodes):
            part = sum(start <= index for start in starts)
            homes[graph.name, node.name] = part if graph.name == "trunk" else parts - 1
    return homes


def _index_of(cut: int | str, names: Sequence[str]) -> int:
    if isinstance(cut, int):
        found = [cut] if 0 < cut < len(names) else []
    else:
        found = [i for i, n in enumerate(names) if n == cut or n.startswith(f"{cut}.")]
    if not found or found[0] == 0:
        raise GraphError(f"the trunk cannot be cut before {cut!r}; it has {len(names)} nodes")
    return found[0]


def _compile_chain(placing: PlacementSolver, weights: CheckedWeights) -> Executable:
    part_of = placing.drop_idle_parts()
    cut = partition(placing.placed, part_of, len(placing.parts))
    executables: list[Executable] = []
    try:
        for index, (backend, options) in enumerate(placing.parts):
            program = cut.programs[index]
            share = _share_of_memory(placing.placed, program, options)
            with attributed_to(backend.name):
                executables.append(compile_checked(backend, program, weights, share))
    except BaseException:
        for executable in executables:
            executable.close()
        raise
    names = [backend.name for backend, _ in placing.parts]
    return ChainExecutable(cut, executables, names, placing.declined)


def _share_of_memory(whole: Program, part: Program, options: CompileOptions) -> CompileOptions:
    """Give a part the share of the memory limit that its slots take of a whole sequence.

    A part whose slots do not grow keeps the limit: what they take is small and soon known.
    """
    growing = any(slot.bytes_per_row() for slot in part.slots.values())
    if options.memory_limit is None or not growing:
        return options
    total, mine = (
        sum(s.bytes_per_row() * whole.context + s.constant_bytes() for s in p.slots.values())
        for p in (whole, part)
    )
    return replace(options, memory_limit=options.memory_limit * mine // total)
