"""Coverage: operators computed, by kernel owner, input types and layouts of weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cortiq_conformance.subject import Covered

Table = dict[str, dict[str, list[str]]]
"""By operator and type of its first input, the layouts of weights."""


def merged_table(covered: Iterable[Covered]) -> Table:
    """Return everything that was computed, by any owner."""
    table: Table = {}
    for op, dtype, layout in sorted({entry[:3] for entry in covered}):
        layouts = table.setdefault(op, {}).setdefault(dtype, [])
        layouts += [layout] if layout else []
    return table


def by_owner(covered: Iterable[Covered]) -> dict[str, Table]:
    """Return the operators computed by each owner that `placement` names."""
    entries = list(covered)
    owners = sorted({entry[3] for entry in entries})
    return {owner: merged_table(e for e in entries if e[3] == owner) for owner in owners}


def computed_by_others(backend: str, covered: Iterable[Covered]) -> dict[str, Table]:
    """Return what others computed, and no kernel of the backend did, by the others' names.

    Kernels that were given to the backend are its own here (`BACKEND/KERNEL`).
    """
    entries = list(covered)
    own = {entry[:3] for entry in entries if _is_own(backend, entry[3])}
    return by_owner(e for e in entries if e[:3] not in own)


def _is_own(backend: str, owner: str) -> bool:
    return any(part.partition("/")[0] == backend for part in owner.split("+"))


def table_lines(table: Table) -> list[str]:
    """Return a table as texts, one for each operator: `MatMul: f32 × f32; q16 × w8`."""
    found = []
    for op, kinds in table.items():
        parts = [" × ".join(filter(None, (k, ", ".join(layouts)))) for k, layouts in kinds.items()]
        found.append(f"{op}: {'; '.join(parts)}")
    return found


def summarise(table: Table, whole: Mapping[str, Mapping[str, list[str]]]) -> str:
    """Return a table's operators in one line, with types where not all of `whole` are covered."""
    texts = table_lines({op: kinds for op, kinds in table.items() if kinds != whole[op]})
    partly = {text.partition(":")[0]: text.partition(": ")[2] for text in texts}
    return ", ".join(f"{op} ({partly[op]})" if op in partly else op for op in table)
